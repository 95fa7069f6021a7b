package retrip_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/httptestx"
)

// Themes J to M: what can be seen, the contract, concurrency, and mistakes in the
// configuration.

func TestJ01NoSecretsInErrorsAndEvents(t *testing.T) {
	plays := map[string]httptestx.Play{
		"reset":  {httptestx.ReadAll, httptestx.RST},
		"closed": {httptestx.ReadAll, httptestx.FIN},
		// net/http quotes what it could not parse.
		"an answer that echoes": {httptestx.ReadAll, httptestx.Write("pw S3CR T0K\r\n\r\n"), httptestx.FIN},
		"a head that echoes":    {httptestx.ReadAll, httptestx.Write("HTTP/1.1 200 OK\r\npw S3CR T0K\r\n\r\n"), httptestx.FIN},
		"busy":                  httptestx.Status(503, "pw S3CR T0K"),
	}
	for name, play := range plays {
		t.Run(name, func(t *testing.T) {
			httptestx.Leaks(t)
			o := httptestx.NewTLSOrigin(t, httptestx.Sequence(play))
			var logged bytes.Buffer
			everything := &slog.HandlerOptions{Level: slog.LevelDebug}
			rt := caseNew(t, httptestx.NewTransport(t), retrip.WithLogger(slog.New(slog.NewTextHandler(&logged, everything))))
			address := strings.Replace(o.URL, "https://", "https://u:pw@", 1) + "/p?sig=S3CR#f"
			call := caseSend(t, rt, caseRequest(t, http.MethodPut, address, strings.NewReader("S3CR"), "Authorization: Bearer T0K", "Idempotency-Key: T0K"))
			call.ended(t, 3, retrip.DecisionAttemptsExhausted, retrip.ReasonAttemptsExhausted)

			shown := []string{logged.String(), fmt.Sprint(call.events), fmt.Sprintf("%+v", call.events)}
			if call.err != nil {
				shown = append(shown, call.err.Error(), fmt.Sprintf("%+v", call.err))
			}
			for _, e := range call.events {
				require.Equal(t, o.URL+"/p", e.Endpoint)
				asJSON, err := json.Marshal(e)
				require.NoError(t, err)
				var handled bytes.Buffer
				slog.New(slog.NewTextHandler(&handled, nil)).Info("x", "event", e)
				slog.New(slog.NewJSONHandler(&handled, nil)).Info("x", "event", e)
				shown = append(shown, string(asJSON), handled.String(), fmt.Sprintf("%v %+v", e, e), fmt.Sprintf("%v %+v", &e, &e))
			}
			for _, text := range shown {
				require.NotEmpty(t, text)
				for _, secret := range []string{"pw", "S3CR", "T0K"} {
					require.NotContains(t, text, secret)
				}
			}
		})
	}
}

func TestJ03EventsTellHowManyAttemptsHowLongAndWhyStopped(t *testing.T) {
	t.Run("on the wire", func(t *testing.T) {
		httptestx.Leaks(t)
		script := httptestx.Sequence(httptestx.Status(503, "busy"), httptestx.Play{httptestx.ReadAll, httptestx.RST}, httptestx.OK("done"))
		call, _ := caseBoth(t, script, func(url string) *http.Request {
			return caseRequest(t, http.MethodPut, url, strings.NewReader("x"))
		})
		call.answered(t, http.StatusOK)
		require.Len(t, call.events, 3)
		for i, e := range call.events {
			require.Equal(t, i+1, e.Attempt)
			require.Equal(t, call.events[0].OperationID, e.OperationID)
			require.Equal(t, fmt.Sprintf("%s-%d", e.OperationID, i+1), e.RequestID)
			require.Equal(t, 1, e.Sends)
			require.False(t, e.Start.IsZero())
		}
		require.Equal(t, 503, call.events[0].StatusCode)
		require.Equal(t, retrip.ClassReset, call.events[1].Class)
		require.True(t, call.events[1].ConnReused)
		require.False(t, call.events[2].ConnReused)
		require.Equal(t, 200, call.events[2].StatusCode)
		call.ended(t, 3, retrip.DecisionReturn, retrip.ReasonSuccess)
	})
	// There is no further event for the whole call: its length is the sum.
	t.Run("in virtual time", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			after := func(d time.Duration, answer http.HandlerFunc) http.HandlerFunc {
				return func(w http.ResponseWriter, r *http.Request) {
					<-time.After(d)
					answer(w, r)
				}
			}
			base, _ := caseServe(t,
				after(30*time.Millisecond, caseStatus(503, "busy")),
				after(70*time.Millisecond, caseReset),
				after(20*time.Millisecond, caseStatus(200, "done")))
			call := caseSend(t, caseNew(t, base), caseRequest(t, http.MethodPut, caseURL, strings.NewReader("x")))
			call.answered(t, http.StatusOK)
			require.Len(t, call.events, 3)
			var sum time.Duration
			for _, e := range call.events {
				sum += e.Duration + e.Delay
			}
			require.InDelta(t, call.took, sum, float64(50*time.Millisecond))
			require.Equal(t, 70*time.Millisecond, call.events[1].Duration)
			require.Zero(t, call.events[2].Delay)
		})
	})
}

