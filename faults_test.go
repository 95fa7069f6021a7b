package retrip_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
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

// Faults that were found in retrip itself, each kept as a test.

func faultPost(ctx context.Context, t *testing.T, url string) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader("amount=200"))
	require.NoError(t, err)
	return req
}

// faultTrip sends req and returns its error, the response's body read and closed.
func faultTrip(t *testing.T, rt http.RoundTripper, req *http.Request) error {
	t.Helper()
	resp, err := rt.RoundTrip(req)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return nil
}

// A key that retrip adds makes net/http replay the request, whatever the caller forbids.
func TestAForbiddenPOSTWithAnAddedKeyIsSentOnce(t *testing.T) {
	for name, key := range map[string]retrip.Option{
		"generated": retrip.WithGeneratedKeys(nil), "override": retrip.WithIdempotencyKey("k-1"),
	} {
		t.Run(name, func(t *testing.T) {
			httptestx.Leaks(t)
			o := httptestx.NewOrigin(t, httptestx.ByConn(
				[]httptestx.Play{httptestx.OK("warm"), {httptestx.ReadAll, httptestx.FIN}},
				[]httptestx.Play{httptestx.OK("again")}))
			rt := retrip.Must(retrip.New(httptestx.NewTransport(t)))
			warm, err := http.NewRequestWithContext(t.Context(), http.MethodGet, o.URL, nil)
			require.NoError(t, err)
			require.NoError(t, faultTrip(t, rt, warm))
			ctx := retrip.Override(t.Context(), key, retrip.WithIdempotent(false))
			require.Error(t, faultTrip(t, rt, faultPost(ctx, t, o.URL)))
			require.Equal(t, 2, o.Heads(), "the GET and one POST")
		})
	}
}

// A number or an ID in a key's header would make each attempt another operation.
func TestAttemptHeadersMayNotBeKeys(t *testing.T) {
	for _, opts := range [][]retrip.Option{
		{retrip.WithAttemptHeaders(retrip.AttemptHeaders{RequestID: "Idempotency-Key"})},
		{retrip.WithAttemptHeaders(retrip.AttemptHeaders{Attempt: "x-idempotency-key"})},
		{retrip.WithAttemptHeaders(retrip.AttemptHeaders{OperationID: "X-Once"}), retrip.WithIdempotencyHeader("x-once")},
	} {
		_, err := retrip.New(nil, opts...)
		var option *retrip.OptionError
		require.ErrorAs(t, err, &option)
		require.Equal(t, "WithAttemptHeaders", option.Option)

		base := httptestx.Statuses(200)
		err = faultTrip(t, retrip.Must(retrip.New(base)), faultPost(retrip.Override(t.Context(), opts...), t, "http://origin.test/"))
		require.ErrorAs(t, err, &option)
		require.Zero(t, base.Calls())
	}
}

// faultBody is like the body of a server's request: its Close waits for a Read in
// flight, and its Read for open. reading is closed as the first Read begins.
type faultBody struct {
	mu            sync.Mutex
	once          sync.Once
	reading, open chan struct{}
}

func (b *faultBody) Read([]byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.once.Do(func() { close(b.reading) })
	<-b.open
	return 0, io.EOF
}

func (b *faultBody) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return nil
}

