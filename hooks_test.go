package retrip_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"regexp"
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

// hookLog notes events; it is not for concurrent operations.
type hookLog struct{ events []retrip.Event }

func (l *hookLog) option() retrip.Option {
	return retrip.WithHook(func(_ context.Context, e retrip.Event) { l.events = append(l.events, e) })
}

func hookDo(t *testing.T, rt http.RoundTripper, req *http.Request) (status int, err error) {
	t.Helper()
	resp, err := rt.RoundTrip(req)
	if err != nil {
		return 0, err
	}
	_, copyErr := io.Copy(io.Discard, resp.Body)
	require.NoError(t, copyErr)
	require.NoError(t, resp.Body.Close())
	return resp.StatusCode, nil
}

// J03: every attempt has its event, in order, and the times add up.
func TestJ03EventsTellAllThatHappened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		turn := 0
		base := httptestx.ServeMemory(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body)
			<-time.After(2 * time.Second)
			switch turn++; turn {
			case 1:
				w.WriteHeader(http.StatusServiceUnavailable)
			case 2:
				panic(http.ErrAbortHandler)
			}
		}))
		log := &hookLog{}
		rt := httptestx.Checked(t, retrip.Must(retrip.New(base, log.option(), retrip.WithBackoff(retrip.Constant(3*time.Second)))))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		bodies := httptestx.NewBodies("amount=200")
		req := bodies.Request(ctx, t, http.MethodPut, "http://u:pw@origin.test/orders/7%2F1?sig=S3CR#part")
		start := time.Now()
		status, err := hookDo(t, rt, req)
		require.NoError(t, err)
		require.Equal(t, 200, status)
		total := time.Since(start)
		bodies.CheckClosedOnce(t)

		require.Len(t, log.events, 3)
		id := log.events[0].OperationID
		require.Regexp(t, "^[0-9a-f]{32}$", id)
		require.ErrorIs(t, log.events[1].Err, io.EOF)
		log.events[1].Err = nil
		common := retrip.Event{
			OperationID: id, Method: "PUT", Endpoint: "http://origin.test/orders/7%2F1", Sends: 1, Duration: 2 * time.Second,
			Decision: retrip.DecisionRetry, Reason: retrip.ReasonTransient, Permit: retrip.PermitIdempotentMethod, Delay: 3 * time.Second,
		}
		first, second, third := common, common, common
		first.Attempt, first.RequestID, first.Start, first.Remaining = 1, id+"-1", start, 58*time.Second
		first.StatusCode, first.Delivery = 503, retrip.DeliveryAnswered
		second.Attempt, second.RequestID, second.Start, second.Remaining = 2, id+"-2", start.Add(5*time.Second), 53*time.Second
		second.Class, second.Delivery, second.ConnReused = retrip.ClassEOF, retrip.DeliveryUnknown, true
		third.Attempt, third.RequestID, third.Start, third.Remaining = 3, id+"-3", start.Add(10*time.Second), 48*time.Second
		third.StatusCode, third.Delivery, third.EarlierUnknown = 200, retrip.DeliveryAnswered, true
		third.Decision, third.Reason, third.Permit, third.Delay = retrip.DecisionReturn, retrip.ReasonSuccess, retrip.PermitNone, 0
		require.Equal(t, []retrip.Event{first, second, third}, log.events)

		var sum time.Duration
		for _, e := range log.events {
			sum += e.Duration + e.Delay
		}
		require.Equal(t, total, sum)
	})
}

func TestEventWithoutMethodAndDeadline(t *testing.T) {
	t.Parallel()
	log := &hookLog{}
	rt := retrip.Must(retrip.New(newOptionBase(200), log.option()))
	req := optionRequest(t.Context(), t, "GET")
	req.Method = ""
	_, err := hookDo(t, rt, req)
	require.NoError(t, err)
	_, err = hookDo(t, rt, req)
	require.NoError(t, err)
	require.Len(t, log.events, 2)
	assert.Equal(t, "GET", log.events[0].Method)
	assert.Equal(t, time.Duration(-1), log.events[0].Remaining)
	assert.NotEqual(t, log.events[0].OperationID, log.events[1].OperationID, "each operation has its own ID")
}

func TestHookIsCalledBeforeTheWaitWithTheCallersContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type key struct{}
		ctx := context.WithValue(t.Context(), key{}, "mine")
		var times []time.Duration
		start := time.Now()
		optionSend(ctx, t, newOptionBase(503, 200), "GET", retrip.WithBackoff(retrip.Constant(time.Hour)),
			retrip.WithHook(func(got context.Context, _ retrip.Event) {
				require.Equal(t, ctx, got)
				require.Zero(t, retrip.AttemptNumber(got))
				times = append(times, time.Since(start))
			}))
		require.Equal(t, []time.Duration{0, time.Hour}, times)
	})
}

