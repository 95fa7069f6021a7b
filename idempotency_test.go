package retrip_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/httptestx"
)

// keyBench is one origin, one Transport in front of it, and what both told.
type keyBench struct {
	t      *testing.T
	origin *httptestx.Origin
	rt     http.RoundTripper
	bodies *httptestx.Bodies
	events []retrip.Event
}

// newKeyBench makes a bench whose Transport does not wait between attempts.
func newKeyBench(t *testing.T, script httptestx.Script, opts ...retrip.Option) *keyBench {
	t.Helper()
	httptestx.Leaks(t)
	b := &keyBench{t: t, origin: httptestx.NewOrigin(t, script), bodies: httptestx.NewBodies("amount=200")}
	opts = append([]retrip.Option{
		retrip.WithBackoff(retrip.Constant(0)),
		retrip.WithHook(func(_ context.Context, e retrip.Event) { b.events = append(b.events, e) }),
	}, opts...)
	b.rt = httptestx.Checked(t, retrip.Must(retrip.New(httptestx.NewTransport(t), opts...)))
	return b
}

// request makes a request of the method; PATCH and the like carry a body. Header entries
// are lines such as "If-Match: 7".
func (b *keyBench) request(ctx context.Context, method string, header ...string) *http.Request {
	b.t.Helper()
	req, err := http.NewRequestWithContext(ctx, method, b.origin.URL, http.NoBody)
	require.NoError(b.t, err)
	switch method {
	case http.MethodPost, http.MethodPut, http.MethodPatch:
		req = b.bodies.Request(ctx, b.t, method, b.origin.URL)
	}
	for _, line := range header {
		name, value, _ := strings.Cut(line, ": ")
		req.Header.Set(name, value)
	}
	return req
}

// answer sends req, and returns status and body of what must be a response.
func (b *keyBench) answer(req *http.Request) (status int, body string) {
	b.t.Helper()
	resp, err := b.rt.RoundTrip(req)
	require.NoError(b.t, err)
	text, err := io.ReadAll(resp.Body)
	require.NoError(b.t, err)
	require.NoError(b.t, resp.Body.Close())
	return resp.StatusCode, string(text)
}

// failure sends req, and returns what must be an error.
func (b *keyBench) failure(req *http.Request) error {
	b.t.Helper()
	return keyFailure(b.t, b.rt, req)
}

func keyFailure(t *testing.T, rt http.RoundTripper, req *http.Request) error {
	t.Helper()
	resp, err := rt.RoundTrip(req)
	if resp != nil {
		resp.Body.Close()
	}
	require.Nil(t, resp)
	require.Error(t, err)
	return err
}

// keys returns the values of the header as the origin saw them, one per request.
func (b *keyBench) keys(header string) (keys []string) {
	for _, seen := range b.origin.Requests() {
		keys = append(keys, strings.Join(seen.Header.Values(header), "|"))
	}
	return keys
}

// told returns what the events say of each attempt, as "decision/reason/permit".
func (b *keyBench) told() (told []string) {
	for _, e := range b.events {
		told = append(told, fmt.Sprintf("%s/%s/%s", e.Decision, e.Reason, e.Permit))
	}
	return told
}

var (
	keyLost = httptestx.Play{httptestx.ReadAll, httptestx.FIN} // the whole request, no answer
	// A keyed request that is lost on a used connection net/http itself sends again.
	key503 = httptestx.Status(503, "busy", "Connection: close")
	keyOK  = httptestx.OK("done", "Connection: close")
)

func TestGeneratedKeyIsOneForAllAttemptsOfAnOperation(t *testing.T) {
	for _, method := range []string{http.MethodPost, http.MethodPatch} {
		t.Run(method, func(t *testing.T) {
			// The second operation meets the same three plays on connections of its own.
			b := newKeyBench(t, httptestx.Sequence(key503, keyLost, keyOK, keyLost, key503, keyOK), retrip.WithGeneratedKeys(nil))
			for range 2 {
				status, body := b.answer(b.request(t.Context(), method))
				assert.Equal(t, 200, status)
				assert.Equal(t, "done", body)
			}
			keys := b.keys("Idempotency-Key")
			require.Len(t, keys, 6)
			for i, key := range keys {
				assert.Equal(t, keys[i/3*3], key, "another key for attempt %d", i+1)
				assert.Equal(t, "amount=200", b.origin.Requests()[i].Body)
			}
			assert.NotEqual(t, keys[0], keys[3], "two operations share a key")
			// 128 bits take 22 characters of base 64 at least.
			assert.GreaterOrEqual(t, len(keys[0]), 22)
			assert.Equal(t, []string{
				"retry/transient/idempotency_key", "retry/transient/idempotency_key", "return/success/",
				"retry/transient/idempotency_key", "retry/transient/idempotency_key", "return/success/",
			}, b.told())
		})
	}
}