type caseCtxKey struct{}

func TestJ05AttemptsAreSiblingsBelowTheCallersContext(t *testing.T) {
	httptestx.Leaks(t)
	busy := httptestx.Status(503, "busy")
	o := httptestx.NewOrigin(t, httptestx.Sequence(busy, busy, httptestx.OK("done")))
	base := httptestx.NewTransport(t)
	var numbers []int
	var contexts []context.Context
	layer := httptestx.RoundTripFunc(func(req *http.Request) (*http.Response, error) {
		ctx := req.Context()
		for i, earlier := range contexts {
			if earlier.Err() == nil {
				t.Errorf("attempt %d is not over as attempt %d begins", i+1, len(contexts)+1)
			}
		}
		if ctx.Err() != nil || ctx.Value(caseCtxKey{}) != "caller" {
			t.Errorf("attempt %d: context error %v, the caller's value %v", len(contexts)+1, ctx.Err(), ctx.Value(caseCtxKey{}))
		}
		numbers, contexts = append(numbers, retrip.AttemptNumber(ctx)), append(contexts, ctx)
		return base.RoundTrip(req)
	})
	// A limit gives each attempt a context of its own to end.
	rt := caseNew(t, layer, retrip.WithAttemptTimeout(5*time.Second))
	req := caseRequest(t, http.MethodGet, o.URL, nil)
	call := caseSend(t, rt, req.WithContext(context.WithValue(req.Context(), caseCtxKey{}, "caller")))
	call.answered(t, http.StatusOK)
	require.Len(t, numbers, 3)
	require.Contains(t, []int{0, 1}, numbers[0], "a first attempt may carry no number")
	require.Equal(t, []int{2, 3}, numbers[1:])
}

func TestJ06TraceOfTheCallerSeesEachSendOnce(t *testing.T) {
	httptestx.Leaks(t)
	const workers, rounds = 20, 10
	o := httptestx.NewOrigin(t, func(httptestx.Turn) httptestx.Play { return httptestx.OK("done") })
	base := httptestx.NewTransport(t)
	base.DisableKeepAlives = true // each attempt dials
	base.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
		if retrip.AttemptNumber(ctx) < 2 {
			<-time.After(60 * time.Millisecond)
		}
		return new(net.Dialer).DialContext(ctx, network, addr)
	}
	rt := caseNew(t, base, retrip.WithAttemptTimeout(30*time.Millisecond))
	var timedOut atomic.Int32
	var wg sync.WaitGroup
	for range workers {
		wg.Go(func() {
			for range rounds {
				var took, connects atomic.Int32
				ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
					GotConn:     func(httptrace.GotConnInfo) { took.Add(1) },
					ConnectDone: func(string, string, error) { connects.Add(1) }, // also after the attempt's end
				})
				ctx, rec := retrip.Record(ctx)
				req, err := http.NewRequestWithContext(ctx, http.MethodGet, o.URL, nil)
				if err != nil {
					t.Error(err)
					return
				}
				caseQuiet(rt, req)
				sends := 0
				for _, e := range rec.Events() {
					sends += e.Sends
				}
				if got := int(took.Load()); got != sends {
					t.Errorf("the caller's GotConn was called %d times for %d sends", got, sends)
				}
				if first := rec.Events()[0]; first.Class == retrip.ClassTimeout && first.Delivery == retrip.DeliveryNotSent {
					timedOut.Add(1)
				}
			}
		})
	}
	wg.Wait()
	// On a busy machine a timer may come later than the dial that it should have cut.
	require.Greater(t, timedOut.Load(), int32(workers*rounds/2), "first attempts that ended in their dial")
}