// A second event where the wait is ended, and none is counted twice.
func TestSecondEventOfAnAttemptWhoseWaitEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		time.AfterFunc(time.Minute, cancel)
		ctx, record := retrip.Record(ctx)
		rt := httptestx.Checked(t, retrip.Must(retrip.New(newOptionBase(503), retrip.WithBackoff(retrip.Constant(time.Hour)))))
		_, err := hookDo(t, rt, optionRequest(ctx, t, "GET"))
		require.ErrorIs(t, err, context.Canceled)
		events := record.Events()
		require.Len(t, events, 2)
		require.Equal(t, []int{1, 1}, []int{events[0].Attempt, events[1].Attempt})
		require.Equal(t, events[0].OperationID, events[1].OperationID)
		require.Equal(t, time.Hour, events[0].Delay)
		require.Zero(t, events[1].Delay)
		require.Equal(t, 1, record.Attempts())
	})
}

// Logging.

type hookHandler struct {
	slog.Handler

	mu       sync.Mutex
	records  []slog.Record
	contexts []context.Context
	least    slog.Level
}

func (h *hookHandler) Enabled(_ context.Context, level slog.Level) bool { return level >= h.least }

func (h *hookHandler) Handle(ctx context.Context, r slog.Record) error {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.records, h.contexts = append(h.records, r), append(h.contexts, ctx)
	return nil
}

func hookAttrs(r slog.Record) map[string]slog.Value {
	attrs := map[string]slog.Value{}
	r.Attrs(func(a slog.Attr) bool {
		attrs[a.Key] = a.Value
		return true
	})
	return attrs
}

func TestLoggerWritesOneRecordForEachEventAtItsLevel(t *testing.T) {
	t.Parallel()
	gate := retrip.WithGate(func(*http.Request) (func(error), error) { return nil, errOutcomeGate })
	tests := []struct {
		name   string
		codes  []int
		opts   []retrip.Option
		method string
		want   []slog.Level
	}{
		{"success", []int{200}, nil, "GET", []slog.Level{slog.LevelDebug}},
		{"not transient", []int{404}, nil, "GET", []slog.Level{slog.LevelDebug}},
		{"retry", []int{503, 200}, nil, "GET", []slog.Level{slog.LevelInfo, slog.LevelDebug}},
		{"exhausted", []int{503}, nil, "GET", []slog.Level{slog.LevelInfo, slog.LevelInfo, slog.LevelWarn}},
		{"not repeatable", []int{503}, nil, "POST", []slog.Level{slog.LevelWarn}},
		{"gate", []int{200}, []retrip.Option{gate}, "GET", []slog.Level{slog.LevelWarn}},
	}
	for _, tt := range tests {
		h := &hookHandler{least: slog.LevelDebug}
		log := &hookLog{}
		rt := retrip.Must(retrip.New(newOptionBase(tt.codes...), append(tt.opts, optionNow, log.option(), retrip.WithLogger(slog.New(h)))...))
		req := optionRequest(t.Context(), t, tt.method)
		_, _ = hookDo(t, rt, req)
		var levels []slog.Level
		for i, r := range h.records {
			levels = append(levels, r.Level)
			assert.Equal(t, h.records[0].Message, r.Message, "the message is static")
			assert.NotEmpty(t, r.Message)
			assert.Equal(t, req.Context(), h.contexts[i], "handlers get the caller's context")
			attrs := hookAttrs(r)
			for key := range attrs {
				assert.Regexp(t, "^[a-z]+(_[a-z]+)*$", key)
			}
			e := log.events[i]
			assert.Equal(t, e.OperationID, attrs["operation_id"].String(), tt.name)
			assert.Equal(t, string(e.Decision), attrs["decision"].String())
			assert.Equal(t, string(e.Reason), attrs["reason"].String())
			assert.Equal(t, string(e.Delivery), attrs["delivery"].String())
			assert.EqualValues(t, e.Attempt, attrs["attempt"].Int64())
			assert.Equal(t, e.Endpoint, attrs["endpoint"].String())
			want := map[string]slog.Value{}
			for _, a := range e.LogValue().Group() {
				want[a.Key] = a.Value
			}
			assert.Equal(t, want, attrs, "a record holds what LogValue gives")
		}
		assert.Equal(t, tt.want, levels, tt.name)

		// A handler that is not interested is not asked to handle.
		h = &hookHandler{least: slog.LevelError}
		_, _ = hookDo(t, retrip.Must(retrip.New(newOptionBase(tt.codes...), append(tt.opts, optionNow, retrip.WithLogger(slog.New(h)))...)),
			optionRequest(t.Context(), t, tt.method))
		assert.Empty(t, h.records)
	}
}

