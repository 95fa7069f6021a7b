package retrip_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/httptestx"
)

// noop is a base that does no work: what remains is retrip's own cost. Its answers tell
// of a protocol, as net/http's do, and have a body that is not http.NoBody, because such a
// body costs retrip more.
type noop struct {
	answer *http.Response
	asks   bool // for the request's trace, and follows it, as net/http does
}

func newNoop(major int) *noop {
	return &noop{answer: &http.Response{
		StatusCode: http.StatusOK, ProtoMajor: major, Proto: fmt.Sprintf("HTTP/%d.0", major),
		Header: http.Header{}, Body: benchBody{},
	}}
}

func (b *noop) RoundTrip(req *http.Request) (*http.Response, error) {
	if b.asks {
		b.trace(httptrace.ContextClientTrace(req.Context()))
	}
	copied := *b.answer
	return &copied, nil
}

func (b *noop) trace(t *httptrace.ClientTrace) {
	if t == nil {
		return
	}
	if t.GetConn != nil {
		t.GetConn("origin.test:80")
	}
	if t.GotConn != nil {
		t.GotConn(httptrace.GotConnInfo{Reused: true})
	}
	if t.WroteHeaders != nil {
		t.WroteHeaders()
	}
	if t.WroteRequest != nil {
		t.WroteRequest(httptrace.WroteRequestInfo{})
	}
}

// benchBody is a body without content.
type benchBody struct{}

func (benchBody) Read([]byte) (int, error) { return 0, io.EOF }
func (benchBody) Close() error             { return nil }

// A benchRow is one kind of request, and how many allocations retrip may add to it where
// nothing fails.
type benchRow struct {
	name   string
	major  int // of the base's answers
	most   int
	opts   []retrip.Option
	method string
	url    string
	body   bool
	asks   bool // the base does
	header http.Header
	wrap   func(context.Context) context.Context
}

// benchRequests are the kinds of requests with the default settings.
func benchRequests() []benchRow {
	key := http.Header{"Idempotency-Key": {"ord-7731"}}
	const plain, secure = "http://origin.test/orders", "https://origin.test/orders"
	return []benchRow{
		{name: "GET", major: 1, most: 0, method: "GET", url: plain},
		{name: "GET-under-trace", major: 1, most: 0, method: "GET", url: plain, wrap: benchTrace},
		{name: "POST-with-key", major: 1, most: 4, method: "POST", url: plain, body: true, header: key},
		{name: "PUT", major: 1, most: 4, method: "PUT", url: plain, body: true},
		{name: "POST", major: 1, most: 6, method: "POST", url: plain, body: true},
		{name: "GET-HTTP2", major: 2, most: 6, method: "GET", url: secure},
		{name: "POST-HTTP2", major: 2, most: 9, method: "POST", url: secure, body: true},
	}
}

func benchTrace(ctx context.Context) context.Context {
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) {}})
}

// benchRows are those, on a base that asks for its trace too, and each of them with what
// makes it dearer: 13 allocations in all where somebody looks, else a few more than without.
func benchRows() []benchRow {
	logger := slog.New(benchHandler{})
	rows := benchRequests()
	for _, r := range benchRequests() {
		asked, hook, log, limit, override := r, r, r, r, r
		asked.name, asked.asks = r.name+"-asked", true
		hook.name, hook.most = r.name+"-hook", 13
		hook.opts = []retrip.Option{retrip.WithHook(func(context.Context, retrip.Event) {})}
		log.name, log.most = r.name+"-logger", 13
		log.opts = []retrip.Option{retrip.WithLogger(logger)}
		limit.name, limit.most = r.name+"-attempt-timeout", r.most+6
		limit.opts = []retrip.Option{retrip.WithAttemptTimeout(time.Minute)}
		override.name, override.most = r.name+"-override", r.most+2
		override.wrap = func(ctx context.Context) context.Context {
			if r.wrap != nil {
				ctx = r.wrap(ctx)
			}
			return retrip.Override(ctx, retrip.WithMaxAttempts(2))
		}
		rows = append(rows, asked, hook, log, limit, override)
	}
	return rows
}

// benchHandler is enabled and does no work, as the base: what it costs to write a record is
// the handler's affair.
type benchHandler struct{}

func (benchHandler) Enabled(context.Context, slog.Level) bool  { return true }
func (benchHandler) Handle(context.Context, slog.Record) error { return nil }
func (h benchHandler) WithAttrs([]slog.Attr) slog.Handler      { return h }
func (h benchHandler) WithGroup(string) slog.Handler           { return h }

