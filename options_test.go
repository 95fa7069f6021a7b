package retrip_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptrace"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-cleanhttp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/httptestx"
)

// optionNow lets repeats follow at once.
var optionNow = retrip.WithBackoff(retrip.Constant(0))

// An optionBase answers from a list of status codes, the last one repeating, and notes
// what it is given.
type optionBase struct {
	*httptestx.Stub

	mu       sync.Mutex
	headers  []http.Header
	attempts []int // AttemptNumber
	times    []time.Time
}

func newOptionBase(codes ...int) *optionBase {
	return &optionBase{Stub: httptestx.Statuses(codes...)}
}

func (b *optionBase) RoundTrip(req *http.Request) (*http.Response, error) {
	b.mu.Lock()
	b.headers = append(b.headers, req.Header.Clone())
	b.attempts = append(b.attempts, retrip.AttemptNumber(req.Context()))
	b.times = append(b.times, time.Now())
	b.mu.Unlock()
	return b.Stub.RoundTrip(req)
}

// values are those of one header, an attempt each.
func (b *optionBase) values(name string) []string {
	values := make([]string, 0, len(b.headers))
	for _, h := range b.headers {
		values = append(values, strings.Join(h[name], "|"))
	}
	return values
}

// waits are the pauses between attempts.
func (b *optionBase) waits() []time.Duration {
	waits := make([]time.Duration, 0, len(b.times))
	for i := 1; i < len(b.times); i++ {
		waits = append(waits, b.times[i].Sub(b.times[i-1]))
	}
	return waits
}

func optionRequest(ctx context.Context, t *testing.T, method string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, "http://origin.test/orders", http.NoBody)
	require.NoError(t, err)
	return req
}

// optionGet is a GET of a goroutine other than the test's.
func optionGet(ctx context.Context, rt http.RoundTripper, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err
	}
	resp, err := rt.RoundTrip(req)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return errors.Join(err, resp.Body.Close())
}

// optionSend sends one request by a new Transport over base and returns the status.
func optionSend(ctx context.Context, t *testing.T, base http.RoundTripper, method string, opts ...retrip.Option) int {
	t.Helper()
	rt := httptestx.Checked(t, retrip.Must(retrip.New(base, opts...)))
	resp, err := rt.RoundTrip(optionRequest(ctx, t, method))
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return resp.StatusCode
}

func optionBad() []struct {
	name    string
	option  retrip.Option
	says    string // the name in the OptionError
	allowed string
} {
	type row = struct {
		name    string
		option  retrip.Option
		says    string
		allowed string
	}
	return []row{
		{"no attempts", retrip.WithMaxAttempts(0), "WithMaxAttempts", "1 and more"},
		{"negative attempts", retrip.WithMaxAttempts(-3), "WithMaxAttempts", "-3"},
		{"negative total time-out", retrip.WithTotalTimeout(-time.Second), "WithTotalTimeout", "0 and more"},
		{"negative attempt time-out", retrip.WithAttemptTimeout(-time.Second), "WithAttemptTimeout", "0 and more"},
		{"negative least time", retrip.WithMinAttemptTime(-time.Second), "WithMinAttemptTime", "0 and more"},
		{"negative cap", retrip.WithMaxRetryAfter(-time.Second), "WithMaxRetryAfter", "0 and more"},
		{"nil backoff", retrip.WithBackoff(nil), "WithBackoff", "allowed"},
		{"nil backoff function", retrip.WithBackoff(retrip.BackoffFunc(nil)), "WithBackoff", "allowed"},
		{"FullJitter below 0", retrip.WithBackoff(retrip.FullJitter(-1, time.Second)), "FullJitter", "0 and more"},
		{"FullJitter upside down", retrip.WithBackoff(retrip.FullJitter(2*time.Second, time.Second)), "FullJitter", "up to the ceiling"},
		{"EqualJitter below 0", retrip.WithBackoff(retrip.EqualJitter(0, -1)), "EqualJitter", "0 and more"},
		{"EqualJitter upside down", retrip.WithBackoff(retrip.EqualJitter(2*time.Second, time.Second)), "EqualJitter", "up to the ceiling"},
		{"Constant below 0", retrip.WithBackoff(retrip.Constant(-1)), "Constant", "0 and more"},
		{"status 99", retrip.WithRetryStatus(503, 99), "WithRetryStatus", "100 to 599"},
		{"status 600", retrip.WithRetryStatus(600), "WithRetryStatus", "100 to 599"},
		{"status 0", retrip.WithUnprocessedStatus(0), "WithUnprocessedStatus", "100 to 599"},
		{"negative status", retrip.WithUnprocessedStatus(-1), "WithUnprocessedStatus", "100 to 599"},
		{"no header name", retrip.WithIdempotencyHeader(""), "WithIdempotencyHeader", "allowed"},
		{"bad header name", retrip.WithIdempotencyHeader("Order Key"), "WithIdempotencyHeader", "allowed"},
		{"negative buffer", retrip.WithBodyBuffer(-1), "WithBodyBuffer", "0"},
		{"negative ratio", retrip.WithBudget(retrip.NewBudget(-0.1, 1, 1)), "NewBudget", "from 0"},
		{"ratio that is no number", retrip.WithBudget(retrip.NewBudget(math.NaN(), 1, 1)), "NewBudget", "from 0"},
		{"endless ratio", retrip.WithBudget(retrip.NewBudget(math.Inf(1), 1, 1)), "NewBudget", "from 0"},
		{"negative rate", retrip.WithBudget(retrip.NewBudget(0, -1, 1)), "NewBudget", "from 0"},
		{"rate that is no number", retrip.WithBudget(retrip.NewBudget(0, math.NaN(), 1)), "NewBudget", "from 0"},
		{"negative burst", retrip.WithBudget(retrip.NewBudget(0, 0, -1)), "NewBudget", "from 0"},
		{"nil hook", retrip.WithHook(nil), "WithHook", "allowed"},
		{"bad attempt header", retrip.WithAttemptHeaders(retrip.AttemptHeaders{Attempt: "Attempt No"}), "WithAttemptHeaders", "allowed"},
		{"bad operation header", retrip.WithAttemptHeaders(retrip.AttemptHeaders{OperationID: "a\nb"}), "WithAttemptHeaders", "allowed"},
		{"bad request header", retrip.WithAttemptHeaders(retrip.AttemptHeaders{RequestID: ":"}), "WithAttemptHeaders", "allowed"},
		{"bad time header", retrip.WithAttemptHeaders(retrip.AttemptHeaders{RemainingMS: " "}), "WithAttemptHeaders", "allowed"},
		{"nil option", nil, "Option", "nil"},
	}
}