func TestNothingIsLoggedByDefault(t *testing.T) {
	before := slog.Default()
	h := &hookHandler{least: slog.LevelDebug}
	slog.SetDefault(slog.New(h))
	defer slog.SetDefault(before)
	optionSend(t.Context(), t, newOptionBase(503), "GET", optionNow)
	optionSend(t.Context(), t, newOptionBase(503), "GET", optionNow, retrip.WithLogger(slog.New(&hookHandler{})), retrip.WithLogger(nil))
	assert.Empty(t, h.records)
}

// J01: secrets.

// hookSecrets are in the URL, the headers and the bodies of the requests and answers below.
var hookSecrets = []string{"us3r", "pw0rd", "S3CR", "fr4g", "T0K", "K3Y", "B0DY", "ANSW3R", "P33R", "G4TE", "G3TB", "CH3CK"}

func hookLeaks(t *testing.T, what, text string) {
	t.Helper()
	for _, secret := range hookSecrets {
		assert.NotContains(t, text, secret, what)
	}
}

func hookRenderings(t *testing.T, e *retrip.Event) map[string]string {
	t.Helper()
	var asText, asJSON bytes.Buffer
	slog.New(slog.NewTextHandler(&asText, nil)).Info("event", "event", *e, "pointer", e)
	slog.New(slog.NewJSONHandler(&asJSON, nil)).Info("event", "event", *e, "pointer", e)
	marshaled, err := json.Marshal(e)
	require.NoError(t, err)
	byValue, err := json.Marshal(map[string]any{"event": *e})
	require.NoError(t, err)
	return map[string]string{
		"%v": fmt.Sprintf("%v", *e), "%+v": fmt.Sprintf("%+v", *e), "%s": fmt.Sprintf("the %s", *e), "%q": fmt.Sprintf("%q", *e),
		"%v of the pointer": fmt.Sprintf("%v", e), "%+v of the pointer": fmt.Sprintf("%+v", e),
		"slog text": asText.String(), "slog JSON": asJSON.String(),
		"JSON": string(marshaled), "JSON of the value": string(byValue),
	}
}

