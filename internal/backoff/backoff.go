// Package backoff computes how long to wait before a request is sent again.
//
// Everything here is arithmetic on durations: no state, no clock, safe for
// concurrent use, and saturating where a sum or a power would overflow, because
// a wrapped duration is negative and a negative wait is none at all.
package backoff

import (
	"math"
	"math/rand/v2"
	"time"
)

const (
	spreadPart = 10 // the spread is this part of the hint …
	minSpread  = 50 * time.Millisecond
	maxSpread  = 5 * time.Second
)

// Window returns the longest delay after attempt number attempt, counted from
// 1: base doubled with every further attempt, and never more than ceiling.
// An attempt below 1 counts as 1, a base or ceiling of zero or less gives 0,
// and a base above the ceiling gives the ceiling.
func Window(base, ceiling time.Duration, attempt int) time.Duration {
	if base <= 0 || ceiling <= 0 {
		return 0
	}
	doublings := max(attempt, 1) - 1
	// The ceiling is halved instead of the base doubled: halving cannot
	// overflow, whatever the number of doublings.
	if base > ceiling>>doublings {
		return ceiling
	}
	return base << doublings
}

// Full returns a delay drawn uniformly from [0, window], both ends included.
// A window of zero or less gives 0.
func Full(window time.Duration) time.Duration {
	if window <= 0 {
		return 0
	}
	if window == math.MaxInt64 {
		// One more value than a signed bound can name: all 63 bits are drawn.
		return time.Duration(rand.Int64())
	}
	return rand.N(window + 1)
}

// Equal returns a delay of which half is fixed and half drawn: uniform in
// [window/2, window], both ends included. A window of zero or less gives 0.
func Equal(window time.Duration) time.Duration {
	if window <= 0 {
		return 0
	}
	fixed := window / 2
	return fixed + Full(window-fixed)
}

// Spread returns how far a wait that a server asked for is stretched at most:
// a tenth of hint, at least 50 ms and at most 5 s. Clients that were told the
// same second would come back together without it.
func Spread(hint time.Duration) time.Duration {
	return min(max(hint/spreadPart, minSpread), maxSpread)
}

// Add returns a + b, or the longest duration where the sum cannot be held.
// A negative summand counts as 0.
func Add(a, b time.Duration) time.Duration {
	sum := max(a, 0) + max(b, 0)
	if sum < 0 {
		return math.MaxInt64
	}
	return sum
}