// An answer need not wait for an upload that is quiet, on HTTP/2 as in net/http itself.
func TestAnEarlyAnswerDoesNotWaitForAQuietBody(t *testing.T) {
	for name, wrap := range map[string]func(http.RoundTripper) http.RoundTripper{
		"bare":   func(base http.RoundTripper) http.RoundTripper { return base },
		"retrip": func(base http.RoundTripper) http.RoundTripper { return retrip.Must(retrip.New(base)) },
		"observed": func(base http.RoundTripper) http.RoundTripper {
			return retrip.Must(retrip.New(base, retrip.WithHook(func(context.Context, retrip.Event) {})))
		},
	} {
		t.Run(name, func(t *testing.T) {
			httptestx.Leaks(t)
			body := &faultBody{reading: make(chan struct{}), open: make(chan struct{})}
			ln := httptestx.Listen(t)
			srv := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				<-body.reading
				w.WriteHeader(http.StatusRequestEntityTooLarge)
			}), TLSConfig: httptestx.ServerTLS(httptestx.GoodCert, "h2")}
			go func() { _ = srv.ServeTLS(ln, "", "") }()
			t.Cleanup(func() { _ = srv.Close() })
			base := httptestx.NewTransport(t)
			base.ForceAttemptHTTP2 = true
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "https://"+ln.Addr().String(), body)
			require.NoError(t, err)

			type answer struct {
				major, status int
				err           error
			}
			answered := make(chan answer, 1)
			go func() {
				resp, err := wrap(base).RoundTrip(req)
				if err != nil {
					answered <- answer{err: err}
					return
				}
				answered <- answer{resp.ProtoMajor, resp.StatusCode, resp.Body.Close()}
			}()
			hung := false
			var got answer
			select {
			case got = <-answered:
				close(body.open)
			case <-time.After(10 * time.Second):
				hung = true
				close(body.open)
				<-answered
			}
			require.False(t, hung, "the answer waits for the body")
			require.Equal(t, answer{2, http.StatusRequestEntityTooLarge, nil}, got)
		})
	}
}

// net/http sends every Upgrade by HTTP/1, which says nothing about the origin.
func TestAnUpgradeDoesNotTeachTheProtocol(t *testing.T) {
	httptestx.Leaks(t)
	ln := httptestx.Listen(t)
	protos := make(chan int, 3)
	srv := &http.Server{Handler: http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		protos <- r.ProtoMajor
	}), TLSConfig: httptestx.ServerTLS(httptestx.GoodCert, "h2", "http/1.1")}
	go func() { _ = srv.ServeTLS(ln, "", "") }()
	t.Cleanup(func() { _ = srv.Close() })
	std := httptestx.NewTransport(t)
	std.ForceAttemptHTTP2 = true
	kept := false
	rt := retrip.Must(retrip.New(httptestx.RoundTripFunc(func(r *http.Request) (*http.Response, error) {
		kept = r.GetBody != nil
		return std.RoundTrip(r)
	})))
	url := "https://" + ln.Addr().String() + "/"
	require.NoError(t, faultTrip(t, rt, faultPost(t.Context(), t, url)))
	upgrade, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	require.NoError(t, err)
	upgrade.Header.Set("Connection", "Upgrade")
	upgrade.Header.Set("Upgrade", "websocket")
	require.NoError(t, faultTrip(t, rt, upgrade))
	require.NoError(t, faultTrip(t, rt, faultPost(t.Context(), t, url)))
	require.Equal(t, []int{2, 1, 2}, []int{<-protos, <-protos, <-protos})
	require.False(t, kept, "GetBody is left to HTTP/2")
}

// A first send into which nothing was written has no WroteRequest.
func TestAnEmptyAnswerReleasesTheContextAfterAnUnwrittenSend(t *testing.T) {
	var seen context.Context
	rt := retrip.Must(retrip.New(httptestx.RoundTripFunc(func(r *http.Request) (*http.Response, error) {
		seen = r.Context() //nolint:fatcontext // looked at afterwards
		trace := httptrace.ContextClientTrace(seen)
		for range 2 {
			trace.GetConn("origin.test:443")
			trace.GotConn(httptrace.GotConnInfo{})
		}
		if trace.WroteRequest != nil {
			trace.WroteRequest(httptrace.WroteRequestInfo{})
		}
		resp := httptestx.Canned(r, http.StatusNoContent, "")
		resp.Body = http.NoBody
		return resp, r.Body.Close()
	})))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	require.NoError(t, faultTrip(t, rt, faultPost(ctx, t, "https://origin.test/")))
	require.Error(t, seen.Err())
}

