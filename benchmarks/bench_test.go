package main

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"sync"
	"testing"
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

// inTurn gives the clients in another order in each round.
func inTurn(tb testing.TB) []client {
	tb.Helper()
	round, err := strconv.Atoi(cmp.Or(os.Getenv(roundVariable), "0"))
	if err != nil {
		tb.Fatal(err)
	}
	return rotated(clients(), round)
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

// must is a Helper only where it fails: that costs more than a call on a base that does no
// work.
func must(tb testing.TB, got result, err error) { //nolint:thelper // as above
	if err != nil || got.status != http.StatusOK {
		tb.Helper()
		tb.Fatalf("got status %d and error %v, want 200", got.status, err)
	}
}

// loop measures work, which is one call, and the processor time of this process.
func loop(b *testing.B, work func() (result, error)) {
	b.Helper()
	got, err := work() // connects, and learns the origin's protocol
	must(b, got, err)
	b.ReportAllocs()
	before := cpuTime()
	for b.Loop() {
		got, err := work()
		must(b, got, err)
	}
	b.ReportMetric(float64((cpuTime()-before).Nanoseconds())/float64(b.N), "cpu-ns/op") // benchfmt makes seconds of it
}

// What a transport adds to a base that does no work.
func BenchmarkTransport(b *testing.B) {
	for _, c := range rows(noopPlain, noopSecure) {
		for _, client := range inTurn(b) {
			if client.transport == nil {
				continue
			}
			b.Run("request="+c.name+"/client="+client.name, func(b *testing.B) {
				loop(b, sender(b, client.transport(newNoop(c.major), false), c.call))
			})
		}
	}
}

// The same from several goroutines at once, to one origin by one transport.
func BenchmarkTransportParallel(b *testing.B) {
	for _, c := range rows(noopPlain, noopSecure)[:1] {
		for _, client := range inTurn(b) {
			if client.transport == nil {
				continue
			}
			b.Run("request="+c.name+"/client="+client.name, func(b *testing.B) {
				rt := client.transport(newNoop(c.major), false)
				b.ReportAllocs()
				b.RunParallel(func(pb *testing.PB) {
					send := sender(b, rt, c.call)
					for pb.Next() {
						if _, err := send(); err != nil {
							b.Error(err)
							return
						}
					}
				})
			})
		}
	}
}

// A whole call, by the client that a program would use: an http.Client with the
// transport, or the client that the library brings along.
func BenchmarkCall(b *testing.B) {
	for _, c := range rows(noopPlain, noopSecure) {
		for _, client := range inTurn(b) {
			b.Run("request="+c.name+"/client="+client.name, func(b *testing.B) {
				do := client.on(newNoop(c.major), false)
				loop(b, func() (result, error) { return do(b.Context(), c.call) })
			})
		}
	}
}

// The same call to an origin on loopback, in a process of its own.
func BenchmarkLoopback(b *testing.B) {
	o := needOrigin(b)
	for _, c := range rows(o.Plain, o.Secure) {
		for _, client := range inTurn(b) {
			b.Run("request="+c.name+"/client="+client.name, func(b *testing.B) {
				do := client.on(o.base(b), false)
				loop(b, func() (result, error) { return do(b.Context(), c.call) })
			})
		}
	}
}

// A call whose first exchange is answered by 503, and which is repeated without a wait;
// bare makes both exchanges.
func BenchmarkRepeat(b *testing.B) {
	o := needOrigin(b)
	data := make([]byte, 1<<10)
	for _, c := range []struct {
		name string
		base func(testing.TB) http.RoundTripper
		call call
	}{
		{"GET-noop", newFlaky, call{method: http.MethodGet, url: noopPlain + "/"}},
		{"PUT-1KiB-noop", newFlaky, call{method: http.MethodPut, url: noopPlain + "/", data: data}},
		{"GET-loopback", o.base, call{method: http.MethodGet, url: o.Plain + flakyPath}},
		{"PUT-1KiB-loopback", o.base, call{method: http.MethodPut, url: o.Plain + flakyPath, data: data}},
	} {
		for _, client := range inTurn(b) {
			b.Run("request="+c.name+"/client="+client.name, func(b *testing.B) {
				do := client.on(c.base(b), true)
				loop(b, func() (result, error) { return do(b.Context(), c.call) })
			})
		}
	}
}

func newFlaky(testing.TB) http.RoundTripper {
	n := newNoop(1)
	n.flaky = true
	return n
}