func TestJ08AttemptHeaderIsOptInAndCountsFromOne(t *testing.T) {
	busy := httptestx.Status(503, "busy")
	script := httptestx.Sequence(busy, busy, httptestx.OK("done"))
	get := func(url string) *http.Request { return caseRequest(t, http.MethodGet, url, nil) }
	sent := func(o *httptestx.Origin) (all [][]string) {
		for _, seen := range o.Requests() {
			all = append(all, seen.Header["X-Attempt"])
		}
		return all
	}
	t.Run("on", func(t *testing.T) {
		httptestx.Leaks(t)
		_, o := caseBoth(t, script, get, retrip.WithAttemptHeaders(retrip.AttemptHeaders{Attempt: "X-Attempt"}))
		require.Equal(t, [][]string{{"1"}, {"2"}, {"3"}}, sent(o))
	})
	t.Run("off by default", func(t *testing.T) {
		httptestx.Leaks(t)
		_, o := caseBoth(t, script, get)
		require.Len(t, o.Requests(), 3)
		for _, seen := range o.Requests() {
			require.NotContains(t, strings.ToLower(seen.RawHead), "attempt")
			require.NotContains(t, strings.ToLower(seen.RawHead), "retr")
		}
	})
}

func TestJ09HookMayUseTheClientAndMayPanic(t *testing.T) {
	t.Run("uses the client", func(t *testing.T) {
		httptestx.Leaks(t)
		o := httptestx.NewOrigin(t, httptestx.Sequence(httptestx.Status(503, "busy"), httptestx.OK("done")))
		client := &http.Client{}
		var inside atomic.Int32
		client.Transport = caseNew(t, httptestx.NewTransport(t), retrip.WithHook(func(ctx context.Context, e retrip.Event) {
			if e.Endpoint != o.URL+"/outside" {
				return
			}
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, o.URL+"/inside", nil)
			if err != nil {
				t.Errorf("a request of the hook: %v", err)
				return
			}
			resp, err := client.Do(req)
			if err != nil {
				t.Errorf("a request from the hook: %v", err)
				return
			}
			_ = resp.Body.Close()
			inside.Add(1)
		}))
		resp, err := client.Do(caseRequest(t, http.MethodGet, o.URL+"/outside", nil))
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, int32(2), inside.Load())
		require.Equal(t, 4, o.Heads())
	})
	t.Run("panics", func(t *testing.T) {
		stub := httptestx.Statuses(503, 503, 200)
		panics := true
		rt := caseNew(t, stub, retrip.WithBudget(retrip.NewBudget(0, 0, 1)), retrip.WithHook(func(context.Context, retrip.Event) {
			if panics {
				panic("the hook's")
			}
		}))
		bodies := httptestx.NewBodies("x")
		require.PanicsWithValue(t, "the hook's", func() {
			caseQuiet(rt, bodies.Request(t.Context(), t, http.MethodPut, caseURL))
		})
		require.Len(t, bodies.All(), 2, "one sent, one made for the attempt that the hook kept away")
		bodies.CheckClosedOnce(t)
		panics = false
		// The one token of the budget was given back.
		caseSend(t, rt, caseRequest(t, http.MethodGet, caseURL, nil)).answered(t, http.StatusOK)
		require.Equal(t, 3, stub.Calls())
		for _, answer := range stub.Bodies() {
			answer.CheckClosedOnce(t)
		}
	})
}

