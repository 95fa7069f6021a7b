package matrix

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/httptestx"
)

// runLimit bounds every run: no fault may keep a client longer.
const runLimit = 20 * time.Second

// scene is one run's stage: an origin with a fault, and the transport that
// meets it. A fault's setup fills it in.
type scene struct {
	t      *testing.T
	proto  proto
	method method

	url       string
	addr      string // of the origin that keeps the ledger
	ledger    *httptestx.Ledger
	transport *http.Transport
	conns     atomic.Int64 // the client's open connections
	reached   atomic.Int64 // how many it ever had to the origin itself

	ctx    context.Context //nolint:containedctx // the caller's, for the one request of the run
	cancel context.CancelFunc

	size       int                     // of the body, where not the payload's
	warm       bool                    // a GET goes before, so that the connection is reused
	fill       func(http.RoundTripper) // what goes before the request, where one GET is not it
	settle     func()                  // between the two
	heal       func()                  // after the first attempt has failed
	edit       func(*http.Request)     // the request, before it is sent
	opts       []retrip.Option
	bareLimit  time.Duration // ends the base's run, where only an option of retrip's would
	frozen     bool          // the origin reads nothing: it must be closed for connections to end
	stop       func()        // closes the origin
	answer     func()        // when the answer's headers are there, its body unread
	unrecorded bool          // nobody looks on but who the options name
	after      func()        // when the run has its result
}

// newScene prepares a transport whose connections are counted and which is
// closed with the scene.
func newScene(t *testing.T, p proto, m method) *scene {
	t.Helper()
	s := &scene{t: t, proto: p, method: m, transport: httptestx.NewTransport(t)}
	s.transport.ForceAttemptHTTP2 = p == h2
	s.transport.DialContext = s.dial
	s.ctx, s.cancel = context.WithTimeout(t.Context(), runLimit)
	t.Cleanup(s.cancel)
	return s
}

func (s *scene) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, network, addr)
	return s.count(c, err)
}

func (s *scene) count(c net.Conn, err error) (net.Conn, error) {
	if err != nil {
		return nil, err
	}
	s.conns.Add(1)
	if c.RemoteAddr().String() == s.addr {
		s.reached.Add(1)
	}
	return &countedConn{Conn: c, scene: s}, nil
}

// dialer replaces the way connections are made and still counts them.
func (s *scene) dialer(dial func(ctx context.Context, network, addr string) (net.Conn, error)) {
	s.transport.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		return s.count(dial(ctx, network, addr))
	}
}

type countedConn struct {
	net.Conn
	scene *scene
	once  sync.Once
}

func (c *countedConn) Close() error {
	c.once.Do(func() { c.scene.conns.Add(-1) })
	return c.Conn.Close()
}

// deadline gives the caller's context less time.
func (s *scene) deadline(d time.Duration) {
	s.ctx, s.cancel = context.WithTimeout(s.ctx, d)
	s.t.Cleanup(s.cancel)
}

// serve starts the origin of the scene's protocol.
func (s *scene) serve(one httptestx.Script, two H2Script) {
	s.t.Helper()
	if s.proto == h2 {
		s.serveH2(two)
		return
	}
	s.serveH1(one)
}

func (s *scene) serveH1(script httptestx.Script) *httptestx.Origin {
	s.t.Helper()
	start := httptestx.NewOrigin
	if s.proto != h1 {
		start = httptestx.NewTLSOrigin
	}
	o := start(s.t, script)
	s.url, s.addr, s.ledger, s.stop = o.URL, o.Addr, &o.Ledger, o.Close
	return o
}

func (s *scene) serveH2(script H2Script) *H2Origin {
	s.t.Helper()
	o := NewH2Origin(s.t, script)
	s.url, s.addr, s.ledger, s.stop = o.URL, o.Addr, &o.Ledger, o.Close
	return o
}

// serveOK starts an origin that answers 200 and returns its port's switches.
func (s *scene) serveOK() (refuse, accept func()) {
	s.t.Helper()
	if s.proto == h2 {
		o := s.serveH2(H2Sequence(H2OK("fine")))
		return o.Refuse, func() { o.Accept(s.t) }
	}
	o := s.serveH1(httptestx.Sequence(httptestx.OK("fine")))
	return o.Refuse, func() { o.Accept(s.t) }
}

