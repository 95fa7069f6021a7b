package retrip

import (
	"context"
	"crypto/tls"
	"io"
	"math"
	"net"
	"net/http"
	"net/http/httptrace"
	"sync"
	"sync/atomic"
	"time"

	"github.com/retrip/retrip/internal/wire"
)

// traced is one attempt that is watched by httptrace, may be ended by retrip, or sends
// another request than the caller's. It is the attempt's context, and it holds the trace and
// the request too: one allocation serves them all, and its size is most of what an attempt
// costs. It is never pooled, because hooks and bodies are used after RoundTrip has returned
// (WIRE.md C1, C2, C6).
type traced struct {
	context.Context // the caller's, or one made of it that retrip can end

	cancel  context.CancelFunc // nil where retrip never ends the attempt
	request http.Request
	trace   httptrace.ClientTrace
	whole   *http.Request         // the caller's
	body    *attemptBody          // of request; nil: not watched
	failed  atomic.Pointer[error] // the reader's own failure
	answer  io.ReadCloser         // the response's own body, below answerBody

	plainHTTP1 bool  // a connection without TLS speaks HTTP/1.1 here
	protected  bool  // the request has a permit
	replays    bool  // it has none, and net/http sends it again by itself after it was written
	timedOut   bool  // the timer came before the base returned
	most       int32 // sends that the attempt may take on HTTP/2

	timer *time.Timer // ends the attempt, nil: nothing does

	mu     sync.Mutex // hooks of foreign bases may run on any goroutine
	conn   net.Conn   // the last one taken
	seen   wire.Facts
	reused bool
	cut    bool // by the bound on sends
	sent   bool // the request was written by the last send
	read   bool // the response was read to its end
}

// traceKey is the key by which httptrace looks for its trace in a context. A context that
// answers that look-up by itself costs a third of what WithClientTrace does, which
// composes two traces by reflection.
var traceKey = func() any {
	var probe keyProbe
	httptrace.ContextClientTrace(&probe)
	return probe.key
}()

type keyProbe struct {
	context.Context

	key any
}

func (p *keyProbe) Value(key any) any {
	p.key = key
	return nil
}

// Value answers for the trace; the rest is the context's that the attempt has.
func (a *traced) Value(key any) any {
	if key == traceKey {
		return a.clientTrace()
	}
	return a.Context.Value(key)
}

// clientTrace gives the attempt's trace. It is made when the base asks for it, as net/http
// does first of all: a cache that answers by itself never does, and has nothing to prove.
func (a *traced) clientTrace() *httptrace.ClientTrace {
	a.mu.Lock()
	defer a.mu.Unlock() // the caller's context may panic
	if !a.seen.Traced {
		a.attach()
		a.seen.Traced = true
	}
	return &a.trace
}

// attach makes the hooks that the rules read (internal/wire). Got1xxResponse is left as it
// is: setting it lifts net/http's limit on 1xx headers (WIRE.md C4).
func (a *traced) attach() {
	h := hooks{a, httptrace.ContextClientTrace(a.Context)}
	if h.outer != nil {
		a.trace = *h.outer
	}
	a.trace.GetConn, a.trace.GotConn = h.getConn, h.gotConn
	if a.seen.WritesTraced {
		a.trace.WroteHeaders = h.wroteHeaders
	}
	// It tells when the request's body is done with, too.
	if a.seen.WritesTraced || a.cancel != nil && hasBody(a.whole) {
		a.trace.WroteRequest = h.wroteRequest
	}
	if a.secure() {
		a.trace.TLSHandshakeDone = h.handshakeDone
	}
}

// hooks are those of an attempt, each before that of the caller's own trace.
type hooks struct {
	*traced

	outer *httptrace.ClientTrace // the caller's, nil: none
}

func (a *traced) secure() bool { return a.whole.URL != nil && a.whole.URL.Scheme == "https" }

func (h hooks) getConn(hostPort string) {
	h.mu.Lock()
	h.seen.GetConn++
	h.mu.Unlock()
	if h.outer != nil && h.outer.GetConn != nil {
		h.outer.GetConn(hostPort)
	}
}

