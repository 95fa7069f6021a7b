package retrip

import (
	"context"
	"errors"
	"io"
	"net/http"
	"time"

	"github.com/retrip/retrip/internal/budget"
)

// operation is the state of one RoundTrip call. It stays on the goroutine and the stack of
// its caller: nothing that outlives an attempt may point to it.
type operation struct {
	terms

	deadline   time.Time // of the operation; zero: none
	totalFirst bool      // it is WithTotalTimeout's
	timed      bool      // somebody looks at attempts
	id         string    // made when somebody sees it
	first      string    // that of the first request, which begins with id

	attempt        int // begun
	last           outcome
	ruling         ruling
	maybeApplied   bool
	earlierUnknown bool
	delay          time.Duration // before the next attempt
	due            time.Time     // when it may begin

	// What is held for the next attempt.
	reservation budget.Reservation
	gateDone    func(error)
	next        io.ReadCloser

	checked    *http.Response // a state check's
	checkTimer *time.Timer
	silent     bool // its end says nothing about the origin
	settled    bool
}

// begin finds what else holds for all attempts; first is one that was made already, if there
// is one.
func (op *operation) begin(first *made) {
	if first != nil { // finish closes it, should the caller's context panic
		op.last.Response, op.last.traced = first.resp, first.traced
	}
	if op.cfg.bodyBuffer > 0 {
		op.body.hold(op.cfg.bodyBuffer)
	}
	op.timed = op.recorder != nil || op.cfg.observed || op.cfg.stateCheck != nil && !op.permitted

	op.deadline, _ = op.ctx.Deadline()
	if total := op.cfg.totalTimeout; total > 0 {
		if end := time.Now().Add(total); op.deadline.IsZero() || end.Before(op.deadline) {
			op.deadline, op.totalFirst = end, true
		}
	}
}

// admit reports whether the first attempt may be made: the caller still waits, the origin
// is not paused, the gate is open.
func (op *operation) admit() bool {
	if end := op.tooLate(); end != "" {
		return op.refuseEnded(end)
	}
	if !op.outwait() {
		return false
	}
	if op.cfg.gate == nil {
		return true
	}
	if err := op.askGate(); err != nil {
		op.refuse(ruling{DecisionReturn, ReasonGateClosed, PermitNone}, ClassGate, err, "the gate refused")
		return false
	}
	if end := op.tooLate(); end != "" { // a gate may wait
		op.putBack(op.endError(end))
		return op.refuseEnded(end)
	}
	return true
}

// tooLate tells how the operation was ended, if it was, before an attempt; too little time
// for one counts.
func (op *operation) tooLate() Decision {
	end := op.ended(op.totalFirst)
	if end == "" && op.cfg.minAttemptTime > 0 && !op.fits(time.Now(), 0) {
		end = DecisionDeadlineExceeded
	}
	return end
}

func (op *operation) refuseEnded(end Decision) bool {
	op.refuse(ruling{end, Reason(end), PermitNone}, classOf(end), op.endError(end), "")
	return false
}

// outwait waits until the origin's pause is over, before the first attempt.
func (op *operation) outwait() bool {
	if op.origin == nil || !op.cfg.pauses {
		return true
	}
	for {
		now := time.Now()
		p := op.origin.paused(now)
		if p == nil {
			return true
		}
		left := p.until.Sub(now)
		if p.tooLong || !op.fits(now, left) {
			op.refuse(pauseRuling(p), ClassNone, &pauseError{left}, "")
			return false
		}
		op.due = now.Add(op.stretch(now, left, p.spread))
		if end := op.sleep(); end != "" {
			return op.refuseEnded(end)
		}
	}
}

// refuse ends an operation before its first attempt, with one event.
func (op *operation) refuse(r ruling, class Class, err error, note string) {
	op.ruling, op.silent = r, true
	op.last = outcome{Attempt: Attempt{Request: op.req, Err: err, Class: class, Delivery: DeliveryNotSent}, byRetrip: true, note: note}
	if class == ClassCanceled || class == ClassDeadline {
		op.last.end = r.Decision
	}
	op.report()
}

func classOf(end Decision) Class {
	if end == DecisionCancel {
		return ClassCanceled
	}
	return ClassDeadline
}

// ended tells how the operation was ended, if it was. The clock decides between deadline
// and cancel, whichever signal came first; it is looked at where somebody signals an end,
// or where there is reason to.
func (op *operation) ended(byClock bool) Decision {
	gone := gone(op.ctx, op.req)
	switch {
	case !gone && !byClock:
		return ""
	case !op.deadline.IsZero() && !time.Now().Before(op.deadline), errors.Is(op.ctx.Err(), context.DeadlineExceeded):
		return DecisionDeadlineExceeded
	case gone:
		return DecisionCancel
	default:
		return ""
	}
}

// endError is the error of an operation that ended outside of an attempt.
func (op *operation) endError(end Decision) error {
	switch {
	case op.ctx.Err() != nil:
		return op.ctx.Err()
	case end == DecisionCancel:
		return context.Canceled // req.Cancel, which has no error of its own
	case op.totalFirst:
		return &limitError{
			what: "WithTotalTimeout(" + op.cfg.totalTimeout.String() + ") ended the operation", timeout: true,
			cause: context.DeadlineExceeded,
		}
	default:
		return context.DeadlineExceeded
	}
}

// attemptLimit is the time that retrip itself gives the attempt; 0: no limit.
func (op *operation) attemptLimit() time.Duration {
	limit := op.cfg.attemptTimeout
	if op.totalFirst {
		// Not less than a tick, where the deadline passed since it was looked at.
		if left := max(time.Until(op.deadline), 1); limit == 0 || left < limit {
			limit = left
		}
	}
	return limit
}

// finish is the end on every path, a panic included: what is held is given back, and what
// nobody gets is closed.
func (op *operation) finish() {
	defer op.body.finish()
	if !op.settled {
		op.silent = true
		defer op.putBack(errPanic)
		defer closeResponse(op.checked)
		if !op.last.discarded {
			defer closeResponse(op.last.Response)
		}
		if op.last.traced != nil {
			op.last.traced.release() // the caller's context may panic again
		}
	}
	if !op.silent && (op.last.end == "" || op.last.outOfTime) {
		op.account.End((op.last.transient || op.last.outOfTime) && op.last.state != StateApplied)
	}
}
