package retrip_test

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/httptestx"
)

// casesFSettings are the settings D of CASES.md.
func casesFSettings(t *testing.T, base http.RoundTripper, opts ...retrip.Option) http.RoundTripper {
	t.Helper()
	return bodyRT(t, base, append([]retrip.Option{
		retrip.WithBackoff(retrip.FullJitter(20*time.Millisecond, 100*time.Millisecond)),
	}, opts...)...)
}

func casesFGet(t *testing.T, url string) *http.Request {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	require.NoError(t, err)
	return req
}

func TestF01DiscardedAnswersAreClosedBeforeTheNextAttempt(t *testing.T) {
	httptestx.Leaks(t)
	busy := httptestx.Status(503, strings.Repeat("x", 100_000))
	o := httptestx.NewOrigin(t, httptestx.Sequence(busy, busy, httptestx.OK("done")))
	base := httptestx.NewTransport(t)
	base.MaxConnsPerHost = 1 // an answer that is kept open would block the next attempt for ever
	start := time.Now()
	r := bodyDo(t, casesFSettings(t, base), casesFGet(t, o.URL))
	require.NoError(t, r.err)
	require.Equal(t, 200, r.code)
	require.Equal(t, 3, o.Heads())
	require.LessOrEqual(t, o.Conns(), 3)
	require.Less(t, time.Since(start), time.Second)
}

func TestF02TheLastAnswerComesBackOpenAndWhole(t *testing.T) {
	text := strings.Repeat("0123456789", 20_000)
	for want, run := range map[retrip.Reason]func(*http.Request) (*http.Request, []retrip.Option){
		retrip.ReasonAttemptsExhausted: func(req *http.Request) (*http.Request, []retrip.Option) { return req, nil },
		retrip.ReasonBudgetExhausted: func(req *http.Request) (*http.Request, []retrip.Option) {
			return req, []retrip.Option{retrip.WithBudget(retrip.NewBudget(0, 0, 0))}
		},
		retrip.ReasonDeadlineExceeded: func(req *http.Request) (*http.Request, []retrip.Option) {
			return req, []retrip.Option{retrip.WithBackoff(retrip.Constant(time.Hour))}
		},
		retrip.ReasonBodyNotReplayable: func(req *http.Request) (*http.Request, []retrip.Option) {
			req.Method, req.Body = http.MethodPut, io.NopCloser(httptestx.OneShot(strings.NewReader("once")))
			return req, nil
		},
	} {
		t.Run(string(want), func(t *testing.T) {
			httptestx.Leaks(t)
			o := httptestx.NewOrigin(t, httptestx.Sequence(httptestx.Status(503, text)))
			req, opts := run(casesFGet(t, o.URL))
			r := bodyDo(t, casesFSettings(t, httptestx.NewTransport(t), opts...), req)
			require.NoError(t, r.err)
			require.Equal(t, 503, r.code)
			require.Len(t, r.text, 200_000)
			require.Equal(t, want, r.last(t).Reason)
		})
	}
}

func TestF03ASmallAnswerIsDrainedAndALargeOneClosed(t *testing.T) {
	t.Run("1 kB", func(t *testing.T) {
		httptestx.Leaks(t)
		o := httptestx.NewOrigin(t, httptestx.Sequence(
			httptestx.Status(503, strings.Repeat("x", 1000)), httptestx.OK("done")))
		r := bodyDo(t, casesFSettings(t, httptestx.NewTransport(t)), casesFGet(t, o.URL))
		require.NoError(t, r.err)
		require.Equal(t, 2, o.Heads())
		require.Equal(t, 1, o.Conns())
	})
	t.Run("10 MB", func(t *testing.T) {
		httptestx.Leaks(t)
		o := httptestx.NewOrigin(t, httptestx.Sequence(
			httptestx.Status(503, strings.Repeat("x", 10<<20)), httptestx.OK("done")))
		r := bodyDo(t, casesFSettings(t, httptestx.NewTransport(t)), casesFGet(t, o.URL))
		require.NoError(t, r.err)
		require.Equal(t, 2, o.Heads())
		require.Equal(t, 2, o.Conns())
	})
	t.Run("10 MB, bytes read", func(t *testing.T) {
		body := httptestx.NewBody(httptestx.Pattern(10 << 20))
		respDiscard(t, body, 10<<20, 0)
		require.Less(t, body.BytesRead(), int64(256_000))
		body.CheckClosedOnce(t)
	})
}