func TestGeneratedKeyIsTheCallersGeneratorsByteForByte(t *testing.T) {
	var asked atomic.Int32
	b := newKeyBench(t, httptestx.Sequence(key503, key503, keyOK),
		retrip.WithGeneratedKeys(func() string { return fmt.Sprintf("Ord/7731;n=%d é", asked.Add(1)) }))
	b.answer(b.request(t.Context(), http.MethodPost))
	b.answer(b.request(t.Context(), http.MethodPost))
	const first, second = "Ord/7731;n=1 é", "Ord/7731;n=2 é"
	assert.Equal(t, []string{first, first, first, second}, b.keys("Idempotency-Key"))
	assert.EqualValues(t, 2, asked.Load(), "the generator is asked once for each operation")
}

func TestGeneratedKeysAreForPOSTAndPATCHOnly(t *testing.T) {
	var asked atomic.Int32
	b := newKeyBench(t, httptestx.Sequence(keyOK), retrip.WithGeneratedKeys(func() string {
		asked.Add(1)
		return "minted"
	}))
	methods := []string{"GET", "HEAD", "OPTIONS", "TRACE", "PUT", "DELETE", "PROPFIND", "LOCK", "post"}
	for _, method := range methods {
		b.answer(b.request(t.Context(), method))
	}
	assert.Equal(t, make([]string, len(methods)), b.keys("Idempotency-Key"))
	assert.Zero(t, asked.Load())
}

func TestGeneratedKeysOfConcurrentOperationsDiffer(t *testing.T) {
	httptestx.Leaks(t)
	var mu sync.Mutex
	hits := map[string]int{}
	base := httptestx.RoundTripFunc(func(req *http.Request) (*http.Response, error) {
		mu.Lock()
		defer mu.Unlock()
		key := req.Header.Get("Idempotency-Key")
		if hits[key]++; hits[key] < 3 {
			return httptestx.Canned(req, 503, ""), nil
		}
		return httptestx.Canned(req, 200, ""), nil
	})
	rt := retrip.Must(retrip.New(base, retrip.WithGeneratedKeys(nil), retrip.WithBackoff(retrip.Constant(0)), retrip.WithBudget(nil)))
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://origin.test/", http.NoBody)
			if err != nil {
				t.Error(err)
				return
			}
			resp, err := rt.RoundTrip(req)
			if err != nil {
				t.Error(err)
				return
			}
			assert.Equal(t, 200, resp.StatusCode)
			resp.Body.Close()
		})
	}
	wg.Wait()
	require.Len(t, hits, 64)
	for key, n := range hits {
		assert.Equal(t, 3, n, "key %q", key)
	}
}

func TestNoKeyOfOursTakesThePlaceOfTheCallers(t *testing.T) {
	for name, header := range map[string]http.Header{
		"the usual header":           {"Idempotency-Key": {"Ord 7731, Ä"}},
		"the one with X":             {"X-Idempotency-Key": {"Ord 7731"}},
		"the API's own":              {"Request-Token": {"Ord 7731"}},
		"an entry in other letters":  {"idempotency-KEY": {"Ord 7731"}},
		"spaces around it":           {"Idempotency-Key": {"  Ord  7731 "}},
		"two values":                 {"Idempotency-Key": {"Ord 7731", "Ord 7732"}},
		"two headers":                {"Idempotency-Key": {"Ord 7731"}, "X-Idempotency-Key": {"Ord 7732"}},
		"an entry without values":    {"Idempotency-Key": nil},
		"an X entry without values":  {"X-Idempotency-Key": {}},
		"its own name without value": {"Request-Token": nil},
	} {
		t.Run(name, func(t *testing.T) {
			b := newKeyBench(t, httptestx.Sequence(keyOK),
				retrip.WithIdempotencyHeader("request-token"), retrip.WithGeneratedKeys(func() string { return "ours" }))
			ctx := retrip.Override(t.Context(), retrip.WithIdempotencyKey("ours"))
			req := b.request(ctx, http.MethodPost)
			req.Header = header
			b.answer(req)

			alone := b.request(t.Context(), http.MethodPost)
			alone.Header = header
			resp, err := httptestx.NewTransport(t).RoundTrip(alone)
			require.NoError(t, err)
			resp.Body.Close()

			seen := b.origin.Requests()
			require.Len(t, seen, 2)
			assert.Equal(t, seen[1].Header, seen[0].Header, "the origin sees the header that the bare base sends")
		})
	}
}

