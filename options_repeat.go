package retrip

import (
	"context"
	"net/http"
	"net/textproto"
	"time"
)

// A Verdict is what a [WithRetryIf] function says of an attempt.
type Verdict int

// The verdicts.
const (
	VerdictDefault Verdict = iota // as without the function
	VerdictRetry                  // worth repeating, whatever the outcome
	VerdictStop                   // not worth repeating
)

// WithRetryStatus sets the status codes that are worth repeating, in place of the
// default 429, 502, 503, 504. Without codes none is. A code outside 100–599 is an
// [OptionError]. Whether a request is safe to repeat is another question.
func WithRetryStatus(codes ...int) Option {
	set := append([]int(nil), codes...)
	return optionFunc(func(c *config) error {
		if err := checkStatuses("WithRetryStatus", set); err != nil {
			return err
		}
		c.retryStatus = statuses(set...)
		return nil
	})
}

// WithRetryIf asks f once after each attempt whether it is worth repeating,
// successes included. It cannot make an unsafe repeat safe: [VerdictRetry] on a POST
// without a key still needs a [Permit]. nil, the default, asks nobody.
//
// f is not asked after a 101, after a request that net/http refused by itself, after
// a body that failed, and after the operation's end. It may read up to 4 KiB of
// Response.Body within 50 ms; whoever gets the response finds its body whole. f must
// not keep the response, and it is called concurrently.
//
// To wait for an operation with the same key that is still running:
//
//	retrip.WithRetryIf(func(a retrip.Attempt) retrip.Verdict {
//		if a.StatusCode() == http.StatusConflict && a.Response.Header.Get("Retry-After") != "" {
//			return retrip.VerdictRetry
//		}
//		return retrip.VerdictDefault
//	})
func WithRetryIf(f func(Attempt) Verdict) Option {
	return optionFunc(func(c *config) error {
		c.retryIf = f
		return nil
	})
}

// WithWaitHint adds f to what tells how long the server asks to wait, for vendor
// headers such as X-RateLimit-Reset. f is called for responses that are worth
// repeating; false, zero and negative waits count as none. Of f and Retry-After the
// longer one counts. nil, the default, asks nobody. f is called concurrently.
func WithWaitHint(f func(*http.Response) (time.Duration, bool)) Option {
	return optionFunc(func(c *config) error {
		c.waitHint = f
		return nil
	})
}

// WithIdempotent is the caller's word on whether a request may be repeated, above
// its method and its key: true permits it ([PermitDeclared]), false forbids it unless
// the request was provably not processed ([PermitNotSent], [PermitRefused]). Without
// it key and method decide.
func WithIdempotent(yes bool) Option {
	return optionFunc(func(c *config) error {
		c.word = wordNo
		if yes {
			c.word = wordYes
		}
		return nil
	})
}

// WithIdempotencyKey sends key with the requests of a context, each attempt with the
// same bytes, which permits a POST to be repeated. It is for [Override] only: [New]
// answers with an [OptionError], because a key names one operation.
//
// The key is sent where a request has no permit by its method and no key of its own,
// under the name that [WithIdempotencyHeader] sets, and not on a redirect's hop to
// another origin. An empty or invalid key is an [OptionError]. Keys are never logged.
func WithIdempotencyKey(key string) Option {
	return optionFunc(func(c *config) error {
		switch {
		case !c.override:
			return bad("WithIdempotencyKey", "a key names one operation; allowed in Override only")
		case !validKey(key):
			return bad("WithIdempotencyKey", "the key is empty or no header value; allowed is visible text")
		}
		c.key = key
		return nil
	})
}

// WithIdempotencyHeader sets the header that carries keys where an API uses another
// name than the default, Idempotency-Key. That name and X-Idempotency-Key are always
// understood too, because net/http replays requests that carry either. An empty or
// invalid name is an [OptionError].
func WithIdempotencyHeader(name string) Option {
	return optionFunc(func(c *config) error {
		if !validHeaderName(name) {
			return bad("WithIdempotencyHeader", "%q is no header name; allowed is a token of RFC 9110", name)
		}
		c.keyHeader = textproto.CanonicalMIMEHeaderKey(name)
		return nil
	})
}

// WithGeneratedKeys gives each POST and PATCH without a key one of its own, the same
// on every attempt of the operation. A redirect's hop is an operation of its own and
// gets another key. A key of the caller's is never replaced. Keys are never logged.
//
// gen makes the keys and is called concurrently; nil makes 128 random bits as text.
// A gen that returns an empty or invalid header value ends the operation with an
// [*OptionError], with nothing sent. Servers that know no keys ignore the header, and
// then a repeat is not safe: use this where the API documents keys.
func WithGeneratedKeys(gen func() string) Option {
	return optionFunc(func(c *config) error {
		c.mintsKeys, c.mint = true, gen
		if gen == nil {
			c.mint = randomKey
		}
		return nil
	})
}

// WithUnprocessedStatus names the status codes that this origin sends only where it
// did not process the request, so that any method may be repeated after them
// ([PermitUnprocessedStatus]). The default is none: a 503 can come from a proxy whose
// backend is at work. It does not make a code worth repeating; see [WithRetryStatus].
// Without codes the set is empty; a code outside 100–599 is an [OptionError].
func WithUnprocessedStatus(codes ...int) Option {
	set := append([]int(nil), codes...)
	return optionFunc(func(c *config) error {
		if err := checkStatuses("WithUnprocessedStatus", set); err != nil {
			return err
		}
		c.unprocessed = statuses(set...)
		return nil
	})
}

// WithStateCheck asks f what became of an attempt that has no permit and of which
// nothing is known, at most once per attempt and never for an answered one. nil, the
// default, asks nobody: such an operation ends with [ErrOutcomeUnknown].
func WithStateCheck(f StateCheck) Option {
	return optionFunc(func(c *config) error {
		c.stateCheck = f
		return nil
	})
}

// A State is what a [StateCheck] found.
type State int

// The states.
const (
	StateUnknown    State = iota // not to be told; the operation ends with ErrOutcomeUnknown
	StateApplied                 // the request was carried out; the response returned with it is the result
	StateNotApplied              // the request was not and will not be carried out; it may be sent again
)

// A StateCheck learns what became of an attempt, by asking the server or a database.
//
// ctx has the operation's deadline and the caller's values, but nothing of the
// operation's own: f can use the same client. req is the caller's request; its body
// may be gone. With [StateApplied] f returns the response to hand to the caller, whose
// Request is set to req; without one the state counts as unknown. An error makes any
// state unknown and is joined to the operation's error. It is called concurrently.
type StateCheck func(ctx context.Context, req *http.Request, a Attempt) (State, *http.Response, error)

// WithBodyBuffer holds request bodies of at most maxBytes that can be read only once,
// so that they can be sent again. A longer body streams on unheld, and is not
// repeatable once more than that was read. Bodies with GetBody and regular files need
// no buffer. The default is 0, no buffer; a negative number is an [OptionError].
func WithBodyBuffer(maxBytes int64) Option {
	return optionFunc(func(c *config) error {
		if maxBytes < 0 {
			return bad("WithBodyBuffer", "%d bytes; allowed are 0 (no buffer) and more", maxBytes)
		}
		c.bodyBuffer = maxBytes
		return nil
	})
}
