package retrip_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
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

// Theme B: nobody knows what became of a request that was sent. Its HTTP/2 parts are in
// internal/matrix.

func casePOST(t *testing.T, header ...string) func(url string) *http.Request {
	t.Helper()
	return func(url string) *http.Request {
		return caseRequest(t, http.MethodPost, url, strings.NewReader("amount=200"), header...)
	}
}

func TestB01POSTWhoseConnectionDiedIsNotDuplicated(t *testing.T) {
	tests := []struct {
		name string
		end  httptestx.Step
		is   error
	}{
		{"reset", httptestx.RST, syscall.ECONNRESET},
		{"closed", httptestx.FIN, io.EOF},
	}
	for _, tt := range tests {
		script := httptestx.Sequence(httptestx.Play{httptestx.ReadAll, tt.end}, httptestx.OK("done"))
		t.Run(tt.name, func(t *testing.T) {
			httptestx.Leaks(t)
			call, o := caseBoth(t, script, casePOST(t))
			require.ErrorIs(t, call.err, tt.is)
			require.ErrorIs(t, call.err, retrip.ErrOutcomeUnknown)
			var e *retrip.Error
			require.ErrorAs(t, call.err, &e)
			require.True(t, e.MaybeApplied)
			require.True(t, call.rec.MaybeApplied())
			require.Equal(t, retrip.DeliveryUnknown, e.Delivery)
			call.ended(t, 1, retrip.DecisionCheckState, retrip.ReasonNotRepeatable)
			require.Less(t, call.took, 300*time.Millisecond)
			require.Equal(t, 1, o.Heads())
		})
		t.Run(tt.name+" with a key", func(t *testing.T) {
			httptestx.Leaks(t)
			call, o := caseBoth(t, script, casePOST(t, caseKey))
			call.answered(t, http.StatusOK)
			call.ended(t, 2, retrip.DecisionReturn, retrip.ReasonSuccess)
			require.Equal(t, retrip.PermitIdempotencyKey, call.events[0].Permit)
			require.Equal(t, 2, o.Heads())
			for i, seen := range o.Requests() {
				require.Equal(t, "amount=200", seen.Body, "request %d", i+1)
			}
		})
	}
}

func TestB02POSTThatWasNeverSentIsSentAgain(t *testing.T) {
	t.Run("the port opens after 60 ms", func(t *testing.T) {
		httptestx.Leaks(t)
		o := httptestx.NewOrigin(t, httptestx.Sequence(httptestx.OK("done")))
		o.Refuse()
		// Attempts at 0, 40 and 120 ms: the port opens between the last two.
		rt := caseNew(t, httptestx.NewTransport(t), caseDoubling(40*time.Millisecond, time.Second), caseOpenAfter(t, o, 2))
		call := caseSend(t, rt, caseRequest(t, http.MethodPost, o.URL, strings.NewReader("x")))
		call.answered(t, http.StatusOK)
		call.ended(t, 3, retrip.DecisionReturn, retrip.ReasonSuccess)
		require.Less(t, call.took, 1500*time.Millisecond)
		require.Equal(t, 1, o.Heads())
		for _, e := range call.events[:2] {
			require.ErrorIs(t, e.Err, syscall.ECONNREFUSED)
			require.Equal(t, retrip.DeliveryNotSent, e.Delivery)
			require.Equal(t, retrip.ClassDial, e.Class)
			require.Equal(t, retrip.PermitNotSent, e.Permit)
			require.Zero(t, e.Sends)
		}
	})

	dial := func(err error) error { return &net.OpError{Op: "dial", Net: "tcp", Err: err} }
	failures := map[string]error{
		"unreachable":  dial(syscall.ENETUNREACH),
		"time-out":     dial(caseTimeoutError{}),
		"DNS for now":  dial(&net.DNSError{Err: "server misbehaving", Name: "origin.test", IsTemporary: true}),
		"DNS time-out": dial(&net.DNSError{Err: "i/o timeout", Name: "origin.test", IsTimeout: true}),
		"an own error": errors.New("the pool is empty"),
	}
	for name, failure := range failures {
		for _, method := range []string{http.MethodPost, http.MethodPatch} {
			t.Run(name+" "+method, func(t *testing.T) {
				httptestx.Leaks(t)
				o := httptestx.NewOrigin(t, httptestx.Sequence(httptestx.OK("done")))
				base := httptestx.NewTransport(t)
				base.DialContext = caseDialFailing(failure)
				call := caseSend(t, caseNew(t, base), caseRequest(t, method, o.URL, strings.NewReader("x")))
				call.answered(t, http.StatusOK)
				call.ended(t, 2, retrip.DecisionReturn, retrip.ReasonSuccess)
				require.Equal(t, retrip.PermitNotSent, call.events[0].Permit)
				require.ErrorIs(t, call.events[0].Err, failure)
				require.Equal(t, 1, o.Heads())
			})
		}
	}
}

