package retrip

import (
	"fmt"
	"time"

	"github.com/retrip/retrip/internal/backoff"
)

// A Backoff tells how long to wait between attempts.
//
// Delay returns the delay after attempt number attempt, counted from 1; a
// negative delay counts as 0. It must not keep state between calls, and it is
// called concurrently.
type Backoff interface {
	Delay(attempt int) time.Duration
}

// BackoffFunc makes a function a [Backoff]. A nil one is no Backoff.
type BackoffFunc func(attempt int) time.Duration

// Delay calls f.
func (f BackoffFunc) Delay(attempt int) time.Duration { return f(attempt) }

// jitter is the form of the three policies; a problem is reported where the
// policy is used as an option, since its constructors return no error.
type jitter struct {
	name          string
	base, ceiling time.Duration
	draw          func(time.Duration) time.Duration
	problem       string
}

func (j jitter) Delay(attempt int) time.Duration {
	return j.draw(backoff.Window(j.base, j.ceiling, attempt))
}

func newJitter(name string, base, ceiling time.Duration, draw func(time.Duration) time.Duration) Backoff {
	j := jitter{name: name, base: base, ceiling: ceiling, draw: draw}
	switch {
	case base < 0 || ceiling < 0:
		j.problem = fmt.Sprintf("%v to %v is negative; allowed are 0 and more", base, ceiling)
	case base > ceiling:
		j.problem = fmt.Sprintf("base %v is more than ceiling %v; allowed is a base up to the ceiling", base, ceiling)
	}
	return j
}

// FullJitter draws each delay uniformly from 0 to min(ceiling, base·2^(attempt-1)).
// It spreads clients that fail together best, which is why it is the default.
//
// Negative values and a base above the ceiling are an [OptionError] where the
// policy is used: from [New], or from RoundTrip under [Override].
func FullJitter(base, ceiling time.Duration) Backoff {
	return newJitter("FullJitter", base, ceiling, backoff.Full)
}

// EqualJitter draws each delay uniformly from the upper half of what [FullJitter]
// draws from: half is fixed, half random. Bad values are reported as there.
func EqualJitter(base, ceiling time.Duration) Backoff {
	return newJitter("EqualJitter", base, ceiling, backoff.Equal)
}

// Constant waits d each time. Clients that fail together come back together; it
// is for tests and for single clients. A negative d is reported as in [FullJitter].
func Constant(d time.Duration) Backoff {
	return newJitter("Constant", d, d, func(w time.Duration) time.Duration { return w })
}
