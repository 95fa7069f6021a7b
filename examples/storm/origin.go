package main

import (
	"context"
	"io"
	"log"
	"net"
	"net/http"
	"sync"
	"time"
)

// fault is what befalls an origin.
type fault int

const (
	answers503 fault = iota // at once, without doing any work
	stalls                  // requests queue up and nothing is answered
)

func (f fault) String() string {
	if f == stalls {
		return "stalls"
	}
	return "answers 503"
}

// served is the time the origin's only worker spends on a request: 200 requests a second.
const served = 5 * time.Millisecond

// queueOrigin does one request after the other, also for clients that have gone: a server
// that has read a request does not see that nobody waits for it.
type queueOrigin struct {
	fault    fault
	down, up time.Time

	mu       sync.Mutex
	free     time.Time // when the worker is
	arrivals []time.Time
}

func (o *queueOrigin) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	done, ok := o.enqueue(time.Now())
	if !ok {
		w.WriteHeader(http.StatusServiceUnavailable)
		return
	}
	time.Sleep(time.Until(done))
	w.WriteHeader(http.StatusOK)
}

// enqueue returns when the request will be done.
func (o *queueOrigin) enqueue(now time.Time) (done time.Time, ok bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.arrivals = append(o.arrivals, now)
	down := !now.Before(o.down) && now.Before(o.up)
	if down && o.fault == answers503 {
		return time.Time{}, false
	}
	begin := now
	if o.free.After(begin) {
		begin = o.free
	}
	if o.fault == stalls && !begin.Before(o.down) && begin.Before(o.up) {
		begin = o.up
	}
	o.free = begin.Add(served)
	return o.free, true
}

// serve starts a server of its own port and returns its URL.
func serve(ctx context.Context, h http.Handler) (url string, stop func(), err error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	server := &http.Server{Handler: h, ReadHeaderTimeout: time.Minute, ErrorLog: log.New(io.Discard, "", 0)}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		_ = server.Serve(l) // http.ErrServerClosed
	}()
	return "http://" + l.Addr().String() + "/", func() {
		_ = server.Close()
		<-stopped
	}, nil
}
