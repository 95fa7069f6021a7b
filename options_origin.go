package retrip

import (
	"context"
	"log/slog"
	"net/textproto"
)

// WithBudget limits repeats by b. The default is a NewBudget(0.1, 1, 10) of the
// Transport's own; nil is no limit. One Budget may serve several Transports. A Budget
// made with bad values is an [OptionError].
func WithBudget(b *Budget) Option {
	return optionFunc(func(c *config) error {
		if b != nil && b.problem != "" {
			return &OptionError{Option: "NewBudget", Problem: b.problem}
		}
		c.budget, c.ownBudget = b, false
		return nil
	})
}

// WithGate asks g before every attempt, the first one included. nil, the default, is
// no gate. Gates do not add up: compose them in one function.
func WithGate(g Gate) Option {
	return optionFunc(func(c *config) error {
		c.gate = g
		return nil
	})
}

// WithOriginPause makes a Retry-After hold back every operation of the Transport to
// that origin, first attempts too, until then. Those that wait are spread when it
// ends. An operation whose deadline comes first, or that meets a pause longer than
// [WithMaxRetryAfter], ends at once with an [*Error] that names the pause. The default
// is off: a hint then concerns the operation that met it.
func WithOriginPause(on bool) Option {
	return optionFunc(func(c *config) error {
		c.pauses = on
		return nil
	})
}

// WithHook calls h with the [Event] of each attempt, after it, in order, on the
// goroutine of the request, with no lock held. ctx is the caller's. Hooks add up and
// are called in the order given, those of [New] first. A nil h is an [OptionError].
// A hook that blocks holds its request up. It is called concurrently.
func WithHook(h func(ctx context.Context, e Event)) Option {
	return optionFunc(func(c *config) error {
		if h == nil {
			return bad("WithHook", "is nil; allowed is a function")
		}
		c.hooks = append(c.hooks, h)
		return nil
	})
}

// WithLogger writes one record for each [Event] to l: a retry at Info, a return with a
// success or with what no repeat mends at Debug, everything else at Warn. nil, the
// default, writes nothing. Records hold no query, userinfo, header, key or body, and no
// source.
func WithLogger(l *slog.Logger) Option {
	return optionFunc(func(c *config) error {
		c.logger = l
		return nil
	})
}

// AttemptHeaders names the headers that [WithAttemptHeaders] stamps on each attempt.
// An empty name is not sent; the zero value stamps nothing.
type AttemptHeaders struct {
	Attempt     string // the attempt's number, counted from 1
	OperationID string // Event.OperationID, the same on every attempt
	RequestID   string // Event.RequestID, another on every attempt
	RemainingMS string // milliseconds left until the operation's deadline; not sent without one
}

// WithAttemptHeaders stamps each attempt with the headers named in h, over a header of
// the caller's with the same name. The caller's request is not written to. The default
// is none. An invalid name is an [OptionError].
func WithAttemptHeaders(h AttemptHeaders) Option {
	return optionFunc(func(c *config) error {
		set := h
		for _, name := range []*string{&set.Attempt, &set.OperationID, &set.RequestID, &set.RemainingMS} {
			if *name == "" {
				continue
			}
			if !validHeaderName(*name) {
				return bad("WithAttemptHeaders", "%q is no header name; allowed are RFC 9110 tokens, and \"\" to send none", *name)
			}
			*name = textproto.CanonicalMIMEHeaderKey(*name)
		}
		c.headers = set
		return nil
	})
}