// optionRefused sends a request whose context carries a bad option.
func optionRefused(t *testing.T, option retrip.Option) *retrip.OptionError {
	t.Helper()
	base := newOptionBase(200)
	rt := httptestx.Checked(t, retrip.Must(retrip.New(base)))
	ctx, record := retrip.Record(retrip.Override(t.Context(), option))
	body := httptestx.NewBody(strings.NewReader("amount=200"))
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://origin.test/", body)
	require.NoError(t, err)
	resp, err := rt.RoundTrip(req)
	if resp != nil {
		resp.Body.Close()
	}
	refused, ok := err.(*retrip.OptionError) //nolint:errorlint // that very error
	require.True(t, ok, "got %T %v", err, err)
	assert.Zero(t, base.Calls(), "nothing is sent")
	assert.Equal(t, 1, body.Closes(), "the body is closed once")
	assert.Zero(t, body.Reads())
	assert.Empty(t, record.Events())
	return refused
}

func TestBadValueOfAnOptionIsNamed(t *testing.T) {
	t.Parallel()
	for _, tt := range optionBad() {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			rt, err := retrip.New(nil, retrip.WithMaxAttempts(2), tt.option, retrip.WithMaxAttempts(3))
			require.Nil(t, rt)
			var made *retrip.OptionError
			require.ErrorAs(t, err, &made)
			assert.Equal(t, tt.says, made.Option)
			assert.Contains(t, made.Problem, tt.allowed)
			assert.Equal(t, "retrip: "+made.Option+": "+made.Problem, err.Error())

			assert.Equal(t, made, optionRefused(t, tt.option), "the same under Override")
		})
	}
}

func TestIdempotencyKeyIsForOverrideAndNeverShown(t *testing.T) {
	t.Parallel()
	_, err := retrip.New(nil, retrip.WithIdempotencyKey("ord-7731"))
	var refused *retrip.OptionError
	require.ErrorAs(t, err, &refused)
	assert.Equal(t, "WithIdempotencyKey", refused.Option)
	assert.Contains(t, refused.Problem, "Override only")
	assert.NotContains(t, err.Error(), "ord-7731")

	for _, key := range []string{"", " ", "ord\n7731", "ord\x007731"} {
		refused := optionRefused(t, retrip.WithIdempotencyKey(key))
		assert.Equal(t, "WithIdempotencyKey", refused.Option)
		assert.NotContains(t, refused.Error(), "7731")
	}
}

func TestMustPanicsWithTheError(t *testing.T) {
	t.Parallel()
	_, err := retrip.New(nil, retrip.WithMaxAttempts(0))
	require.PanicsWithError(t, err.Error(), func() { retrip.Must(retrip.New(nil, retrip.WithMaxAttempts(0))) })
	require.NotNil(t, retrip.Must(retrip.New(nil)))
}

// The options of how often and how long.

func TestMaxAttemptsCountsTheFirst(t *testing.T) {
	t.Parallel()
	for n := 1; n <= 4; n++ {
		base := newOptionBase(503)
		assert.Equal(t, 503, optionSend(t.Context(), t, base, "GET", optionNow, retrip.WithMaxAttempts(n)))
		assert.Equal(t, n, base.Calls())
	}
	base := newOptionBase(503)
	assert.Equal(t, 503, optionSend(t.Context(), t, base, "GET", optionNow))
	assert.Equal(t, 3, base.Calls(), "the default")
}

func TestTotalTimeoutEndsTheOperationNotTheBody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := httptestx.ServeMemory(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/slow" {
				_ = http.NewResponseController(w).Flush()
				<-time.After(time.Hour)
				_, _ = io.WriteString(w, "late")
				return
			}
			<-r.Context().Done()
		}))
		rt := httptestx.Checked(t, retrip.Must(retrip.New(base, retrip.WithTotalTimeout(10*time.Second))))
		req := optionRequest(t.Context(), t, "GET")
		req.URL.Path = "/slow"
		resp, err := rt.RoundTrip(req)
		require.NoError(t, err)
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err, "it ends at the headers")
		require.Equal(t, "late", string(text))
		require.NoError(t, resp.Body.Close())

		start := time.Now()
		_, err = hookDo(t, rt, optionRequest(t.Context(), t, "GET"))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, 10*time.Second, time.Since(start))

		// Of it and the context's deadline the earlier one counts.
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		start = time.Now()
		_, err = hookDo(t, rt, optionRequest(ctx, t, "GET"))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, 5*time.Second, time.Since(start))
	})
}

func TestAttemptTimeoutGivesEachAttemptItsOwnTimeAndNeverCutsABody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var hits atomic.Int32
		base := httptestx.ServeMemory(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if hits.Add(1) < 3 {
				<-r.Context().Done()
				return
			}
			_ = http.NewResponseController(w).Flush()
			<-time.After(time.Hour)
			_, _ = io.WriteString(w, "late")
		}))
		rt := httptestx.Checked(t, retrip.Must(retrip.New(base, optionNow, retrip.WithAttemptTimeout(10*time.Second))))
		start := time.Now()
		resp, err := rt.RoundTrip(optionRequest(t.Context(), t, "GET"))
		require.NoError(t, err)
		require.Equal(t, 20*time.Second, time.Since(start))
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.Equal(t, "late", string(text))
		require.NoError(t, resp.Body.Close())
	})
}