func TestJ01SecretsAreInNoEventAndNoErrorText(t *testing.T) {
	tests := map[string]struct {
		play httptestx.Play
		base http.RoundTripper
		opts []retrip.Option
		edit func(req *http.Request)
		says string // in the Error's text
	}{
		"503": {play: httptestx.Status(503, "ANSW3R", "X-Answer: ANSW3R")},
		"cut": {play: httptestx.Play{httptestx.ReadAll, httptestx.FIN}, says: "EOF"},
		"malformed answer": {
			play: httptestx.Play{httptestx.ReadAll, httptestx.Write("HTTP/1.1 P33R what\r\nP33R"), httptestx.FIN}, says: "protocol",
		},
		"malformed header": {
			play: httptestx.Play{httptestx.ReadAll, httptestx.Write("HTTP/1.1 200 OK\r\nP33R what\r\n\r\n"), httptestx.FIN}, says: "protocol",
		},
		"a client as base": {
			base: httptestx.NewStub(func(req *http.Request) (*http.Response, error) {
				return nil, &url.Error{Op: "Put", URL: req.URL.String(), Err: fmt.Errorf("dial: %w", syscall.ECONNRESET)}
			}), says: "connection reset",
		},
		"a base that quotes the request": {
			base: httptestx.NewStub(func(req *http.Request) (*http.Response, error) {
				return nil, fmt.Errorf("odd: %s %v", req.URL, req.Header)
			}), says: "other",
		},
		"neither": {
			base: httptestx.NewStub(func(*http.Request) (*http.Response, error) { return nil, nil }), //nolint:nilnil // what is tested
			says: "neither",
		},
		"both": {
			base: httptestx.NewStub(func(req *http.Request) (*http.Response, error) {
				return httptestx.Canned(req, 200, "ANSW3R"), fmt.Errorf("odd: %s", req.URL)
			}), says: "both",
		},
		"gate": {
			opts: []retrip.Option{retrip.WithGate(func(req *http.Request) (func(error), error) {
				return nil, fmt.Errorf("G4TE for %s", req.URL)
			})}, says: "gate",
		},
		"GetBody": {
			play: httptestx.Play{httptestx.ReadAll, httptestx.FIN}, says: "body",
			edit: func(req *http.Request) {
				req.GetBody = func() (io.ReadCloser, error) { return nil, errors.New("G3TB") }
			},
		},
		"body": {
			play: httptestx.Play{httptestx.ReadAll, httptestx.FIN}, says: "body",
			edit: func(req *http.Request) {
				req.Body = io.NopCloser(httptestx.FailAfter("B0DY", 4, errors.New("B0DY")))
				req.GetBody = nil
			},
		},
		"state check": {
			play: httptestx.Play{httptestx.ReadAll, httptestx.FIN}, says: "state check",
			edit: func(req *http.Request) { req.Method = http.MethodPost; req.Header.Del("Idempotency-Key") },
			opts: []retrip.Option{retrip.WithStateCheck(func(_ context.Context, req *http.Request, _ retrip.Attempt) (retrip.State, *http.Response, error) {
				return retrip.StateUnknown, nil, &url.Error{Op: "Get", URL: req.URL.String(), Err: errors.New("CH3CK")}
			})},
		},
		"local reject": {
			edit: func(req *http.Request) { req.Header["X-Bad"] = []string{"T0K\n"} },
		},
		"canceled for a secret cause": {
			play: httptestx.Play{httptestx.ReadAll, httptestx.Silence}, says: "canceled",
			edit: func(req *http.Request) {
				ctx, cancel := context.WithCancelCause(req.Context())
				cancel(errors.New("T0K is out"))
				*req = *req.WithContext(ctx)
			},
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			httptestx.Leaks(t)
			target := "http://us3r:pw0rd@origin.test/orders?sig=S3CR#fr4g"
			base := tt.base
			if base == nil {
				origin := httptestx.NewOrigin(t, httptestx.Sequence(tt.play))
				target = strings.Replace(target, "origin.test", origin.Addr, 1)
				base = httptestx.NewTransport(t)
			}
			log := &hookLog{}
			var text, asJSON bytes.Buffer
			debug := &slog.HandlerOptions{Level: slog.LevelDebug}
			opts := append([]retrip.Option{
				optionNow, log.option(), retrip.WithLogger(slog.New(slog.NewMultiHandler(
					slog.NewTextHandler(&text, debug), slog.NewJSONHandler(&asJSON, debug)))),
			}, tt.opts...)
			rt := retrip.Must(retrip.New(base, opts...))
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, target, strings.NewReader("B0DY"))
			require.NoError(t, err)
			req.Header.Set("Authorization", "Bearer T0K")
			req.Header.Set("Idempotency-Key", "K3Y")
			if tt.edit != nil {
				tt.edit(req)
			}
			_, err = hookDo(t, rt, req)

			require.NotEmpty(t, log.events)
			for _, e := range log.events {
				for how, rendered := range hookRenderings(t, &e) {
					hookLeaks(t, how, rendered)
					assert.Contains(t, rendered, e.OperationID, "%s says something", how)
				}
			}
			hookLeaks(t, "text log", text.String())
			hookLeaks(t, "JSON log", asJSON.String())
			assert.Equal(t, len(log.events), strings.Count(text.String(), "\n"))
			if e, ok := errors.AsType[*retrip.Error](err); ok {
				for how, text := range map[string]string{"Error()": e.Error(), "%v": fmt.Sprintf("%v", err), "%+v": fmt.Sprintf("%+v", err)} {
					hookLeaks(t, how, text)
					assert.Contains(t, text, tt.says, how)
				}
			} else {
				assert.Empty(t, tt.says, "an *Error is expected; got %T %v", err, err)
			}
		})
	}
}

func TestEventQuotesTheNetworksOwnWords(t *testing.T) {
	t.Parallel()
	log := &hookLog{}
	rt := retrip.Must(retrip.New(outcomeFails(outcomeDialError()), optionNow, log.option()))
	_, err := hookDo(t, rt, optionRequest(t.Context(), t, "GET"))
	require.Error(t, err)
	for _, e := range log.events {
		assert.Contains(t, e.String(), "connection refused")
	}
	assert.Contains(t, err.Error(), "connection refused")
}

// Recorders.

