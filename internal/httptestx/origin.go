package httptestx

import (
	"context"
	"errors"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"sync"
	"syscall"
	"time"
)

// Turn names a moment at which a [Script] is asked: a connection was accepted,
// or the first byte of another request arrived on one that was kept. All
// numbers count from 1.
type Turn struct {
	Conn   int // the connection, over the origin's life
	OnConn int // the turn on that connection
	Total  int // the turn, over the origin's life
}

// Script decides what happens in a turn. It may be called concurrently.
type Script func(Turn) Play

// Play is the list of steps of one turn. A step that ends the connection, or
// fails, ends the play; otherwise the connection is kept for the next turn,
// unless a part of the request was left unread.
type Play []Step

// Step is one act of the origin on a connection.
type Step func(*Conn) error

// Sequence hands out one play per turn in order; the last one repeats. Turns
// are counted over all connections, so it suits requests that follow one
// another.
func Sequence(plays ...Play) Script {
	return func(t Turn) Play { return plays[min(t.Total, len(plays))-1] }
}

// ByConn hands out plays by connection, then by turn on it; the last
// connection's list repeats, and so does the last play of a list.
func ByConn(conns ...[]Play) Script {
	return func(t Turn) Play {
		plays := conns[min(t.Conn, len(conns))-1]
		return plays[min(t.OnConn, len(plays))-1]
	}
}

// Origin is an HTTP/1 origin on a loopback port that plays a script and counts
// what reaches it. It is safe for concurrent use.
type Origin struct {
	Ledger

	// URL is the origin's base URL, without a trailing slash.
	URL string
	// Addr is the origin's host and port.
	Addr string

	script  Script
	secure  bool
	stopped context.Context //nolint:containedctx // ends every blocked step with the origin
	stop    context.CancelFunc

	mu       sync.Mutex
	listener net.Listener
	active   map[*Conn]struct{}
	turns    int
	running  sync.WaitGroup
}

// NewOrigin starts an origin without TLS. It is closed when the test ends.
func NewOrigin(tb TB, script Script) *Origin {
	tb.Helper()
	return newOrigin(tb, script, false)
}

// NewTLSOrigin starts an origin with TLS; the handshake is made by the first
// step that reads or writes. It is closed when the test ends.
func NewTLSOrigin(tb TB, script Script) *Origin {
	tb.Helper()
	return newOrigin(tb, script, true)
}

func newOrigin(tb TB, script Script, secure bool) *Origin {
	tb.Helper()
	ln := Listen(tb)
	o := &Origin{
		Addr:   ln.Addr().String(),
		script: script,
		secure: secure,
		active: map[*Conn]struct{}{},
	}
	o.URL = "http://" + o.Addr
	if secure {
		o.URL = "https://" + o.Addr
	}
	o.stopped, o.stop = context.WithCancel(context.Background())
	o.accept(ln)
	tb.Cleanup(o.Close)
	return o
}

// taken are the ports that this process has had.
var taken sync.Map

// Listen opens a loopback port below the range that systems hand out to
// clients, and no port twice in a process: it can be closed, refuses then, and
// can be opened again without meeting another socket.
func Listen(tb TB) net.Listener {
	tb.Helper()
	for range 200 {
		port := 15000 + rand.IntN(17000)
		if _, had := taken.LoadOrStore(port, true); had {
			continue
		}
		ln, err := listen(net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
		if err == nil {
			return ln
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			tb.Fatalf("httptestx: listen: %v", err)
		}
	}
	tb.Fatal("httptestx: no free port in 200 tries")
	return nil
}

func listen(addr string) (net.Listener, error) {
	return new(net.ListenConfig).Listen(context.Background(), "tcp", addr)
}

// Refuse closes the port: further connections are refused until Accept. It
// leaves open connections alone.
func (o *Origin) Refuse() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.listener != nil {
		o.listener.Close()
		o.listener = nil
	}
}

// Accept opens the port again after Refuse.
func (o *Origin) Accept(tb TB) {
	tb.Helper()
	ln, err := listen(o.Addr)
	if err != nil {
		tb.Fatalf("httptestx: open the port again: %v", err)
	}
	o.accept(ln)
}

// Close closes the port and every connection and waits for their plays to end.
func (o *Origin) Close() {
	o.stop()
	o.Refuse()
	o.mu.Lock()
	for c := range o.active {
		c.raw.Close()
	}
	o.mu.Unlock()
	o.running.Wait()
}

func (o *Origin) accept(ln net.Listener) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.stopped.Err() != nil {
		ln.Close()
		return
	}
	o.listener = ln
	o.running.Go(func() {
		for {
			raw, err := ln.Accept()
			if err != nil {
				return
			}
			if c := o.admit(raw); c != nil {
				o.running.Go(c.serve)
			}
		}
	})
}

func (o *Origin) admit(raw net.Conn) *Conn {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.stopped.Err() != nil {
		raw.Close()
		return nil
	}
	c := &Conn{o: o, raw: raw, Number: o.Accepted(), cert: GoodCert}
	o.active[c] = struct{}{}
	return c
}

func (o *Origin) dismiss(c *Conn) {
	o.mu.Lock()
	delete(o.active, c)
	o.mu.Unlock()
	o.Gone()
}

func (o *Origin) next(c *Conn) Play {
	o.mu.Lock()
	o.turns++
	c.turns++
	t := Turn{Conn: c.Number, OnConn: c.turns, Total: o.turns}
	o.mu.Unlock()
	return o.script(t)
}

// NewTransport returns a transport of its own for a test: it trusts the kit's
// authority, speaks HTTP/1 unless ForceAttemptHTTP2 is set, uses no proxy, and
// its idle connections are closed when the test ends.
func NewTransport(tb TB) *http.Transport {
	tb.Helper()
	t := &http.Transport{
		TLSClientConfig:     ClientTLS(),
		TLSHandshakeTimeout: 10 * time.Second,
		MaxIdleConnsPerHost: 100,
	}
	tb.Cleanup(t.CloseIdleConnections)
	return t
}
