package retrip

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"time"
)

// An Option changes one setting of a [Transport].
//
// Options are given to [New], for every request of that Transport, or to
// [Override], for the requests of one context. Of an option that is given twice
// the last one wins; only hooks add up. Options hold no state and may be used
// again, concurrently.
type Option interface{ apply(c *config) error }

// optionFunc is the form of every Option.
type optionFunc func(c *config) error

func (f optionFunc) apply(c *config) error { return f(c) }

// An OptionError tells that an option was given a value it does not take.
//
// [New] returns it. Where the option came by [Override], RoundTrip returns it:
// nothing was sent then, and the request's body is closed.
type OptionError struct {
	Option  string // the name of the option or of what made its value, as in "WithMaxAttempts", "FullJitter"
	Problem string // what was given and what is allowed; never a key's text
}

func (e *OptionError) Error() string { return "retrip: " + e.Option + ": " + e.Problem }

func bad(option, format string, args ...any) error {
	return &OptionError{Option: option, Problem: fmt.Sprintf(format, args...)}
}

// config is what the options set. It never changes once New or an operation's
// begin has filled it.
type config struct {
	maxAttempts    int
	totalTimeout   time.Duration
	attemptTimeout time.Duration
	minAttemptTime time.Duration
	backoff        Backoff
	maxRetryAfter  time.Duration

	retryStatus statusSet
	retryIf     func(Attempt) Verdict
	waitHint    func(*http.Response) (time.Duration, bool)

	word        word
	keyHeader   string // canonical
	key         string
	mintsKeys   bool
	mint        func() string
	unprocessed statusSet
	stateCheck  StateCheck
	bodyBuffer  int64

	budget    *Budget
	ownBudget bool // the Transport's own; budget is nil then
	gate      Gate
	pauses    bool

	hooks   []func(context.Context, Event)
	logger  *slog.Logger
	headers AttemptHeaders

	override bool    // filled by Override: what New refuses is allowed
	under    *config // the settings that Override changed

	// What follows from the settings, found once and not for every request.
	stamps   bool // headers names any
	keys     bool // requests may get a key
	observed bool // somebody looks at attempts, so that they must be traced and timed
	plain    bool // no setting asks for more than the caller's request
	direct   bool // nor for more than a safe one without a body
}

// word is the caller's word on whether a request may be repeated.
type word int8

const (
	wordNone word = iota
	wordYes
	wordNo
)

var defaults = derived(config{
	maxAttempts:   3,
	backoff:       FullJitter(100*time.Millisecond, 2*time.Second),
	maxRetryAfter: 60 * time.Second,
	// 500 is not among them on purpose: the same request can meet the same bug.
	retryStatus: statuses(http.StatusTooManyRequests, http.StatusBadGateway,
		http.StatusServiceUnavailable, http.StatusGatewayTimeout),
	keyHeader: "Idempotency-Key",
	ownBudget: true,
})

func derived(c config) config {
	c.derive()
	return c
}

// with gives the settings that opts make of c; c stays as it is.
func (c *config) with(override bool, opts ...Option) (*config, error) {
	changed := *c
	changed.override, changed.under = override, c
	// A hook added for one request must not land in the array of another.
	changed.hooks = slices.Clip(c.hooks)
	for _, o := range opts {
		if o == nil {
			return nil, bad("Option", "is nil; leave it out")
		}
		if err := o.apply(&changed); err != nil {
			return nil, err
		}
	}
	changed.derive()
	return &changed, changed.check()
}

// derive fills what follows from the other settings.
func (c *config) derive() {
	c.stamps = c.headers != (AttemptHeaders{})
	c.keys = c.key != "" || c.mintsKeys
	c.observed = len(c.hooks) > 0 || c.logger != nil || c.gate != nil || c.retryIf != nil
	c.plain = !c.stamps && !c.observed && !c.pauses &&
		c.totalTimeout == 0 && c.minAttemptTime == 0
	c.direct = c.plain && c.attemptTimeout == 0 && c.word != wordNo
}

