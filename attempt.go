package retrip

import (
	"context"
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"
)

// send makes one attempt on the base and finds out what is known of it.
func (op *operation) send() {
	op.attempt++
	if op.attempt > 1 {
		op.last = outcome{}
	}
	a := &op.last
	a.Number, a.Request = op.attempt, op.req
	if op.timed {
		a.Start = time.Now()
	}
	tr := op.trace(op.attempt, op.stamp(a.Start), op.attemptLimit())
	if op.attempt == 1 {
		op.body.first(tr)
	} else {
		op.body.give(tr, op.next, true)
	}
	if op.body.stream != nil && op.attempt >= op.cfg.maxAttempts {
		op.body.stream.stopHolding()
	}
	op.next = nil // the base owns the body from here on
	m := made{traced: tr}
	op.terms.send(&m)
	if op.timed {
		a.Duration = time.Since(a.Start)
	}
	op.judge(a, &m)
	if op.gateDone != nil {
		op.tellGate(a.gateError())
	}
}

// take enters the attempt that was made before the operation began.
func (op *operation) take(first *made) {
	op.attempt = 1
	op.last = outcome{Attempt: Attempt{Number: op.attempt, Request: op.req}}
	op.judge(&op.last, first)
}

// trace prepares an attempt that is watched, but for its body. Its header is the request's
// or a copy of that, and retrip ends it after limit, if that is not 0.
func (s *terms) trace(number int, header http.Header, limit time.Duration) *traced {
	req, protected := s.req, s.permitted
	http1 := s.origin != nil && s.t.speaksHTTP1(req, s.origin)
	a := &traced{Context: s.ctx, whole: req, protected: protected}
	a.seen.WritesTraced = !protected || s.upgrade
	a.seen.Std = !s.t.foreign
	a.plainHTTP1 = http1 && req.URL != nil && req.URL.Scheme == "http"
	a.replays = !protected && netReplays(req.Method, header)
	a.most = int32(min(max(2, s.cfg.maxAttempts-number+1), math.MaxInt32))
	secure := a.secure()
	// A body that is still being read must not hold an answer up that is given up: on
	// HTTP/2 closing it waits for that Read unless the context has ended.
	reads := secure && s.body.kind > memoryBody
	if limit > 0 || !http1 || reads || !protected && (secure || a.replays) {
		a.Context, a.cancel = context.WithCancel(s.ctx)
	}
	if number > 1 || s.t.nests {
		a.Context = &carrier{Context: a.Context, carried: carried{attempt: number, marked: true}}
	}

	a.request = *req.WithContext(a) // inlined: the copy lands in a
	a.request.Header = header
	a.request.GetBody = nil
	if http1 && req.GetBody != nil && s.body.kind != noBody {
		a.request.GetBody = a.hidden
	}
	if limit > 0 {
		a.timer = time.AfterFunc(limit, a.cancel)
	}
	return a
}

// send lets the base make the attempt, and lets go of it if the base panics.
func (s *terms) send(m *made) {
	a, back := m.traced, false
	defer func() {
		if !back {
			a.abandon()
		}
	}()
	m.resp, m.err = s.t.Unwrap().RoundTrip(&a.request)
	back = true
	a.timedOut = a.timer != nil && !a.timer.Stop()
	if m.resp != nil && a.over(m.err == nil && !a.timedOut) {
		s.t.distrusted.Store(true)
	}
}

// abandon ends an attempt that did not return.
func (a *traced) abandon() {
	if a.timer != nil {
		a.timer.Stop()
	}
	a.release()
	if a.body != nil {
		_ = a.body.Close()
	}
}

// stampAttempt sets the headers that tell the origin of the attempt.
func (op *operation) stampAttempt(h http.Header, names *AttemptHeaders, now time.Time) {
	set := func(name, value string) {
		if name != "" {
			h[name] = []string{value}
		}
	}
	set(names.Attempt, strconv.Itoa(op.attempt))
	if names.OperationID != "" {
		set(names.OperationID, op.operationID())
	}
	if names.RequestID != "" {
		set(names.RequestID, requestID(op.operationID(), op.attempt))
	}
	if names.RemainingMS != "" && !op.deadline.IsZero() {
		if now.IsZero() {
			now = time.Now()
		}
		set(names.RemainingMS, strconv.FormatInt(max(0, op.deadline.Sub(now).Milliseconds()), 10))
	}
}

// release ends the attempt's context, where it has one of its own.
func (a *traced) release() {
	if a.cancel != nil {
		a.cancel()
	}
}

// A limitError is why retrip ended an attempt itself. It takes the place of the base's
// error, which tells of a context that was canceled; the caller's was not.
type limitError struct {
	what    string
	timeout bool
	cause   error // the base's error where it tells something else, or the operation's end
}

func (e *limitError) Error() string   { return e.what }
func (e *limitError) Timeout() bool   { return e.timeout }
func (e *limitError) Temporary() bool { return e.timeout }
func (e *limitError) Unwrap() error   { return e.cause }

// ended makes the error of an attempt that retrip ended.
func ended(what string, timeout bool, err error) error {
	if errors.Is(err, context.Canceled) {
		err = nil
	}
	return &limitError{what: what, timeout: timeout, cause: err}
}
