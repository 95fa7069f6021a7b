package matrix

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/httptestx"
)

// The tests of this file have no retrip in them, or next to none: they hold what
// its rules take from net/http's sources and texts. Where one fails after a new
// Go release, the rule that its comment names must be looked at again.

// bareError meets the fault with the bare base and returns its error.
func bareError(t *testing.T, p proto, m method, setup func(*scene)) error {
	t.Helper()
	s := newScene(t, p, m)
	setup(s)
	r := s.runBare()
	require.Error(t, r.err)
	return r.err
}

// Rule refused reads these texts; two of them also inside "cannot retry err",
// where the chain is gone.
func TestPinGoAwayTexts(t *testing.T) {
	httptestx.Leaks(t)
	below := func(code http2.ErrCode) func(*scene) {
		return h2Fault(false, H2Play{H2ReadAll, H2GoAwayBelow(code)})
	}
	const graceful = "http2: Transport received Server's graceful shutdown GOAWAY"
	err := bareError(t, h2, mPOSTnr, below(http2.ErrCodeNo))
	assert.Equal(t, "http2: Transport: cannot retry err ["+graceful+
		"] after Request.Body was written; define Request.GetBody to avoid this error", err.Error())
	err = bareError(t, h2, mPOST, below(http2.ErrCodeEnhanceYourCalm))
	assert.Equal(t, "http2: Transport received GOAWAY from server ErrCode:ENHANCE_YOUR_CALM", err.Error())
	err = bareError(t, h2, mPOSTnr, below(http2.ErrCodeEnhanceYourCalm))
	assert.Equal(t, "http2: Transport received GOAWAY from server ErrCode:ENHANCE_YOUR_CALM", err.Error())

	// A GOAWAY that covers the stream must not look like either.
	err = bareError(t, h2, mPOST, h2Fault(false, H2Play{H2ReadAll, H2GoAwayCovering(http2.ErrCodeNo), H2FIN}))
	assert.Contains(t, err.Error(), "http2: server sent GOAWAY and closed the connection; LastStreamID=1, ErrCode=NO_ERROR")
	assert.NotContains(t, err.Error(), graceful)
	assert.NotContains(t, err.Error(), "GOAWAY from server ErrCode:")
}

// streamError is what errors.As fills by the names of its fields: any struct
// that looks like x/net's StreamError (h2_error.go in net/http).
type streamError struct {
	StreamID uint32
	Code     uint32
	Cause    error
}

func (e streamError) Error() string { return "stream error" }

// Rule refused reads stream errors through a struct of its own, and tells the
// peer's resets from local ones by their cause.
func TestPinStreamErrors(t *testing.T) {
	httptestx.Leaks(t)
	for _, code := range []http2.ErrCode{http2.ErrCodeInternal, http2.ErrCodeCancel, http2.ErrCodeEnhanceYourCalm} {
		err := bareError(t, h2, mPOST, h2Fault(false, H2Play{H2ReadAll, H2Reset(code)}))
		var e streamError
		require.ErrorAs(t, err, &e)
		assert.EqualValues(t, code, e.Code)
		assert.EqualValues(t, 1, e.StreamID)
		require.Error(t, e.Cause)
		assert.Equal(t, "received from peer", e.Cause.Error())
	}
	err := bareError(t, h2, mPOSTnr, h2Fault(false, H2Play{H2ReadAll, H2Reset(http2.ErrCodeRefusedStream)}))
	assert.Equal(t, "http2: Transport: cannot retry err [stream error: stream ID 1; REFUSED_STREAM; received from peer] "+
		"after Request.Body was written; define Request.GetBody to avoid this error", err.Error())
	err = bareError(t, h2, mPOSTnr, h2Fault(false, H2Play{H2ReadAll, H2Reset(http2.ErrCodeProtocol)}))
	assert.Contains(t, err.Error(), "cannot retry err [stream error: stream ID 1; PROTOCOL_ERROR; received from peer]",
		"a processed request and a refused one share this text but for the code")
}

// With GetBody cleared, HTTP/2 refusals come back at once: what retrip's own
// ladder rests on.
func TestPinClearedGetBodyEndsHiddenResends(t *testing.T) {
	httptestx.Leaks(t)
	for _, end := range []H2Step{H2Reset(http2.ErrCodeRefusedStream), H2GoAwayBelow(http2.ErrCodeNo), H2Reset(http2.ErrCodeProtocol)} {
		s := newScene(t, h2, mPOST)
		h2Fault(false, H2Play{H2ReadAll, end})(s)
		s.edit = func(r *http.Request) { r.GetBody = nil }
		r := s.runBare()
		require.ErrorContains(t, r.err, "cannot retry err [")
		assert.Equal(t, 1, r.heads)
	}
}

