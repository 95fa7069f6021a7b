package retrip_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/httptestx"
)

// Theme C: deadlines and time-outs, in virtual time wherever the wire itself does not
// matter.

func TestC01ClientTimeoutOutsideAndAttemptTimeoutInside(t *testing.T) {
	t.Run("with an attempt time-out the hung attempt is repeated", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			base, o := caseServe(t, caseHang, caseStatus(200, "done"))
			client := &http.Client{
				Timeout:   time.Second,
				Transport: caseNew(t, base, retrip.WithAttemptTimeout(150*time.Millisecond)),
			}
			start := time.Now()
			resp, err := client.Do(caseRequest(t, http.MethodGet, caseURL, nil))
			took := time.Since(start)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			require.Equal(t, http.StatusOK, resp.StatusCode)
			require.Len(t, o.seen(), 2)
			require.GreaterOrEqual(t, took, 150*time.Millisecond)
			require.Less(t, took, 900*time.Millisecond)
		})
	})
	t.Run("without one the client's time-out ends all", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			base, o := caseServe(t, caseHang, caseStatus(200, "done"))
			client := &http.Client{Timeout: time.Second, Transport: caseNew(t, base)}
			start := time.Now()
			resp, err := client.Do(caseRequest(t, http.MethodGet, caseURL, nil))
			took := time.Since(start)
			if err == nil {
				require.NoError(t, resp.Body.Close())
			}
			var ue *url.Error
			require.ErrorAs(t, err, &ue)
			require.True(t, ue.Timeout())
			require.Len(t, o.seen(), 1)
			require.GreaterOrEqual(t, took, time.Second)
			require.Less(t, took, 1500*time.Millisecond)
		})
	})
}

func TestC02AttemptTimeoutEndsAtTheHeaders(t *testing.T) {
	const pieces, piece = 8, 64 << 10
	for _, pause := range []time.Duration{10 * time.Millisecond, 80 * time.Millisecond} {
		t.Run(fmt.Sprintf("a piece every %v", pause), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				base, o := caseServe(t, func(w http.ResponseWriter, _ *http.Request) {
					for range pieces {
						_, _ = w.Write(make([]byte, piece))
						_ = http.NewResponseController(w).Flush()
						<-time.After(pause)
					}
				})
				rt := caseNew(t, base, retrip.WithAttemptTimeout(300*time.Millisecond))
				start := time.Now()
				call := caseSend(t, rt, caseRequest(t, http.MethodGet, caseURL, nil))
				call.answered(t, http.StatusOK)
				require.Len(t, call.body, pieces*piece)
				require.Len(t, o.seen(), 1)
				require.GreaterOrEqual(t, time.Since(start), pieces*pause)
			})
		})
	}
}

func TestC03AttemptTimeoutIsNotTheCallersEnd(t *testing.T) {
	t.Run("the attempts' time-outs", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			base, o := caseServe(t, caseHang)
			rt := caseNew(t, base, retrip.WithAttemptTimeout(100*time.Millisecond))
			call := caseSend(t, rt, caseRequest(t, http.MethodGet, caseURL, nil))
			var e *retrip.Error
			require.ErrorAs(t, call.err, &e)
			require.True(t, e.Timeout())
			require.NotErrorIs(t, call.err, context.DeadlineExceeded)
			call.ended(t, 3, retrip.DecisionAttemptsExhausted, retrip.ReasonAttemptsExhausted)
			require.Equal(t, retrip.ClassTimeout, call.events[2].Class)
			require.Len(t, o.seen(), 3)
			require.GreaterOrEqual(t, call.took, 300*time.Millisecond)
			require.Less(t, call.took, 1200*time.Millisecond)
		})
	})
	t.Run("the caller's cancel", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			base, o := caseServe(t, caseHang)
			rt := caseNew(t, base, retrip.WithAttemptTimeout(100*time.Millisecond))
			req := caseRequest(t, http.MethodGet, caseURL, nil)
			ctx, cancel := context.WithCancel(req.Context())
			defer time.AfterFunc(50*time.Millisecond, cancel).Stop()
			call := caseSend(t, rt, req.WithContext(ctx))
			require.ErrorIs(t, call.err, context.Canceled)
			call.ended(t, 1, retrip.DecisionCancel, retrip.ReasonCancel)
			require.Len(t, o.seen(), 1)
			require.GreaterOrEqual(t, call.took, 50*time.Millisecond)
			require.Less(t, call.took, 150*time.Millisecond)
		})
	})
}