func TestRecordersNest(t *testing.T) {
	t.Parallel()
	rt := retrip.Must(retrip.New(newOptionBase(503), optionNow))
	outerCtx, outer := retrip.Record(t.Context())
	innerCtx, inner := retrip.Record(retrip.Override(outerCtx, retrip.WithMaxAttempts(2)))
	for _, ctx := range []context.Context{innerCtx, outerCtx, t.Context()} {
		_, err := hookDo(t, rt, optionRequest(ctx, t, "GET"))
		require.NoError(t, err)
	}
	assert.Equal(t, 2, inner.Attempts())
	assert.GreaterOrEqual(t, outer.Attempts(), 2+1)
	assert.Equal(t, inner.Events(), outer.Events()[:2])
	assert.Len(t, outer.Events(), outer.Attempts())
	assert.False(t, outer.MaybeApplied())

	events := inner.Events()
	events[0].OperationID = "changed"
	assert.NotEqual(t, "changed", inner.Events()[0].OperationID, "Events gives a copy")
}

func TestRecorderCollectsEachRedirectHop(t *testing.T) {
	httptestx.Leaks(t)
	origin := httptestx.NewOrigin(t, httptestx.Sequence(
		httptestx.Status(503, "busy"),
		httptestx.Status(307, "", "Location: /elsewhere"),
		httptestx.OK("done"),
	))
	client := &http.Client{Transport: retrip.Must(retrip.New(httptestx.NewTransport(t), optionNow))}
	ctx, record := retrip.Record(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, origin.URL, strings.NewReader("amount=200"))
	require.NoError(t, err)
	resp, err := client.Do(req)
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	events := record.Events()
	require.Len(t, events, 3)
	assert.Equal(t, 3, record.Attempts())
	assert.Equal(t, []int{503, 307, 200}, []int{events[0].StatusCode, events[1].StatusCode, events[2].StatusCode})
	assert.Equal(t, events[0].OperationID, events[1].OperationID)
	assert.NotEqual(t, events[1].OperationID, events[2].OperationID, "a hop is an operation of its own")
	assert.Equal(t, []int{1, 2, 1}, []int{events[0].Attempt, events[1].Attempt, events[2].Attempt})
	assert.True(t, strings.HasSuffix(events[2].Endpoint, "/elsewhere"))
}

func TestRecorderIsSafeForConcurrentUse(t *testing.T) {
	t.Parallel()
	rt := retrip.Must(retrip.New(httptestx.Statuses(503), optionNow, retrip.WithBudget(nil)))
	ctx, record := retrip.Record(t.Context())
	var wg sync.WaitGroup
	for range 32 {
		wg.Go(func() {
			if err := optionGet(ctx, rt, "http://origin.test/"); err != nil {
				t.Error(err)
			}
			assert.NotEmpty(t, record.Events())
			assert.False(t, record.MaybeApplied())
		})
	}
	wg.Wait()
	assert.Equal(t, 96, record.Attempts())
	perOperation := map[string][]int{}
	for _, e := range record.Events() {
		perOperation[e.OperationID] = append(perOperation[e.OperationID], e.Attempt)
	}
	assert.Len(t, perOperation, 32)
	for id, attempts := range perOperation {
		assert.Equal(t, []int{1, 2, 3}, attempts, id)
	}
}

func TestRecorderOfANestedTransportIsTheOuterOnes(t *testing.T) {
	t.Parallel()
	inner := retrip.Must(retrip.New(newOptionBase(503), optionNow))
	outer := retrip.Must(retrip.New(inner, optionNow))
	ctx, record := retrip.Record(retrip.Override(t.Context(), retrip.WithMaxAttempts(2)))
	_, err := hookDo(t, outer, optionRequest(ctx, t, "GET"))
	require.NoError(t, err)
	assert.Equal(t, 2, record.Attempts())
	assert.Len(t, record.Events(), 2)
}

// J09: callbacks that use the same client, and callbacks that panic.

func TestJ09CallbacksMayUseTheSameClient(t *testing.T) {
	var client *http.Client
	type inside struct{}
	asked := 0
	ask := func(ctx context.Context) {
		if ctx.Value(inside{}) != nil {
			return
		}
		asked++
		req, err := http.NewRequestWithContext(context.WithValue(ctx, inside{}, true), http.MethodGet, "http://origin.test/inner", http.NoBody)
		require.NoError(t, err)
		resp, err := client.Do(req)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
	}
	for name, option := range map[string]retrip.Option{
		"hook": retrip.WithHook(func(ctx context.Context, _ retrip.Event) { ask(ctx) }),
		"RetryIf": retrip.WithRetryIf(func(a retrip.Attempt) retrip.Verdict {
			ask(a.Request.Context())
			return retrip.VerdictDefault
		}),
		"gate": retrip.WithGate(func(req *http.Request) (func(error), error) {
			ask(req.Context())
			return func(error) { ask(req.Context()) }, nil //nolint:contextcheck // done is given none
		}),
	} {
		t.Run(name, func(t *testing.T) {
			asked = 0
			base := httptestx.NewStub(func(req *http.Request) (*http.Response, error) {
				if req.URL.Path == "/inner" {
					return httptestx.Canned(req, 200, "inner"), nil
				}
				return httptestx.Canned(req, 503, "busy"), nil
			})
			client = &http.Client{Transport: retrip.Must(retrip.New(base, optionNow, retrip.WithOriginPause(true), option))}
			resp, err := client.Do(optionRequest(t.Context(), t, "GET"))
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			assert.Equal(t, 503, resp.StatusCode)
			assert.Positive(t, asked)
			for _, body := range base.Bodies() {
				body.CheckClosedOnce(t)
			}
		})
	}
}