func TestMinAttemptTimeKeepsAnAttemptFromBeingBegun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		send := func(least time.Duration) (*optionBase, *retrip.Recorder, error) {
			base := newOptionBase(503)
			ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
			defer cancel()
			ctx, record := retrip.Record(ctx)
			rt := httptestx.Checked(t, retrip.Must(retrip.New(base, retrip.WithMinAttemptTime(least), retrip.WithBackoff(retrip.Constant(4*time.Second)))))
			resp, err := rt.RoundTrip(optionRequest(ctx, t, "GET"))
			if resp != nil {
				resp.Body.Close()
			}
			return base, record, err
		}
		// 10 s are left at the first attempt, 6 s at the second, 2 s at the third.
		base, _, err := send(0)
		require.NoError(t, err)
		require.Equal(t, 3, base.Calls())
		base, record, err := send(3 * time.Second)
		require.NoError(t, err, "the answer in hand comes back")
		require.Equal(t, 2, base.Calls())
		require.Equal(t, retrip.DecisionDeadlineExceeded, record.Events()[1].Decision)
		base, record, err = send(11 * time.Second)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Zero(t, base.Calls())
		require.Len(t, record.Events(), 1)
	})
}

func TestBackoffIsAskedWithTheAttemptsNumber(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var asked []int
		base := newOptionBase(503)
		optionSend(t.Context(), t, base, "GET", retrip.WithMaxAttempts(4), retrip.WithBackoff(retrip.BackoffFunc(func(attempt int) time.Duration {
			asked = append(asked, attempt)
			return time.Duration(attempt) * time.Hour
		})))
		require.Equal(t, []int{1, 2, 3}, asked)
		require.Equal(t, []time.Duration{time.Hour, 2 * time.Hour, 3 * time.Hour}, base.waits())

		base = newOptionBase(503)
		optionSend(t.Context(), t, base, "GET", retrip.WithBackoff(retrip.BackoffFunc(func(int) time.Duration { return -time.Hour })))
		require.Equal(t, []time.Duration{0, 0}, base.waits(), "a negative delay is none")

		base = newOptionBase(503)
		optionSend(t.Context(), t, base, "GET", retrip.WithBackoff(retrip.Constant(time.Minute)))
		require.Equal(t, []time.Duration{time.Minute, time.Minute}, base.waits())
	})
}

func TestJitterStaysInItsWindow(t *testing.T) {
	t.Parallel()
	full, equal := retrip.FullJitter(100*time.Millisecond, 2*time.Second), retrip.EqualJitter(100*time.Millisecond, 2*time.Second)
	windows := []time.Duration{100, 200, 400, 800, 1600, 2000, 2000}
	for i, window := range windows {
		window *= time.Millisecond
		var least, most time.Duration = math.MaxInt64, 0
		for range 1000 {
			d, e := full.Delay(i+1), equal.Delay(i+1)
			if d < 0 || d > window || e < window/2 || e > window {
				t.Fatalf("after attempt %d: full %v, equal %v in a window of %v", i+1, d, e, window)
			}
			least, most = min(least, d), max(most, d)
		}
		require.Less(t, least, window/10, "uniform down to 0")
		require.Greater(t, most, window*9/10, "uniform up to the window")
	}
	require.LessOrEqual(t, full.Delay(math.MaxInt), 2*time.Second)
	require.Equal(t, time.Minute, retrip.Constant(time.Minute).Delay(7))
	require.Zero(t, retrip.FullJitter(0, 0).Delay(3))
}

func TestTheDefaultBackoffIsFullJitter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for range 50 {
			base := newOptionBase(503)
			optionSend(t.Context(), t, base, "GET")
			waits := base.waits()
			require.Len(t, waits, 2)
			require.LessOrEqual(t, waits[0], 100*time.Millisecond)
			require.LessOrEqual(t, waits[1], 200*time.Millisecond)
		}
	})
}

// optionHinted answers 503 with the headers, then 200.
func optionHinted(header ...string) *httptestx.Stub {
	return httptestx.NewStub(
		func(req *http.Request) (*http.Response, error) {
			return httptestx.Canned(req, 503, "busy", header...), nil
		},
		func(req *http.Request) (*http.Response, error) { return httptestx.Canned(req, 200, "done"), nil },
	)
}

func TestMaxRetryAfterEndsWhatIsAskedToWaitLonger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tests := []struct {
			name   string
			header string
			opts   []retrip.Option
			calls  int
		}{
			{"the default allows 60 s", "Retry-After: 60", nil, 2},
			{"the default allows no more", "Retry-After: 61", nil, 1},
			{"a cap of its own", "Retry-After: 3600", []retrip.Option{retrip.WithMaxRetryAfter(time.Hour)}, 2},
			{"0 ends at once", "Retry-After: 1", []retrip.Option{retrip.WithMaxRetryAfter(0)}, 1},
			{"0 and no hint", "Server: x", []retrip.Option{retrip.WithMaxRetryAfter(0)}, 2},
			{"0 and a hint of 0", "Retry-After: 0", []retrip.Option{retrip.WithMaxRetryAfter(0)}, 2},
			{"0 and a malformed hint", "Retry-After: soon", []retrip.Option{retrip.WithMaxRetryAfter(0)}, 2},
			{"0 and a past date", "Retry-After: Fri, 01 Jan 1999 00:00:00 GMT", []retrip.Option{retrip.WithMaxRetryAfter(0)}, 2},
		}
		for _, tt := range tests {
			base := optionHinted(tt.header)
			status := optionSend(t.Context(), t, base, "GET", append(tt.opts, optionNow)...)
			require.Equal(t, tt.calls, base.Calls(), tt.name)
			require.Equal(t, map[int]int{1: 503, 2: 200}[tt.calls], status, tt.name)
		}
	})
}

// The options of what is worth repeating.