func TestTheCallersKeyPermitsARepeatUnderEachName(t *testing.T) {
	for name, header := range map[string]http.Header{
		"the usual header":                     {"Idempotency-Key": {"Ord 7731"}},
		"the one with X":                       {"X-Idempotency-Key": {"Ord 7731"}},
		"the API's own":                        {"Request-Token": {"Ord 7731"}},
		"net/http's entry without values":      {"Idempotency-Key": nil},
		"net/http's other entry without value": {"X-Idempotency-Key": {}},
		"the API's entry without values":       {"Request-Token": nil},
	} {
		t.Run(name, func(t *testing.T) {
			b := newKeyBench(t, httptestx.Sequence(keyLost, key503, keyOK), retrip.WithIdempotencyHeader("Request-Token"))
			req := b.request(t.Context(), http.MethodPost)
			req.Header = header
			status, _ := b.answer(req)
			assert.Equal(t, 200, status)
			assert.Equal(t, []string{"retry/transient/idempotency_key", "retry/transient/idempotency_key", "return/success/"}, b.told())
			seen := b.origin.Requests()
			require.Len(t, seen, 3)
			for name, values := range header {
				for i := range seen {
					assert.Equal(t, strings.Join(values, "|"), strings.Join(seen[i].Header.Values(name), "|"), "attempt %d", i+1)
				}
			}
		})
	}
}

func TestAHeaderOfAnotherNameIsNoKey(t *testing.T) {
	b := newKeyBench(t, httptestx.Sequence(key503, keyOK))
	status, _ := b.answer(b.request(t.Context(), http.MethodPost, "Request-Token: Ord 7731"))
	assert.Equal(t, 503, status)
	assert.Equal(t, []string{"return/not_repeatable/"}, b.told())
}

func TestAnEmptyKeyIsNoPermit(t *testing.T) {
	for _, name := range []string{"Idempotency-Key", "X-Idempotency-Key"} {
		t.Run(name, func(t *testing.T) {
			b := newKeyBench(t, httptestx.Sequence(key503, keyOK))
			status, _ := b.answer(b.request(t.Context(), http.MethodPost, name+": "))
			assert.Equal(t, 503, status)
			assert.Equal(t, 1, b.origin.Heads())
			assert.Equal(t, []string{"return/not_repeatable/"}, b.told())
		})
	}
}

func TestAnEmptyKeyGivesWayToOneOfOurs(t *testing.T) {
	b := newKeyBench(t, httptestx.Sequence(key503, keyOK), retrip.WithGeneratedKeys(func() string { return "minted" }))
	status, _ := b.answer(b.request(t.Context(), http.MethodPost, "Idempotency-Key: "))
	assert.Equal(t, 200, status)
	assert.Equal(t, []string{"minted", "minted"}, b.keys("Idempotency-Key"))
}

func TestABadGeneratorEndsTheOperationBeforeItIsSent(t *testing.T) {
	for name, key := range map[string]string{
		"empty": "", "blanks": " \t ", "a line break": "Ord\r\n7731", "a null byte": "Ord\x007731", "a delete": "Ord\x7f7731",
	} {
		t.Run(name, func(t *testing.T) {
			good := false
			b := newKeyBench(t, httptestx.Sequence(keyOK), retrip.WithGeneratedKeys(func() string {
				if good {
					return "good"
				}
				return key
			}))
			err := b.failure(b.request(t.Context(), http.MethodPost))
			var bad *retrip.OptionError
			require.ErrorAs(t, err, &bad)
			assert.Equal(t, "WithGeneratedKeys", bad.Option)
			assert.Contains(t, bad.Problem, "allowed is")
			if key != "" {
				assert.NotContains(t, err.Error(), key)
			}
			require.NotErrorIs(t, err, retrip.ErrOutcomeUnknown)
			assert.Zero(t, b.origin.Conns())
			assert.Empty(t, b.events, "nothing was attempted")
			b.bodies.CheckClosedOnce(t)

			good = true
			b.answer(b.request(t.Context(), http.MethodPost))
			assert.Equal(t, []string{"good"}, b.keys("Idempotency-Key"))
		})
	}
}