// What a layer below says around the network's error may hold the query.
func TestTheWordsOfALayerBelowAreNotQuoted(t *testing.T) {
	for _, inner := range []error{io.EOF, context.DeadlineExceeded} {
		rt := retrip.Must(retrip.New(httptestx.RoundTripFunc(func(r *http.Request) (*http.Response, error) {
			return nil, fmt.Errorf("signing layer: %s %s: %w", r.Method, r.URL, inner)
		})))
		ctx, recorder := retrip.Record(t.Context())
		err := faultTrip(t, rt, faultPost(ctx, t, "https://origin.test/?sig=S3CR3T"))
		require.ErrorIs(t, err, retrip.ErrOutcomeUnknown)
		require.NotContains(t, err.Error(), "S3CR3T")
		require.NotContains(t, fmt.Sprint(recorder.Events()), "S3CR3T")
	}
}

// Hooks that lag behind an answer do not prove that nothing was sent.
func TestAnAnswerAtTheAttemptsEndIsUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		rt := retrip.Must(retrip.New(httptestx.RoundTripFunc(func(r *http.Request) (*http.Response, error) {
			calls++
			httptrace.ContextClientTrace(r.Context()).GetConn("origin.test:443")
			<-r.Context().Done()
			return httptestx.Canned(r, 200, "done"), nil
		}), retrip.WithAttemptTimeout(time.Second)))
		require.ErrorIs(t, faultTrip(t, rt, faultPost(t.Context(), t, "https://origin.test/")), retrip.ErrOutcomeUnknown)
		require.Equal(t, 1, calls)
	})
}

// Hooks that saw no connection of an answer prove nothing, be it in time or not.
func TestALateAnswerWithoutAConnectionIsNotTrusted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := 0
		rt := retrip.Must(retrip.New(httptestx.RoundTripFunc(func(r *http.Request) (*http.Response, error) {
			httptrace.ContextClientTrace(r.Context()).GetConn("origin.test:443")
			<-r.Context().Done()
			if calls++; calls == 1 {
				return httptestx.Canned(r, 200, "done"), nil
			}
			return nil, r.Context().Err()
		}), retrip.WithAttemptTimeout(time.Second)))
		for range 2 {
			require.ErrorIs(t, faultTrip(t, rt, faultPost(t.Context(), t, "https://origin.test/")), retrip.ErrOutcomeUnknown)
		}
		require.Equal(t, 2, calls)
	})
}

// faultContext panics where net/http/httptrace looks for a trace in it.
type faultContext struct{ context.Context } //nolint:containedctx // it is one

func (c faultContext) Value(key any) any {
	if strings.Contains(fmt.Sprintf("%T", key), "httptrace") {
		panic("no trace here")
	}
	return c.Context.Value(key)
}

// A base that recovers from the panic of a caller's context must not hang afterwards.
func TestAContextThatPanicsLeavesNothingLocked(t *testing.T) {
	rt := retrip.Must(retrip.New(httptestx.RoundTripFunc(func(r *http.Request) (resp *http.Response, err error) {
		defer func() {
			if p := recover(); p != nil {
				err = fmt.Errorf("recovered: %v", p)
			}
		}()
		httptrace.ContextClientTrace(r.Context())
		return nil, io.EOF
	})))
	err := faultTrip(t, rt, faultPost(faultContext{t.Context()}, t, "https://origin.test/"))
	var e *retrip.Error
	require.ErrorAs(t, err, &e)
	require.True(t, e.MaybeApplied)
	require.EqualError(t, e.Err, "recovered: no trace here")
}

// A context that cannot be asked at all: the request's body is closed nevertheless.
func TestAContextThatPanicsLeavesNoBodyOpen(t *testing.T) {
	for _, what := range []string{"Value", "Err", "Done"} {
		t.Run(what, func(t *testing.T) {
			ctx := &lateContext{Context: t.Context(), what: what}
			ctx.late.Store(true)
			rt := httptestx.Checked(t, retrip.Must(retrip.New(httptestx.RoundTripFunc(func(r *http.Request) (*http.Response, error) {
				return nil, r.Body.Close()
			}))))
			body := httptestx.NewBody(strings.NewReader("amount=200"))
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, "https://origin.test/", body)
			require.NoError(t, err)
			req.GetBody = func() (io.ReadCloser, error) { return http.NoBody, nil }
			require.Panics(t, func() { _, _ = rt.RoundTrip(req) }) //nolint:bodyclose // none comes back
			body.CheckClosedOnce(t)
		})
	}
}