type caseTimeoutError struct{}

func (caseTimeoutError) Error() string   { return "i/o timeout" }
func (caseTimeoutError) Timeout() bool   { return true }
func (caseTimeoutError) Temporary() bool { return true }

// caseDialFailing dials, but the first time it fails.
func caseDialFailing(err error) func(context.Context, string, string) (net.Conn, error) {
	var dials atomic.Int32
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		if dials.Add(1) == 1 {
			return nil, err
		}
		return new(net.Dialer).DialContext(ctx, network, addr)
	}
}

func TestB03SameEOFIsSafeBeforeTheRequestAndAmbiguousAfterIt(t *testing.T) {
	t.Run("in the TLS handshake", func(t *testing.T) {
		httptestx.Leaks(t)
		drop := httptestx.Play{httptestx.ReadHello, httptestx.FIN}
		call, o := caseBothOn(t, httptestx.NewTLSOrigin, httptestx.Sequence(drop, drop, httptestx.OK("done")), casePOST(t))
		call.answered(t, http.StatusOK)
		call.ended(t, 3, retrip.DecisionReturn, retrip.ReasonSuccess)
		require.Equal(t, 1, o.Heads())
		for _, e := range call.events[:2] {
			require.Equal(t, io.EOF, e.Err)
			require.Equal(t, retrip.DeliveryNotSent, e.Delivery)
			require.Equal(t, retrip.ClassTLS, e.Class)
		}
	})
	t.Run("after the request", func(t *testing.T) {
		httptestx.Leaks(t)
		script := httptestx.Sequence(httptestx.Play{httptestx.ReadAll, httptestx.FIN}, httptestx.OK("done"))
		call, o := caseBoth(t, script, casePOST(t))
		require.Error(t, call.err)
		call.ended(t, 1, retrip.DecisionCheckState, retrip.ReasonNotRepeatable)
		require.Equal(t, io.EOF, call.events[0].Err)
		require.Equal(t, retrip.DeliveryUnknown, call.events[0].Delivery)
		require.Equal(t, 1, o.Heads())
	})
}

// The same over HTTP/2 is in TestC15.
func TestB04HeaderTimeoutIsNeitherAReasonToRepeatAPOSTNorTheCallersDeadline(t *testing.T) {
	t.Run("GET", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			base, o := caseServe(t, caseSlow(400*time.Millisecond), caseStatus(200, "done"))
			base.ResponseHeaderTimeout = 100 * time.Millisecond
			call := caseSend(t, caseNew(t, base), caseRequest(t, http.MethodGet, caseURL, nil))
			call.answered(t, http.StatusOK)
			require.Len(t, o.seen(), 2)
			require.GreaterOrEqual(t, call.took, 100*time.Millisecond)
			require.Less(t, call.took, time.Second)
			// The base's error looks like the caller's deadline, and is not.
			require.ErrorIs(t, call.events[0].Err, context.DeadlineExceeded)
			require.Equal(t, retrip.ClassTimeout, call.events[0].Class)
			require.Equal(t, retrip.DecisionRetry, call.events[0].Decision)
		})
	})
	t.Run("POST", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			base, o := caseServe(t, caseSlow(400*time.Millisecond), caseStatus(200, "done"))
			base.ResponseHeaderTimeout = 100 * time.Millisecond
			call := caseSend(t, caseNew(t, base), casePOST(t)(caseURL))
			var e *retrip.Error
			require.ErrorAs(t, call.err, &e)
			require.True(t, e.Timeout())
			require.True(t, e.MaybeApplied)
			call.ended(t, 1, retrip.DecisionCheckState, retrip.ReasonNotRepeatable)
			require.Len(t, o.seen(), 1)
			require.GreaterOrEqual(t, call.took, 100*time.Millisecond)
			require.Less(t, call.took, 350*time.Millisecond)
		})
	})
}