// request makes a request whose context can end, as those of servers and of programs that
// are shut down can: a context that never ends costs less. It is the request's own, as in a
// server: one for all would have them wait for each other.
func (r benchRow) request(tb testing.TB) *http.Request {
	tb.Helper()
	ctx, cancel := context.WithCancel(tb.Context())
	tb.Cleanup(cancel)
	if r.wrap != nil {
		ctx = r.wrap(ctx)
	}
	var body io.Reader
	if r.body {
		body = bytes.NewReader(bytes.Repeat([]byte("x"), 1<<10))
	}
	req, err := http.NewRequestWithContext(ctx, r.method, r.url, body)
	if err != nil {
		tb.Fatal(err)
	}
	maps.Copy(req.Header, r.header)
	return req
}

func (r benchRow) transports(tb testing.TB) []benchClient {
	tb.Helper()
	base := newNoop(r.major)
	base.asks = r.asks
	t, err := retrip.New(base, r.opts...)
	if err != nil {
		tb.Fatal(err)
	}
	trips(tb, t, r.request(tb)) // the origin's protocol is known from its first answer on
	return []benchClient{{"bare", base}, {"retrip", t}}
}

type benchClient struct {
	name string
	rt   http.RoundTripper
}

// trips makes one exchange and reads the answer to its end. It is a Helper only where it
// fails: that costs more than what is measured.
func trips(tb testing.TB, rt http.RoundTripper, req *http.Request) int { //nolint:thelper // as above
	resp, err := rt.RoundTrip(req)
	if err != nil {
		tb.Helper()
		tb.Fatal(err)
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		tb.Helper()
		tb.Fatal(err)
	}
	_ = resp.Body.Close()
	return resp.StatusCode
}

// The two of a row are compared by: benchstat -col /client.
func BenchmarkFastPath(b *testing.B) {
	for _, r := range benchRows() {
		b.Run("request="+r.name, func(b *testing.B) {
			var sides []httptestx.Side
			for _, c := range r.transports(b) {
				req := r.request(b)
				sides = append(sides, httptestx.Side{Name: c.name, Work: func(n int) {
					for range n {
						trips(b, c.rt, req)
					}
				}})
			}
			httptestx.Compare(b, sides)
		})
	}
}

// All goroutines ask one Transport for one origin.
func BenchmarkFastPathParallel(b *testing.B) {
	for _, r := range benchRequests() {
		b.Run("request="+r.name, func(b *testing.B) {
			var sides []httptestx.Side
			for _, c := range r.transports(b) {
				reqs := make([]*http.Request, runtime.GOMAXPROCS(0))
				for i := range reqs {
					reqs[i] = r.request(b)
				}
				sides = append(sides, httptestx.Side{Name: c.name, Work: func(n int) {
					var wg sync.WaitGroup
					for _, req := range reqs {
						wg.Go(func() {
							for range max(1, n/len(reqs)) {
								trips(b, c.rt, req)
							}
						})
					}
					wg.Wait()
				}})
			}
			httptestx.Compare(b, sides)
		})
	}
}

// The settings of one request are made for it, too.
func BenchmarkOverride(b *testing.B) {
	ctx := b.Context()
	b.ReportAllocs()
	for b.Loop() {
		retrip.Override(ctx, retrip.WithMaxAttempts(2))
	}
}

// benchRepeats is a loopback origin that answers every other exchange by 503. once does the
// work one time: an operation of retrip that repeats its request, or as many exchanges on
// the bare base.
func benchRepeats(tb testing.TB) (bare, ours func()) {
	tb.Helper()
	var exchanges atomic.Int64
	origin := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if exchanges.Add(1)%2 == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	tb.Cleanup(origin.Close)
	base := httptestx.NewTransport(tb)
	// No wait, which would be all that is measured, and no budget, which half of all
	// requests would exhaust.
	t, err := retrip.New(base, retrip.WithBackoff(retrip.Constant(0)), retrip.WithBudget(nil))
	if err != nil {
		tb.Fatal(err)
	}
	req, err := http.NewRequestWithContext(tb.Context(), http.MethodGet, origin.URL, http.NoBody)
	if err != nil {
		tb.Fatal(err)
	}
	expect := func(rt http.RoundTripper, status int) {
		if got := trips(tb, rt, req); got != status {
			tb.Fatalf("got status %d, want %d", got, status)
		}
	}
	bare = func() {
		expect(base, http.StatusServiceUnavailable)
		expect(base, http.StatusOK)
	}
	ours = func() { expect(t, http.StatusOK) }
	return bare, ours
}

func BenchmarkRepeatedGET(b *testing.B) {
	bare, ours := benchRepeats(b)
	times := func(work func()) func(int) {
		return func(n int) {
			for range n {
				work()
			}
		}
	}
	httptestx.Compare(b, []httptestx.Side{{Name: "bare", Work: times(bare)}, {Name: "retrip", Work: times(ours)}})
}