func TestC04WaitThatDoesNotFitIsNotBegun(t *testing.T) {
	tests := []struct {
		name   string
		header []string
		wait   time.Duration
	}{
		{"own wait", nil, 10 * time.Second},
		{"Retry-After", []string{"Retry-After: 30"}, 10 * time.Millisecond},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				base, o := caseServe(t, caseStatus(503, "busy", tt.header...))
				rt := caseNew(t, base, retrip.WithBackoff(retrip.Constant(tt.wait)))
				ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
				defer cancel()
				call := caseSend(t, rt, caseRequest(t, http.MethodGet, caseURL, nil).WithContext(ctx))
				call.answered(t, http.StatusServiceUnavailable)
				require.Equal(t, "busy", call.body)
				call.ended(t, 1, retrip.DecisionDeadlineExceeded, retrip.ReasonDeadlineExceeded)
				require.Len(t, o.seen(), 1)
				require.Less(t, call.took, 300*time.Millisecond)
			})
		})
	}
}

func TestC05CancelEndsAWaitAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base, o := caseServe(t, caseStatus(503, "busy"), caseStatus(200, "done"))
		var dials atomic.Int32
		dial := base.DialContext
		base.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			dials.Add(1)
			return dial(ctx, network, addr)
		}
		rt := caseNew(t, base, retrip.WithBackoff(retrip.Constant(10*time.Second)))
		// Without a deadline: with one of five seconds the wait would not be begun.
		ctx, cancel := context.WithCancel(t.Context())
		defer time.AfterFunc(80*time.Millisecond, cancel).Stop()
		call := caseSend(t, rt, caseRequest(t, http.MethodGet, caseURL, nil).WithContext(ctx))
		require.ErrorIs(t, call.err, context.Canceled)
		call.ended(t, 1, retrip.DecisionCancel, retrip.ReasonCancel)
		require.Len(t, call.events, 2)
		require.Equal(t, retrip.DecisionRetry, call.events[0].Decision)
		require.GreaterOrEqual(t, call.took, 80*time.Millisecond)
		require.Less(t, call.took, 250*time.Millisecond)
		require.Len(t, o.seen(), 1)

		// The connection is free again: the next request has it.
		caseSend(t, rt, caseRequest(t, http.MethodGet, caseURL, nil)).answered(t, http.StatusOK)
		require.Equal(t, int32(1), dials.Load())
	})
}

// caseResetConn tells a close as a reset, as the system does where bytes were unread.
type caseResetConn struct{ net.Conn }

func (c caseResetConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if errors.Is(err, io.EOF) {
		err = &net.OpError{Op: "read", Net: "tcp", Err: syscall.ECONNRESET}
	}
	return n, err
}

// caseReset ends the connection without an answer.
func caseReset(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }

func TestC07DeadlineDoesNotHideTheUsefulError(t *testing.T) {
	send := func(t *testing.T, attempts int, answers ...http.HandlerFunc) caseCall {
		t.Helper()
		base, o := caseServe(t, answers...)
		dial := base.DialContext
		base.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := dial(ctx, network, addr)
			return caseResetConn{conn}, err
		}
		rt := caseNew(t, base, retrip.WithMaxAttempts(100), retrip.WithBackoff(retrip.Constant(60*time.Millisecond)))
		ctx, cancel := context.WithTimeout(t.Context(), 250*time.Millisecond)
		defer cancel()
		call := caseSend(t, rt, caseRequest(t, http.MethodGet, caseURL, nil).WithContext(ctx))
		var e *retrip.Error
		require.ErrorAs(t, call.err, &e)
		require.ErrorIs(t, call.err, context.DeadlineExceeded)
		require.Equal(t, attempts, e.Attempts)
		require.Contains(t, e.Error(), fmt.Sprintf("%d attempts", attempts))
		call.ended(t, attempts, retrip.DecisionDeadlineExceeded, retrip.ReasonDeadlineExceeded)
		require.Len(t, o.seen(), attempts)
		return call
	}
	t.Run("no further wait fits", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			call := send(t, 5, caseReset)
			require.ErrorIs(t, call.err, syscall.ECONNRESET)
			require.Equal(t, 240*time.Millisecond, call.took)
		})
	})
	// An error has the last attempt's error and what ended the operation; those of the
	// attempts before are in the events.
	t.Run("the last attempt hangs", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			call := send(t, 3, caseReset, caseReset, caseHang)
			require.Equal(t, 250*time.Millisecond, call.took)
			require.ErrorIs(t, call.events[1].Err, syscall.ECONNRESET)
		})
	})
}