// caseSlow answers 200 after d, or ends when the client has gone.
func caseSlow(d time.Duration) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		select {
		case <-time.After(d):
			w.WriteHeader(http.StatusOK)
		case <-r.Context().Done():
		}
	}
}

func TestB06GatewayStatusOnPOSTComesBack(t *testing.T) {
	tests := []struct {
		method string
		header []string
		hits   int
	}{
		{http.MethodPost, nil, 1},
		{http.MethodPatch, nil, 1},
		{http.MethodPut, nil, 3},
		{http.MethodDelete, nil, 3},
		{http.MethodGet, nil, 3},
		{http.MethodPost, []string{caseKey}, 3},
	}
	for _, tt := range tests {
		for _, status := range []int{502, 503, 504} {
			name := tt.method + " " + http.StatusText(status)
			if tt.header != nil {
				name += " with a key"
			}
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					base, o := caseServe(t, caseStatus(status, "why"))
					var body io.Reader
					if tt.method != http.MethodGet {
						body = strings.NewReader("x")
					}
					call := caseSend(t, caseNew(t, base), caseRequest(t, tt.method, caseURL, body, tt.header...))
					call.answered(t, status)
					require.Equal(t, "why", call.body)
					require.Len(t, o.seen(), tt.hits)
					if tt.hits == 1 {
						call.ended(t, 1, retrip.DecisionReturn, retrip.ReasonNotRepeatable)
					} else {
						call.ended(t, 3, retrip.DecisionAttemptsExhausted, retrip.ReasonAttemptsExhausted)
					}
				})
			})
		}
	}
}