// What a base sends after its answer is its own affair: stopping it would cut that answer.
func TestALateSendOfTheBaseDoesNotCutItsAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := retrip.Must(retrip.New(httptestx.RoundTripFunc(func(r *http.Request) (*http.Response, error) {
			ctx := r.Context()
			trace := httptrace.ContextClientTrace(ctx)
			conn, far := net.Pipe()
			hedge, beyond := net.Pipe()
			for _, c := range []net.Conn{conn, far, hedge, beyond} {
				t.Cleanup(func() { _ = c.Close() })
			}
			trace.GetConn("origin.test:443")
			trace.GotConn(httptrace.GotConnInfo{Conn: conn})
			trace.WroteHeaders()
			trace.WroteRequest(httptrace.WroteRequestInfo{})
			answer, answers := io.Pipe()
			go func() {
				synctest.Wait() // until the answer is read
				trace.GotConn(httptrace.GotConnInfo{Conn: hedge})
				if ctx.Err() != nil {
					_ = answers.CloseWithError(ctx.Err())
					return
				}
				_, _ = io.WriteString(answers, "answer")
				_ = answers.Close()
			}()
			resp := httptestx.Canned(r, 200, "")
			resp.Body = answer
			return resp, r.Body.Close()
		})))
		require.NoError(t, faultTrip(t, rt, faultPost(t.Context(), t, "https://origin.test/")))
	})
}

// Only an answer lifts the bound: what a base sends again after an error is still stopped.
func TestALateSendAfterAnErrorIsStopped(t *testing.T) {
	conns := make([]net.Conn, 2)
	for i := range conns {
		near, far := net.Pipe()
		t.Cleanup(func() { _, _ = near.Close(), far.Close() })
		go func() { _, _ = io.Copy(io.Discard, far) }()
		conns[i] = near
	}
	var trace *httptrace.ClientTrace
	rt := retrip.Must(retrip.New(httptestx.RoundTripFunc(func(r *http.Request) (*http.Response, error) {
		if r.URL.Path == "/first" { // HTTP/1, as the origin's answer tells
			return httptestx.Canned(r, 200, ""), nil
		}
		trace = httptrace.ContextClientTrace(r.Context())
		trace.GetConn("origin.test:80")
		trace.GotConn(httptrace.GotConnInfo{Conn: conns[0]})
		return nil, io.EOF
	}), retrip.WithIdempotent(false)))
	for _, path := range []string{"first", "second"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://origin.test/"+path, http.NoBody)
		require.NoError(t, err)
		err = faultTrip(t, rt, req)
		require.Equal(t, path == "second", err != nil)
	}
	trace.GotConn(httptrace.GotConnInfo{Conn: conns[1]})
	_, err := io.WriteString(conns[1], "GET /second HTTP/1.1")
	require.ErrorIs(t, err, os.ErrDeadlineExceeded)
}

// The same for a base that breaks its contract.
func TestABaseThatAnswersTwiceOrNotAtAllProvesNothing(t *testing.T) {
	for _, both := range []bool{true, false} {
		calls := 0
		rt := retrip.Must(retrip.New(httptestx.RoundTripFunc(func(r *http.Request) (*http.Response, error) {
			calls++
			httptrace.ContextClientTrace(r.Context()).GetConn("origin.test:443")
			if both {
				return httptestx.Canned(r, 200, "done"), errors.New("and an error")
			}
			return nil, nil //nolint:nilnil // the breach
		}), retrip.WithRetryIf(func(retrip.Attempt) retrip.Verdict { return retrip.VerdictRetry })))
		require.ErrorIs(t, faultTrip(t, rt, faultPost(t.Context(), t, "https://origin.test/")), retrip.ErrOutcomeUnknown)
		require.Equal(t, 1, calls)
	}
}

