package retrip

import (
	"context"
	"sync/atomic"
)

// settingsKey is the context key of what Override, Record and nesting leave.
type settingsKey struct{}

// carried is what a context carries for the operations below it.
type carried struct {
	opts     []Option
	recorder *Recorder
	attempt  int  // the number of the attempt that this context belongs to
	marked   bool // an outer Transport repeats: inner ones do not

	settled atomic.Pointer[config] // what opts made of the settings of the last Transport
}

// settings gives what the options make of c. They are applied once for all requests of a
// context.
func (c *carried) settings(of *config) (*config, error) {
	if len(c.opts) == 0 {
		return of, nil
	}
	if cfg := c.settled.Load(); cfg != nil && cfg.under == of {
		return cfg, nil
	}
	cfg, err := of.with(true, c.opts...)
	if err != nil {
		return nil, err
	}
	c.settled.Store(cfg)
	return cfg, nil
}

// carrier is a context that carries; it is one allocation, with its options.
type carrier struct {
	context.Context
	carried

	few [2]Option
}

func (c *carrier) Value(key any) any {
	if key == any(settingsKey{}) {
		return &c.carried
	}
	return c.Context.Value(key)
}

// carry returns a context that carries what ctx does.
func carry(ctx context.Context) *carrier {
	c := &carrier{Context: ctx}
	if outer := carriedBy(ctx); outer != nil {
		c.opts, c.recorder, c.attempt, c.marked = outer.opts, outer.recorder, outer.attempt, outer.marked
	}
	return c
}

func carriedBy(ctx context.Context) *carried {
	c, _ := ctx.Value(settingsKey{}).(*carried)
	return c
}

// Override returns a context whose requests are sent with opts on top of their
// Transport's own settings and of what ctx carries already: contexts stack, the
// innermost value of an option counts, hooks add up. Every option may be given.
//
// A bad option is reported by RoundTrip as an [*OptionError], with nothing sent.
// Requests of a nested Transport (see [Transport.Unwrap]) do not see it: the outer
// one decides. Without options ctx comes back as it is.
func Override(ctx context.Context, opts ...Option) context.Context {
	if len(opts) == 0 {
		return ctx
	}
	c := carry(ctx)
	// A context's own options mostly fit the array; those of outer contexts stay theirs.
	c.opts = append(append(c.few[:0], c.opts...), opts...)
	return c
}

// AttemptNumber returns the number of the attempt that ctx belongs to, counted
// from 1, for round trippers below a [Transport] and hooks of net/http/httptrace.
// It is 0 where ctx carries none: outside of an attempt, and in most first
// attempts, whose request goes down as the caller made it.
func AttemptNumber(ctx context.Context) int {
	if c := carriedBy(ctx); c != nil {
		return c.attempt
	}
	return 0
}