func TestB07IdempotencyKeyIsTheSameOnEveryAttempt(t *testing.T) {
	busy := httptestx.Status(503, "busy")
	script := httptestx.Sequence(busy, busy, httptestx.OK("done"))
	keys := func(o *httptestx.Origin) (all []string) {
		for _, seen := range o.Requests() {
			all = append(all, seen.Header["Idempotency-Key"]...)
		}
		return all
	}

	t.Run("the caller's", func(t *testing.T) {
		httptestx.Leaks(t)
		call, o := caseBoth(t, script, casePOST(t, caseKey))
		call.answered(t, http.StatusOK)
		require.Equal(t, []string{"ord-7731", "ord-7731", "ord-7731"}, keys(o))
	})
	t.Run("minted, another one per call", func(t *testing.T) {
		httptestx.Leaks(t)
		var minted []string
		for range 2 {
			call, o := caseBoth(t, script, casePOST(t), retrip.WithGeneratedKeys(nil))
			call.answered(t, http.StatusOK)
			sent := keys(o)
			require.Len(t, sent, 3)
			require.NotEmpty(t, sent[0])
			require.Equal(t, []string{sent[0], sent[0], sent[0]}, sent)
			minted = append(minted, sent[0])
		}
		require.NotEqual(t, minted[0], minted[1])
	})
	t.Run("minted never over the caller's, which stays as it is", func(t *testing.T) {
		httptestx.Leaks(t)
		call, o := caseBoth(t, script, casePOST(t, "Idempotency-Key: Ord 77\t31;a=\"B c\""), retrip.WithGeneratedKeys(nil))
		call.answered(t, http.StatusOK)
		odd := "Ord 77\t31;a=\"B c\""
		require.Equal(t, []string{odd, odd, odd}, keys(o))
	})
	t.Run("nor beside a name in unusual case", func(t *testing.T) {
		httptestx.Leaks(t)
		call, o := caseBoth(t, script, func(url string) *http.Request {
			req := casePOST(t)(url)
			req.Header["idempotency-KEY"] = []string{"Ord-7731"}
			return req
		}, retrip.WithGeneratedKeys(nil))
		require.NoError(t, call.err)
		require.NotEmpty(t, o.Requests())
		for _, seen := range o.Requests() {
			require.Contains(t, seen.RawHead, "\r\nidempotency-KEY: Ord-7731\r\n")
			require.Len(t, seen.Header["Idempotency-Key"], 1)
		}
	})
	// A hop of a redirect is an operation of its own, and its key too: the request that it
	// repeats was never the one that the first key names.
	t.Run("minted anew on a redirect's hop", func(t *testing.T) {
		httptestx.Leaks(t)
		moved := httptestx.Status(307, "", "Location: /b")
		o := httptestx.NewOrigin(t, httptestx.Sequence(busy, moved, busy, httptestx.OK("done")))
		client := &http.Client{Transport: caseNew(t, httptestx.NewTransport(t), retrip.WithGeneratedKeys(nil))}
		resp, err := client.Do(casePOST(t)(o.URL + "/a"))
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, http.StatusOK, resp.StatusCode)
		sent := keys(o)
		require.Len(t, sent, 4)
		require.Equal(t, sent[0], sent[1], "/a")
		require.Equal(t, sent[2], sent[3], "/b")
		require.NotEqual(t, sent[1], sent[2])
	})
}

// caseStale warms a connection, on which the origin reads the next request and closes;
// later connections answer.
func caseStale(t *testing.T, build func(url string) *http.Request, opts ...retrip.Option) (call caseCall, heads, bareHeads int) {
	t.Helper()
	run := func(wrap func(base http.RoundTripper) http.RoundTripper) (caseCall, int) {
		o := httptestx.NewOrigin(t, httptestx.ByConn(
			[]httptestx.Play{httptestx.OK("warm"), {httptestx.ReadAll, httptestx.FIN}},
			[]httptestx.Play{httptestx.OK("again")}))
		rt := wrap(httptestx.NewTransport(t))
		caseQuiet(rt, caseRequest(t, http.MethodGet, o.URL, nil)).answered(t, http.StatusOK)
		call := caseSend(t, rt, build(o.URL))
		return call, o.Heads() - 1
	}
	bare, bareHeads := run(func(base http.RoundTripper) http.RoundTripper { return base })
	call, heads = run(func(base http.RoundTripper) http.RoundTripper { return caseNew(t, base, opts...) })
	require.Empty(t, bare.events)
	if bare.err == nil {
		require.NoError(t, call.err, "the bare base succeeds")
	}
	return call, heads, bareHeads
}