// A gate may wait longer than the operation lasts: then nothing is sent.
func TestAGateThatOutlastsTheDeadlineSendsNothing(t *testing.T) {
	for _, total := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var done []error
			base := httptestx.Statuses(200)
			opts := []retrip.Option{retrip.WithGate(func(*http.Request) (func(error), error) {
				time.Sleep(2 * time.Second)
				return func(err error) { done = append(done, err) }, nil
			})}
			ctx := t.Context()
			if total {
				opts = append(opts, retrip.WithTotalTimeout(time.Second))
			} else {
				var cancel context.CancelFunc
				ctx, cancel = context.WithTimeout(ctx, time.Second)
				defer cancel()
			}
			err := faultTrip(t, retrip.Must(retrip.New(base, opts...)), faultPost(ctx, t, "http://origin.test/"))
			require.ErrorIs(t, err, context.DeadlineExceeded)
			require.NotErrorIs(t, err, retrip.ErrOutcomeUnknown)
			require.Zero(t, base.Calls())
			require.Len(t, done, 1)
			require.Error(t, done[0])
		})
	}
}

// A second gate that takes the time which an attempt needs costs the caller no answer.
func TestASlowSecondGateReturnsTheAnswerInHand(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		base := httptestx.Statuses(503)
		rt := retrip.Must(retrip.New(base, retrip.WithMinAttemptTime(5*time.Second), retrip.WithBackoff(retrip.Constant(0)),
			retrip.WithGate(func(*http.Request) (func(error), error) {
				if asked++; asked == 2 {
					time.Sleep(7 * time.Second)
				}
				return nil, nil
			})))
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		ctx, recorder := retrip.Record(ctx)
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://origin.test/", nil)
		require.NoError(t, err)
		require.NoError(t, faultTrip(t, rt, req))
		require.Equal(t, 1, base.Calls())
		require.Equal(t, retrip.DecisionDeadlineExceeded, recorder.Events()[0].Decision)
	})
}

// A state check's response whose context has ended is no result.
func TestAStateChecksLateResponseIsNotReturned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rt := retrip.Must(retrip.New(httptestx.NewStub(httptestx.Fails(io.EOF)), retrip.WithTotalTimeout(time.Second), //nolint:bodyclose // there is none
			retrip.WithStateCheck(func(_ context.Context, req *http.Request, _ retrip.Attempt) (retrip.State, *http.Response, error) {
				time.Sleep(2 * time.Second)
				return retrip.StateApplied, httptestx.Canned(req, 200, "done"), nil
			})))
		require.ErrorIs(t, faultTrip(t, rt, faultPost(t.Context(), t, "http://origin.test/")), retrip.ErrOutcomeUnknown)
	})
}

// A cache that stands in for an origin of an h2c transport answers by HTTP/1. What that
// transport sends after it is bounded as before.
func TestAnAnswerByHTTP1DoesNotSpeakForH2C(t *testing.T) {
	base := httptestx.NewTransport(t)
	base.Protocols = new(http.Protocols)
	base.Protocols.SetUnencryptedHTTP2(true)
	var traced []bool
	base.RegisterProtocol("http", httptestx.RoundTripFunc(func(r *http.Request) (*http.Response, error) {
		traced = append(traced, httptrace.ContextClientTrace(r.Context()) != nil)
		return httptestx.Canned(r, 200, ""), nil
	}))
	rt := retrip.Must(retrip.New(base))
	for range 2 {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://origin.test/", http.NoBody)
		require.NoError(t, err)
		require.NoError(t, faultTrip(t, rt, req))
	}
	require.Equal(t, []bool{true, true}, traced)
}

// afterContext calls functions when it ends, by itself: contexts made of it need no goroutine.
type afterContext struct {
	context.Context //nolint:containedctx // it is one

	done  chan struct{}
	calls atomic.Int32 // of AfterFunc that are not taken back
}

func (c *afterContext) Done() <-chan struct{} { return c.done }
func (c *afterContext) Value(any) any         { return nil }

func (c *afterContext) AfterFunc(func()) (stop func() bool) {
	c.calls.Add(1)
	return func() bool { c.calls.Add(-1); return true }
}

