package retrip

import (
	"context"
	"net/http"

	"github.com/retrip/retrip/internal/budget"
)

// A passage is what a direct request needs.
type passage struct {
	ctx    context.Context // the caller's, as it was when it called
	cfg    *config
	origin *origin // nil: the request is not direct
	nested bool
}

// direct finds the passage of a request whose first attempt goes down as the caller made it,
// since nothing that could be seen of it would change anything: a safe one without a body, to
// an origin that speaks HTTP/1, where no setting asks for more and nobody looks.
func (t *Transport) direct(req *http.Request) (p passage) {
	p.ctx = req.Context()
	if t.nests || req.URL == nil || hasBody(req) || !safeMethod(req.Method) || isUpgrade(req) {
		return p
	}
	p.cfg = t.settings()
	switch c := carriedBy(p.ctx); {
	case c == nil:
	case c.marked:
		p.nested = true
	default:
		var err error
		if p.cfg, err = c.settings(p.cfg); err != nil || c.recorder != nil {
			return p
		}
	}
	if !p.cfg.direct || gone(p.ctx, req) {
		return p
	}
	if o := t.origins.of(req.URL.Scheme, req.URL.Host); t.speaksHTTP1(req, o) {
		p.origin = o
	}
	return p
}

// terms are what holds for an operation before anything is known of an attempt.
type terms struct {
	t        *Transport
	cfg      *config
	req      *http.Request   // the caller's
	ctx      context.Context // the caller's, as it was when it called
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
func (s *terms) settle() error {
	if hasBody(s.req) {
		s.body.init(s.req)
	}
	if c := carriedBy(s.ctx); c != nil {
		if err := s.carry(c); err != nil {
			return err
		}
	}
	s.safe, s.upgrade = safeMethod(s.req.Method), isUpgrade(s.req)
	if s.cfg.keys {
		if err := s.chooseKey(); err != nil {
			return err
		}
	}
	s.permitted = s.mayRepeat()
	if url := s.req.URL; url != nil {
		s.origin = s.t.origins.of(url.Scheme, url.Host)
		s.account = s.t.count(s.cfg, s.origin)
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
func (s *terms) simple() bool {
	return s.cfg.plain && s.recorder == nil && !s.t.nests && !s.upgrade && s.key == "" &&
		(s.cfg.stateCheck == nil || s.permitted) && s.body.kind <= readerBody && !s.body.wrong && !gone(s.ctx, s.req)
}

// start makes the first attempt of a simple operation.
func (s *terms) start() made {
	m := made{traced: s.trace(1, s.req.Header, s.cfg.attemptTimeout)}
	s.body.first(m.traced)
	s.send(&m)
	return m
}

// made is an attempt that is over.
type made struct {
	traced *traced // nil: direct
	resp   *http.Response
	err    error
}

// timedOut reports whether the attempt's time ended before the base returned.
func (m *made) timedOut() bool { return m.traced != nil && m.traced.timedOut }

// final reports whether an attempt that nobody looks at ended in an answer that leaves
// nothing to decide.
func (c *config) final(m made) bool {
	return m.resp != nil && m.err == nil && !c.retryStatus.has(m.resp.StatusCode) && !m.timedOut()
}

// accept ends a simple operation by its final answer.
func (s *terms) accept(m made) {
	s.receive(m.traced, m.resp)
	s.account.End(false)
}

// receive notes what an answer tells of its origin, and makes it an answer to the caller's
// request.
func (s *terms) receive(a *traced, resp *http.Response) {
	if s.origin != nil && !s.upgrade { // net/http sends every Upgrade by HTTP/1
		s.origin.learn(resp.ProtoMajor)
	}
	answers(resp, s.req)
	if a != nil {
		a.keep(resp)
	}
}

// answers makes resp an answer to the caller's request. It is not written to where it is
// one, as on the direct way.
func answers(resp *http.Response, req *http.Request) {
	if resp.Request != req {
		resp.Request = req
	}
}

// speaksHTTP1 reports whether the origin of req is known to speak HTTP/1: by the settings of
// an *http.Transport where there is no TLS, otherwise by the origin's last answer.
func (t *Transport) speaksHTTP1(req *http.Request, o *origin) bool {
	if !t.foreign && req.URL.Scheme == "http" {
		return t.plainHTTP1()
	}
	return o.proto.Load() == 1
}

// plainHTTP1 is for a base that is an *http.Transport.
func (t *Transport) plainHTTP1() bool {
	base, ok := t.Unwrap().(*http.Transport)
	return ok && (base.Protocols == nil || !base.Protocols.UnencryptedHTTP2())
}

// gone reports whether the caller of req waits no more. http.Client.Timeout closes
// req.Cancel, often before the context ends (WIRE.md finding 4).
func gone(ctx context.Context, req *http.Request) bool {
	return ctx.Err() != nil || req.Cancel != nil && closed(req.Cancel) //nolint:staticcheck // deprecated, and set by http.Client.Timeout
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
