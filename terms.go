package retrip

import (
	"context"
	"net/http"

	"github.com/retrip/retrip/internal/budget"
)

// terms are what holds for an operation before anything is known of an attempt.
type terms struct {
	t        *Transport
	cfg      *config
	req      *http.Request   // the caller's
	ctx      context.Context // the caller's
	recorder *Recorder
	origin   *origin
	account  *budget.Entry
	body     requestBody
	key      string // to be added

	nested    bool // an outer Transport repeats
	safe      bool
	upgrade   bool
	permitted bool // by the caller's word, its key or its method
}

// settle finds the terms, and counts the operation.
func (s *terms) settle(t *Transport, req *http.Request) error {
	s.t, s.req, s.ctx, s.cfg = t, req, req.Context(), t.settings()
	if hasBody(req) {
		s.body.init(req)
	}
	if c := carriedBy(s.ctx); c != nil {
		if err := s.carry(c); err != nil {
			return err
		}
	}
	s.safe, s.upgrade = safeMethod(req.Method), isUpgrade(req)
	if s.cfg.keys {
		if err := s.chooseKey(); err != nil {
			return err
		}
	}
	s.permitted = s.mayRepeat()
	if req.URL != nil {
		s.origin = t.origins.of(req.URL.Scheme, req.URL.Host)
		if s.account = s.findAccount(); s.account != nil {
			s.account.Begin(uptime())
		}
	}
	return nil
}

// carry takes over what the context carries, unless that is an outer Transport's affair.
func (s *terms) carry(c *carried) error {
	if c.marked {
		s.nested = true
		return nil
	}
	s.recorder = c.recorder
	cfg, err := c.settings(s.cfg)
	if err == nil {
		s.cfg = cfg
	}
	return err
}

// simple reports whether nothing is to be decided or told before an attempt has failed:
// the caller still waits, nobody looks, and no setting asks for more than the request.
// Nearly every request is, and nearly every one succeeds: its operation is never begun.
func (s *terms) simple() bool {
	return s.cfg.plain && s.recorder == nil && !s.t.nests && !s.upgrade && s.key == "" &&
		(s.cfg.stateCheck == nil || s.permitted) && s.body.kind <= readerBody && !s.body.wrong && !s.gone()
}

// unwatched reports whether a first attempt goes down as the caller made it, since nothing
// that could be seen of it would change anything: that of a safe request without a body to
// an HTTP/1 origin.
func (s *terms) unwatched() bool {
	return s.safe && s.permitted && s.cfg.attemptTimeout == 0 && s.body.kind == noBody && s.speaksHTTP1()
}

// start makes the first attempt of a simple operation.
func (s *terms) start(m *made) {
	if s.unwatched() {
		m.resp, m.err = s.t.Unwrap().RoundTrip(s.req)
		return
	}
	m.traced = s.trace(1, s.req.Header, s.cfg.attemptTimeout)
	s.body.first(m.traced)
	s.send(m)
}

// made is an attempt that is over.
type made struct {
	traced *traced // nil: unwatched
	resp   *http.Response
	err    error
}

// timedOut reports whether the attempt's time ended before the base returned.
func (m *made) timedOut() bool { return m.traced != nil && m.traced.timedOut }

// accept ends a simple operation by an answer that leaves nothing to decide; it reports false
// where there is something.
func (s *terms) accept(m *made) bool {
	if m.resp == nil || m.err != nil || s.cfg.retryStatus.has(m.resp.StatusCode) || m.timedOut() {
		return false
	}
	s.receive(m.traced, m.resp)
	if s.account != nil {
		s.account.End(false)
	}
	return true
}

// receive notes what an answer tells of its origin, and makes it an answer to the caller's
// request.
func (s *terms) receive(a *traced, resp *http.Response) {
	if s.origin != nil && !s.upgrade { // net/http sends every Upgrade by HTTP/1
		s.origin.learn(resp.ProtoMajor)
	}
	if resp.Request != s.req {
		resp.Request = s.req
	}
	if a != nil {
		a.keep(resp)
	}
}

// speaksHTTP1 reports whether the origin is known to speak HTTP/1: at once for plain http
// by an *http.Transport, otherwise by its last answer.
func (s *terms) speaksHTTP1() bool {
	if s.origin == nil {
		return false
	}
	if s.req.URL.Scheme == "http" {
		if std, ok := s.t.Unwrap().(*http.Transport); ok {
			return std.Protocols == nil || !std.Protocols.UnencryptedHTTP2()
		}
	}
	return s.origin.proto.Load() == 1
}

// gone reports whether the caller waits no more. http.Client.Timeout closes req.Cancel,
// often before the context ends (WIRE.md finding 4).
func (s *terms) gone() bool {
	if s.ctx.Err() != nil {
		return true
	}
	cancel := s.req.Cancel //nolint:staticcheck // deprecated, and set by http.Client.Timeout
	if cancel == nil {
		return false
	}
	select {
	case <-cancel:
		return true
	default:
		return false
	}
}