// awaitClientConns waits until the client holds n connections.
func (s *scene) awaitClientConns(n int64) {
	s.t.Helper()
	assert.Eventually(s.t, func() bool { return s.conns.Load() == n }, runLimit, time.Millisecond,
		"the client's connections: want %d", n)
}

// result is what a run gave.
type result struct {
	status  int
	err     error
	bodyErr error
	heads   int // header blocks of the request itself, without the warm-up's
	effects int
	events  []retrip.Event
	unknown bool // Recorder.MaybeApplied
	took    time.Duration
}

// run sends the scene's request through the round tripper.
func (s *scene) run(rt http.RoundTripper) result {
	s.t.Helper()
	if s.warm {
		s.warmUp(rt)
	}
	if s.fill != nil {
		s.fill(rt)
	}
	if s.settle != nil {
		s.settle()
	}
	heads, effects := s.ledger.Heads(), s.ledger.Effects()
	ctx, rec := s.ctx, (*retrip.Recorder)(nil)
	if !s.unrecorded {
		ctx, rec = retrip.Record(ctx)
	}
	req := s.method.request(ctx, s.t, s.url, s.size)
	if s.edit != nil {
		s.edit(req)
	}
	start := time.Now()
	resp, err := rt.RoundTrip(req)
	r := result{err: err, took: time.Since(start)}
	if err == nil {
		r.status = resp.StatusCode
		if s.answer != nil {
			s.answer()
		}
		_, r.bodyErr = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
	s.cancel()
	if s.after != nil {
		s.after()
	}
	if s.frozen {
		s.stop()
	}
	assert.Eventually(s.t, func() bool {
		// A dial that the attempt no longer waits for still ends in the pool.
		s.transport.CloseIdleConnections()
		return s.conns.Load() == 0
	}, runLimit, time.Millisecond, "connections of the client are left")
	// A connection that the client has closed already may still wait to be accepted.
	s.ledger.Await(s.t, "the origin's connections", func() bool {
		return s.ledger.Open() == 0 && (s.frozen || int64(s.ledger.Conns()) >= s.reached.Load())
	})
	r.heads, r.effects = s.ledger.Heads()-heads, s.ledger.Effects()-effects
	if rec != nil {
		r.events, r.unknown = rec.Events(), rec.MaybeApplied()
	}
	return r
}

func (s *scene) warmUp(rt http.RoundTripper) {
	s.t.Helper()
	ctx := retrip.Override(s.ctx, retrip.WithAttemptTimeout(0), retrip.WithTotalTimeout(0))
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+"/warm", http.NoBody)
	require.NoError(s.t, err)
	resp, err := rt.RoundTrip(req)
	require.NoError(s.t, err)
	_, err = io.Copy(io.Discard, resp.Body)
	require.NoError(s.t, err)
	resp.Body.Close()
}

// runBare is the same request on the base alone.
func (s *scene) runBare() result {
	s.t.Helper()
	if limit, settle := s.bareLimit, s.settle; limit > 0 {
		s.settle = func() {
			if settle != nil {
				settle()
			}
			s.deadline(limit)
		}
	}
	// Not Checked: on a kept HTTP/2 connection net/http gives back a request of its
	// own in Response.Request.
	return s.run(s.transport)
}

// runRetrip is the request through retrip, three attempts with a short delay.
func (s *scene) runRetrip(opts ...retrip.Option) result {
	s.t.Helper()
	all := []retrip.Option{
		retrip.WithBackoff(retrip.Constant(time.Millisecond)),
		retrip.WithBudget(nil),
	}
	if s.heal != nil {
		heal := sync.OnceFunc(s.heal)
		all = append(all, retrip.WithHook(func(context.Context, retrip.Event) { heal() }))
	}
	all = append(append(all, s.opts...), opts...)
	rt, err := retrip.New(s.transport, all...)
	require.NoError(s.t, err)
	return s.run(httptestx.Checked(s.t, rt))
}

// wrapped returns retrip's own error, nil where the base's came back untouched.
func (r result) wrapped() *retrip.Error {
	e, _ := errors.AsType[*retrip.Error](r.err)
	return e
}