// That exactly one of response and error comes back is checked in every case: caseNew
// wraps each Transport in the kit's contract.
func TestK01BaseThatBreaksTheContractDoesNotBreakOurs(t *testing.T) {
	errBoth := errors.New("and an error")
	tests := []struct {
		name   string
		answer func(*http.Request) (*http.Response, error)
		is     error
	}{
		{"both", func(req *http.Request) (*http.Response, error) {
			return httptestx.Canned(req, 200, "a response"), errBoth
		}, errBoth},
		{"neither", func(*http.Request) (*http.Response, error) { return nil, nil }, nil}, //nolint:nilnil // the fault itself
	}
	for _, tt := range tests {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			t.Run(tt.name+" "+method, func(t *testing.T) {
				stub := httptestx.NewStub(tt.answer)
				call := caseSend(t, caseNew(t, stub), caseRequest(t, method, caseURL, nil))
				var e *retrip.Error
				require.ErrorAs(t, call.err, &e)
				if tt.is != nil {
					require.ErrorIs(t, call.err, tt.is)
				}
				require.Equal(t, method == http.MethodPost, e.MaybeApplied)
				call.ended(t, 1, retrip.DecisionReturn, retrip.ReasonNotTransient)
				require.Equal(t, 1, stub.Calls())
				for _, body := range stub.Bodies() {
					body.CheckClosedOnce(t)
				}
			})
		}
	}
}

func TestK02TransportIsTheWholeStory(t *testing.T) {
	script := httptestx.Sequence(httptestx.Status(503, "busy"), httptestx.OK("done"))
	get := func(t *testing.T, rt http.RoundTripper) {
		t.Helper()
		o := httptestx.NewOrigin(t, script)
		client := &http.Client{Transport: rt}
		defer client.CloseIdleConnections()
		resp, err := client.Do(caseRequest(t, http.MethodGet, o.URL, nil))
		require.NoError(t, err)
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, "done", string(text))
		require.Equal(t, 2, o.Heads())
	}
	t.Run("around a base", func(t *testing.T) {
		httptestx.Leaks(t)
		var used atomic.Int32
		base := httptestx.NewTransport(t)
		get(t, retrip.Must(retrip.New(httptestx.RoundTripFunc(func(req *http.Request) (*http.Response, error) {
			used.Add(1)
			return base.RoundTrip(req)
		}))))
		require.Equal(t, int32(2), used.Load())
	})
	t.Run("around no base", func(t *testing.T) {
		httptestx.Leaks(t)
		get(t, retrip.Must(retrip.New(nil)))
	})
	t.Run("as the zero value", func(t *testing.T) {
		httptestx.Leaks(t)
		get(t, new(retrip.Transport))
	})
}

func TestK03SettingsOfOneRequestDoNotLeakToOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base, o := caseServe(t, caseStatus(503, "busy"))
		rt := caseNew(t, base)
		requests := map[string]func(ctx context.Context) context.Context{
			"/3": func(ctx context.Context) context.Context { return ctx },
			"/1": func(ctx context.Context) context.Context { return retrip.Override(ctx, retrip.WithMaxAttempts(1)) },
			"/2": func(ctx context.Context) context.Context { return retrip.Override(ctx, retrip.WithMaxAttempts(2)) },
			"/4": func(ctx context.Context) context.Context {
				ctx = retrip.Override(ctx, retrip.WithMaxAttempts(2), retrip.WithRetryStatus(503))
				return retrip.Override(ctx, retrip.WithMaxAttempts(4))
			},
			"/1/set":  func(ctx context.Context) context.Context { return retrip.Override(ctx, retrip.WithRetryStatus(500)) },
			"/1/word": func(ctx context.Context) context.Context { return retrip.Override(ctx, retrip.WithIdempotent(false)) },
		}
		var wg sync.WaitGroup
		for path, override := range requests {
			req := caseRequest(t, http.MethodGet, "http://origin.test"+path, nil)
			req = req.WithContext(override(req.Context()))
			wg.Go(func() {
				if call := caseQuiet(rt, req); call.status != http.StatusServiceUnavailable {
					t.Errorf("%s: status %d, error %v", path, call.status, call.err)
				}
			})
		}
		wg.Wait()
		hits := map[string]int{}
		for _, hit := range o.seen() {
			hits[hit.path]++
		}
		for path := range requests {
			want, err := strconv.Atoi(path[1:2])
			require.NoError(t, err)
			require.Equal(t, want, hits[path], path)
		}
	})
}