func TestNoAttemptTakesAGoroutineToWatchItsContext(t *testing.T) {
	ctx := &afterContext{Context: t.Context(), done: make(chan struct{})}
	attempts := 0
	rt := retrip.Must(retrip.New(httptestx.RoundTripFunc(func(r *http.Request) (*http.Response, error) {
		attempts++
		require.EqualValues(t, 1, ctx.calls.Load(), "attempt %d is not told by the context itself", attempts)
		if attempts < 3 {
			return nil, io.EOF
		}
		return httptestx.Canned(r, 200, ""), nil
	}), retrip.WithBackoff(retrip.Constant(0))))
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://origin.test/", http.NoBody)
	require.NoError(t, err)
	require.NoError(t, faultTrip(t, rt, req))
	require.Equal(t, 3, attempts)
	require.Zero(t, ctx.calls.Load())
}

// lateContext panics from a time on.
type lateContext struct {
	context.Context //nolint:containedctx // it is one

	what string // that panics
	late atomic.Bool
}

func (c *lateContext) Value(key any) any {
	c.ask("Value")
	return c.Context.Value(key)
}

func (c *lateContext) Deadline() (time.Time, bool) {
	c.ask("Deadline")
	return c.Context.Deadline()
}

func (c *lateContext) Done() <-chan struct{} {
	c.ask("Done")
	return c.Context.Done()
}

func (c *lateContext) Err() error {
	c.ask("Err")
	return c.Context.Err()
}

func (c *lateContext) ask(what string) {
	if c.what == what && c.late.Load() {
		panic("no " + what)
	}
}

// A context that cannot be asked any more: the answer in hand is closed nevertheless, or is
// the caller's.
func TestAContextThatPanicsLeavesNoAnswerOpen(t *testing.T) {
	for name, url := range map[string]string{"direct": "http://origin.test/", "watched": "https://origin.test/"} {
		for _, what := range []string{"Value", "Deadline", "Done", "Err"} {
			for _, status := range []int{200, 503} {
				t.Run(fmt.Sprintf("%s, %s, %d", name, what, status), func(t *testing.T) {
					ctx := &lateContext{Context: t.Context(), what: what}
					open := 0
					rt := retrip.Must(retrip.New(httptestx.RoundTripFunc(func(r *http.Request) (*http.Response, error) {
						resp := httptestx.Canned(r, 200, "")
						if r.URL.Path == "/last" {
							ctx.late.Store(true)
							resp = httptestx.Canned(r, status, "")
							resp.Body = faultCloser{Reader: strings.NewReader("busy"), open: &open}
							open++
						}
						return resp, nil // HTTP/1, from which the next request to the origin is direct
					}), retrip.WithBackoff(retrip.Constant(0))))
					req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://origin.test/", http.NoBody)
					require.NoError(t, err)
					require.NoError(t, faultTrip(t, rt, req))

					req, err = http.NewRequestWithContext(ctx, http.MethodGet, url+"last", http.NoBody)
					require.NoError(t, err)
					func() {
						defer func() { _ = recover() }()
						resp, err := rt.RoundTrip(req)
						if err == nil {
							_ = resp.Body.Close()
						}
					}()
					require.Zero(t, open)
				})
			}
		}
	}
}

// What was given up for a wait is closed, whatever panics afterwards.
func TestAHookThatPanicsInAWaitLeavesTheAnswerClosedOnce(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	open, events := 0, 0
	rt := retrip.Must(retrip.New(httptestx.RoundTripFunc(func(r *http.Request) (*http.Response, error) {
		resp := httptestx.Canned(r, 503, "")
		resp.Body = faultCloser{Reader: strings.NewReader("busy"), open: &open}
		open++
		return resp, nil
	}), retrip.WithBackoff(retrip.Constant(time.Hour)), retrip.WithHook(func(context.Context, retrip.Event) {
		if events++; events > 1 {
			panic("no event of the wait")
		}
		cancel()
	})))
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://origin.test/", http.NoBody)
	require.NoError(t, err)
	require.Panics(t, func() { _ = faultTrip(t, rt, req) })
	require.Zero(t, open)
}