func TestB09HiddenReplaysBelowAreCountedAsSends(t *testing.T) {
	once := retrip.WithMaxAttempts(1)
	t.Run("GET without a body", func(t *testing.T) {
		httptestx.Leaks(t)
		call, heads, bare := caseStale(t, func(url string) *http.Request {
			return caseRequest(t, http.MethodGet, url, nil)
		}, once)
		call.answered(t, http.StatusOK)
		call.ended(t, 1, retrip.DecisionReturn, retrip.ReasonSuccess)
		require.Equal(t, 2, heads)
		require.Equal(t, bare, heads)
		require.Equal(t, heads, call.events[0].Sends)
	})
	// HTTP/1 replays with a permit are net/http's own and only counted.
	t.Run("POST with a key and a body", func(t *testing.T) {
		httptestx.Leaks(t)
		call, heads, bare := caseStale(t, casePOST(t, caseKey), once)
		call.answered(t, http.StatusOK)
		call.ended(t, 1, retrip.DecisionReturn, retrip.ReasonSuccess)
		require.Equal(t, 2, heads)
		require.Equal(t, bare, heads)
		require.Equal(t, heads, call.events[0].Sends)
	})
	t.Run("POST", func(t *testing.T) {
		httptestx.Leaks(t)
		call, heads, bare := caseStale(t, casePOST(t), once)
		require.ErrorIs(t, call.err, retrip.ErrOutcomeUnknown)
		require.Equal(t, 1, heads)
		require.Equal(t, bare, heads)
		require.Equal(t, heads, call.events[0].Sends)
	})
	// What the caller forbids net/http would still replay: the bound on sends stops it.
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		t.Run(method+" that the caller forbids to repeat", func(t *testing.T) {
			httptestx.Leaks(t)
			call, heads, _ := caseStaleForbidden(t, method)
			require.Error(t, call.err)
			require.Equal(t, 1, heads)
			require.Equal(t, retrip.DeliveryUnknown, call.events[0].Delivery)
		})
	}
}

// caseStaleForbidden is caseStale without the promise that what the bare base achieves is
// achieved here: the caller gave it up.
func caseStaleForbidden(t *testing.T, method string) (call caseCall, heads int, o *httptestx.Origin) {
	t.Helper()
	o = httptestx.NewOrigin(t, httptestx.ByConn(
		[]httptestx.Play{httptestx.OK("warm"), {httptestx.ReadAll, httptestx.FIN}},
		[]httptestx.Play{httptestx.OK("again")}))
	rt := caseNew(t, httptestx.NewTransport(t), retrip.WithIdempotent(false))
	caseQuiet(rt, caseRequest(t, http.MethodGet, o.URL, nil)).answered(t, http.StatusOK)
	req := caseRequest(t, http.MethodGet, o.URL, nil)
	if method == http.MethodPost {
		req = casePOST(t, caseKey)(o.URL)
	}
	call = caseSend(t, rt, req)
	return call, o.Heads() - 1, o
}

func TestB10KeepAliveRaceOnPOSTIsShownInTheEvent(t *testing.T) {
	t.Run("reused connection", func(t *testing.T) {
		httptestx.Leaks(t)
		call, heads, _ := caseStale(t, casePOST(t))
		require.ErrorIs(t, call.err, retrip.ErrOutcomeUnknown)
		call.ended(t, 1, retrip.DecisionCheckState, retrip.ReasonNotRepeatable)
		require.True(t, call.events[0].ConnReused)
		require.Equal(t, retrip.ClassEOF, call.events[0].Class)
		require.Equal(t, 1, heads)
	})
	t.Run("fresh connection", func(t *testing.T) {
		httptestx.Leaks(t)
		script := httptestx.Sequence(httptestx.Play{httptestx.ReadAll, httptestx.FIN}, httptestx.OK("done"))
		call, o := caseBoth(t, script, casePOST(t))
		require.ErrorIs(t, call.err, retrip.ErrOutcomeUnknown)
		require.False(t, call.events[0].ConnReused)
		require.Equal(t, 1, o.Heads())
	})
}

