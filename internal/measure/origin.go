package main

import (
	"context"
	"net"
	"net/http"
	"os"
	"runtime"
	"sync/atomic"
	"time"
)

// An origin is an HTTP server on the loopback interface that counts its connections.
type origin struct {
	url    string
	conns  atomic.Int64
	server *http.Server
	done   chan struct{}
}

func serve(handler http.Handler) (*origin, error) {
	ln, err := new(net.ListenConfig).Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	o := &origin{url: "http://" + ln.Addr().String(), done: make(chan struct{})}
	o.server = &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: time.Minute,
		Protocols:         new(http.Protocols),
		ConnState: func(_ net.Conn, state http.ConnState) {
			if state == http.StateNew {
				o.conns.Add(1)
			}
		},
	}
	// Without TLS the client says by its own settings which protocol it speaks.
	o.server.Protocols.SetHTTP1(true)
	o.server.Protocols.SetUnencryptedHTTP2(true)
	go func() {
		defer close(o.done)
		_ = o.server.Serve(ln) // always http.ErrServerClosed
	}()
	return o, nil
}

func (o *origin) close() {
	_ = o.server.Close()
	<-o.done
}

// A leftover is what a process holds.
type leftover struct{ goroutines, files int }

func held() leftover {
	files, _ := os.ReadDir("/proc/self/fd")
	return leftover{runtime.NumGoroutine(), len(files)}
}

// back reports whether no more is held than before, once connections had time to close.
func (before leftover) back() bool {
	return settles(func() bool {
		now := held()
		return now.goroutines <= before.goroutines && now.files <= before.files
	})
}

// settles waits up to five seconds.
func settles(ready func() bool) bool {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for range 2500 {
		if ready() {
			return true
		}
		<-tick.C
	}
	return false
}