func TestTheContextsKeyIsSentOnEveryAttempt(t *testing.T) {
	for _, method := range []string{"POST", "PATCH", "LOCK"} {
		t.Run(method, func(t *testing.T) {
			// A key of the context's comes before a new one.
			b := newKeyBench(t, httptestx.Sequence(keyLost, key503, keyOK), retrip.WithGeneratedKeys(func() string { return "minted" }))
			ctx := retrip.Override(t.Context(), retrip.WithIdempotencyKey("Ord 7731"))
			status, _ := b.answer(b.request(ctx, method))
			assert.Equal(t, 200, status)
			assert.Equal(t, []string{"Ord 7731", "Ord 7731", "Ord 7731"}, b.keys("Idempotency-Key"))
			assert.Equal(t, []string{"retry/transient/idempotency_key", "retry/transient/idempotency_key", "return/success/"}, b.told())
		})
	}
}

func TestTheContextsKeyIsNotSentWhereTheMethodPermits(t *testing.T) {
	b := newKeyBench(t, httptestx.Sequence(keyOK))
	ctx := retrip.Override(t.Context(), retrip.WithIdempotencyKey("Ord 7731"))
	for _, method := range []string{"GET", "HEAD", "PUT", "DELETE", "QUERY"} {
		b.answer(b.request(ctx, method))
	}
	assert.Equal(t, make([]string, 5), b.keys("Idempotency-Key"))
}

func TestTheContextsKeyAndTheCallersWord(t *testing.T) {
	b := newKeyBench(t, httptestx.Sequence(key503))
	yes := retrip.Override(t.Context(), retrip.WithIdempotencyKey("Ord 7731"), retrip.WithIdempotent(true))
	no := retrip.Override(t.Context(), retrip.WithIdempotencyKey("Ord 7731"), retrip.WithIdempotent(false))
	b.answer(b.request(yes, http.MethodPost))
	b.answer(b.request(no, http.MethodPost))
	assert.Equal(t, []string{"Ord 7731", "Ord 7731", "Ord 7731", "Ord 7731"}, b.keys("Idempotency-Key"), "the key is sent whatever the word")
	assert.Equal(t, []string{
		"retry/transient/declared", "retry/transient/declared", "attempts_exhausted/attempts_exhausted/",
		"return/forbidden/",
	}, b.told())
}

func TestTheContextsInnermostKeyCounts(t *testing.T) {
	b := newKeyBench(t, httptestx.Sequence(keyOK))
	outer := retrip.Override(t.Context(), retrip.WithIdempotencyKey("outer"), retrip.WithIdempotencyHeader("Request-Token"))
	b.answer(b.request(retrip.Override(outer, retrip.WithIdempotencyKey("inner")), http.MethodPost))
	b.answer(b.request(outer, http.MethodPost))
	b.answer(b.request(t.Context(), http.MethodPost))
	assert.Equal(t, []string{"inner", "outer", ""}, b.keys("Request-Token"))
	assert.Equal(t, []string{"", "", ""}, b.keys("Idempotency-Key"))
}

func TestTheContextsKeyIsNoSettingOfATransport(t *testing.T) {
	rt, err := retrip.New(nil, retrip.WithIdempotencyKey("Ord 7731"))
	require.Nil(t, rt)
	var bad *retrip.OptionError
	require.ErrorAs(t, err, &bad)
	assert.Equal(t, "WithIdempotencyKey", bad.Option)
	assert.Contains(t, bad.Problem, "Override")
	assert.NotContains(t, err.Error(), "7731")
}

