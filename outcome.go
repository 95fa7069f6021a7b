package retrip

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/retrip/retrip/internal/retryafter"
	"github.com/retrip/retrip/internal/wire"
)

// outcome is what is known of the last attempt.
type outcome struct {
	Attempt

	traced    *traced
	discarded bool     // its response was given up for a repeat
	byRetrip  bool     // its error is of retrip's making
	outOfTime bool     // WithTotalTimeout ended it
	end       Decision // how the operation was ended in it, if it was
	reject    bool     // refused by net/http before a connection was looked for
	failed    bool     // the request's own body failed
	permanent bool
	transient bool
	policy    bool
	stopped   bool
	state     State
	hint      time.Duration // how long the server asks to wait
	extra     error         // a failed GetBody, gate or state check
	note      string        // our words on what ended it
}

// judge finds out what the attempt's outcome is and proves.
func (op *operation) judge(a *outcome, m *made) {
	tr, resp, err := m.traced, m.resp, m.err
	a.traced = tr
	timedOut := m.timedOut()
	late := resp != nil && timedOut
	switch {
	case resp != nil && err != nil:
		closeResponse(resp)
		err, a.byRetrip = &baseError{errTwoAnswers, err}, true
	case late:
		// The headers came as the time ended, and the body was cut with it. Hooks can lag
		// behind an answer, so that they prove nothing about this one.
		closeResponse(resp)
		err = context.Canceled
	case resp != nil:
		op.answered(a, tr, resp)
		return
	case err == nil:
		err, a.byRetrip = errNoAnswer, true
	}

	var facts wire.Facts
	var cut bool
	if tr != nil {
		tr.mu.Lock()
		facts, a.ConnReused, cut = tr.seen, tr.reused, tr.cut
		tr.mu.Unlock()
		a.Sends = int(facts.GotConn)
	}
	facts.Std = !op.t.foreign
	facts.Distrusted = op.t.distrusted.Load()
	facts.LocalReject = !a.byRetrip && wire.LocalReject(op.req, err)
	facts.Ended = gone(op.ctx, op.req)
	var bodyErr error
	if tr != nil {
		facts.Ended = facts.Ended || timedOut || tr.Err() != nil
		bodyErr = tr.failure()
		tr.release()
	}
	a.reject = facts.LocalReject
	a.end = op.ended(!op.deadline.IsZero())
	a.Delivery = DeliveryUnknown
	if !late && !a.byRetrip {
		a.Delivery = Delivery(wire.Delivery(facts, err))
	}
	a.Err = err
	switch {
	case a.end != "":
		a.Class = classOf(a.end)
		if a.end == DecisionDeadlineExceeded && op.totalFirst && op.ctx.Err() == nil {
			a.byRetrip, a.outOfTime = true, true
			a.Err = ended("WithTotalTimeout("+op.cfg.totalTimeout.String()+") ended the attempt", true, err)
		}
	case op.body.wrong && facts.GotConn > 0, wire.BodyLength(facts, err):
		a.Class, a.failed, a.permanent = ClassBody, true, true
	case bodyErr != nil:
		a.Class, a.failed, a.permanent = ClassBody, true, true
		if !errors.Is(err, bodyErr) {
			a.extra, a.note = bodyErr, "the request's body failed"
		}
	case cut:
		a.Class, a.byRetrip = ClassProtocol, true
		a.Err = ended("the base was stopped from sending the request again where that is not proven safe", false, nil)
	case timedOut:
		a.Class, a.byRetrip = ClassTimeout, true
		a.Err = ended("WithAttemptTimeout("+op.cfg.attemptTimeout.String()+") ended the attempt", true, err)
	default:
		class := wire.Class(facts, err, op.req.URL != nil && op.req.URL.Scheme == "https")
		a.Class = Class(class)
		a.permanent = a.byRetrip || wire.Permanent(facts, class, err)
	}
}

// answered notes a response.
func (op *operation) answered(a *outcome, tr *traced, resp *http.Response) {
	a.Response, a.Delivery = resp, DeliveryAnswered
	op.receive(tr, resp)
	if tr != nil {
		tr.mu.Lock()
		a.Sends, a.ConnReused = int(tr.seen.GotConn), tr.reused
		tr.mu.Unlock()
		// A short body that an answer came to anyhow must not be sent again.
		a.failed = tr.failure() != nil
	}
}

// gateError is what the gate is told of the attempt.
func (a *outcome) gateError() error {
	if status := a.StatusCode(); status >= http.StatusInternalServerError {
		return statusError(status)
	}
	return a.Err
}

// weigh finds out whether the outcome is worth repeating.
func (op *operation) weigh(a *outcome) {
	status := a.StatusCode()
	inSet := a.Response != nil && op.cfg.retryStatus.has(status) && status != http.StatusSwitchingProtocols
	a.transient = inSet || a.Err != nil && !a.permanent
	if a.Response != nil && (inSet || op.cfg.retryIf != nil) {
		a.end = op.ended(!op.deadline.IsZero())
	}
	if op.cfg.retryIf != nil && !a.reject && !a.failed && a.end == "" && status != http.StatusSwitchingProtocols {
		peek(a.Response, func() {
			switch op.cfg.retryIf(a.Attempt) {
			case VerdictRetry:
				a.policy = !a.transient
				a.transient = true
			case VerdictStop:
				a.stopped = a.transient
			case VerdictDefault:
			}
		})
	}
	if a.Response != nil && (inSet || a.transient) {
		a.hint = op.hint(a.Response)
		if inSet && a.hint > 0 && op.cfg.pauses && op.origin != nil {
			op.origin.hold(a.hint, op.cfg.maxRetryAfter, time.Now())
		}
	}
}

// hint is how long the server asks to wait; 0: it does not.
func (op *operation) hint(resp *http.Response) time.Duration {
	hint, _ := retryafter.Parse(resp.Header["Retry-After"], resp.Header["Date"], time.Now())
	if op.cfg.waitHint != nil {
		peek(resp, func() {
			if d, ok := op.cfg.waitHint(resp); ok {
				hint = max(hint, d)
			}
		})
	}
	return hint
}

var (
	errNoAnswer   = errors.New("retrip: the base returned neither a response nor an error")
	errTwoAnswers = errors.New("retrip: the base returned both a response and an error")
	errPanic      = errors.New("retrip: the operation was left by a panic")
)

// A baseError tells what the base did against its contract, and keeps its error.
type baseError struct {
	problem, err error
}

func (e *baseError) Error() string   { return e.problem.Error() }
func (e *baseError) Unwrap() []error { return []error{e.problem, e.err} }