func TestK05PredicateWidensWhatIsWorthButNotWhatIsSafe(t *testing.T) {
	teapot := retrip.WithRetryIf(func(a retrip.Attempt) retrip.Verdict {
		if a.StatusCode() == http.StatusTeapot {
			return retrip.VerdictRetry
		}
		return retrip.VerdictDefault
	})
	tests := []struct {
		name   string
		method string
		opts   []retrip.Option
		hits   int
	}{
		{"GET", http.MethodGet, nil, 3},
		{"POST", http.MethodPost, nil, 1},
		{"POST, declared idempotent", http.MethodPost, []retrip.Option{retrip.WithIdempotent(true)}, 3},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				base, o := caseServe(t, caseStatus(418, "short and stout"))
				req := caseRequest(t, tt.method, caseURL, nil)
				call := caseSend(t, caseNew(t, base, teapot), req.WithContext(retrip.Override(req.Context(), tt.opts...)))
				call.answered(t, http.StatusTeapot)
				require.Equal(t, "short and stout", call.body)
				require.Len(t, o.seen(), tt.hits)
			})
		})
	}
}

func TestK06LicenceIsMITAndTheDependenciesAreTwo(t *testing.T) {
	list := exec.CommandContext(t.Context(), "go", "list", "-deps", "-f", "{{if not .Standard}}{{.ImportPath}}{{end}}", ".")
	out, err := list.Output()
	require.NoError(t, err)
	const own = "github.com/retrip/retrip"
	foreign := map[string]bool{}
	for path := range strings.FieldsSeq(string(out)) {
		if path != own && !strings.HasPrefix(path, own+"/") {
			foreign[path] = true
		}
	}
	require.Equal(t, map[string]bool{"github.com/hashicorp/go-cleanhttp": true, "golang.org/x/time/rate": true}, foreign)
	licence, err := os.ReadFile("LICENSE")
	require.NoError(t, err)
	require.Contains(t, string(licence), "MIT License")
}

func TestK07WaitsAreVirtualUnderSynctest(t *testing.T) {
	start := time.Now()
	synctest.Test(t, func(t *testing.T) {
		stub := httptestx.Statuses(503, 503, 503, 503, 200)
		rt := caseNew(t, stub, retrip.WithMaxAttempts(5), caseDoubling(time.Hour, 100*time.Hour))
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, caseURL, nil)
		require.NoError(t, err)
		call := caseSend(t, rt, req)
		call.answered(t, http.StatusOK)
		require.Equal(t, (1+2+4+8)*time.Hour, call.took)
		require.Equal(t, 5, stub.Calls())
	})
	require.Less(t, time.Since(start), time.Second)
}

func TestL02ZeroValueMayBeUsedFirstByManyAtOnce(t *testing.T) {
	httptestx.Leaks(t)
	o := httptestx.NewOrigin(t, httptestx.ByConn([]httptestx.Play{httptestx.OK("done")}))
	var rt retrip.Transport
	defer rt.CloseIdleConnections()
	start := make(chan struct{})
	var wg sync.WaitGroup
	for range 64 {
		req := caseRequest(t, http.MethodGet, o.URL, nil)
		wg.Go(func() {
			<-start
			if call := caseQuiet(&rt, req); call.err != nil || call.body != "done" {
				t.Errorf("body %q, error %v", call.body, call.err)
			}
		})
	}
	close(start)
	wg.Wait()
	require.Equal(t, 64, o.Heads())
}