func TestRetryStatusReplacesTheDefault(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name  string
		opts  []retrip.Option
		again []int
		once  []int
	}{
		{"default", nil, []int{429, 502, 503, 504}, []int{200, 404, 408, 425, 500, 501}},
		{"set", []retrip.Option{retrip.WithRetryStatus(500, 408)}, []int{408, 500}, []int{429, 502, 503, 504}},
		{"empty", []retrip.Option{retrip.WithRetryStatus()}, nil, []int{429, 500, 502, 503, 504}},
		{"edges", []retrip.Option{retrip.WithRetryStatus(200, 599)}, []int{200, 599}, []int{503}},
	}
	for _, tt := range tests {
		for calls, codes := range map[int][]int{3: tt.again, 1: tt.once} {
			for _, code := range codes {
				base := newOptionBase(code)
				optionSend(t.Context(), t, base, "GET", append(tt.opts, optionNow)...)
				assert.Equal(t, calls, base.Calls(), "%s: %d", tt.name, code)
			}
		}
	}
	codes := []int{500}
	option := retrip.WithRetryStatus(codes...)
	codes[0] = 503
	base := newOptionBase(500)
	optionSend(t.Context(), t, base, "GET", option, optionNow)
	assert.Equal(t, 3, base.Calls(), "an option does not share its caller's slice")
}

func TestRetryIfIsAskedOnceForEachAttempt(t *testing.T) {
	t.Parallel()
	var seen []retrip.Attempt
	base := newOptionBase(503, 404, 200)
	req := optionRequest(t.Context(), t, "GET")
	rt := retrip.Must(retrip.New(base, optionNow, retrip.WithRetryIf(func(a retrip.Attempt) retrip.Verdict {
		seen = append(seen, a)
		if a.StatusCode() == 404 {
			return retrip.VerdictRetry
		}
		return retrip.VerdictDefault
	})))
	resp, err := httptestx.Checked(t, rt).RoundTrip(req)
	require.NoError(t, err)
	resp.Body.Close()
	require.Len(t, seen, 3)
	for i, a := range seen {
		assert.Equal(t, i+1, a.Number)
		assert.Same(t, req, a.Request, "the caller's request")
		assert.Equal(t, []int{503, 404, 200}[i], a.StatusCode())
		assert.Equal(t, retrip.DeliveryAnswered, a.Delivery)
		require.NoError(t, a.Err)
		assert.False(t, a.Start.IsZero())
	}
	assert.Zero(t, retrip.Attempt{}.StatusCode())
}

func TestRetryIfMayReadAPieceOfTheBody(t *testing.T) {
	t.Parallel()
	text := strings.Repeat("0123456789abcdef", 1<<10) // 16 KiB
	base := httptestx.NewStub(func(req *http.Request) (*http.Response, error) { return httptestx.Canned(req, 200, text), nil })
	var read int
	rt := retrip.Must(retrip.New(base, retrip.WithRetryIf(func(a retrip.Attempt) retrip.Verdict {
		piece, err := io.ReadAll(a.Response.Body)
		require.NoError(t, err)
		assert.Equal(t, text[:len(piece)], string(piece))
		require.NoError(t, a.Response.Body.Close(), "it is not the predicate's to close")
		read = len(piece)
		return retrip.VerdictDefault
	})))
	resp, err := httptestx.Checked(t, rt).RoundTrip(optionRequest(t.Context(), t, "GET"))
	require.NoError(t, err)
	whole, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	assert.Equal(t, 4<<10, read)
	assert.Equal(t, text, string(whole), "the caller's body is whole")
	base.Bodies()[0].CheckClosedOnce(t)
}

func TestWaitHintCountsBesideRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tests := []struct {
			name    string
			header  string
			hint    time.Duration
			counts  bool
			between [2]time.Duration
		}{
			{"alone", "Server: x", 20 * time.Second, true, [2]time.Duration{20 * time.Second, 22 * time.Second}},
			{"longer than the header", "Retry-After: 10", 20 * time.Second, true, [2]time.Duration{20 * time.Second, 22 * time.Second}},
			{"shorter than the header", "Retry-After: 30", 20 * time.Second, true, [2]time.Duration{30 * time.Second, 33 * time.Second}},
			{"false", "Server: x", 20 * time.Second, false, [2]time.Duration{0, 0}},
			{"zero", "Server: x", 0, true, [2]time.Duration{0, 0}},
			{"negative", "Server: x", -time.Second, true, [2]time.Duration{0, 0}},
		}
		for _, tt := range tests {
			asked := 0
			start := time.Now()
			status := optionSend(t.Context(), t, optionHinted(tt.header), "GET", optionNow, retrip.WithWaitHint(func(resp *http.Response) (time.Duration, bool) {
				asked++
				require.Equal(t, 503, resp.StatusCode)
				return tt.hint, tt.counts
			}))
			require.Equal(t, 200, status, tt.name)
			require.Equal(t, 1, asked, "%s: only what is worth repeating is asked about", tt.name)
			require.GreaterOrEqual(t, time.Since(start), tt.between[0], tt.name)
			require.LessOrEqual(t, time.Since(start), tt.between[1], tt.name)
		}
		base := optionHinted()
		require.Equal(t, 503, optionSend(t.Context(), t, base, "GET", retrip.WithMaxRetryAfter(time.Minute),
			retrip.WithWaitHint(func(*http.Response) (time.Duration, bool) { return time.Hour, true })), "the cap holds for it too")
	})
}

// The options of whether repeating is safe.

func TestIdempotentIsAboveMethodAndKey(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		method string
		opts   []retrip.Option
		calls  int
	}{
		{"POST", nil, 1},
		{"POST", []retrip.Option{retrip.WithIdempotent(true)}, 3},
		{"LOCK", []retrip.Option{retrip.WithIdempotent(true)}, 3},
		{"GET", []retrip.Option{retrip.WithIdempotent(false)}, 1},
		{"POST", []retrip.Option{retrip.WithIdempotent(false), retrip.WithGeneratedKeys(nil)}, 1},
		{"POST", []retrip.Option{retrip.WithIdempotent(false), retrip.WithIdempotent(true)}, 3},
	} {
		base := newOptionBase(503)
		optionSend(t.Context(), t, base, tt.method, append(tt.opts, optionNow)...)
		assert.Equal(t, tt.calls, base.Calls(), "%s %d options", tt.method, len(tt.opts))
	}
}

