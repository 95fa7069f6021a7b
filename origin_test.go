package retrip_test

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/httptestx"
)

// An originHost is a server in virtual time that does what each URL's path says: a list of
// statuses, one per attempt, the last of which repeats. "hang" is an attempt that is not
// answered, "cut" one whose connection is closed; ?after=5 adds a Retry-After to failures,
// ?takes=1s lets answers wait.
type originHost struct {
	base *http.Transport

	mu       sync.Mutex
	arrivals []originArrival
}

type originArrival struct {
	at      time.Time
	host    string
	attempt int
}

func newOriginHost(t *testing.T) *originHost {
	t.Helper()
	h := &originHost{}
	h.base = httptestx.ServeMemory(t, h)
	h.base.DisableKeepAlives = true // net/http sends a GET again where a kept connection is cut
	return h
}

func (h *originHost) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	attempt, _ := strconv.Atoi(r.Header.Get("X-Attempt"))
	h.mu.Lock()
	h.arrivals = append(h.arrivals, originArrival{time.Now(), r.Host, attempt})
	h.mu.Unlock()

	script := strings.Split(strings.TrimPrefix(r.URL.Path, "/"), ",")
	switch step := script[min(attempt, len(script))-1]; step {
	case "hang":
		<-r.Context().Done()
	case "cut":
		panic(http.ErrAbortHandler)
	default:
		if takes, err := time.ParseDuration(r.URL.Query().Get("takes")); err == nil {
			time.Sleep(takes)
		}
		code, _ := strconv.Atoi(step)
		if after := r.URL.Query().Get("after"); after != "" && code >= http.StatusBadRequest {
			w.Header().Set("Retry-After", after)
		}
		w.WriteHeader(code)
		_, _ = io.WriteString(w, step)
	}
}

// count returns how many requests came.
func (h *originHost) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.arrivals)
}

// repeats returns when the requests came that were no first attempts.
func (h *originHost) repeats() []time.Time {
	h.mu.Lock()
	defer h.mu.Unlock()
	var at []time.Time
	for _, a := range h.arrivals {
		if a.attempt > 1 {
			at = append(at, a.at)
		}
	}
	return at
}

// An originClient sends to an originHost. Its delays are 0 unless an option says otherwise.
type originClient struct {
	t  *testing.T
	rt http.RoundTripper
}

func (h *originHost) client(t *testing.T, opts ...retrip.Option) originClient {
	t.Helper()
	return newOriginClient(t, h.base, opts...)
}

func newOriginClient(t *testing.T, base http.RoundTripper, opts ...retrip.Option) originClient {
	t.Helper()
	all := append([]retrip.Option{
		retrip.WithBackoff(retrip.Constant(0)),
		retrip.WithAttemptHeaders(retrip.AttemptHeaders{Attempt: "X-Attempt"}),
	}, opts...)
	rt, err := retrip.New(base, all...)
	require.NoError(t, err)
	return originClient{t, httptestx.Checked(t, rt)}
}

// An originResult is what came of one operation.
type originResult struct {
	status int
	body   string
	err    error
	events []retrip.Event
}

// end is the operation's last event.
func (r originResult) end() retrip.Event { return r.events[len(r.events)-1] }

// do sends one request to the default host. opts are overrides.
func (c originClient) do(method, script string, opts ...retrip.Option) originResult {
	c.t.Helper()
	return c.send(c.t.Context(), method, "http://origin.test/"+script, opts...)
}

func (c originClient) get(script string, opts ...retrip.Option) originResult {
	c.t.Helper()
	return c.do(http.MethodGet, script, opts...)
}

func (c originClient) send(ctx context.Context, method, url string, opts ...retrip.Option) originResult {
	c.t.Helper()
	ctx, recorder := retrip.Record(retrip.Override(ctx, opts...))
	req, err := http.NewRequestWithContext(ctx, method, url, http.NoBody)
	if err != nil {
		return originResult{err: err}
	}
	return finishOriginRequest(c.rt, req, recorder)
}

func finishOriginRequest(rt http.RoundTripper, req *http.Request, recorder *retrip.Recorder) originResult {
	var res originResult
	resp, err := rt.RoundTrip(req)
	if res.err = err; err == nil {
		res.status = resp.StatusCode
		body, err := io.ReadAll(resp.Body)
		res.body, res.err = string(body), err
		resp.Body.Close()
	}
	res.events = recorder.Events()
	return res
}

func TestSpellingsOfAnOriginShareItsBudget(t *testing.T) {
	tests := []struct {
		one, other string
		same       bool
	}{
		{"http://origin.test/", "http://origin.test:80/", true},
		{"https://origin.test/", "https://origin.test:443/", true},
		{"http://origin.test/", "http://ORIGIN.Test/", true},
		{"http://[2001:db8::1]/", "http://[2001:DB8::1]:80/", true},
		{"http://origin.test/", "http://origin.test:/", true},
		{"http://origin.test/", "https://origin.test/", false},
		{"http://origin.test/", "http://origin.test:8080/", false},
		{"https://origin.test/", "https://origin.test:80/", false},
		{"http://origin.test/", "http://www.origin.test/", false},
		{"http://origin.test:8080/", "http://origin.test:8081/", false},
	}
	for _, tt := range tests {
		t.Run(tt.one+" "+tt.other, func(t *testing.T) {
			base := &originPaths{}
			c := newOriginClient(t, base, retrip.WithBudget(retrip.NewBudget(0, 0, 1)))
			first := c.send(t.Context(), http.MethodGet, tt.one+"503,200")
			require.Equal(t, 2, first.end().Attempt, "the one token is spent")

			second := c.send(t.Context(), http.MethodGet, tt.other+"503,200")
			if tt.same {
				require.Equal(t, retrip.DecisionBudgetExhausted, second.end().Decision)
			} else {
				require.Equal(t, 2, second.end().Attempt)
			}
		})
	}
}

