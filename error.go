package retrip

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/retrip/retrip/internal/wire"
)

// ErrOutcomeUnknown is what an [*Error] is, by [errors.Is], where the request may have been
// carried out: its method is not safe, an attempt may have reached the server, and no
// state check settled it. An answered attempt does not count, not even where its answer was
// given up for a wait and the caller went away: its Delivery is answered. Find out what
// became of the request before you send it again, or send it with an idempotency key.
var ErrOutcomeUnknown = errors.New("retrip: the outcome is unknown")

// An Error ends an operation that took more than one attempt, or whose single attempt
// needs more said than its own error does. Other errors come back untouched, as the base
// returned them.
//
// Its text and what it unwraps to are two things: the text has no query, userinfo, header
// or body, while the errors below may quote what the server sent.
type Error struct {
	OperationID  string // as in the operation's events
	Attempts     int    // made; 0 where the operation ended before the first
	Decision     Decision
	Reason       Reason
	Delivery     Delivery // of the last attempt; not_sent where there was none
	MaybeApplied bool     // the request may have been carried out, see ErrOutcomeUnknown
	Err          error    // the last attempt's error, else what ended the operation

	class Class
	also  []error // the context's error and cause, a failed GetBody, gate or state check
	note  string  // our own words about also
}

// Error tells how the operation ended.
func (e *Error) Error() string {
	var text strings.Builder
	text.WriteString("retrip: ")
	if e.MaybeApplied {
		text.WriteString("the outcome is unknown: ")
	}
	text.WriteString(string(e.Decision))
	if string(e.Reason) != string(e.Decision) {
		fmt.Fprintf(&text, " (%s)", e.Reason)
	}
	fmt.Fprintf(&text, " after %d attempt", e.Attempts)
	if e.Attempts != 1 {
		text.WriteString("s")
	}
	if quoted := quote(e.class, e.Err); quoted != "" {
		text.WriteString(": " + quoted)
	} else if e.class == ClassBody {
		text.WriteString(": the request's body failed")
	} else if e.class != ClassNone {
		text.WriteString(": " + string(e.class))
	}
	if e.note != "" {
		text.WriteString(": " + e.note)
	}
	return text.String()
}

// Unwrap gives the last attempt's error first, then what else ended the operation.
func (e *Error) Unwrap() []error {
	errs := make([]error, 0, 1+len(e.also))
	if e.Err != nil {
		errs = append(errs, e.Err)
	}
	for _, also := range e.also {
		if also != nil {
			errs = append(errs, also)
		}
	}
	return errs
}

// Is reports whether e is target: [ErrOutcomeUnknown] where MaybeApplied is set, and
// [context.DeadlineExceeded] where the operation's deadline is, or would be, exceeded.
func (e *Error) Is(target error) bool {
	return target == ErrOutcomeUnknown && e.MaybeApplied ||
		target == context.DeadlineExceeded && e.Decision == DecisionDeadlineExceeded
}

// Timeout reports whether time ran out: the operation's, or the last attempt's. net/url
// asks for it.
func (e *Error) Timeout() bool {
	var t interface{ Timeout() bool }
	return e.Decision == DecisionDeadlineExceeded || errors.As(e.Err, &t) && t.Timeout()
}

// Temporary reports what the last attempt's error reports. net/url asks for it.
func (e *Error) Temporary() bool {
	var t interface{ Temporary() bool }
	return errors.As(e.Err, &t) && t.Temporary()
}

// result is what the caller gets.
func (op *operation) result() (*http.Response, error) {
	op.settled = true
	a := &op.last
	if op.checked != nil {
		return op.checked, nil
	}
	if a.Response != nil {
		return a.Response, nil
	}
	if op.untouched(a) {
		return nil, a.Err
	}
	e := &Error{
		OperationID: op.operationID(), Attempts: op.attempt,
		Decision: op.ruling.Decision, Reason: op.ruling.Reason,
		Delivery: a.Delivery, MaybeApplied: op.maybeApplied, Err: a.Err,
		class: a.Class, note: a.note, also: []error{a.extra},
	}
	if a.end != "" {
		if err := op.ctx.Err(); err != nil {
			e.also = append(e.also, err, context.Cause(op.ctx))
		}
	}
	return nil, e
}

// untouched reports whether the error goes up as the base made it: net/http looks at the
// types of some.
func (op *operation) untouched(a *outcome) bool {
	if op.attempt != 1 || op.maybeApplied || a.byRetrip || a.extra != nil {
		return false
	}
	d := op.ruling.Decision
	return d == DecisionReturn || d == DecisionAttemptsExhausted || a.end != ""
}

// quote returns what may be shown of an attempt's error: retrip's own words, the
// context's, and those of the network.
func quote(class Class, err error) string {
	if err == nil {
		return ""
	}
	for _, ours := range []error{errBodyLength, errNoReplay, errUnreplayable, errNoAnswer, errTwoAnswers, context.Canceled, context.DeadlineExceeded} {
		if err == ours { //nolint:errorlint // the very error: what wraps it may say more
			return strings.TrimPrefix(ours.Error(), "retrip: ")
		}
	}
	switch ours := err.(type) { //nolint:errorlint // as above
	case *Error: // of a Transport below
		return strings.TrimPrefix(ours.Error(), "retrip: ")
	case interface{ Unwrap() []error }:
		// The first of what was joined is the attempt's; the others are the caller's words.
		if errs := ours.Unwrap(); len(errs) > 0 {
			return quote(class, errs[0])
		}
		return ""
	case *limitError:
		return ours.what
	case *pauseError:
		return ours.Error()
	}
	return wire.Words(string(class), err)
}