func TestC08ErrorKeepsTimeoutForNetURL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base, o := caseServe(t, caseHang)
		base.ResponseHeaderTimeout = 100 * time.Millisecond
		client := &http.Client{Transport: caseNew(t, base)}
		resp, err := client.Do(caseRequest(t, http.MethodGet, caseURL, nil))
		if err == nil {
			require.NoError(t, resp.Body.Close())
		}
		var ue *url.Error
		require.ErrorAs(t, err, &ue)
		require.True(t, ue.Timeout())
		var e *retrip.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, 3, e.Attempts)
		require.Len(t, o.seen(), 3)
	})
}

// An attempt's limit runs from its beginning and is off by default; a limit from the last
// byte sent is the base's ResponseHeaderTimeout.
func TestC11TimeLimitsDoNotCutAHealthyUpload(t *testing.T) {
	const size, piece, pause = 1 << 20, 32 << 10, 15 * time.Millisecond // 480 ms
	upload := func(t *testing.T) *http.Request {
		t.Helper()
		req := caseRequest(t, http.MethodPut, caseURL, httptestx.Slow(httptestx.Pattern(size), piece, pause))
		req.ContentLength = size
		return req
	}
	headers := func(base *http.Transport) { base.ResponseHeaderTimeout = 200 * time.Millisecond }
	tests := []struct {
		name   string
		answer http.HandlerFunc
		base   func(*http.Transport)
		opts   []retrip.Option
		status int
		class  retrip.Class
		took   time.Duration // at least; at most 100 ms more
	}{
		{"no limit", caseStatus(200, "done"), nil, nil, 200, retrip.ClassNone, 480 * time.Millisecond},
		{"limit from the last byte", caseStatus(200, "done"), headers, nil, 200, retrip.ClassNone, 480 * time.Millisecond},
		{"limit from the last byte, silence", caseHang, headers, nil, 0, retrip.ClassTimeout, 680 * time.Millisecond},
		{
			"limit of the attempt", caseStatus(200, "done"), nil,
			[]retrip.Option{retrip.WithAttemptTimeout(200 * time.Millisecond)},
			0, retrip.ClassTimeout, 200 * time.Millisecond,
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				base, _ := caseServe(t, tt.answer)
				if tt.base != nil {
					tt.base(base)
				}
				call := caseSend(t, caseNew(t, base, tt.opts...), upload(t))
				require.Equal(t, tt.status, call.status)
				require.Equal(t, 1, call.rec.Attempts())
				require.Equal(t, tt.class, call.events[0].Class)
				require.GreaterOrEqual(t, call.took, tt.took)
				require.LessOrEqual(t, call.took, tt.took+100*time.Millisecond)
			})
		})
	}
}

func TestC13CancelledWaitsLeaveNothingBehind(t *testing.T) {
	httptestx.Leaks(t)
	base := httptestx.RoundTripFunc(func(req *http.Request) (*http.Response, error) {
		return httptestx.Canned(req, 503, "busy"), nil
	})
	var stop context.CancelFunc
	rt := retrip.Must(retrip.New(base, caseSettings(retrip.WithBackoff(retrip.Constant(time.Hour)),
		retrip.WithHook(func(_ context.Context, e retrip.Event) {
			if e.Decision == retrip.DecisionRetry {
				stop()
			}
		}))...))
	run := func(calls int) {
		for range calls {
			ctx, cancel := context.WithCancel(t.Context())
			stop = cancel
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, caseURL, nil)
			require.NoError(t, err)
			require.ErrorIs(t, caseQuiet(rt, req).err, context.Canceled)
		}
	}
	run(10)
	before := caseHeapInUse()
	run(1000)
	// A timer left behind is some 200 bytes for an hour, a goroutine 2 KiB.
	require.Less(t, caseHeapInUse(), before+128<<10, "heap in use, %d before", before)
}

func TestC14DrainingIsBoundedInTime(t *testing.T) {
	httptestx.Leaks(t)
	script := httptestx.Sequence(
		httptestx.Play{httptestx.ReadAll, httptestx.Respond(503, "0123456789", "Content-Length: 65536"), httptestx.Silence},
		httptestx.OK("done"))
	call, o := caseBoth(t, script, func(url string) *http.Request {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second) // the bare base's caller reads on
		t.Cleanup(cancel)
		return caseRequest(t, http.MethodGet, url, nil).WithContext(ctx)
	})
	call.answered(t, http.StatusOK)
	call.ended(t, 2, retrip.DecisionReturn, retrip.ReasonSuccess)
	require.Equal(t, 2, o.Heads())
	require.Equal(t, 2, o.Conns())
	require.Less(t, call.took, time.Second)
}