// Rule N2: a request that finds its kept connection closed has written nothing,
// and net/http says so in this text. The connection's end is held back until
// GotConn, which runs before the write.
func TestPinServerClosedIdleConnection(t *testing.T) {
	httptestx.Leaks(t)
	s := newScene(t, h1, mPOSTnr)
	s.warm = true
	s.serveOK()
	var last atomic.Pointer[endingConn]
	s.dialer(func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		e := &endingConn{Conn: c, closed: make(chan struct{})}
		last.Store(e)
		return e, nil
	})
	var g, c, h, r atomic.Int64
	s.edit = func(req *http.Request) {
		s.ctx = httptrace.WithClientTrace(s.ctx, &httptrace.ClientTrace{
			GetConn: func(string) { g.Add(1) },
			GotConn: func(httptrace.GotConnInfo) {
				c.Add(1)
				last.Load().end()
			},
			WroteHeaders: func() { h.Add(1) },
			WroteRequest: func(httptrace.WroteRequestInfo) { r.Add(1) },
		})
		*req = *req.WithContext(s.ctx)
	}
	got := s.runBare()
	require.Error(t, got.err)
	assert.Equal(t, "http: server closed idle connection", got.err.Error())
	assert.Zero(t, got.heads)
	assert.Equal(t, []int64{1, 1, 0, 0}, []int64{g.Load(), c.Load(), h.Load(), r.Load()}, "GetConn, GotConn, WroteHeaders, WroteRequest")
}

// endingConn is a connection whose reading side ends when told to.
type endingConn struct {
	net.Conn
	once   sync.Once
	closed chan struct{}
}

// end lets the reader meet the end of the stream and waits until the transport
// has closed the connection because of it.
func (c *endingConn) end() {
	if t, ok := c.Conn.(*net.TCPConn); ok {
		_ = t.CloseRead()
	}
	<-c.closed
}

func (c *endingConn) Close() error {
	c.once.Do(func() { close(c.closed) })
	return c.Conn.Close()
}

// The counters are read once when RoundTrip returns: GetConn and GotConn must
// not be called later, nor beside it.
func TestPinGotConnRunsInTheCallersGoroutine(t *testing.T) {
	httptestx.Leaks(t)
	for _, p := range allProtos {
		for _, warm := range []bool{false, true} {
			s := newScene(t, p, mPOST)
			s.warm = warm
			s.serveOK()
			var get, got string
			s.edit = func(req *http.Request) {
				*req = *req.WithContext(httptrace.WithClientTrace(s.ctx, &httptrace.ClientTrace{
					GetConn: func(string) { get = goroutine() },
					GotConn: func(httptrace.GotConnInfo) { got = goroutine() },
				}))
			}
			me := goroutine()
			require.NoError(t, s.runBare().err)
			assert.Equal(t, []string{me, me}, []string{get, got}, "%s, reused %t", p, warm)
		}
	}
}

func goroutine() string {
	buf := make([]byte, 64)
	id, _, _ := bytes.Cut(buf[:runtime.Stack(buf, false)], []byte(" ["))
	return string(id)
}

// GotConn counts every send that net/http makes by itself.
func TestPinGotConnCountsHiddenResends(t *testing.T) {
	httptestx.Leaks(t)
	count := func(p proto, m method, setup func(*scene)) (sends, heads int) {
		s := newScene(t, p, m)
		setup(s)
		s.edit = func(req *http.Request) {
			*req = *req.WithContext(httptrace.WithClientTrace(s.ctx, &httptrace.ClientTrace{
				GotConn: func(httptrace.GotConnInfo) { sends++ },
			}))
		}
		r := s.runBare()
		require.NoError(t, r.err)
		return sends, r.heads
	}
	for _, m := range []method{mGET, mPOSTkey} {
		sends, heads := count(h1, m, func(s *scene) {
			s.warm = true
			s.serveH1(httptestx.Sequence(httptestx.OK("warm"), httptestx.Play{httptestx.ReadAll, httptestx.FIN}, httptestx.OK("fine")))
		})
		assert.Equal(t, []int{2, 2}, []int{sends, heads}, "h1 %s", m.name)
	}
	for _, m := range []method{mGET, mPOST, mPOST0} {
		sends, heads := count(h2, m, h2Fault(false, H2Play{H2ReadAll, H2Reset(http2.ErrCodeProtocol)}, H2OK("fine")))
		assert.Equal(t, []int{2, 2}, []int{sends, heads}, "h2 %s", m.name)
	}
}

