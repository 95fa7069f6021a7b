package retrip

import (
	"context"
	"errors"
	"math"
	"net/http"
	"strconv"
	"time"
)

// send makes one attempt on the base and returns what is known of it.
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
	tr := op.trace(a.Start)
	op.next, op.running = nil, tr // the base owns the body from here on
	resp, err := op.t.Unwrap().RoundTrip(&tr.request)
	timedOut := tr.returned()
	if op.timed {
		a.Duration = time.Since(a.Start)
	}
	op.running = nil
	op.judge(a, tr, resp, err, timedOut)
	if op.gateDone != nil {
		op.tellGate(a.gateError())
	}
}

// take enters a first attempt that was made already.
func (op *operation) take(first *made) {
	op.attempt = 1
	a := &op.last
	a.Number, a.Request = op.attempt, op.req
	op.judge(a, nil, first.resp, first.err, false)
}

// trace prepares an attempt that is watched.
func (op *operation) trace(now time.Time) *traced {
	c, req, protected := op.cfg, op.req, op.permitted
	http1 := op.speaksHTTP1()
	a := &traced{
		Context: op.ctx, whole: req, protected: protected, forever: op.ctx.Done() == nil,
	}
	a.body.length = op.body.length
	_, a.seen.Std = op.t.Unwrap().(*http.Transport)
	a.plainHTTP1 = http1 && req.URL != nil && req.URL.Scheme == "http"
	header := op.stamp(req.Header, now)
	a.replays = !protected && netReplays(req.Method, header)
	a.most = int32(min(max(2, c.maxAttempts-op.attempt+1), math.MaxInt32)) //nolint:gosec // bounded
	secure := req.URL != nil && req.URL.Scheme == "https"
	limit := op.attemptLimit()
	// A body that is still being read must not hold an answer up that is given up: on
	// HTTP/2 closing it waits for that Read unless the context has ended.
	reads := secure && op.body.kind > memoryBody
	if limit > 0 || !http1 || reads || !protected && (secure || a.replays) {
		a.Context, a.cancel = context.WithCancel(op.ctx)
	}
	a.attach(op.ctx, !protected || op.upgrade, a.cancel != nil && !a.forever && op.body.kind != noBody, secure)
	if op.attempt > 1 || op.marks {
		a.mark = &carried{attempt: op.attempt, marked: true}
	}

	a.request = *req.WithContext(a) // inlined: the copy lands in a
	a.request.Header = header
	op.giveBody(a)
	a.request.GetBody = nil
	if http1 && req.GetBody != nil && op.body.kind != noBody {
		a.request.GetBody = a.hidden
	}
	if limit > 0 {
		a.limit(limit)
	}
	return a
}

// giveBody gives the attempt its body, watched unless that would cost a second write.
func (op *operation) giveBody(a *traced) {
	if op.body.kind == noBody {
		return // as the caller made it: nil and NoBody are not the same to everybody
	}
	body, watched := op.next, true
	if op.attempt == 1 {
		body, watched = op.body.first()
	}
	if a.request.Body = body; !watched {
		return
	}
	a.body.src, a.body.strict = body, op.attempt > 1
	a.request.Body = &a.body
	if op.body.stream != nil && op.attempt >= op.cfg.maxAttempts {
		op.body.stream.stopHolding()
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

// limit ends the attempt after d unless it has returned by then.
func (a *traced) limit(d time.Duration) { a.timer = time.AfterFunc(d, a.cancel) }

// returned tells that the base has returned; it reports whether the timer came first.
func (a *traced) returned() (timedOut bool) { return a.timer != nil && !a.timer.Stop() }

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
	cause   error // the base's error, where it tells something else
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