func TestIdempotencyKeyIsSentWhereTheMethodPermitsNothing(t *testing.T) {
	t.Parallel()
	key := "ord-7731"
	for _, tt := range []struct {
		method string
		own    string
		want   string
	}{
		{"POST", "", key},
		{"PATCH", "", key},
		{"LOCK", "", key},
		{"GET", "", ""},
		{"PUT", "", ""},
		{"POST", "mine", "mine"},
	} {
		base := newOptionBase(503)
		rt := httptestx.Checked(t, retrip.Must(retrip.New(base, optionNow)))
		req := optionRequest(retrip.Override(t.Context(), retrip.WithIdempotencyKey(key)), t, tt.method)
		if tt.own != "" {
			req.Header.Set("Idempotency-Key", tt.own)
		}
		resp, err := rt.RoundTrip(req)
		require.NoError(t, err)
		resp.Body.Close()
		assert.Equal(t, []string{tt.want, tt.want, tt.want}, base.values("Idempotency-Key"), tt.method)
	}
}

func TestIdempotencyHeaderNamesTheKey(t *testing.T) {
	t.Parallel()
	base := newOptionBase(503)
	ctx := retrip.Override(t.Context(), retrip.WithIdempotencyKey("ord-7731"))
	optionSend(ctx, t, base, "POST", optionNow, retrip.WithIdempotencyHeader("order-key"))
	assert.Equal(t, []string{"ord-7731", "ord-7731", "ord-7731"}, base.values("Order-Key"))
	assert.Equal(t, []string{"", "", ""}, base.values("Idempotency-Key"))

	// The names that net/http replays on are understood as well.
	for _, name := range []string{"Order-Key", "Idempotency-Key", "X-Idempotency-Key"} {
		base := newOptionBase(503)
		rt := httptestx.Checked(t, retrip.Must(retrip.New(base, optionNow, retrip.WithIdempotencyHeader("order-key"))))
		req := optionRequest(t.Context(), t, "POST")
		req.Header.Set(name, "mine")
		resp, err := rt.RoundTrip(req)
		require.NoError(t, err)
		resp.Body.Close()
		assert.Equal(t, 3, base.Calls(), name)
	}
	base = newOptionBase(503)
	rt := httptestx.Checked(t, retrip.Must(retrip.New(base, optionNow)))
	req := optionRequest(t.Context(), t, "POST")
	req.Header.Set("Order-Key", "mine")
	resp, err := rt.RoundTrip(req)
	require.NoError(t, err)
	resp.Body.Close()
	assert.Equal(t, 1, base.Calls(), "another name is no key by default")
}

func TestGeneratedKeysAreOnePerOperation(t *testing.T) {
	t.Parallel()
	made := 0
	option := retrip.WithGeneratedKeys(func() string {
		made++
		return fmt.Sprintf("key-%d", made)
	})
	for i, method := range []string{"POST", "PATCH"} {
		base := newOptionBase(503)
		optionSend(t.Context(), t, base, method, optionNow, option)
		want := fmt.Sprintf("key-%d", i+1)
		assert.Equal(t, []string{want, want, want}, base.values("Idempotency-Key"))
	}
	for _, method := range []string{"GET", "PUT", "DELETE", "LOCK"} {
		base := newOptionBase(404)
		optionSend(t.Context(), t, base, method, optionNow, option)
		assert.Equal(t, []string{""}, base.values("Idempotency-Key"), method)
	}
	assert.Equal(t, 2, made)

	seen := map[string]bool{}
	for range 100 {
		base := newOptionBase(200)
		optionSend(t.Context(), t, base, "POST", retrip.WithGeneratedKeys(nil))
		key := base.values("Idempotency-Key")[0]
		assert.GreaterOrEqual(t, len(key), 22, "128 random bits as text")
		seen[key] = true
	}
	assert.Len(t, seen, 100)
}

func TestUnprocessedStatusPermitsAndIsEmptiedWithoutCodes(t *testing.T) {
	t.Parallel()
	for calls, opts := range map[int][]retrip.Option{
		3: {retrip.WithUnprocessedStatus(503)},
		1: {retrip.WithUnprocessedStatus(503), retrip.WithUnprocessedStatus()},
	} {
		base := newOptionBase(503)
		optionSend(t.Context(), t, base, "POST", append(opts, optionNow)...)
		assert.Equal(t, calls, base.Calls())
	}
}

func TestBodyBufferHoldsWhatFits(t *testing.T) {
	t.Parallel()
	text := strings.Repeat("x", 1000)
	for _, tt := range []struct {
		max    int64
		length int64 // ContentLength
		calls  int
	}{
		{0, 1000, 1},
		{999, 1000, 1},
		{1000, 1000, 3},
		{1 << 20, 1000, 3},
		{1000, -1, 3},
		{999, -1, 1},
	} {
		base := newOptionBase(503)
		rt := httptestx.Checked(t, retrip.Must(retrip.New(base, optionNow, retrip.WithBodyBuffer(tt.max))))
		body := httptestx.NewBody(httptestx.OneShot(strings.NewReader(text)))
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, "http://origin.test/", body)
		require.NoError(t, err)
		req.ContentLength = tt.length
		resp, err := rt.RoundTrip(req)
		require.NoError(t, err)
		resp.Body.Close()
		assert.Equal(t, tt.calls, base.Calls(), "%d bytes held of a body of %d", tt.max, tt.length)
		assert.EqualValues(t, 1000, body.BytesRead())
		body.CheckClosedOnce(t)
	}
}

// The options of what the origin can bear.

func TestBudgetLimitsRepeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		send := func(n int, opts ...retrip.Option) int {
			base := newOptionBase(503)
			rt := httptestx.Checked(t, retrip.Must(retrip.New(base, append(opts, optionNow)...)))
			for range n {
				resp, err := rt.RoundTrip(optionRequest(t.Context(), t, "GET"))
				require.NoError(t, err)
				resp.Body.Close()
			}
			return base.Calls() - n // repeats
		}
		require.Equal(t, 20, send(10, retrip.WithBudget(nil)), "nil is no limit")
		require.Equal(t, 0, send(10, retrip.WithBudget(retrip.NewBudget(0, 0, 0))))
		require.Equal(t, 2, send(1, retrip.WithBudget(retrip.NewBudget(0, 0, 3))))
		// The reserve is closed after an operation that ended with a transient outcome.
		require.Equal(t, 2, send(10, retrip.WithBudget(retrip.NewBudget(0, 0, 100))))
		require.Equal(t, 10, send(10, retrip.WithBudget(retrip.NewBudget(1, 0, 0))), "one is earned by each operation")

		// By default each Transport has a budget of its own.
		require.Less(t, send(100), 20)
		require.Equal(t, 2, send(1))

		shared := retrip.WithBudget(retrip.NewBudget(0, 0, 2))
		require.Equal(t, 2, send(1, shared))
		require.Equal(t, 0, send(1, shared), "one Budget serves several Transports")
	})
}

func TestGateIsAskedBeforeEveryAttempt(t *testing.T) {
	t.Parallel()
	var log []string
	gate := retrip.WithGate(func(req *http.Request) (func(error), error) {
		log = append(log, "asked for "+req.URL.Path)
		n := len(log)
		return func(err error) { log = append(log, fmt.Sprintf("done %d: %v", n, err)) }, nil
	})
	base := newOptionBase(503, 404)
	assert.Equal(t, 404, optionSend(t.Context(), t, base, "GET", optionNow, gate))
	assert.Equal(t, []string{
		"asked for /orders", "done 1: retrip: answered 503 Service Unavailable", "asked for /orders", "done 3: <nil>",
	}, log)

	assert.Equal(t, 200, optionSend(t.Context(), t, newOptionBase(200), "GET",
		retrip.WithGate(func(*http.Request) (func(error), error) { return nil, nil })), "done may be nil") //nolint:nilnil // a grant
}

func TestOriginPauseHoldsBackEveryOperation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, on := range []bool{false, true} {
			base := optionHinted("Retry-After: 30")
			rt := httptestx.Checked(t, retrip.Must(retrip.New(base, retrip.WithOriginPause(on))))
			start := time.Now()
			for _, want := range []int{503, 200} {
				resp, err := rt.RoundTrip(optionRequest(t.Context(), t, "POST"))
				require.NoError(t, err)
				resp.Body.Close()
				require.Equal(t, want, resp.StatusCode)
			}
			waited := time.Since(start)
			if !on {
				require.Zero(t, waited)
				continue
			}
			require.GreaterOrEqual(t, waited, 30*time.Second)
			require.LessOrEqual(t, waited, 33*time.Second)
		}
	})
}

// The options of what can be seen; hooks, loggers and recorders are in hooks_test.go.

func TestAttemptHeadersAreStampedOnEachAttempt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		names := retrip.AttemptHeaders{Attempt: "x-attempt", OperationID: "X-Operation", RequestID: "X-Request", RemainingMS: "X-Remaining"}
		base := newOptionBase(503)
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		ctx, record := retrip.Record(ctx)
		rt := httptestx.Checked(t, retrip.Must(retrip.New(base, retrip.WithBackoff(retrip.Constant(time.Second)), retrip.WithAttemptHeaders(names))))
		req := optionRequest(ctx, t, "GET")
		req.Header.Set("X-Request", "mine")
		resp, err := rt.RoundTrip(req)
		require.NoError(t, err)
		resp.Body.Close()

		require.Equal(t, []string{"1", "2", "3"}, base.values("X-Attempt"))
		require.Equal(t, []string{"10000", "9000", "8000"}, base.values("X-Remaining"))
		events := record.Events()
		require.Len(t, events, 3)
		for i, e := range events {
			require.Equal(t, e.OperationID, base.values("X-Operation")[i])
			require.Equal(t, e.RequestID, base.values("X-Request")[i])
			require.Equal(t, events[0].OperationID+"-"+strconv.Itoa(i+1), e.RequestID)
		}
		require.Equal(t, "mine", req.Header.Get("X-Request"), "the caller's request is not written to")

		// Without a deadline, without names, without a header map.
		base = newOptionBase(200)
		optionSend(t.Context(), t, base, "GET", retrip.WithAttemptHeaders(names))
		require.NotContains(t, base.headers[0], "X-Remaining")
		require.Equal(t, []string{"1"}, base.values("X-Attempt"))
		base = newOptionBase(200)
		optionSend(t.Context(), t, base, "GET", retrip.WithAttemptHeaders(names), retrip.WithAttemptHeaders(retrip.AttemptHeaders{}))
		require.Empty(t, base.headers[0])
		req = optionRequest(t.Context(), t, "GET")
		req.Header = nil
		resp, err = rt.RoundTrip(req)
		require.NoError(t, err)
		resp.Body.Close()
	})
}

func TestJ08NoHeaderIsAddedByDefault(t *testing.T) {
	t.Parallel()
	base := newOptionBase(503)
	optionSend(t.Context(), t, base, "GET", optionNow)
	require.Len(t, base.headers, 3)
	for _, h := range base.headers {
		assert.Empty(t, h)
	}
}