// On HTTP/1 net/http replays after writing only these; the rest it sends again
// only where nothing was written.
func TestPinHiddenReplaysOnHTTP1(t *testing.T) {
	httptestx.Leaks(t)
	tests := []struct {
		verb, key string
		heads     int
	}{
		{http.MethodGet, "", 2},
		{http.MethodHead, "", 2},
		{http.MethodOptions, "", 2},
		{http.MethodTrace, "", 2},
		{http.MethodPut, "", 1},
		{http.MethodDelete, "", 1},
		{http.MethodPost, "", 1},
		{http.MethodPatch, "", 1},
		{http.MethodPost, "Idempotency-Key", 2},
		{http.MethodPost, "X-Idempotency-Key", 2},
		{http.MethodPost, "X-Other-Key", 1},
	}
	for _, tt := range tests {
		s := newScene(t, h1, method{name: tt.verb, verb: tt.verb})
		s.warm = true
		s.serveH1(httptestx.Sequence(httptestx.OK("warm"), httptestx.Play{httptestx.ReadAll, httptestx.FIN}, httptestx.OK("fine")))
		s.edit = func(r *http.Request) {
			if tt.key != "" {
				r.Header[tt.key] = []string{"k"}
			}
		}
		assert.Equal(t, tt.heads, s.runBare().heads, "%s %s", tt.verb, tt.key)
	}
}

// A body that net/http takes for memory is not wrapped by retrip, because a
// wrapper costs a second write. The readers that it takes for memory are these
// (transfer.go, unwrapNopCloser and isKnownInMemoryReader).
func TestPinInMemoryBodiesAreOneWrite(t *testing.T) {
	httptestx.Leaks(t)
	tests := []struct {
		name   string
		body   io.ReadCloser
		writes int64
	}{
		{"strings.Reader", io.NopCloser(strings.NewReader(payload)), 1},
		{"bytes.Reader", io.NopCloser(bytes.NewReader([]byte(payload))), 1},
		{"bytes.Buffer", io.NopCloser(bytes.NewBufferString(payload)), 1},
		{"wrapped", httptestx.NewBody(strings.NewReader(payload)), 2},
		{"hidden", io.NopCloser(httptestx.OneShot(strings.NewReader(payload))), 2},
	}
	for _, tt := range tests {
		s := newScene(t, h1, mPOST)
		s.serveOK()
		var writes atomic.Int64
		s.dialer(func(ctx context.Context, network, addr string) (net.Conn, error) {
			c, err := new(net.Dialer).DialContext(ctx, network, addr)
			return &writeCounter{c, &writes}, err
		})
		s.edit = func(r *http.Request) { r.Body = tt.body }
		require.NoError(t, s.runBare().err)
		assert.Equal(t, tt.writes, writes.Load(), tt.name)
	}
}

type writeCounter struct {
	net.Conn
	n *atomic.Int64
}

func (c *writeCounter) Write(p []byte) (int, error) {
	c.n.Add(1)
	return c.Conn.Write(p)
}

// What net/http rejects by itself, before GetConn: the texts are not read, that
// no hook fires is.
func TestPinLocalRejects(t *testing.T) {
	httptestx.Leaks(t)
	rejects := map[string]func(*http.Request){
		`net/http: invalid header field value for "X-Bad"`: func(r *http.Request) { r.Header["X-Bad"] = []string{"a\nb"} },
		`net/http: invalid header field name "X Bad"`:      func(r *http.Request) { r.Header["X Bad"] = []string{"a"} },
		"http: no Host in request URL":                     func(r *http.Request) { r.URL.Host = "" },
		`unsupported protocol scheme "foo"`:                func(r *http.Request) { r.URL.Scheme = "foo" },
		`net/http: invalid method "BAD METHOD"`:            func(r *http.Request) { r.Method = "BAD METHOD" },
		"http: nil Request.URL":                            func(r *http.Request) { r.URL = nil },
		"http: nil Request.Header":                         func(r *http.Request) { r.Header = nil },
	}
	for text, edit := range rejects {
		fired := false
		err := bareError(t, h1, mPOST, func(s *scene) {
			s.serveOK()
			s.edit = func(r *http.Request) {
				*r = *r.WithContext(httptrace.WithClientTrace(s.ctx, &httptrace.ClientTrace{
					GetConn: func(string) { fired = true },
				}))
				edit(r)
			}
		})
		assert.Equal(t, text, err.Error())
		assert.False(t, fired, text)
	}
}