func TestJ09StateCheckMayUseTheSameClient(t *testing.T) {
	t.Parallel()
	type key struct{}
	var client *http.Client
	base := httptestx.NewStub(
		func(*http.Request) (*http.Response, error) { return nil, io.EOF },
		func(req *http.Request) (*http.Response, error) {
			assert.Equal(t, "mine", req.Context().Value(key{}), "the caller's values are there")
			return httptestx.Canned(req, 503, "busy"), nil
		},
		func(req *http.Request) (*http.Response, error) { return httptestx.Canned(req, 200, "order 7731"), nil },
	)
	client = &http.Client{Transport: retrip.Must(retrip.New(base, optionNow))}
	check := retrip.WithStateCheck(func(ctx context.Context, _ *http.Request, _ retrip.Attempt) (retrip.State, *http.Response, error) {
		assert.Zero(t, retrip.AttemptNumber(ctx))
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://origin.test/orders/7731", http.NoBody)
		if err != nil {
			return retrip.StateUnknown, nil, err
		}
		resp, err := client.Do(req) // repeated by itself: nothing of the operation's own is in ctx
		return retrip.StateApplied, resp, err
	})
	ctx, record := retrip.Record(retrip.Override(context.WithValue(t.Context(), key{}, "mine"), check, retrip.WithMaxAttempts(1)))
	resp, err := client.Do(optionRequest(ctx, t, "POST"))
	require.NoError(t, err)
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	assert.Equal(t, "order 7731", string(text))
	assert.Equal(t, 3, base.Calls())
	assert.Equal(t, 1, record.Attempts(), "the check's request is not of the operation")
	for _, body := range base.Bodies() {
		body.CheckClosedOnce(t)
	}
}

// A hookPanic is user code that panics.
type hookPanic struct {
	option func(p *hookRun) retrip.Option
	base   func(p *hookRun) http.RoundTripper
	method string
	edit   func(p *hookRun, req *http.Request)
	sends  int // attempts before the panic
}

// hookRun is one operation that ends in a panic.
type hookRun struct {
	stub    *httptestx.Stub
	armed   bool
	granted int
	told    []error
}

// RoundTrip makes it a base, whose answers can be exchanged.
func (p *hookRun) RoundTrip(req *http.Request) (*http.Response, error) { return p.stub.RoundTrip(req) }

func (p *hookRun) blow() {
	if p.armed {
		panic("user code")
	}
}