func TestABadKeyOfTheContextsIsReportedBeforeAnythingIsSent(t *testing.T) {
	for name, key := range map[string]string{"empty": "", "blank": "  ", "a line break": "7731\nX-Evil: 1"} {
		t.Run(name, func(t *testing.T) {
			b := newKeyBench(t, httptestx.Sequence(keyOK))
			ctx := retrip.Override(t.Context(), retrip.WithIdempotencyKey(key))
			err := b.failure(b.request(ctx, http.MethodPost))
			var bad *retrip.OptionError
			require.ErrorAs(t, err, &bad)
			assert.Equal(t, "WithIdempotencyKey", bad.Option)
			assert.NotContains(t, err.Error(), "7731")
			assert.Zero(t, b.origin.Conns())
			assert.Empty(t, b.events)
			b.bodies.CheckClosedOnce(t)
		})
	}
}

// keyHop is a request as it arrived in the course of redirects.
type keyHop struct{ host, path, key string }

// followKeys sends a POST to http://a.test/1 by an http.Client. The script has the answer
// to each request by "host/path": a status, or the URL of a 307.
func followKeys(ctx context.Context, t *testing.T, script map[string][]string, opts ...retrip.Option) (hops []keyHop) {
	t.Helper()
	base := httptestx.ServeMemory(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		assert.NoError(t, err)
		hops = append(hops, keyHop{r.Host, r.URL.Path, r.Header.Get("Idempotency-Key")})
		place := r.Host + r.URL.Path
		answer := script[place][0]
		if rest := script[place][1:]; len(rest) > 0 {
			script[place] = rest
		}
		switch answer {
		case "503":
			w.WriteHeader(http.StatusServiceUnavailable)
		case "200":
			_, _ = w.Write(body)
		default:
			w.Header().Set("Location", answer)
			w.WriteHeader(http.StatusTemporaryRedirect)
		}
	}))
	opts = append([]retrip.Option{retrip.WithBackoff(retrip.Constant(0))}, opts...)
	client := &http.Client{Transport: httptestx.Checked(t, retrip.Must(retrip.New(base, opts...)))}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://a.test/1", strings.NewReader("amount=200"))
	require.NoError(t, err)
	resp, err := client.Do(req)
	require.NoError(t, err)
	body, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	assert.Equal(t, 200, resp.StatusCode)
	assert.Equal(t, "amount=200", string(body), "the body goes along")
	return hops
}

func TestTheContextsKeyGoesAlongToTheSameOriginOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := retrip.Override(t.Context(), retrip.WithIdempotencyKey("Ord 7731"))
		hops := followKeys(ctx, t, map[string][]string{
			"a.test/1":    {"503", "/2"},
			"a.test/2":    {"503", "http://A.test:80/3"},
			"A.test:80/3": {"http://a.test:81/4"},
			"a.test:81/4": {"http://b.test/5"},
			"b.test/5":    {"http://a.test/6"},
			"a.test/6":    {"200"},
		})
		assert.Equal(t, []keyHop{
			{"a.test", "/1", "Ord 7731"},
			{"a.test", "/1", "Ord 7731"},
			{"a.test", "/2", "Ord 7731"},
			{"a.test", "/2", "Ord 7731"},
			{"A.test:80", "/3", "Ord 7731"}, // another spelling of the same
			{"a.test:81", "/4", ""},
			{"b.test", "/5", ""},
			{"a.test", "/6", "Ord 7731"},
		}, hops)
	})
}

func TestARepeatOnAnotherOriginIsNotPermittedByTheContextsKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var last string
		base := httptestx.ServeMemory(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			last = r.Host + "=" + r.Header.Get("Idempotency-Key")
			if r.Host == "a.test" {
				w.Header().Set("Location", "http://b.test/")
				w.WriteHeader(http.StatusTemporaryRedirect)
				return
			}
			w.WriteHeader(http.StatusServiceUnavailable)
		}))
		client := &http.Client{Transport: retrip.Must(retrip.New(base))}
		ctx, rec := retrip.Record(retrip.Override(t.Context(), retrip.WithIdempotencyKey("Ord 7731")))
		resp, err := client.Do(httptestx.NewBodies("z").Request(ctx, t, http.MethodPost, "http://a.test/"))
		require.NoError(t, err)
		resp.Body.Close()
		assert.Equal(t, 503, resp.StatusCode)
		assert.Equal(t, "b.test=", last)
		assert.Equal(t, 2, rec.Attempts())
		assert.Equal(t, retrip.ReasonNotRepeatable, rec.Events()[1].Reason)
	})
}