func TestJ05AttemptNumberTellsRoundTrippersBelow(t *testing.T) {
	t.Parallel()
	type key struct{}
	ctx := context.WithValue(t.Context(), key{}, "the caller's")
	var contexts []context.Context
	base := newOptionBase(503)
	layer := httptestx.RoundTripFunc(func(req *http.Request) (*http.Response, error) {
		contexts = append(contexts, req.Context())
		return base.RoundTrip(req)
	})
	require.Zero(t, retrip.AttemptNumber(ctx))
	optionSend(ctx, t, layer, "GET", optionNow)
	require.Len(t, base.attempts, 3)
	assert.Contains(t, []int{0, 1}, base.attempts[0], "most first attempts carry none")
	assert.Equal(t, []int{2, 3}, base.attempts[1:])
	for i, attempt := range contexts {
		assert.Equal(t, "the caller's", attempt.Value(key{}), "attempt %d", i+1)
	}
	// Siblings, not a chain: an attempt's number is not seen through another's context.
	assert.Equal(t, []int{2, 3}, []int{retrip.AttemptNumber(contexts[1]), retrip.AttemptNumber(contexts[2])})

	// Where a Transport is below, the first attempt is marked too.
	inner := newOptionBase(200)
	optionSend(t.Context(), t, retrip.Must(retrip.New(inner)), "GET")
	assert.Equal(t, []int{1}, inner.attempts)
}

func TestAttemptNumberIsThereForTraceHooks(t *testing.T) {
	t.Parallel()
	origin := httptestx.NewOrigin(t, httptestx.Sequence(httptestx.Status(503, "busy"), httptestx.OK("done")))
	std := httptestx.NewTransport(t)
	var mu sync.Mutex
	var numbers []int
	layer := httptestx.RoundTripFunc(func(req *http.Request) (*http.Response, error) {
		number := retrip.AttemptNumber(req.Context())
		return std.RoundTrip(req.WithContext(httptrace.WithClientTrace(req.Context(), &httptrace.ClientTrace{
			GotConn: func(httptrace.GotConnInfo) {
				mu.Lock()
				defer mu.Unlock()
				numbers = append(numbers, number)
			},
		})))
	})
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, origin.URL, strings.NewReader("a"))
	require.NoError(t, err)
	resp, err := retrip.Must(retrip.New(layer, optionNow)).RoundTrip(req)
	require.NoError(t, err)
	resp.Body.Close()
	require.Len(t, numbers, 2)
	assert.Equal(t, 2, numbers[1])
}

// Repetition, stacking, siblings.

func TestOfAnOptionGivenTwiceTheLastWins(t *testing.T) {
	t.Parallel()
	refusing := retrip.WithGate(func(*http.Request) (func(error), error) { return nil, errors.New("closed") })
	tests := map[string]struct {
		first, second retrip.Option
		method        string
		calls         int
	}{
		"attempts":    {retrip.WithMaxAttempts(5), retrip.WithMaxAttempts(2), "GET", 2},
		"statuses":    {retrip.WithRetryStatus(404), retrip.WithRetryStatus(503), "GET", 3},
		"no statuses": {retrip.WithRetryStatus(503), retrip.WithRetryStatus(), "GET", 1},
		"word":        {retrip.WithIdempotent(true), retrip.WithIdempotent(false), "POST", 1},
		"budget":      {retrip.WithBudget(retrip.NewBudget(0, 0, 0)), retrip.WithBudget(nil), "GET", 3},
		"gate":        {refusing, retrip.WithGate(nil), "GET", 3},
		"verdict": {
			retrip.WithRetryIf(func(retrip.Attempt) retrip.Verdict { return retrip.VerdictStop }), retrip.WithRetryIf(nil), "GET", 3,
		},
		"hint": {
			retrip.WithWaitHint(func(*http.Response) (time.Duration, bool) { return time.Hour, true }), retrip.WithWaitHint(nil), "GET", 3,
		},
		"cap":     {retrip.WithMaxRetryAfter(0), retrip.WithMaxRetryAfter(time.Minute), "GET", 3},
		"backoff": {retrip.WithBackoff(retrip.Constant(time.Hour)), optionNow, "GET", 3},
		"least":   {retrip.WithMinAttemptTime(time.Hour), retrip.WithMinAttemptTime(0), "GET", 3},
		"logger":  {retrip.WithLogger(nil), retrip.WithLogger(nil), "GET", 3},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			for where, run := range map[string]func(base http.RoundTripper, ctx context.Context){
				"in New": func(base http.RoundTripper, ctx context.Context) {
					optionSend(ctx, t, base, tt.method, optionNow, tt.first, tt.second)
				},
				"in Override": func(base http.RoundTripper, ctx context.Context) {
					optionSend(retrip.Override(ctx, tt.first, tt.second), t, base, tt.method, optionNow)
				},
				"by Override over New": func(base http.RoundTripper, ctx context.Context) {
					optionSend(retrip.Override(ctx, tt.second), t, base, tt.method, optionNow, tt.first)
				},
				"by the inner Override": func(base http.RoundTripper, ctx context.Context) {
					optionSend(retrip.Override(retrip.Override(ctx, tt.first), tt.second), t, base, tt.method, optionNow)
				},
			} {
				base := newOptionBase(503)
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				run(base, ctx)
				cancel()
				assert.Equal(t, tt.calls, base.Calls(), where)
			}
		})
	}
}

func TestHooksAddUpInOrder(t *testing.T) {
	t.Parallel()
	var log []string
	hook := func(name string) retrip.Option {
		return retrip.WithHook(func(context.Context, retrip.Event) { log = append(log, name) })
	}
	ctx := retrip.Override(retrip.Override(t.Context(), hook("c")), hook("d"))
	optionSend(ctx, t, newOptionBase(200), "GET", hook("a"), hook("b"))
	assert.Equal(t, []string{"a", "b", "c", "d"}, log)
}