func TestB12ConflictAfterALostAnswerShowsItsHistory(t *testing.T) {
	t.Run("409 after a reset", func(t *testing.T) {
		httptestx.Leaks(t)
		script := httptestx.Sequence(httptestx.Play{httptestx.ReadAll, httptestx.RST}, httptestx.Status(409, "exists"))
		call, o := caseBoth(t, script, casePOST(t, caseKey))
		call.answered(t, http.StatusConflict)
		require.Equal(t, "exists", call.body)
		call.ended(t, 2, retrip.DecisionReturn, retrip.ReasonNotTransient)
		require.Equal(t, retrip.DeliveryUnknown, call.events[0].Delivery)
		require.False(t, call.events[0].EarlierUnknown)
		require.True(t, call.events[1].EarlierUnknown)
		require.True(t, call.rec.MaybeApplied())
		require.Equal(t, 2, o.Heads())
	})
	for _, status := range []int{409, 412, 422} {
		t.Run(http.StatusText(status)+" is not retried", func(t *testing.T) {
			httptestx.Leaks(t)
			call, o := caseBoth(t, httptestx.Sequence(httptestx.Status(status, "exists")), casePOST(t, caseKey))
			call.answered(t, status)
			require.Equal(t, 1, o.Heads())
			require.False(t, call.events[0].EarlierUnknown)
			require.False(t, call.rec.MaybeApplied())
		})
	}
}

func TestB13FailureWhileTheBodyIsReadIsTheCallers(t *testing.T) {
	httptestx.Leaks(t)
	script := httptestx.Sequence(
		httptestx.Play{httptestx.ReadAll, httptestx.Respond(200, "0123456789", "Content-Length: 100"), httptestx.FIN},
		httptestx.OK("done"))
	call, o := caseBoth(t, script, func(url string) *http.Request {
		return caseRequest(t, http.MethodGet, url, nil)
	})
	require.NoError(t, call.err)
	require.Equal(t, "0123456789", call.body)
	require.Equal(t, io.ErrUnexpectedEOF, call.readErr)
	call.ended(t, 1, retrip.DecisionReturn, retrip.ReasonSuccess)
	require.Equal(t, 1, o.Heads())
}

func TestB16ResetAfterSendIsRetriedForIdempotentMethods(t *testing.T) {
	script := httptestx.Sequence(
		httptestx.Play{httptestx.ReadAll, httptestx.RST},
		httptestx.Play{httptestx.ReadAll, httptestx.Write("HTT"), httptestx.FIN},
		httptestx.Play{httptestx.ReadAll, httptestx.Write("HTTP/1.1 200 OK\r\nConte"), httptestx.FIN},
		httptestx.OK(""))
	for _, method := range []string{
		http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace, http.MethodPut, http.MethodDelete,
	} {
		t.Run(method, func(t *testing.T) {
			httptestx.Leaks(t)
			call, o := caseBoth(t, script, func(url string) *http.Request {
				return caseRequest(t, method, url, nil)
			}, retrip.WithMaxAttempts(4))
			call.answered(t, http.StatusOK)
			call.ended(t, 4, retrip.DecisionReturn, retrip.ReasonSuccess)
			require.Equal(t, 4, o.Heads())
			require.Equal(t, retrip.ClassReset, call.events[0].Class)
			for _, e := range call.events[:3] {
				require.Equal(t, retrip.DeliveryUnknown, e.Delivery)
				require.Equal(t, retrip.PermitIdempotentMethod, e.Permit)
			}
		})
	}
}

// The caller's word for a whole Transport is the one way to repeat every POST; there is no
// flag beside it, and the permit of each repeat names it.
func TestB18RepeatingEveryPOSTIsLoud(t *testing.T) {
	httptestx.Leaks(t)
	script := httptestx.Sequence(httptestx.Status(503, "busy"), httptestx.OK("done"))
	call, o := caseBoth(t, script, func(url string) *http.Request {
		return caseRequest(t, http.MethodPut, url, strings.NewReader("x"))
	}, retrip.WithIdempotent(true))
	call.answered(t, http.StatusOK)
	require.Equal(t, 2, o.Heads())
	require.Equal(t, retrip.PermitDeclared, call.events[0].Permit)

	o = httptestx.NewOrigin(t, script)
	call = caseSend(t, caseNew(t, httptestx.NewTransport(t), retrip.WithIdempotent(true)), casePOST(t)(o.URL))
	call.answered(t, http.StatusOK)
	require.Equal(t, 2, o.Heads())
	require.Equal(t, retrip.PermitDeclared, call.events[0].Permit)
}
