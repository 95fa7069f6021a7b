package retrip

import (
	"context"
	"crypto/rand"
	"errors"
	"io"
	"maps"
	"net/http"
	"strings"
	"time"

	"github.com/retrip/retrip/internal/wire"
)

// safeMethod reports whether a request asks for nothing to be changed, RFC 9110
// §9.2.1; PROPFIND, REPORT, SEARCH and QUERY are registered as safe.
func safeMethod(method string) bool {
	switch method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace,
		"PROPFIND", "REPORT", "SEARCH", "QUERY":
		return true
	}
	return false
}

// idempotentMethod reports whether a request may be sent twice for the effect of one,
// RFC 9110 §9.2.2. Unknown methods may not.
func idempotentMethod(method string) bool {
	return safeMethod(method) || method == http.MethodPut || method == http.MethodDelete
}

// requestPermit tells why the request may be repeated whatever came of it: by the caller's
// word, its key, its method.
func (s *terms) requestPermit() Permit {
	switch {
	case s.cfg.word == wordNo:
		return PermitNone
	case s.cfg.word == wordYes:
		return PermitDeclared
	case s.key != "" || hasKey(s.req.Header, s.cfg.keyHeader):
		return PermitIdempotencyKey
	case idempotentMethod(s.req.Method):
		return PermitIdempotentMethod
	default:
		return PermitNone
	}
}

// mayRepeat reports whether requestPermit has one, without a look at the header where the
// method is enough.
func (s *terms) mayRepeat() bool {
	return s.cfg.word == wordNone && (s.safe || idempotentMethod(s.req.Method)) || s.requestPermit() != PermitNone
}

// outcomePermit tells what an attempt's outcome proves, for any method.
func (op *operation) outcomePermit(a *outcome) Permit {
	switch {
	case a.Delivery == DeliveryNotSent:
		return PermitNotSent
	case a.Delivery == DeliveryRefused:
		return PermitRefused
	case op.cfg.word == wordNo:
		return PermitNone // the caller's word leaves only what was never processed
	case a.Response != nil && op.cfg.unprocessed.has(a.Response.StatusCode):
		return PermitUnprocessedStatus
	default:
		return PermitNone
	}
}

// hasKey reports whether h carries an idempotency key: a value, or the entry without
// values by which net/http is told to replay without a header on the wire. An empty
// value names no operation.
func hasKey(h http.Header, name string) bool {
	if len(h) == 0 {
		return false
	}
	return holdsKey(h, name) || name != "Idempotency-Key" && holdsKey(h, "Idempotency-Key") || holdsKey(h, "X-Idempotency-Key")
}

func holdsKey(h http.Header, name string) bool {
	values, ok := h[name]
	return ok && (len(values) == 0 || values[0] != "")
}

// netReplays reports whether net/http sends such a request again by itself after it was
// written, on a reused HTTP/1 connection (request.go, isReplayable): it looks for the
// header's presence, not for its value.
func netReplays(method string, h http.Header) bool {
	switch method {
	case "", http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return true
	}
	_, ok := h["Idempotency-Key"]
	_, okX := h["X-Idempotency-Key"]
	return ok || okX
}

// isUpgrade reports whether req asks to leave HTTP, RFC 9110 §7.8. What follows on the
// connection belongs to both sides, so that only an unsent one is repeated.
func isUpgrade(req *http.Request) bool {
	return len(req.Header) > 0 && len(req.Header["Upgrade"]) > 0 && connectionUpgrade(req.Header)
}

func connectionUpgrade(h http.Header) bool {
	for _, value := range h["Connection"] {
		for token := range strings.SplitSeq(value, ",") {
			if strings.EqualFold(strings.TrimSpace(token), "upgrade") {
				return true
			}
		}
	}
	return false
}

// chooseKey finds the key to add to the request, if any: the context's, else a new one.
func (s *terms) chooseKey() error {
	c, req := s.cfg, s.req
	if req.Header == nil || carriesKeyHeader(req.Header, c.keyHeader) {
		return nil
	}
	if c.key != "" && !idempotentMethod(req.Method) && sameOriginHop(req) {
		s.key = c.key
		return nil
	}
	if c.mintsKeys && (req.Method == http.MethodPost || req.Method == http.MethodPatch) {
		if s.key = c.mint(); !validKey(s.key) {
			return bad("WithGeneratedKeys", "the generator returned an empty key or no header value; allowed is visible text")
		}
	}
	return nil
}