// A layer that takes the end off the caller's context: what the next attempt took of it is
// given back all the same.
func TestALayerThatChangesTheContextKeepsNothingOfIt(t *testing.T) {
	calls := 0
	var second context.Context
	rt := retrip.Must(retrip.New(httptestx.RoundTripFunc(func(r *http.Request) (*http.Response, error) {
		if r.URL.Path == "/first" { // HTTP/1, as the origin's answer tells
			return httptestx.Canned(r, 200, ""), nil
		}
		if calls++; calls == 1 {
			*r = *r.WithContext(context.WithoutCancel(r.Context())) //nolint:contextcheck // the breach
			resp := httptestx.Canned(r, 503, "")
			resp.ProtoMajor = 2 // retrip can end the next attempt
			return resp, nil
		}
		second = r.Context() //nolint:fatcontext // looked at afterwards
		return httptestx.Canned(r, 200, ""), nil
	}), retrip.WithBackoff(retrip.Constant(0))))
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	for _, path := range []string{"first", "second"} {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://origin.test/"+path, http.NoBody)
		require.NoError(t, err)
		require.NoError(t, faultTrip(t, rt, req))
	}
	require.Error(t, second.Err())
}

// faultCloser counts what is open.
type faultCloser struct {
	io.Reader

	open *int
}

func (c faultCloser) Close() error { *c.open--; return nil }

// A layer below that changes the request it is given breaks its contract; the operation goes
// on as its caller began it.
func TestALayerThatChangesTheRequestDoesNotEndTheOperation(t *testing.T) {
	calls := 0
	rt := retrip.Must(retrip.New(httptestx.RoundTripFunc(func(r *http.Request) (*http.Response, error) {
		if r.URL.Path == "/first" { // HTTP/1, as the origin's answer tells
			return httptestx.Canned(r, 200, ""), nil
		}
		ctx, cancel := context.WithCancel(r.Context())
		defer cancel()
		*r = *r.WithContext(ctx)
		if calls++; calls == 1 {
			return nil, io.EOF
		}
		return httptestx.Canned(r, 200, ""), nil
	}), retrip.WithBackoff(retrip.Constant(0))))
	for _, path := range []string{"first", "second"} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://origin.test/"+path, http.NoBody)
		require.NoError(t, err)
		require.NoError(t, faultTrip(t, rt, req))
	}
	require.Equal(t, 2, calls)
}

// A base that asks for the body again gets none, and answers all the same: the event tells
// what was wrong with it.
func TestAFailedGetBodyBehindAnAnswerIsInTheEvent(t *testing.T) {
	rt := retrip.Must(retrip.New(httptestx.RoundTripFunc(func(r *http.Request) (*http.Response, error) {
		if r.URL.Path == "/first" { // HTTP/1, as the origin's answer tells
			return httptestx.Canned(r, 200, ""), nil
		}
		near, far := net.Pipe()
		_, _ = near.Close(), far.Close()
		trace := httptrace.ContextClientTrace(r.Context())
		trace.GetConn("origin.test:80")
		trace.GotConn(httptrace.GotConnInfo{Conn: near})
		_, err := r.GetBody()
		require.Error(t, err)
		return httptestx.Canned(r, 503, ""), r.Body.Close()
	})))
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://origin.test/first", http.NoBody)
	require.NoError(t, err)
	require.NoError(t, faultTrip(t, rt, req))

	ctx, recorder := retrip.Record(t.Context())
	req, err = http.NewRequestWithContext(ctx, http.MethodPut, "http://origin.test/second", strings.NewReader("whole"))
	require.NoError(t, err)
	req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader("torn")), nil }
	require.NoError(t, faultTrip(t, rt, req))
	events := recorder.Events()
	require.Len(t, events, 1)
	require.Equal(t, retrip.ReasonBodyFailed, events[0].Reason)
	require.ErrorContains(t, events[0].Err, "ContentLength")
}