// What is held by WithBodyBuffer is retrip's own: late reads of an attempt that is over
// neither race with the next one nor take its bytes. A slice of the caller's own must be
// left alone until its body was closed.
func TestL03HeldBodySurvivesLateReads(t *testing.T) {
	httptestx.Leaks(t)
	const rounds, size = 50, 256 << 10
	whole, err := io.ReadAll(httptestx.Pattern(size))
	require.NoError(t, err)
	early := httptestx.Play{httptestx.ReadHead, httptestx.Respond(503, "busy", "Connection: close"), httptestx.Silence}
	ok := httptestx.OK("done", "Connection: close")
	o := httptestx.NewOrigin(t, func(turn httptestx.Turn) httptestx.Play {
		if turn.Total%2 == 1 {
			return early
		}
		return ok
	})
	rt := caseNew(t, httptestx.NewTransport(t), retrip.WithBodyBuffer(1<<20), retrip.WithBackoff(retrip.Constant(0)))
	for i := range rounds {
		body := httptestx.NewBody(bytes.NewReader(whole))
		call := caseQuiet(rt, caseRequest(t, http.MethodPut, o.URL, body))
		call.answered(t, http.StatusOK)
		body.CheckClosedOnce(t)
		seen := o.Requests()
		last := seen[len(seen)-1]
		require.Equal(t, int64(size), last.BodyBytes, "round %d", i)
		require.Equal(t, string(whole[:len(last.Body)]), last.Body, "round %d", i)
	}
}

func TestL04CancelOfOneRequestDoesNotDisturbOthers(t *testing.T) {
	httptestx.Leaks(t)
	const requests = 20
	var mu sync.Mutex
	hits := map[string]int{}
	var conns atomic.Int32
	base, address := caseH2(t, true, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		hits[r.URL.Path]++
		first := hits[r.URL.Path] == 1
		mu.Unlock()
		if first && r.URL.Path != "/warm" {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}), func(_ net.Conn, state http.ConnState) {
		if state == http.StateNew {
			conns.Add(1)
		}
	})
	// All are in their wait before half of them are cancelled.
	var waiting sync.WaitGroup
	waiting.Add(requests)
	rt := caseNew(t, base, retrip.WithBackoff(retrip.Constant(100*time.Millisecond)), retrip.WithHook(func(_ context.Context, e retrip.Event) {
		if e.Decision == retrip.DecisionRetry {
			waiting.Done()
		}
	}))
	caseQuiet(base, caseRequest(t, http.MethodGet, address+"warm", nil)).answered(t, http.StatusOK)

	var wg sync.WaitGroup
	var cancels []context.CancelFunc
	for i := range requests {
		req := caseRequest(t, http.MethodGet, address+strconv.Itoa(i), nil)
		ctx, cancel := context.WithCancel(req.Context())
		defer cancel()
		cancels = append(cancels, cancel)
		wg.Go(func() {
			call := caseQuiet(rt, req.WithContext(ctx))
			if canceled := errors.Is(call.err, context.Canceled); canceled != (i < requests/2) {
				t.Errorf("request %d: status %d, error %v", i, call.status, call.err)
			}
			if i >= requests/2 && call.status != http.StatusOK {
				t.Errorf("request %d: status %d, error %v", i, call.status, call.err)
			}
		})
	}
	waiting.Wait()
	for _, cancel := range cancels[:requests/2] {
		cancel()
	}
	wg.Wait()
	require.Equal(t, int32(1), conns.Load())
}

func TestM01AttemptsCountTheFirst(t *testing.T) {
	for _, n := range []int{1, 3} {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				base, o := caseServe(t, caseStatus(503, "busy"))
				call := caseSend(t, caseNew(t, base, retrip.WithMaxAttempts(n)), caseRequest(t, http.MethodGet, caseURL, nil))
				call.answered(t, http.StatusServiceUnavailable)
				call.ended(t, n, retrip.DecisionAttemptsExhausted, retrip.ReasonAttemptsExhausted)
				require.Len(t, o.seen(), n)
			})
		})
	}
	for _, n := range []int{0, -1} {
		t.Run(strconv.Itoa(n), func(t *testing.T) {
			rt, err := retrip.New(nil, retrip.WithMaxAttempts(n))
			require.Nil(t, rt)
			var oe *retrip.OptionError
			require.ErrorAs(t, err, &oe)
			require.Equal(t, "WithMaxAttempts", oe.Option)
		})
	}
}

func TestM04HintAboveTheCapDoesNotBurnAttempts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base, o := caseServe(t, caseStatus(429, "slow down", "Retry-After: 20"))
		rt := caseNew(t, base, retrip.WithMaxRetryAfter(time.Second))
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, caseURL, nil)
		require.NoError(t, err)
		call := caseSend(t, rt, req)
		call.answered(t, http.StatusTooManyRequests)
		call.ended(t, 1, retrip.DecisionReturn, retrip.ReasonRetryAfterTooLong)
		require.Len(t, o.seen(), 1)
		require.Zero(t, call.took)
	})
}