// caseH2 serves the handler over TLS with HTTP/2 or HTTP/1 and returns a transport for it.
func caseH2(t *testing.T, h2 bool, handler http.Handler, state func(net.Conn, http.ConnState)) (*http.Transport, string) {
	t.Helper()
	protocol := "http/1.1"
	if h2 {
		protocol = "h2"
	}
	ln := httptestx.Listen(t)
	server := &http.Server{
		Handler: handler, TLSConfig: httptestx.ServerTLS(httptestx.GoodCert, protocol),
		ReadHeaderTimeout: time.Minute, ConnState: state,
	}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		if err := server.ServeTLS(ln, "", ""); !errors.Is(err, http.ErrServerClosed) {
			t.Errorf("serve: %v", err)
		}
	}()
	base := httptestx.NewTransport(t)
	base.ForceAttemptHTTP2 = h2
	t.Cleanup(func() {
		base.CloseIdleConnections()
		server.Close()
		<-stopped
	})
	return base, "https://" + ln.Addr().String() + "/"
}

func TestC15TimeoutsLookTheSameOverHTTP1AndHTTP2(t *testing.T) {
	type result struct {
		hits     int
		attempts int
		kind     string // the error's type; "" for a response
		timeout  bool
		deadline bool
		maybe    bool
		class    retrip.Class
		decision retrip.Decision
		reason   retrip.Reason
	}
	limit := func(base *http.Transport) { base.ResponseHeaderTimeout = 100 * time.Millisecond }
	tests := []struct {
		name    string
		method  string
		base    func(*http.Transport)
		opts    []retrip.Option
		answers []http.HandlerFunc
		want    result
	}{
		{
			"B04 GET", http.MethodGet, limit, nil,
			[]http.HandlerFunc{caseHang, caseStatus(200, "done")},
			result{hits: 2, attempts: 2, class: retrip.ClassTimeout, decision: retrip.DecisionReturn, reason: retrip.ReasonSuccess},
		},
		{
			"B04 POST", http.MethodPost, limit, nil,
			[]http.HandlerFunc{caseHang, caseStatus(200, "done")},
			result{1, 1, "*retrip.Error", true, false, true, retrip.ClassTimeout, retrip.DecisionCheckState, retrip.ReasonNotRepeatable},
		},
		{
			"C03", http.MethodGet, nil,
			[]retrip.Option{retrip.WithAttemptTimeout(100 * time.Millisecond)},
			[]http.HandlerFunc{caseHang},
			result{3, 3, "*retrip.Error", true, false, false, retrip.ClassTimeout, retrip.DecisionAttemptsExhausted, retrip.ReasonAttemptsExhausted},
		},
	}
	for _, tt := range tests {
		for _, h2 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, HTTP/2 %v", tt.name, h2), func(t *testing.T) {
				httptestx.Leaks(t)
				warm := atomic.Bool{}
				o := &caseMemory{answers: tt.answers}
				base, address := caseH2(t, h2, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if !warm.Swap(true) {
						return
					}
					o.ServeHTTP(w, r)
				}), nil)
				// The handshake must not be in the time-out: a first request makes the connection.
				caseQuiet(base, caseRequest(t, http.MethodGet, address, nil)).answered(t, http.StatusOK)
				if tt.base != nil {
					tt.base(base)
				}
				var body io.Reader
				if tt.method == http.MethodPost {
					body = strings.NewReader("x")
				}
				call := caseSend(t, caseNew(t, base, tt.opts...), caseRequest(t, tt.method, address, body))
				last := call.events[len(call.events)-1]
				got := result{
					hits: len(o.seen()), attempts: call.rec.Attempts(), maybe: call.rec.MaybeApplied(),
					class: call.events[0].Class, decision: last.Decision, reason: last.Reason,
				}
				if call.err != nil {
					var timeout interface{ Timeout() bool }
					got.kind = fmt.Sprintf("%T", call.err)
					got.timeout = errors.As(call.err, &timeout) && timeout.Timeout()
					got.deadline = last.Decision == retrip.DecisionDeadlineExceeded
				}
				require.Equal(t, tt.want, got)
			})
		}
	}
}