func hookPanics() map[string]hookPanic {
	onRetry := func(p *hookRun, e retrip.Event) {
		if e.Decision == retrip.DecisionRetry {
			p.blow()
		}
	}
	eof := func(p *hookRun) http.RoundTripper {
		p.stub = outcomeFails(io.EOF)
		return p
	}
	return map[string]hookPanic{
		"hook on a retry": {sends: 1, option: func(p *hookRun) retrip.Option {
			return retrip.WithHook(func(_ context.Context, e retrip.Event) { onRetry(p, e) })
		}},
		"hook on a return": {sends: 2, option: func(p *hookRun) retrip.Option {
			return retrip.WithHook(func(_ context.Context, e retrip.Event) {
				if e.Decision != retrip.DecisionRetry {
					p.blow()
				}
			})
		}},
		"RetryIf": {sends: 1, option: func(p *hookRun) retrip.Option {
			return retrip.WithRetryIf(func(retrip.Attempt) retrip.Verdict { p.blow(); return retrip.VerdictDefault })
		}},
		"RetryIf that has read": {sends: 1, option: func(p *hookRun) retrip.Option {
			return retrip.WithRetryIf(func(a retrip.Attempt) retrip.Verdict {
				_, _ = a.Response.Body.Read(make([]byte, 2))
				p.blow()
				return retrip.VerdictDefault
			})
		}},
		"WaitHint": {sends: 1, option: func(p *hookRun) retrip.Option {
			return retrip.WithWaitHint(func(*http.Response) (time.Duration, bool) { p.blow(); return 0, false })
		}},
		"Backoff": {sends: 1, option: func(p *hookRun) retrip.Option {
			return retrip.WithBackoff(retrip.BackoffFunc(func(int) time.Duration { p.blow(); return 0 }))
		}},
		"gate of attempt 1": {option: func(p *hookRun) retrip.Option {
			return retrip.WithGate(func(*http.Request) (func(error), error) { p.blow(); return nil, nil }) //nolint:nilnil // a grant
		}},
		"gate of attempt 2": {sends: 1, option: func(p *hookRun) retrip.Option {
			return retrip.WithGate(func(*http.Request) (func(error), error) {
				if p.granted++; p.granted > 1 {
					p.blow()
				}
				return func(err error) { p.told = append(p.told, err) }, nil
			})
		}},
		"gate's done": {sends: 1, option: func(p *hookRun) retrip.Option {
			return retrip.WithGate(func(*http.Request) (func(error), error) {
				p.granted++
				return func(err error) { p.told = append(p.told, err); p.blow() }, nil
			})
		}},
		"GetBody": {sends: 1, edit: func(p *hookRun, req *http.Request) {
			inner := req.GetBody
			req.GetBody = func() (io.ReadCloser, error) { p.blow(); return inner() }
		}},
		"state check": {sends: 1, method: http.MethodPost, base: eof, option: func(p *hookRun) retrip.Option {
			return retrip.WithStateCheck(func(context.Context, *http.Request, retrip.Attempt) (retrip.State, *http.Response, error) {
				p.blow()
				return retrip.StateUnknown, nil, nil
			})
		}},
		"generator": {method: http.MethodPost, option: func(p *hookRun) retrip.Option {
			return retrip.WithGeneratedKeys(func() string { p.blow(); return "ord-7731" })
		}},
		"logger": {sends: 1, option: func(p *hookRun) retrip.Option {
			return retrip.WithLogger(slog.New(slog.NewTextHandler(hookWriter(p.blow), nil)))
		}},
		"base": {sends: 0, base: func(p *hookRun) http.RoundTripper {
			p.stub = httptestx.Statuses(503, 200)
			return httptestx.RoundTripFunc(func(req *http.Request) (*http.Response, error) {
				p.blow()
				return p.stub.RoundTrip(req)
			})
		}},
		"base in attempt 2": {sends: 1, base: func(p *hookRun) http.RoundTripper {
			p.stub = httptestx.Statuses(503, 200)
			return httptestx.RoundTripFunc(func(req *http.Request) (*http.Response, error) {
				if p.stub.Calls() == 1 {
					p.blow()
				}
				return p.stub.RoundTrip(req)
			})
		}},
	}
}

type hookWriter func()

func (w hookWriter) Write(b []byte) (int, error) { w(); return len(b), nil }

func TestJ09PanicOfUserCodeGoesUpAndLeavesNothingBehind(t *testing.T) {
	for name, tt := range hookPanics() {
		for _, timed := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s/timed=%v", name, timed), func(t *testing.T) {
				httptestx.Leaks(t)
				p := &hookRun{armed: true}
				var base http.RoundTripper
				if tt.base != nil {
					base = tt.base(p)
				} else {
					p.stub = httptestx.Statuses(503, 200)
					base = p
				}
				// One token: a repeat can be made once, and again only if it was given back.
				opts := []retrip.Option{optionNow, retrip.WithBudget(retrip.NewBudget(0, 0, 1))}
				if tt.option != nil {
					opts = append(opts, tt.option(p))
				}
				if timed {
					opts = append(opts, retrip.WithAttemptTimeout(time.Hour), retrip.WithTotalTimeout(2*time.Hour))
				}
				if name != "gate of attempt 1" && name != "gate of attempt 2" && name != "gate's done" {
					opts = append(opts, retrip.WithGate(func(*http.Request) (func(error), error) {
						p.granted++
						return func(err error) { p.told = append(p.told, err) }, nil
					}))
				}
				rt := retrip.Must(retrip.New(base, opts...))
				method := tt.method
				if method == "" {
					method = http.MethodPut
				}
				bodies := httptestx.NewBodies("amount=200")
				req := bodies.Request(t.Context(), t, method, "http://origin.test/")
				if tt.edit != nil {
					tt.edit(p, req)
				}
				require.PanicsWithValue(t, "user code", func() {
					resp, err := rt.RoundTrip(req)
					if err == nil {
						resp.Body.Close()
					}
				})
				assert.Equal(t, tt.sends, p.stub.Calls())
				bodies.CheckClosedOnce(t)
				for _, body := range p.stub.Bodies() {
					body.CheckClosedOnce(t)
				}
				told := p.granted
				if name == "gate of attempt 2" {
					told-- // the second was not granted
				}
				assert.Len(t, p.told, told, "done is called for each grant")

				// The budget is whole again: where attempts were made the second takes the
				// token, and without a panic it is there.
				if tt.sends == 2 || name == "base in attempt 2" {
					return // spent: the second attempt was made
				}
				p.armed = false
				again := retrip.WithGate(nil)
				p.stub = httptestx.Statuses(503, 200)
				status, err := hookDo(t, rt, bodies.Request(retrip.Override(t.Context(), again, retrip.WithIdempotent(true)), t, method, "http://origin.test/"))
				require.NoError(t, err)
				assert.Equal(t, 200, status, "the reservation was given back")
			})
		}
	}
}