func TestF07ASwitchOfProtocolsPassesUntouched(t *testing.T) {
	t.Run("101", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			base := httptestx.ServeMemory(t, http.HandlerFunc(respEcho))
			req := casesFGet(t, "http://origin.test/")
			req.Header.Set("Connection", "Upgrade")
			req.Header.Set("Upgrade", "echo")
			resp, err := casesFSettings(t, base, retrip.WithAttemptTimeout(200*time.Millisecond)).RoundTrip(req)
			require.NoError(t, err)
			defer resp.Body.Close()
			conn, ok := resp.Body.(io.ReadWriteCloser)
			require.True(t, ok)
			time.Sleep(400 * time.Millisecond) // virtual
			_, err = io.WriteString(conn, "ping")
			require.NoError(t, err)
			text := make([]byte, 4)
			_, err = io.ReadFull(conn, text)
			require.NoError(t, err)
			require.Equal(t, "ping", string(text))
		})
	})
	// An upgrade that was sent may have been begun: its method says nothing about it.
	for name, play := range map[string]httptestx.Play{
		"503":       httptestx.Status(503, "busy"),
		"cut short": {httptestx.ReadAll, httptestx.FIN},
	} {
		t.Run(name, func(t *testing.T) {
			httptestx.Leaks(t)
			o := httptestx.NewOrigin(t, httptestx.Sequence(play, httptestx.OK("never")))
			req := casesFGet(t, o.URL)
			req.Header.Set("Connection", "Upgrade")
			req.Header.Set("Upgrade", "echo")
			r := bodyDo(t, casesFSettings(t, httptestx.NewTransport(t)), req)
			require.Equal(t, retrip.ReasonNotRepeatable, r.last(t).Reason)
			require.Equal(t, 1, o.Heads())
		})
	}
	t.Run("a refused dial", func(t *testing.T) {
		httptestx.Leaks(t)
		o := httptestx.NewOrigin(t, httptestx.Sequence(httptestx.OK("done")))
		o.Refuse()
		req := casesFGet(t, o.URL)
		req.Header.Set("Connection", "Upgrade")
		req.Header.Set("Upgrade", "echo")
		r := bodyDo(t, casesFSettings(t, httptestx.NewTransport(t),
			retrip.WithBackoff(retrip.BackoffFunc(func(int) time.Duration { o.Accept(t); return 0 }))), req)
		require.NoError(t, r.err)
		require.Equal(t, retrip.PermitNotSent, r.events[0].Permit)
		require.Equal(t, 1, o.Heads())
	})
}

// 408 is not in the default set (DESIGN section 6); where a user adds it, the rules of
// repeating stay.
func TestF08A408IsTheCallersUnlessHeAddsIt(t *testing.T) {
	for _, c := range []struct {
		name, method string
		added        bool
		want         int
	}{
		{"GET by default", http.MethodGet, false, 1},
		{"GET", http.MethodGet, true, 2},
		{"POST", http.MethodPost, true, 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			httptestx.Leaks(t)
			o := httptestx.NewOrigin(t, httptestx.Sequence(
				httptestx.Play{httptestx.ReadAll, httptestx.Respond(408, "", "Connection: close"), httptestx.FIN},
				httptestx.OK("done")))
			var opts []retrip.Option
			if c.added {
				opts = append(opts, retrip.WithRetryStatus(http.StatusRequestTimeout))
			}
			req := casesFGet(t, o.URL)
			req.Method = c.method
			r := bodyDo(t, casesFSettings(t, httptestx.NewTransport(t), opts...), req)
			require.NoError(t, r.err)
			require.Equal(t, c.want, o.Heads())
		})
	}
}