// retrip ends attempts with a cause of its own. HTTP/1 returns the cause, HTTP/2
// the context's error, so it must look for both.
func TestPinErrorsOfAnEndedContext(t *testing.T) {
	httptestx.Leaks(t)
	cause := errors.New("a cause")
	for p, want := range map[proto]error{h1: cause, h1tls: cause, h2: context.Canceled} {
		s := newScene(t, p, mPOST)
		ctx, cancel := context.WithCancelCause(t.Context())
		s.edit = func(r *http.Request) { *r = *r.WithContext(ctx) }
		end := func() { cancel(cause) }
		s.serve(httptestx.Sequence(httptestx.Play{httptestx.ReadAll, httptestx.Call(end), httptestx.Silence}),
			H2Sequence(H2Play{H2ReadAll, H2Call(end), H2Silence}))
		assert.Equal(t, want, s.runBare().err, p)
	}
}

// http.Client looks for tls.RecordHeaderError by a type assertion: an error that
// retrip leaves untouched keeps that working.
func TestPinSchemeMismatchThroughTheClient(t *testing.T) {
	httptestx.Leaks(t)
	o := httptestx.NewTLSOrigin(t, httptestx.Sequence(
		httptestx.Play{httptestx.ReadHello, httptestx.WriteRaw("HTTP/1.1 400 Bad Request\r\n\r\n"), httptestx.FIN}))
	base := httptestx.NewTransport(t)
	for name, rt := range map[string]http.RoundTripper{"bare": base, "retrip": retrip.Must(retrip.New(base))} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, o.URL, http.NoBody)
		require.NoError(t, err)
		_, err = (&http.Client{Transport: rt}).Do(req) //nolint:bodyclose // an error has none
		require.ErrorIs(t, err, http.ErrSchemeMismatch, name)
	}
	assert.Equal(t, 2, o.Conns())
}

// An alert of the peer's is no tls.AlertError for errors.As, so that its class
// is read from the operation's name.
func TestPinRemoteAlert(t *testing.T) {
	httptestx.Leaks(t)
	err := bareError(t, h1tls, mPOST, func(s *scene) { s.serveH1(httptestx.Sequence(httptestx.Play{httptestx.Alert(40)})) })
	var op *net.OpError
	require.ErrorAs(t, err, &op)
	assert.Equal(t, "remote error", op.Op)
	require.NotErrorAs(t, err, new(tls.AlertError))
}

// ResponseHeaderTimeout looks like the caller's deadline on HTTP/1 and not on
// HTTP/2: the caller's end is never read from the error.
func TestPinHeaderTimeoutLooksLikeADeadline(t *testing.T) {
	httptestx.Leaks(t)
	for p, like := range map[proto]bool{h1: true, h2: false} {
		err := bareError(t, p, mPOST, func(s *scene) {
			s.transport.ResponseHeaderTimeout = shortLimit
			s.serve(httptestx.Sequence(httptestx.Play{httptestx.ReadAll, httptestx.Silence}), H2Sequence(H2Play{H2ReadAll, H2Silence}))
		})
		assert.Equal(t, like, errors.Is(err, context.DeadlineExceeded), p)
		var timeout interface{ Timeout() bool }
		require.ErrorAs(t, err, &timeout)
		assert.True(t, timeout.Timeout(), p)
	}
}

// On a kept HTTP/2 connection net/http answers with a request of its own in
// Response.Request; retrip sets the caller's.
func TestPinResponseRequestOnHTTP2(t *testing.T) {
	httptestx.Leaks(t)
	s := newScene(t, h2, mPOST)
	s.serveOK()
	s.warmUp(s.transport)
	req := mPOST.request(s.ctx, t, s.url, 0)
	resp, err := s.transport.RoundTrip(req)
	require.NoError(t, err)
	resp.Body.Close()
	assert.NotSame(t, req, resp.Request)

	req = mPOST.request(s.ctx, t, s.url, 0)
	resp, err = retrip.Must(retrip.New(s.transport)).RoundTrip(req)
	require.NoError(t, err)
	resp.Body.Close()
	assert.Same(t, req, resp.Request)
}
