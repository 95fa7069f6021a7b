package httptestx

import (
	"context"
	"net"
	"net/http"
	"sync"
	"syscall"
	"time"
)

// Memory is a network of one host: what DialContext dials, Accept accepts. Its
// connections are net.Pipe ends, so servers and transports on it work inside a
// testing/synctest bubble; make it there too. It is a net.Listener and safe for
// concurrent use.
type Memory struct {
	conns chan net.Conn
	done  chan struct{}
	close sync.Once
}

// NewMemory returns an open network.
func NewMemory() *Memory {
	return &Memory{conns: make(chan net.Conn), done: make(chan struct{})}
}

// DialContext fits http.Transport.DialContext. Every address leads to the one
// host; after Close a dial is refused.
func (m *Memory) DialContext(ctx context.Context, network, _ string) (net.Conn, error) {
	client, server := net.Pipe()
	select {
	case m.conns <- server:
		return client, nil
	case <-m.done:
		return nil, &net.OpError{Op: "dial", Net: network, Addr: m.Addr(), Err: syscall.ECONNREFUSED}
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Accept implements net.Listener.
func (m *Memory) Accept() (net.Conn, error) {
	select {
	case c := <-m.conns:
		return c, nil
	case <-m.done:
		return nil, net.ErrClosed
	}
}

// Close implements net.Listener; closing twice is allowed.
func (m *Memory) Close() error {
	m.close.Do(func() { close(m.done) })
	return nil
}

// Addr implements net.Listener.
func (m *Memory) Addr() net.Addr { return memoryAddr{} }

type memoryAddr struct{}

func (memoryAddr) Network() string { return "memory" }
func (memoryAddr) String() string  { return "origin.test:80" }

// ServeMemory starts an http.Server with the handler on a network in memory
// and returns an HTTP/1 transport that reaches it by any http URL, such as
// http://origin.test/. Both are closed when the test ends, which in a bubble is
// before the bubble does.
func ServeMemory(tb TB, handler http.Handler) *http.Transport {
	tb.Helper()
	m := NewMemory()
	server := &http.Server{Handler: handler, ReadHeaderTimeout: time.Hour}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		_ = server.Serve(m) // always http.ErrServerClosed: Close below ends it
	}()
	transport := &http.Transport{DialContext: m.DialContext, MaxIdleConnsPerHost: 100}
	tb.Cleanup(func() {
		transport.CloseIdleConnections()
		server.Close()
		<-stopped
	})
	return transport
}