// originPaths is a base that does what an originHost does, without a server or a bubble: for
// many origins at once.
type originPaths struct{}

func (*originPaths) RoundTrip(req *http.Request) (*http.Response, error) {
	attempt, _ := strconv.Atoi(req.Header.Get("X-Attempt"))
	script := strings.Split(strings.TrimPrefix(req.URL.Path, "/"), ",")
	code, _ := strconv.Atoi(script[min(attempt, len(script))-1])
	var header []string
	if after := req.URL.Query().Get("after"); after != "" {
		header = append(header, "Retry-After: "+after)
	}
	return httptestx.Canned(req, code, "", header...), nil
}

// originVisits sends one request each to the hosts of some numbers, and returns how many
// came to a success.
func originVisits(t *testing.T, rt http.RoundTripper, name string, from, to int) (succeeded int) {
	t.Helper()
	for i := from; i < to; i++ {
		u := &url.URL{Scheme: "http", Host: name + strconv.Itoa(i) + ".test:" + strconv.Itoa(80+i%2), Path: "/"}
		resp, err := rt.RoundTrip(&http.Request{Method: http.MethodGet, URL: u, Header: http.Header{}})
		require.NoError(t, err)
		resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			succeeded++
		}
	}
	return succeeded
}

// originFailsOnce is a base whose every first attempt fails.
func originFailsOnce(t *testing.T) http.RoundTripper {
	t.Helper()
	header := http.Header{"Retry-After": {"50"}}
	return httptestx.RoundTripFunc(func(req *http.Request) (*http.Response, error) {
		code := http.StatusServiceUnavailable
		if retrip.AttemptNumber(req.Context()) > 1 || strings.HasPrefix(req.URL.Host, "good") {
			code = http.StatusOK
		}
		return &http.Response{StatusCode: code, ProtoMajor: 1, Header: header, Body: http.NoBody}, nil
	})
}

func TestAnEmptyBudgetIsNotRefilledByVisitsToOtherOrigins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := retrip.Must(retrip.New(originFailsOnce(t), retrip.WithBudget(retrip.NewBudget(0, 0, 1))))
		require.Equal(t, 1, originVisits(t, rt, "bad", 0, 1))
		require.Equal(t, 8192, originVisits(t, rt, "good", 0, 8192))
		require.Equal(t, 0, originVisits(t, rt, "bad", 0, 1))
	})
}

func TestOriginsBeyondTheBoundShareOneBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := retrip.Must(retrip.New(originFailsOnce(t), retrip.WithBudget(retrip.NewBudget(0, 0, 1))))
		require.Equal(t, 4096, originVisits(t, rt, "known", 0, 4096), "each has a token of its own")
		require.Equal(t, 1, originVisits(t, rt, "newcomer", 0, 100), "none of the others is full, so none makes room")
		require.Equal(t, 0, originVisits(t, rt, "known", 7, 8))
	})
}

func TestAnyNumberOfOriginsIsHeldInBoundedMemory(t *testing.T) {
	for name, opts := range map[string][]retrip.Option{
		"budgets": nil,
		"pauses":  {retrip.WithBudget(nil), retrip.WithOriginPause(true)}, // in force, so that none may be forgotten
	} {
		t.Run(name, func(t *testing.T) {
			rt := retrip.Must(retrip.New(originFailsOnce(t), append(opts, retrip.WithMaxAttempts(1))...))
			originVisits(t, rt, "host", 0, 5_000)
			before := originHeap()
			originVisits(t, rt, "host", 5_000, 10_000)
			// What is remembered of 5,000 more would be 1 to 2.5 MB.
			require.Less(t, originHeap()-before, int64(1<<19))
			runtime.KeepAlive(rt)
		})
	}
}

func originHeap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func TestOneOriginIsFoundByManyGoroutinesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newOriginClient(t, &originPaths{}, retrip.WithBudget(retrip.NewBudget(0, 0, 7)))
		start := make(chan struct{})
		var wg sync.WaitGroup
		var mu sync.Mutex
		repeated := 0
		for i := range 64 {
			wg.Go(func() {
				<-start
				url := []string{"http://origin.test/", "http://origin.test:80/", "HTTP://Origin.test/"}[i%3]
				res := c.send(t.Context(), http.MethodGet, url+"503,200", retrip.WithBackoff(retrip.Constant(time.Second)))
				mu.Lock()
				defer mu.Unlock()
				repeated += res.end().Attempt - 1
			})
		}
		close(start)
		wg.Wait()
		require.Equal(t, 7, repeated)
	})
}
