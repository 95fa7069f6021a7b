package retrip

import (
	"context"
	"errors"
	"time"

	"github.com/retrip/retrip/internal/backoff"
	"github.com/retrip/retrip/internal/budget"
)

// rule decides about the last attempt.
func (op *operation) rule() {
	a := &op.last
	op.weigh(a)
	if a.Response != nil && !a.transient {
		op.ruling = answered(a.Response.StatusCode) // nearly every request ends here
		return
	}
	s := situation{
		answered: a.Response != nil, status: a.StatusCode(),
		transient: a.transient, policy: a.policy, stopped: a.stopped,
		end: a.end, bodyFailed: a.failed, nested: op.nested,
		proof: op.outcomePermit(a), permit: op.requestPermit(),
		forbidden: op.cfg.word == wordNo, safe: op.safe, delivery: a.Delivery,
		replayable: op.body.replayable(), last: op.attempt >= op.cfg.maxAttempts,
		fits: true,
	}
	if op.upgrade {
		s.permit = PermitNone // it was sent, or the proof says otherwise
	}
	if op.ruling = decide(&s); op.ruling.Decision == DecisionCheckState && op.cfg.stateCheck != nil {
		op.checkState(a)
		s.checked = a.state
		op.ruling = decide(&s)
	}
	if a.Delivery == DeliveryUnknown && a.state == StateUnknown && !op.safe {
		op.maybeApplied = true
	}
	if op.ruling.Decision != DecisionRetry {
		op.blameBody(a)
		return
	}
	now := time.Now()
	op.delay = op.plan(a, now, &s)
	if op.ruling = decide(&s); op.ruling.Decision != DecisionRetry {
		return
	}
	op.secure(a, now, &s)
	op.due = now.Add(op.delay)
	op.ruling = decide(&s)
	op.blameBody(a)
}

// blameBody makes the body the cause where it is what stops the repeat of an answer.
func (op *operation) blameBody(a *outcome) {
	if op.ruling.Reason != ReasonBodyFailed {
		return
	}
	a.Class = ClassBody
	if a.Response != nil && a.extra == nil {
		a.extra = a.traced.failure()
	}
}

// plan finds the delay before the next attempt, and whether it is allowed and fits.
func (op *operation) plan(a *outcome, now time.Time, s *situation) time.Duration {
	delay, spread := max(0, op.cfg.backoff.Delay(op.attempt)), time.Duration(0)
	if a.hint > 0 {
		delay, spread = max(delay, a.hint), backoff.Spread(a.hint)
		s.tooLong = a.hint > op.cfg.maxRetryAfter
	}
	if op.cfg.pauses && op.origin != nil {
		if p := op.origin.paused(now); p != nil {
			delay, spread = max(delay, p.until.Sub(now)), max(spread, p.spread)
			s.tooLong = s.tooLong || p.tooLong
		}
	}
	s.fits = op.fits(now, delay)
	return op.stretch(now, delay, spread)
}

// fits reports whether a wait and an attempt fit the operation's deadline.
func (op *operation) fits(now time.Time, delay time.Duration) bool {
	return op.deadline.IsZero() || backoff.Add(delay, op.cfg.minAttemptTime) < op.deadline.Sub(now)
}

// stretch adds upward jitter to a wait, so that clients told the same second do not return
// together; never past the deadline, and never earlier than asked.
func (op *operation) stretch(now time.Time, delay, spread time.Duration) time.Duration {
	if spread > 0 && !op.deadline.IsZero() {
		spread = min(spread, op.deadline.Sub(now)-backoff.Add(delay, op.cfg.minAttemptTime)-1)
	}
	return backoff.Add(delay, backoff.Full(spread))
}

// secure takes what the next attempt needs, before anything is given up for it: a token, the
// gate's word, a body.
func (op *operation) secure(a *outcome, now time.Time, s *situation) {
	if op.account != nil {
		cost := 1
		if a.Class == ClassTimeout {
			cost = 2 // it held the origin for the whole time
		}
		reservation, ok := op.account.Reserve(uptime(), cost)
		if !ok {
			s.budgetEmpty = true
			return
		}
		op.reservation = reservation
	}
	if err := op.askGate(); err != nil {
		s.gateClosed, a.extra, a.note = true, err, "the gate refused"
		op.silent = true
		op.putBack(err)
		return
	}
	body, err := op.body.next()
	if err != nil {
		s.bodyWrong = errors.Is(err, errBodyLength)
		s.bodyLost = !s.bodyWrong
		a.extra, a.note = err, "no body for a further attempt"
		op.putBack(err)
		return
	}
	op.next = body
	// A gate or GetBody may have taken its time; the answer is still in hand.
	if now, due := time.Now(), now.Add(op.delay); !op.fits(now, max(0, due.Sub(now))) {
		s.fits = false
		op.putBack(context.DeadlineExceeded)
	}
}

// putBack returns what was taken for an attempt that is not made.
func (op *operation) putBack(err error) {
	op.reservation.Return(uptime())
	op.reservation = budget.Reservation{}
	if op.next != nil {
		_ = op.next.Close()
	}
	op.next = nil
	op.tellGate(err)
}

// wait gives the answer up and waits for the next attempt. It reports false where the
// operation ended meanwhile, with an event of its own.
func (op *operation) wait() bool {
	if op.last.Response != nil {
		discard(op.last.Response, op.last.traced)
		op.last.discarded = true
	}
	if end := op.sleep(); end != "" {
		return op.giveUp(end)
	}
	for op.cfg.pauses && op.origin != nil { // another operation may have met a pause
		now := time.Now()
		p := op.origin.paused(now)
		if p == nil {
			break
		}
		left := p.until.Sub(now)
		if p.tooLong || !op.fits(now, left) {
			return op.leave(pauseRuling(p), ClassNone, &pauseError{left})
		}
		op.due = now.Add(op.stretch(now, left, p.spread))
		if end := op.sleep(); end != "" {
			return op.giveUp(end)
		}
	}
	op.reservation = budget.Reservation{} // spent
	op.earlierUnknown = op.earlierUnknown || op.last.Delivery == DeliveryUnknown && op.last.state == StateUnknown
	return true
}

// pauseRuling is for an operation that cannot outwait a pause.
func pauseRuling(p *pause) ruling {
	if p.tooLong {
		return ruling{DecisionReturn, ReasonRetryAfterTooLong, PermitNone}
	}
	return ruling{DecisionDeadlineExceeded, ReasonDeadlineExceeded, PermitNone}
}

// giveUp ends the operation whose caller went away during a wait.
func (op *operation) giveUp(end Decision) bool {
	op.last.end = end
	return op.leave(ruling{end, Reason(end), PermitNone}, classOf(end), op.endError(end))
}

// leave ends the operation during a wait, when the answer is gone already.
func (op *operation) leave(r ruling, class Class, err error) bool {
	op.putBack(err)
	a := &op.last
	a.Class, a.byRetrip = class, true
	if a.Err == nil {
		a.Err = err
	} else {
		a.extra = err
	}
	op.ruling, op.silent = r, true
	op.emitLast(true)
	a.Response = nil
	return false
}

// sleep waits until op.due and tells how the operation ended meanwhile, if it did.
func (op *operation) sleep() Decision {
	delay := time.Until(op.due)
	if delay <= 0 {
		return op.ended(op.totalFirst)
	}
	timer := time.NewTimer(delay)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-op.ctx.Done():
	case <-op.req.Cancel: //nolint:staticcheck // set by http.Client.Timeout
	}
	return op.ended(op.totalFirst)
}