// Requests share the Transport's hooks, not the slice that theirs are added to.
func TestHooksOfOneRequestAreNotThoseOfAnother(t *testing.T) {
	t.Parallel()
	var log []string
	hook := func(name string) retrip.Option {
		return retrip.WithHook(func(context.Context, retrip.Event) { log = append(log, name) })
	}
	nothing := retrip.WithHook(func(context.Context, retrip.Event) {})
	var rt *retrip.Transport
	inner := retrip.Override(t.Context(), hook("inner"))
	within := httptestx.NewStub(func(req *http.Request) (*http.Response, error) {
		if req.URL.Path != "/inner" {
			if err := optionGet(inner, rt, "http://origin.test/inner"); err != nil {
				return nil, err
			}
		}
		return httptestx.Canned(req, 200, "done"), nil
	})
	rt = retrip.Must(retrip.New(within, optionNow, nothing, nothing, nothing))
	resp, err := rt.RoundTrip(optionRequest(retrip.Override(t.Context(), hook("outer")), t, "GET"))
	require.NoError(t, err)
	resp.Body.Close()
	assert.Equal(t, []string{"inner", "outer"}, log)
}

func TestK03OverrideStacksAndLeavesSiblingsAlone(t *testing.T) {
	t.Parallel()
	base := newOptionBase(418)
	rt := retrip.Must(retrip.New(base, optionNow, retrip.WithMaxAttempts(5), retrip.WithBudget(nil)))
	calls := func(ctx context.Context) int {
		before := base.Calls()
		resp, err := httptestx.Checked(t, rt).RoundTrip(optionRequest(ctx, t, "GET"))
		require.NoError(t, err)
		resp.Body.Close()
		return base.Calls() - before
	}
	four := retrip.WithMaxAttempts(4)
	// Options that came one by one leave room in their slice for another one.
	outer := retrip.Override(retrip.Override(retrip.Override(t.Context(), retrip.WithRetryStatus(418)), four), four)
	inner := retrip.Override(outer, retrip.WithMaxAttempts(2))
	// A sibling of inner: options of one must not land in the slice of the other.
	sibling := retrip.Override(outer, retrip.WithMaxAttempts(3))
	assert.Equal(t, 2, calls(inner), "the innermost value counts, the rest holds")
	assert.Equal(t, 3, calls(sibling))
	assert.Equal(t, 4, calls(outer))
	assert.Equal(t, 1, calls(t.Context()), "other requests are unaffected")

	assert.Equal(t, t.Context(), retrip.Override(t.Context()), "without options ctx comes back as it is")
}

func TestOverrideIsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	parent := retrip.Override(t.Context(), retrip.WithRetryStatus(418))
	nothing := retrip.WithHook(func(context.Context, retrip.Event) {})
	base := httptestx.Statuses(418)
	var hooked [16]atomic.Int32
	rt := retrip.Must(retrip.New(base, optionNow, retrip.WithBudget(nil), nothing, nothing, nothing)) // room for another one
	var wg sync.WaitGroup
	for i := range hooked {
		wg.Go(func() {
			ctx := retrip.Override(parent, retrip.WithMaxAttempts(i+1), retrip.WithHook(func(context.Context, retrip.Event) { hooked[i].Add(1) }))
			if err := optionGet(ctx, rt, "http://origin.test/"); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for i := range hooked {
		assert.EqualValues(t, i+1, hooked[i].Load(), "each has its own attempts and hooks")
	}
}

// Transport itself.

func TestL02ZeroTransportWorksForManyAtOnce(t *testing.T) {
	httptestx.Leaks(t)
	origin := httptestx.NewOrigin(t, httptestx.Sequence(httptestx.OK("done")))
	var rt retrip.Transport
	t.Cleanup(rt.CloseIdleConnections)
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			if err := optionGet(t.Context(), &rt, origin.URL); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	assert.Equal(t, 64, origin.Effects())
}

func TestNewNilAndTheZeroTransportShareOneBase(t *testing.T) {
	t.Parallel()
	var zero retrip.Transport
	one, two := retrip.Must(retrip.New(nil)), retrip.Must(retrip.New(nil, retrip.WithMaxAttempts(1)))
	assert.Same(t, one.Unwrap(), two.Unwrap())
	assert.Same(t, one.Unwrap(), zero.Unwrap())
	std, ok := one.Unwrap().(*http.Transport)
	require.True(t, ok)
	want := cleanhttp.DefaultPooledTransport()
	assert.Equal(t, want.MaxIdleConnsPerHost, std.MaxIdleConnsPerHost)
	assert.Equal(t, want.IdleConnTimeout, std.IdleConnTimeout)
	assert.NotSame(t, http.DefaultTransport, std)
}

func TestK02UnwrapGivesTheBase(t *testing.T) {
	t.Parallel()
	base := newOptionBase(200)
	rt := retrip.Must(retrip.New(base))
	assert.Same(t, base, rt.Unwrap())
	resp, err := (&http.Client{Transport: rt}).Do(optionRequest(t.Context(), t, "GET"))
	require.NoError(t, err)
	resp.Body.Close()
	assert.Equal(t, 1, base.Calls())
}

type optionIdler struct {
	http.RoundTripper

	closed int
}

func (i *optionIdler) CloseIdleConnections() { i.closed++ }

func TestCloseIdleConnectionsReachesTheBaseThroughAClient(t *testing.T) {
	t.Parallel()
	idler := &optionIdler{RoundTripper: newOptionBase(200)}
	client := &http.Client{Transport: retrip.Must(retrip.New(retrip.Must(retrip.New(idler))))}
	client.CloseIdleConnections()
	assert.Equal(t, 1, idler.closed)
	// A base without the method is left alone.
	(&http.Client{Transport: retrip.Must(retrip.New(newOptionBase(200)))}).CloseIdleConnections()
}

func TestCloseIdleConnectionsClosesSockets(t *testing.T) {
	httptestx.Leaks(t)
	origin := httptestx.NewOrigin(t, httptestx.Sequence(httptestx.OK("done")))
	client := &http.Client{Transport: retrip.Must(retrip.New(httptestx.NewTransport(t)))}
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, origin.URL, http.NoBody)
	require.NoError(t, err)
	resp, err := client.Do(req)
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, resp.Body)
	require.NoError(t, err)
	resp.Body.Close()
	client.CloseIdleConnections()
	origin.Await(t, "the idle connection is closed", func() bool { return origin.Open() == 0 })
}