func TestM05TwoTransportsDoNotMultiply(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base, o := caseServe(t, caseStatus(503, "busy"))
		var mu sync.Mutex
		var inner []retrip.Reason
		below := retrip.Must(retrip.New(base, caseSettings(retrip.WithMaxAttempts(5), retrip.WithHook(func(_ context.Context, e retrip.Event) {
			mu.Lock()
			defer mu.Unlock()
			inner = append(inner, e.Reason)
		}))...))
		call := caseSend(t, caseNew(t, below, retrip.WithMaxAttempts(2)), caseRequest(t, http.MethodGet, caseURL, nil))
		call.answered(t, http.StatusServiceUnavailable)
		call.ended(t, 2, retrip.DecisionAttemptsExhausted, retrip.ReasonAttemptsExhausted)
		require.Len(t, o.seen(), 2)
		require.Equal(t, []retrip.Reason{retrip.ReasonNested, retrip.ReasonNested}, inner)
	})
}

// No warning is given for an attempt's limit above the operation's: the earlier one counts
// and the error names it.
func TestM06EarlierOfTwoTimeLimitsCounts(t *testing.T) {
	tests := []struct {
		name            string
		total, attempt  time.Duration
		attempts        int
		named, unnamed  string
		class           retrip.Class
		decision        retrip.Decision
		atLeast, atMost time.Duration
	}{
		{
			"total first", 200 * time.Millisecond, 500 * time.Millisecond, 1, "WithTotalTimeout", "WithAttemptTimeout",
			retrip.ClassDeadline, retrip.DecisionDeadlineExceeded, 200 * time.Millisecond, 200 * time.Millisecond,
		},
		{
			"attempt first", 2 * time.Second, 100 * time.Millisecond, 3, "WithAttemptTimeout", "WithTotalTimeout",
			retrip.ClassTimeout, retrip.DecisionAttemptsExhausted, 300 * time.Millisecond, 500 * time.Millisecond,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				base, o := caseServe(t, caseHang)
				rt := caseNew(t, base, retrip.WithTotalTimeout(tt.total), retrip.WithAttemptTimeout(tt.attempt))
				call := caseSend(t, rt, caseRequest(t, http.MethodGet, caseURL, nil))
				var e *retrip.Error
				require.ErrorAs(t, call.err, &e)
				require.True(t, e.Timeout())
				require.Contains(t, e.Error(), tt.named)
				require.NotContains(t, e.Error(), tt.unnamed)
				call.ended(t, tt.attempts, tt.decision, retrip.Reason(tt.decision))
				require.Equal(t, tt.class, call.events[tt.attempts-1].Class)
				require.Len(t, o.seen(), tt.attempts)
				require.GreaterOrEqual(t, call.took, tt.atLeast)
				require.LessOrEqual(t, call.took, tt.atMost)
			})
		})
	}
}

func TestM07DefaultsAreModest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base, o := caseServe(t, caseStatus(503, "busy"))
		rt := httptestx.Checked(t, retrip.Must(retrip.New(base)))
		call := caseSend(t, rt, caseRequest(t, http.MethodGet, caseURL, nil))
		call.answered(t, http.StatusServiceUnavailable)
		call.ended(t, 3, retrip.DecisionAttemptsExhausted, retrip.ReasonAttemptsExhausted)
		require.Len(t, o.seen(), 3)
		require.LessOrEqual(t, call.took, 300*time.Millisecond, "100 ms and 200 ms at most")
	})
	t.Run("500 is not repeated", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			for _, method := range []string{http.MethodGet, http.MethodPost} {
				base, o := caseServe(t, caseStatus(500, "a bug"))
				rt := httptestx.Checked(t, retrip.Must(retrip.New(base)))
				call := caseSend(t, rt, caseRequest(t, method, caseURL, nil))
				call.answered(t, http.StatusInternalServerError)
				call.ended(t, 1, retrip.DecisionReturn, retrip.ReasonNotTransient)
				require.Len(t, o.seen(), 1)
			}
		})
	})
}