func (h hooks) gotConn(info httptrace.GotConnInfo) {
	h.mu.Lock()
	h.seen.GotConn++
	cut := h.seen.GotConn > 1 && h.cancel != nil && h.overBound(info.Conn)
	h.cut = h.cut || cut
	h.seen.Moved = h.seen.Moved || h.seen.GotConn > 1 && h.conn != info.Conn && !h.nothingWritten()
	h.conn, h.reused, h.sent = info.Conn, info.Reused, false
	h.mu.Unlock()
	if cut {
		h.stop(info.Conn)
	}
	if h.outer != nil && h.outer.GotConn != nil {
		h.outer.GotConn(info)
	}
}

// stop keeps a send on conn from happening. The end of the context is enough on HTTP/2,
// which looks at it before HEADERS go out. HTTP/1 does not look, so that writing is made to
// fail; the connection is this request's own, and is closed with it.
func (a *traced) stop(conn net.Conn) {
	if conn != nil && a.speaksHTTP1(conn) {
		_ = conn.SetWriteDeadline(time.Unix(1, 0))
	}
	a.cancel()
}

// overBound reports whether a further send, on conn, must not happen. net/http sends a
// request again by itself, on HTTP/2 without any limit and whatever its method (WIRE.md
// finding 2).
func (a *traced) overBound(conn net.Conn) bool {
	before := a.speaksHTTP1(a.conn)
	switch {
	case !before && a.seen.GotConn > a.most:
		return true
	case a.protected:
		return false
	case before:
		// What net/http does not replay it sends again only if nothing was written
		// (transport.go, shouldRetryRequest).
		return a.replays
	case a.conn == conn:
		return false // the earlier one was refused or not sent: others retire the connection
	default:
		return !a.nothingWritten()
	}
}

// nothingWritten reports whether the sends before this one surely left nothing on the
// wire: RoundTrip waits for the writer and its hooks before it tries again (H8700).
func (a *traced) nothingWritten() bool {
	return a.seen.Std && a.seen.WritesTraced && a.seen.WroteHeaders == 0 && a.seen.WroteRequest == 0
}

// speaksHTTP1 reports whether conn surely does.
func (a *traced) speaksHTTP1(conn net.Conn) bool {
	if secure, ok := conn.(interface{ ConnectionState() tls.ConnectionState }); ok {
		proto := secure.ConnectionState().NegotiatedProtocol
		return proto == "" || proto == "http/1.1"
	}
	// net/http speaks HTTP/2 over TLS on a *tls.Conn only.
	return a.plainHTTP1 || a.seen.Std && a.secure()
}

func (a *traced) onHTTP1() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.conn != nil && a.speaksHTTP1(a.conn)
}

// over tells that the base has answered. Where that answer counts, what a foreign base sends
// afterwards is not to be stopped any more, since that would cut the answer. It reports
// whether the hooks saw no connection: then they prove nothing.
func (a *traced) over(counts bool) (unseen bool) {
	a.mu.Lock()
	if counts {
		a.protected, a.most = true, math.MaxInt32
	}
	unseen = a.seen.GetConn > 0 && a.seen.GotConn == 0
	a.mu.Unlock()
	return unseen
}

func (h hooks) wroteHeaders() {
	h.mu.Lock()
	h.seen.WroteHeaders++
	h.mu.Unlock()
	if h.outer != nil && h.outer.WroteHeaders != nil {
		h.outer.WroteHeaders()
	}
}

func (h hooks) wroteRequest(info httptrace.WroteRequestInfo) {
	h.mu.Lock()
	h.seen.WroteRequest++
	h.sent = true
	over := h.read && !h.uploading()
	h.mu.Unlock()
	if over {
		h.release()
	}
	if h.outer != nil && h.outer.WroteRequest != nil {
		h.outer.WroteRequest(info)
	}
}

func (h hooks) handshakeDone(state tls.ConnectionState, err error) {
	if proto := state.NegotiatedProtocol; proto != "" && proto != "http/1.1" {
		h.mu.Lock()
		h.seen.OtherProto = true
		h.mu.Unlock()
	}
	if h.outer != nil && h.outer.TLSHandshakeDone != nil {
		h.outer.TLSHandshakeDone(state, err)
	}
}