// carriesKeyHeader reports whether h has a key in any spelling of the header's name: a key
// of the caller's is never replaced, nor joined by a second one.
func carriesKeyHeader(h http.Header, name string) bool {
	for have := range h {
		if (strings.EqualFold(have, name) || strings.EqualFold(have, "Idempotency-Key") || strings.EqualFold(have, "X-Idempotency-Key")) &&
			holdsKey(h, have) {
			return true
		}
	}
	return false
}

// sameOriginHop reports whether req is no redirect's hop to another origin than the
// first request went to: a key is between the caller and that origin.
func sameOriginHop(req *http.Request) bool {
	first := req
	for first.Response != nil && first.Response.Request != nil {
		first = first.Response.Request
	}
	return first == req || first.URL != nil && req.URL != nil &&
		originKey(first.URL.Scheme, first.URL.Host) == originKey(req.URL.Scheme, req.URL.Host)
}

// stamp gives the header of an attempt's request: the caller's own map where nothing is
// added, else a copy.
func (op *operation) stamp(now time.Time) http.Header {
	h, names := op.req.Header, &op.cfg.headers
	if h == nil || op.key == "" && !op.cfg.stamps {
		return h
	}
	h = maps.Clone(h)
	if op.key != "" {
		h[op.cfg.keyHeader] = []string{op.key}
	}
	op.stampAttempt(h, names, now)
	return h
}

func validKey(key string) bool {
	return strings.TrimSpace(key) != "" && wire.FieldValue(key)
}

func validHeaderName(name string) bool { return wire.Token(name) }

func randomKey() string { return rand.Text() }

// checkState asks what became of the attempt, once. An applied one becomes the outcome
// with the check's response; an error tells why the state stays unknown.
func (op *operation) checkState(a *outcome) {
	ctx, cancel := op.checkContext()
	var resp *http.Response
	defer func() {
		closeResponse(resp) // unused
		if op.checkTimer != nil {
			op.checkTimer.Stop()
		}
		if cancel != nil && op.checked == nil {
			cancel() // a panic of the check comes here too
		}
	}()
	state, answer, err := op.cfg.stateCheck(ctx, op.req, a.Attempt)
	resp = answer
	switch {
	case err != nil:
		a.extra, a.note = &checkError{err: err}, checkFailed
	case state == StateApplied && resp != nil && op.checkTimer != nil && !op.checkTimer.Stop():
		a.extra, a.note = op.endError(DecisionDeadlineExceeded), "the state check's response came too late"
	case state == StateApplied && resp == nil:
		a.extra, a.note = errNoResult, "the state check says applied but has no response"
	case state == StateApplied:
		a.state, op.checked, resp = StateApplied, resp, nil
		op.checked.Request = op.req
		switch {
		case op.checked.Body == nil:
			op.checked.Body = http.NoBody
		case cancel != nil:
			op.checked.Body = &checkBody{ReadCloser: op.checked.Body, cancel: cancel}
		}
	case state == StateNotApplied:
		a.state = StateNotApplied
	}
}

// checkBody ends the check's context when its response's body is done with.
type checkBody struct {
	io.ReadCloser

	cancel context.CancelFunc
}

func (b *checkBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if err != nil {
		b.cancel()
	}
	return n, err
}

func (b *checkBody) Close() error {
	err := b.ReadCloser.Close()
	b.cancel()
	return err
}

// checkContext is what a state check gets: the caller's context with the operation's
// deadline, without what Override, Record and nesting left in it, so that the check can
// use the same client. WithTotalTimeout ends at the headers, so that its timer is stopped
// there and the body of the check's response can be read past it; cancel ends that.
func (op *operation) checkContext() (ctx context.Context, cancel context.CancelFunc) {
	plain := plainContext{Context: op.ctx, deadline: op.deadline}
	if !op.totalFirst {
		return plain, nil
	}
	inner, end := context.WithCancelCause(op.ctx)
	plain.Context = inner
	op.checkTimer = time.AfterFunc(time.Until(op.deadline), func() { end(context.DeadlineExceeded) })
	return plain, func() { end(nil) }
}

type plainContext struct {
	context.Context
	deadline time.Time
}

func (c plainContext) Deadline() (time.Time, bool) { return c.deadline, !c.deadline.IsZero() }

func (c plainContext) Value(key any) any {
	if _, ours := key.(settingsKey); ours {
		return nil
	}
	return c.Context.Value(key)
}

const checkFailed = "the state check failed"

var errNoResult = errors.New("retrip: the state check says applied but has no response")

// A checkError is a state check's own error. Its text leaves that out, since it may quote a
// URL.
type checkError struct{ err error }

func (e *checkError) Error() string { return "retrip: " + checkFailed }
func (e *checkError) Unwrap() error { return e.err }