func TestJ09PanickingHookLeavesNoConnectionBehind(t *testing.T) {
	for _, code := range []int{200, 503} {
		t.Run(http.StatusText(code), func(t *testing.T) {
			httptestx.Leaks(t)
			origin := httptestx.NewOrigin(t, httptestx.Sequence(httptestx.Status(code, strings.Repeat("x", 200<<10))))
			std := httptestx.NewTransport(t)
			rt := retrip.Must(retrip.New(std, retrip.WithAttemptTimeout(time.Hour), retrip.WithHook(func(context.Context, retrip.Event) { panic("user code") })))
			bodies := httptestx.NewBodies("amount=200")
			require.PanicsWithValue(t, "user code", func() {
				resp, err := rt.RoundTrip(bodies.Request(t.Context(), t, http.MethodPut, origin.URL))
				if err == nil {
					resp.Body.Close()
				}
			})
			bodies.CheckClosedOnce(t)
			std.CloseIdleConnections()
			origin.Await(t, "the connection is gone", func() bool { return origin.Open() == 0 })
		})
	}
}

// A hook that blocks holds its own request up, and no other.
func TestJ09BlockingHookHoldsNobodyElseUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var blocked atomic.Bool
		release := make(chan struct{})
		rt := retrip.Must(retrip.New(httptestx.Statuses(200), retrip.WithHook(func(ctx context.Context, _ retrip.Event) {
			if ctx.Value(hookKey{}) != nil {
				blocked.Store(true)
				<-release
			}
		})))
		done := make(chan struct{})
		go func() {
			defer close(done)
			if err := optionGet(context.WithValue(t.Context(), hookKey{}, true), rt, "http://origin.test/"); err != nil {
				t.Error(err)
			}
		}()
		synctest.Wait()
		require.True(t, blocked.Load())
		_, err := hookDo(t, rt, optionRequest(t.Context(), t, "GET"))
		require.NoError(t, err)
		close(release)
		<-done
	})
}

type hookKey struct{}

var hookVocabulary = regexp.MustCompile(`^[a-z]+(_[a-z]+)*$`)

// The vocabulary is part of the API: its words are metric labels.
func TestVocabulary(t *testing.T) {
	t.Parallel()
	words := map[string][]string{
		"decisions": {
			string(retrip.DecisionRetry), string(retrip.DecisionReturn), string(retrip.DecisionCheckState), string(retrip.DecisionAttemptsExhausted),
			string(retrip.DecisionDeadlineExceeded), string(retrip.DecisionBudgetExhausted), string(retrip.DecisionCancel),
		},
		"deliveries": {
			string(retrip.DeliveryNotSent), string(retrip.DeliveryRefused), string(retrip.DeliveryAnswered), string(retrip.DeliveryUnknown),
		},
		"permits": {
			string(retrip.PermitIdempotentMethod), string(retrip.PermitIdempotencyKey), string(retrip.PermitDeclared), string(retrip.PermitNotSent),
			string(retrip.PermitRefused), string(retrip.PermitUnprocessedStatus), string(retrip.PermitStateChecked),
		},
	}
	assert.Equal(t, map[string][]string{
		"decisions":  {"retry", "return", "check_state", "attempts_exhausted", "deadline_exceeded", "budget_exhausted", "cancel"},
		"deliveries": {"not_sent", "refused", "answered", "unknown"},
		"permits": {
			"idempotent_method", "idempotency_key", "declared", "not_sent", "refused", "unprocessed_status", "state_checked",
		},
	}, words)
	for _, list := range words {
		for _, word := range list {
			assert.Regexp(t, hookVocabulary, word)
		}
	}
	assert.Empty(t, string(retrip.PermitNone)+string(retrip.ClassNone))
}