// check refuses what options say together.
func (c *config) check() error {
	for _, name := range []string{c.headers.Attempt, c.headers.OperationID, c.headers.RequestID, c.headers.RemainingMS} {
		if name != "" && (name == c.keyHeader || name == "Idempotency-Key" || name == "X-Idempotency-Key") {
			return bad("WithAttemptHeaders", "%s carries idempotency keys, which are the same on every attempt; allowed are other names", name)
		}
	}
	return nil
}

// A statusSet holds status codes from 100 to 599.
type statusSet [8]uint64

func statuses(codes ...int) (s statusSet) {
	for _, code := range codes {
		s[(code-100)/64] |= 1 << ((code - 100) % 64)
	}
	return s
}

func (s *statusSet) has(code int) bool {
	return code >= 100 && code <= 599 && s[(code-100)/64]&(1<<((code-100)%64)) != 0
}

// checkStatuses is shared by the options that take status codes.
func checkStatuses(option string, codes []int) error {
	for _, code := range codes {
		if code < 100 || code > 599 {
			return bad(option, "%d is no status code; allowed are 100 to 599", code)
		}
	}
	return nil
}

// checkDuration is shared by the options that take a limit or a wait.
func checkDuration(option string, d time.Duration) error {
	if d < 0 {
		return bad(option, "%v is negative; allowed are 0 and more", d)
	}
	return nil
}

// WithMaxAttempts limits an operation to n attempts, the first one included.
// The default is 3; 1 never repeats; less is an [OptionError].
func WithMaxAttempts(n int) Option {
	return optionFunc(func(c *config) error {
		if n < 1 {
			return bad("WithMaxAttempts", "%d attempts; allowed are 1 and more (1 never repeats)", n)
		}
		c.maxAttempts = n
		return nil
	})
}

// WithTotalTimeout limits the whole operation, all attempts and waits up to the
// headers of the response that comes back. It never cuts a body being read.
//
// The default, 0, leaves the limit to the caller's context alone; of both the
// earlier one counts. A negative d is an [OptionError]. An operation that it ends
// returns an [*Error] whose Timeout method is true.
func WithTotalTimeout(d time.Duration) Option {
	return optionFunc(func(c *config) error {
		c.totalTimeout = d
		return checkDuration("WithTotalTimeout", d)
	})
}

// WithAttemptTimeout limits each attempt up to the headers of its response. It
// never cuts a body being read.
//
// The default is 0, no limit. A negative d is an [OptionError]. An attempt that it
// ends has class [ClassTimeout]; whether it is repeated is decided as for every
// other outcome.
func WithAttemptTimeout(d time.Duration) Option {
	return optionFunc(func(c *config) error {
		c.attemptTimeout = d
		return checkDuration("WithAttemptTimeout", d)
	})
}

// WithMinAttemptTime keeps an attempt from being begun with less than d left
// until the operation's deadline, the first attempt included. It is judged while the
// answer can still be returned, before the wait: a hook that blocks afterwards, or a
// timer that is late, takes from d. The default is 0. A negative d is an [OptionError].
func WithMinAttemptTime(d time.Duration) Option {
	return optionFunc(func(c *config) error {
		c.minAttemptTime = d
		return checkDuration("WithMinAttemptTime", d)
	})
}

// WithBackoff sets the delays between attempts. The default is
// FullJitter(100*time.Millisecond, 2*time.Second). A nil b is an [OptionError].
func WithBackoff(b Backoff) Option {
	return optionFunc(func(c *config) error {
		if f, ok := b.(BackoffFunc); b == nil || ok && f == nil {
			return bad("WithBackoff", "is nil; allowed is any Backoff, as FullJitter, EqualJitter, Constant")
		}
		if own, ok := b.(jitter); ok && own.problem != "" {
			return &OptionError{Option: own.name, Problem: own.problem}
		}
		c.backoff = b
		return nil
	})
}

// WithMaxRetryAfter limits how long a server may ask to wait. The default is 60 s.
// A longer request ends the operation at once with that response, so that the
// caller can schedule; nothing makes retrip come back earlier than asked. With 0
// every request to wait does so. A negative d is an [OptionError].
func WithMaxRetryAfter(d time.Duration) Option {
	return optionFunc(func(c *config) error {
		c.maxRetryAfter = d
		return checkDuration("WithMaxRetryAfter", d)
	})
}
