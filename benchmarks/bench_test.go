package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"runtime"
	"sync"
	"testing"

	"github.com/retrip/retrip/internal/httptestx"
)

func TestMain(m *testing.M) {
	if played, err := playRole(); played {
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	// Under the race detector each process sleeps for a second when it ends.
	if err := os.Setenv("GORACE", cmp.Or(os.Getenv("GORACE"), "atexit_sleep_ms=0")); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

// ourOrigin is started by the first who needs it and ends with this process.
var ourOrigin = sync.OnceValues(func() (*origin, error) { return startOrigin(context.Background()) })

func needOrigin(tb testing.TB) *origin {
	tb.Helper()
	o, err := ourOrigin()
	if err != nil {
		tb.Fatal(err)
	}
	return o
}

func (o *origin) base(tb testing.TB) http.RoundTripper {
	tb.Helper()
	base, err := o.transport()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(base.CloseIdleConnections)
	return base
}

// noop is a base that does no work: it reads the request's body, as every base must, and
// answers at once. With flaky every other answer is a 503.
type noop struct {
	major int
	proto string
	flaky bool
	calls int
}

func newNoop(major int) *noop {
	return &noop{major: major, proto: fmt.Sprintf("HTTP/%d.%d", major, 2-major)}
}

func (n *noop) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Body != nil {
		if _, err := io.Copy(io.Discard, req.Body); err != nil {
			return nil, err
		}
		_ = req.Body.Close()
	}
	status := http.StatusOK
	if n.flaky {
		if n.calls++; n.calls%2 == 1 {
			status = http.StatusServiceUnavailable
		}
	}
	return &http.Response{
		StatusCode: status, ProtoMajor: n.major, ProtoMinor: 2 - n.major, Proto: n.proto,
		Header: noHeader, Body: emptyBody{}, Request: req,
	}, nil
}

var noHeader = http.Header{}

// emptyBody is not http.NoBody, which clients treat in ways of their own.
type emptyBody struct{}

func (emptyBody) Read([]byte) (int, error) { return 0, io.EOF }
func (emptyBody) Close() error             { return nil }

// A row is one kind of request that is compared.
type row struct {
	name  string
	major int // of the protocol
	call  call
}

// rows are those of the fast path, to an origin's URL for each protocol.
func rows(plain, secure string) []row {
	data := make([]byte, 1<<10)
	return []row{
		{"GET", 1, call{method: http.MethodGet, url: plain + "/"}},
		{"PUT-1KiB", 1, call{method: http.MethodPut, url: plain + "/", data: data}},
		{"POST-1KiB-with-key", 1, call{method: http.MethodPost, url: plain + "/", data: data, key: "ord-7731"}},
		{"POST-1KiB", 1, call{method: http.MethodPost, url: plain + "/", data: data}},
		{"GET-HTTP2", 2, call{method: http.MethodGet, url: secure + "/"}},
		{"POST-1KiB-HTTP2", 2, call{method: http.MethodPost, url: secure + "/", data: data}},
	}
}

const noopPlain, noopSecure = "http://origin.test", "https://origin.test"

// sender sends by a transport alone. The request is made once; each call has a copy, since
// some clients write to what they are given.
func sender(tb testing.TB, rt http.RoundTripper, c call) func() (result, error) {
	tb.Helper()
	made, err := c.request(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	return func() (result, error) {
		req := *made
		if c.data != nil {
			req.Body = io.NopCloser(bytes.NewReader(c.data))
		}
		return consume(rt.RoundTrip(&req))
	}
}

// work repeats a call, which must succeed. It is a Helper only where it fails: that costs more
// than a call on a base that does no work.
func work(tb testing.TB, do func() (result, error)) func(n int) { //nolint:thelper // as above
	return func(n int) {
		for range n {
			if got, err := do(); err != nil || got.status != http.StatusOK {
				tb.Helper()
				tb.Errorf("got status %d and error %v, want 200", got.status, err)
				return
			}
		}
	}
}

// compare measures what all clients do that can do it; make gives nil for the others.
func compare(b *testing.B, request string, side func(*testing.B, client) func(n int)) {
	b.Helper()
	b.Run("request="+request, func(b *testing.B) {
		var sides []httptestx.Side
		for _, c := range clients() {
			if w := side(b, c); w != nil {
				w(1) // connects, and learns the origin's protocol
				sides = append(sides, httptestx.Side{Name: c.name, Work: w})
			}
		}
		httptestx.Compare(b, sides)
	})
}

// What a transport adds to a base that does no work.
func BenchmarkTransport(b *testing.B) {
	for _, r := range rows(noopPlain, noopSecure) {
		compare(b, r.name, func(b *testing.B, c client) func(int) {
			b.Helper()
			if c.transport == nil {
				return nil
			}
			return work(b, sender(b, c.transport(newNoop(r.major), false), r.call))
		})
	}
}

// The same from all cores at once, to one origin by one transport.
func BenchmarkTransportParallel(b *testing.B) {
	for _, r := range rows(noopPlain, noopSecure)[:1] {
		compare(b, r.name, func(b *testing.B, c client) func(int) {
			b.Helper()
			if c.transport == nil {
				return nil
			}
			rt := c.transport(newNoop(r.major), false)
			works := make([]func(int), runtime.GOMAXPROCS(0))
			for i := range works {
				works[i] = work(b, sender(b, rt, r.call))
			}
			return func(n int) {
				var wg sync.WaitGroup
				for _, w := range works {
					wg.Go(func() { w(max(1, n/len(works))) })
				}
				wg.Wait()
			}
		})
	}
}

// A whole call, by the client that a program would use: an http.Client with the
// transport, or the client that the library brings along.
func BenchmarkCall(b *testing.B) {
	for _, r := range rows(noopPlain, noopSecure) {
		compare(b, r.name, func(b *testing.B, c client) func(int) {
			b.Helper()
			return calls(b, c.on(newNoop(r.major), false), r.call)
		})
	}
}

// The same call to an origin on loopback, in a process of its own.
func BenchmarkLoopback(b *testing.B) {
	o := needOrigin(b)
	for _, r := range rows(o.Plain, o.Secure) {
		compare(b, r.name, func(b *testing.B, c client) func(int) {
			b.Helper()
			return calls(b, c.on(o.base(b), false), r.call)
		})
	}
}

func calls(b *testing.B, do caller, c call) func(int) {
	b.Helper()
	ctx := b.Context()
	return work(b, func() (result, error) { return do(ctx, c) })
}

// A call whose first exchange is answered by 503, and which is repeated without a wait;
// bare makes both exchanges.
func BenchmarkRepeat(b *testing.B) {
	o := needOrigin(b)
	data := make([]byte, 1<<10)
	for _, r := range []struct {
		name string
		base func(testing.TB) http.RoundTripper
		call call
	}{
		{"GET-noop", newFlaky, call{method: http.MethodGet, url: noopPlain + "/"}},
		{"PUT-1KiB-noop", newFlaky, call{method: http.MethodPut, url: noopPlain + "/", data: data}},
		{"GET-loopback", o.base, call{method: http.MethodGet, url: o.Plain + flakyPath}},
		{"PUT-1KiB-loopback", o.base, call{method: http.MethodPut, url: o.Plain + flakyPath, data: data}},
	} {
		compare(b, r.name, func(b *testing.B, c client) func(int) {
			b.Helper()
			return calls(b, c.on(r.base(b), true), r.call)
		})
	}
}

func newFlaky(testing.TB) http.RoundTripper {
	n := newNoop(1)
	n.flaky = true
	return n
}