func TestEachHopOfARedirectGetsAGeneratedKeyOfItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		hops := followKeys(t.Context(), t, map[string][]string{
			"a.test/1": {"503", "/2"},
			"a.test/2": {"http://b.test/3"},
			"b.test/3": {"503", "200"},
		}, retrip.WithGeneratedKeys(func() string {
			n++
			return fmt.Sprint("k", n)
		}))
		assert.Equal(t, []keyHop{
			{"a.test", "/1", "k1"},
			{"a.test", "/1", "k1"},
			{"a.test", "/2", "k2"},
			{"b.test", "/3", "k3"},
			{"b.test", "/3", "k3"},
		}, hops)
	})
}

func TestKeysAreNeverLogged(t *testing.T) {
	const secret = "s3cret-key-7731"
	for name, setup := range map[string]struct {
		option retrip.Option
		ctx    retrip.Option
		header string
	}{
		"generated":     {option: retrip.WithGeneratedKeys(func() string { return secret })},
		"the context's": {ctx: retrip.WithIdempotencyKey(secret)},
		"the caller's":  {header: "Idempotency-Key: " + secret},
		"under its own name": {
			option: retrip.WithIdempotencyHeader("Request-Token"),
			ctx:    retrip.WithIdempotencyKey(secret),
		},
	} {
		t.Run(name, func(t *testing.T) {
			var log bytes.Buffer
			all := &slog.HandlerOptions{Level: slog.LevelDebug - 4}
			opts := []retrip.Option{
				retrip.WithLogger(slog.New(slog.NewTextHandler(&log, all))),
				retrip.WithHook(func(_ context.Context, e retrip.Event) {
					fmt.Fprintf(&log, "%v %+v %#v\n", e, e, e)
					slog.New(slog.NewJSONHandler(&log, all)).Info("event", "event", e)
				}),
			}
			if setup.option != nil {
				opts = append(opts, setup.option)
			}
			b := newKeyBench(t, httptestx.Sequence(key503, keyLost, keyLost), opts...)
			ctx := t.Context()
			if setup.ctx != nil {
				ctx = retrip.Override(ctx, setup.ctx)
			}
			var header []string
			if setup.header != "" {
				header = append(header, setup.header)
			}
			err := b.failure(b.request(ctx, http.MethodPost, header...))
			require.ErrorIs(t, err, retrip.ErrOutcomeUnknown)
			fmt.Fprintf(&log, "%v %+v %q\n", err, err, err)

			seen := b.origin.Requests()
			require.Len(t, seen, 3)
			assert.Contains(t, seen[2].RawHead, secret, "the key must have been there to be kept")
			assert.NotEmpty(t, log.String())
			assert.NotContains(t, log.String(), secret)
		})
	}
}

func TestAnswersAboutKeysAreFinal(t *testing.T) {
	for _, code := range []int{400, 409, 412, 422} {
		for _, hint := range []string{"X-None: 1", "Retry-After: 1"} {
			t.Run(fmt.Sprint(code, " ", hint), func(t *testing.T) {
				b := newKeyBench(t, httptestx.Sequence(httptestx.Status(code, "about the key", hint), keyOK))
				status, body := b.answer(b.request(t.Context(), http.MethodPost, "Idempotency-Key: Ord 7731"))
				assert.Equal(t, code, status)
				assert.Equal(t, "about the key", body)
				assert.Equal(t, 1, b.origin.Heads())
				assert.Equal(t, []string{"return/not_transient/"}, b.told())
			})
		}
	}
}

// keyInProgress waits where the server is still at work on the same key.
func keyInProgress(a retrip.Attempt) retrip.Verdict {
	if a.StatusCode() == http.StatusConflict && a.Response.Header.Get("Retry-After") != "" {
		return retrip.VerdictRetry
	}
	return retrip.VerdictDefault
}

func TestRetryIfWaitsForAKeyInProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var at []time.Duration
		var keys []string
		base := httptestx.ServeMemory(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			at = append(at, time.Since(start))
			keys = append(keys, r.Header.Get("Idempotency-Key"))
			if len(at) < 3 {
				w.Header().Set("Retry-After", "2")
				w.WriteHeader(http.StatusConflict)
				return
			}
			w.WriteHeader(http.StatusCreated)
		}))
		rt := httptestx.Checked(t, retrip.Must(retrip.New(base, retrip.WithRetryIf(keyInProgress))))
		ctx, rec := retrip.Record(retrip.Override(t.Context(), retrip.WithIdempotencyKey("Ord 7731")))
		resp, err := rt.RoundTrip(httptestx.NewBodies("amount=200").Request(ctx, t, http.MethodPost, "http://origin.test/"))
		require.NoError(t, err)
		resp.Body.Close()
		assert.Equal(t, http.StatusCreated, resp.StatusCode)
		assert.Equal(t, []string{"Ord 7731", "Ord 7731", "Ord 7731"}, keys)
		for i, e := range rec.Events()[:2] {
			assert.Equal(t, retrip.DecisionRetry, e.Decision)
			assert.Equal(t, retrip.ReasonPolicy, e.Reason)
			assert.Equal(t, retrip.PermitIdempotencyKey, e.Permit)
			// As asked, and up to a tenth of it later.
			wait := at[i+1] - at[i]
			assert.GreaterOrEqual(t, wait, 2*time.Second)
			assert.LessOrEqual(t, wait, 2200*time.Millisecond)
		}
		assert.False(t, rec.MaybeApplied(), "every attempt was answered")
	})
}

func TestRetryIfDoesNotWaitForAKeyWhereThatIsNoUse(t *testing.T) {
	conflict := httptestx.Status(409, "in progress", "Retry-After: 2")
	for name, test := range map[string]struct {
		script httptestx.Script
		header []string
		opts   []retrip.Option
		told   string
	}{
		"no Retry-After":       {script: httptestx.Sequence(httptestx.Status(409, "in progress"), keyOK), header: []string{"Idempotency-Key: k"}, told: "return/not_transient/"},
		"no key":               {script: httptestx.Sequence(conflict, keyOK), told: "return/not_repeatable/"},
		"a wait over the cap":  {script: httptestx.Sequence(conflict, keyOK), header: []string{"Idempotency-Key: k"}, opts: []retrip.Option{retrip.WithMaxRetryAfter(time.Second)}, told: "return/retry_after_too_long/"},
		"no time for the wait": {script: httptestx.Sequence(conflict, keyOK), header: []string{"Idempotency-Key: k"}, opts: []retrip.Option{retrip.WithTotalTimeout(time.Second)}, told: "deadline_exceeded/deadline_exceeded/"},
	} {
		t.Run(name, func(t *testing.T) {
			b := newKeyBench(t, test.script, append(test.opts, retrip.WithRetryIf(keyInProgress))...)
			status, body := b.answer(b.request(t.Context(), http.MethodPost, test.header...))
			assert.Equal(t, 409, status)
			assert.Equal(t, "in progress", body)
			assert.Equal(t, 1, b.origin.Heads())
			assert.Equal(t, []string{test.told}, b.told())
		})
	}
}

func TestAnAnswerAfterALostOneMayBeTheEchoOfTheFirstAttempt(t *testing.T) {
	for name, test := range map[string]struct {
		method string
		header []string
		code   int
	}{
		"DELETE, 404":            {method: "DELETE", code: 404},
		"PUT with If-Match, 412": {method: "PUT", header: []string{`If-Match: "v7"`}, code: 412},
		"create with a key, 409": {method: "POST", header: []string{"Idempotency-Key: Ord 7731"}, code: 409},
	} {
		t.Run(name, func(t *testing.T) {
			b := newKeyBench(t, httptestx.Sequence(
				httptestx.Play{httptestx.ReadAll, httptestx.RST}, httptestx.Status(test.code, "as it is now")))
			ctx, rec := retrip.Record(t.Context())
			status, body := b.answer(b.request(ctx, test.method, test.header...))
			assert.Equal(t, test.code, status)
			assert.Equal(t, "as it is now", body, "the answer is returned as it is")

			seen := b.origin.Requests()
			require.Len(t, seen, 2)
			assert.Equal(t, seen[0].RawHead, seen[1].RawHead, "the second attempt asks for the same")
			assert.Equal(t, seen[0].Body, seen[1].Body)

			require.Len(t, b.events, 2)
			assert.Equal(t, retrip.DeliveryUnknown, b.events[0].Delivery)
			assert.False(t, b.events[0].EarlierUnknown, "nothing came before the first")
			assert.Equal(t, retrip.DeliveryAnswered, b.events[1].Delivery)
			assert.True(t, b.events[1].EarlierUnknown)
			assert.Contains(t, b.events[1].String(), "earlier_unknown=true")
			assert.Equal(t, retrip.ReasonNotTransient, b.events[1].Reason)
			assert.True(t, rec.MaybeApplied(), "the answer does not clear it")

			// The bare base stops at the lost answer, after as many sends.
			bare := httptestx.NewOrigin(t, httptestx.Sequence(httptestx.Play{httptestx.ReadAll, httptestx.RST}, keyOK))
			req := b.request(t.Context(), test.method, test.header...)
			req.URL.Host = bare.Addr
			err := keyFailure(t, httptestx.NewTransport(t), req)
			require.ErrorIs(t, err, syscall.ECONNRESET)
			assert.Equal(t, 1, bare.Heads())
		})
	}
}

func TestAnAnswerIsNoEchoWhereNothingEarlierIsInDoubt(t *testing.T) {
	t.Run("answered before", func(t *testing.T) {
		b := newKeyBench(t, httptestx.Sequence(key503, httptestx.Status(404, "")))
		ctx, rec := retrip.Record(t.Context())
		b.answer(b.request(ctx, http.MethodDelete))
		require.Len(t, b.events, 2)
		assert.False(t, b.events[1].EarlierUnknown)
		assert.False(t, rec.MaybeApplied())
	})
	t.Run("not sent before", func(t *testing.T) {
		var b *keyBench
		b = newKeyBench(t, httptestx.Sequence(httptestx.Status(404, "")),
			retrip.WithHook(func(_ context.Context, e retrip.Event) {
				if e.Attempt == 1 {
					b.origin.Accept(t) //nolint:contextcheck // a listener has nothing to do with the request
				}
			}))
		b.origin.Refuse()
		ctx, rec := retrip.Record(t.Context())
		b.answer(b.request(ctx, http.MethodDelete))
		require.Len(t, b.events, 2)
		assert.Equal(t, retrip.DeliveryNotSent, b.events[0].Delivery)
		assert.False(t, b.events[1].EarlierUnknown)
		assert.False(t, rec.MaybeApplied())
	})
	t.Run("a safe method", func(t *testing.T) {
		b := newKeyBench(t, httptestx.Sequence(keyLost, httptestx.Status(404, "")))
		ctx, rec := retrip.Record(t.Context())
		b.answer(b.request(ctx, http.MethodGet))
		require.Len(t, b.events, 2)
		assert.True(t, b.events[1].EarlierUnknown)
		assert.False(t, rec.MaybeApplied(), "there is nothing that it could have done")
	})
}

func TestALaterFailureDoesNotClearAnEarlierDoubt(t *testing.T) {
	var b *keyBench
	b = newKeyBench(t, httptestx.Sequence(keyLost), retrip.WithHook(func(context.Context, retrip.Event) { b.origin.Refuse() }))
	ctx, rec := retrip.Record(t.Context())
	err := b.failure(b.request(ctx, http.MethodPut))
	require.ErrorIs(t, err, retrip.ErrOutcomeUnknown)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	var e *retrip.Error
	require.ErrorAs(t, err, &e)
	assert.True(t, e.MaybeApplied)
	assert.Equal(t, retrip.DeliveryNotSent, e.Delivery, "the last attempt's")
	assert.Equal(t, 3, e.Attempts)
	assert.True(t, rec.MaybeApplied())
	assert.Equal(t, 1, b.origin.Heads())
	require.Len(t, b.events, 3)
	assert.True(t, b.events[1].EarlierUnknown)
	assert.True(t, b.events[2].EarlierUnknown)
}

func TestTheBodyGoesAlongWithTheKey(t *testing.T) {
	// A one-shot body stops a repeat that the key permits: a key with another body would be
	// another request.
	b := newKeyBench(t, httptestx.Sequence(keyLost, keyOK), retrip.WithGeneratedKeys(nil))
	body := httptestx.NewBody(httptestx.OneShot(strings.NewReader("amount=200")))
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, b.origin.URL, body)
	require.NoError(t, err)
	err = b.failure(req)
	require.ErrorIs(t, err, retrip.ErrOutcomeUnknown)
	require.ErrorIs(t, err, io.EOF)
	assert.Equal(t, []string{"return/body_not_replayable/"}, b.told())
	assert.Equal(t, 1, b.origin.Heads())
}
