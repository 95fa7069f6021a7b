package retrip_test

import (
	"bufio"
	"compress/gzip"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/httptestx"
)

// respTimeout is a limit on attempts that bodies outlive.
const respTimeout = 300 * time.Millisecond

func respGet(t *testing.T, rt http.RoundTripper, url string) *http.Response {
	t.Helper()
	resp, err := rt.RoundTrip(bodyRequest(t, http.MethodGet, url, nil))
	require.NoError(t, err)
	return resp
}

func TestAnAttemptsTimeOutEndsAtTheHeaders(t *testing.T) {
	for name, opt := range map[string]retrip.Option{
		"of the attempt":   retrip.WithAttemptTimeout(respTimeout),
		"of the operation": retrip.WithTotalTimeout(respTimeout),
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				calls := 0
				base := httptestx.ServeMemory(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
					if calls++; calls == 1 {
						w.WriteHeader(http.StatusServiceUnavailable)
						return
					}
					for range 8 {
						_, _ = io.WriteString(w, strings.Repeat("x", 1000))
						w.(http.Flusher).Flush()
						time.Sleep(time.Second) // virtual
					}
				}))
				start := time.Now()
				resp := respGet(t, bodyRT(t, base, opt), "http://origin.test/")
				require.Less(t, time.Since(start), respTimeout)
				text, err := io.ReadAll(resp.Body)
				require.NoError(t, err)
				require.Len(t, text, 8000)
				require.GreaterOrEqual(t, time.Since(start), 8*time.Second)
				require.NoError(t, resp.Body.Close())
			})
		})
	}
}

// respBase answers with a body of the test and shows the attempt's context.
type respBase struct {
	ctx  context.Context //nolint:containedctx // what is looked at
	body io.ReadCloser
}

func (b *respBase) RoundTrip(req *http.Request) (*http.Response, error) {
	b.ctx = req.Context()
	if req.Body != nil {
		if _, err := io.Copy(io.Discard, req.Body); err != nil {
			return nil, err
		}
		if err := req.Body.Close(); err != nil {
			return nil, err
		}
	}
	resp := httptestx.Canned(req, 200, "")
	resp.Body, resp.ContentLength = b.body, -1
	return resp, nil
}

func TestTheAttemptsContextLivesUntilItsBodyIsDone(t *testing.T) {
	kinds := []string{"GET", "PUT from GetBody", "PUT from memory"}
	send := func(t *testing.T, kind string, body io.ReadCloser) (attempt, caller context.Context, resp *http.Response) {
		t.Helper()
		caller, cancel := context.WithCancel(t.Context())
		t.Cleanup(cancel)
		var req *http.Request
		switch kind {
		case "PUT from GetBody":
			req = httptestx.NewBodies("text").Request(caller, t, http.MethodPut, "http://origin.test/")
		case "PUT from memory":
			req = bodyRequest(t, http.MethodPut, "http://origin.test/", strings.NewReader("text"))
		default:
			req = bodyRequest(t, http.MethodGet, "http://origin.test/", nil)
		}
		base := &respBase{body: body}
		resp, err := bodyRT(t, base, retrip.WithAttemptTimeout(time.Hour)).RoundTrip(req.WithContext(caller))
		require.NoError(t, err)
		return base.ctx, caller, resp
	}
	for _, kind := range kinds {
		for _, end := range []string{"EOF", "close"} {
			t.Run(kind+" "+end, func(t *testing.T) {
				body := httptestx.NewBody(strings.NewReader("0123456789"))
				attempt, caller, resp := send(t, kind, body)
				defer body.CheckClosedOnce(t)
				_, err := io.ReadFull(resp.Body, make([]byte, 4))
				require.NoError(t, err)
				require.NoError(t, attempt.Err(), "while the body is read")
				if end == "EOF" {
					_, err := io.ReadAll(resp.Body)
					require.NoError(t, err)
					require.ErrorIs(t, attempt.Err(), context.Canceled)
				}
				require.NoError(t, resp.Body.Close())
				require.ErrorIs(t, attempt.Err(), context.Canceled)
				require.NoError(t, caller.Err(), "the caller's own")
			})
		}
	}
	t.Run("an error", func(t *testing.T) {
		attempt, _, resp := send(t, "GET", httptestx.NewBody(httptestx.FailAfter("0123456789", 4, errBodyDisk)))
		_, err := io.ReadAll(resp.Body)
		require.ErrorIs(t, err, errBodyDisk)
		require.ErrorIs(t, attempt.Err(), context.Canceled)
		require.NoError(t, resp.Body.Close())
	})
	t.Run("no body", func(t *testing.T) {
		attempt, _, resp := send(t, "GET", http.NoBody)
		require.ErrorIs(t, attempt.Err(), context.Canceled)
		require.Equal(t, http.NoBody, resp.Body)
		require.NoError(t, resp.Body.Close())
	})
}

// An answer that has ended must not take the rest of the request with it.
func TestTheUploadGoesOnAfterTheAnswersEnd(t *testing.T) {
	for _, kind := range []string{"GetBody", "one-shot"} {
		t.Run(kind, func(t *testing.T) {
			httptestx.Leaks(t)
			text := strings.Repeat("0123456789", 20_000)
			answered := make(chan struct{})
			got := make(chan int64, 1)
			o := newBodyH2(t, func(_ *bodyH2, _ int, w http.ResponseWriter, r *http.Request) {
				n, _ := io.CopyN(io.Discard, r.Body, 10)
				_, _ = io.WriteString(w, "early")
				w.(http.Flusher).Flush()
				close(answered)
				rest, _ := io.Copy(io.Discard, r.Body) // what came of it is counted
				got <- n + rest
			})
			gate := newBodyGate(text[:100], text[100:])
			body := httptestx.NewBody(gate)
			req := bodyRequest(t, http.MethodPut, o.url, body)
			req.ContentLength = int64(len(text))
			if kind == "GetBody" {
				req.GetBody = func() (io.ReadCloser, error) { return nil, errBodyDisk }
			}
			resp, err := bodyRT(t, o.base, retrip.WithAttemptTimeout(time.Hour)).RoundTrip(req)
			require.NoError(t, err)
			<-answered
			_, err = io.ReadFull(resp.Body, make([]byte, 5))
			require.NoError(t, err)
			close(gate.open)
			require.EqualValues(t, len(text), <-got)
			_, err = io.ReadAll(resp.Body)
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			body.CheckClosedOnce(t)
		})
	}
}

func TestTrailersArrive(t *testing.T) {
	handler := func(w http.ResponseWriter, n int) {
		w.Header().Set("Trailer", "Checksum")
		if n == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		_, _ = io.WriteString(w, "text")
		w.(http.Flusher).Flush()
		w.Header().Set("Checksum", "77")
		w.Header().Set(http.TrailerPrefix+"Late", "88")
	}
	check := func(t *testing.T, base http.RoundTripper, url string) {
		t.Helper()
		resp := respGet(t, bodyRT(t, base, retrip.WithAttemptTimeout(time.Hour)), url)
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, "text", string(text))
		require.Equal(t, "77", resp.Trailer.Get("Checksum"))
		require.Equal(t, "88", resp.Trailer.Get("Late"))
	}
	t.Run("h1", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := 0
			check(t, httptestx.ServeMemory(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				n++
				handler(w, n)
			})), "http://origin.test/")
		})
	})
	t.Run("h2", func(t *testing.T) {
		httptestx.Leaks(t)
		o := newBodyH2(t, func(_ *bodyH2, n int, w http.ResponseWriter, _ *http.Request) { handler(w, n) })
		check(t, o.base, o.url)
	})
}

func TestBodilessAnswersAreAsNetHTTPGivesThem(t *testing.T) {
	httptestx.Leaks(t)
	cases := map[string]struct {
		method string
		play   httptestx.Play
	}{
		"HEAD":           {http.MethodHead, httptestx.OK("a text that is not sent", "Etag: \"1\"")},
		"HEAD 404":       {http.MethodHead, httptestx.Status(404, "not found")},
		"204":            {http.MethodGet, httptestx.Status(204, "")},
		"304":            {http.MethodGet, httptestx.Status(304, "", "Etag: \"1\"")},
		"empty":          {http.MethodGet, httptestx.OK("")},
		"empty chunked":  {http.MethodGet, httptestx.Play{httptestx.ReadAll, httptestx.Write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n")}},
		"until the end":  {http.MethodGet, httptestx.Play{httptestx.ReadAll, httptestx.Write("HTTP/1.1 200 OK\r\nConnection: close\r\n\r\ntext"), httptestx.FIN}},
		"POST and empty": {http.MethodPost, httptestx.OK("")},
		"204 to a PUT":   {http.MethodPut, httptestx.Status(204, "")},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			o := httptestx.NewOrigin(t, httptestx.Sequence(c.play))
			type facts struct {
				code    int
				length  int64
				text    string
				header  http.Header
				coding  []string
				close   bool
				nothing bool // the body is http.NoBody
			}
			send := func(rt http.RoundTripper) facts {
				var body io.Reader
				if c.method == http.MethodPost || c.method == http.MethodPut {
					body = strings.NewReader("text")
				}
				resp, err := rt.RoundTrip(bodyRequest(t, c.method, o.URL, body))
				require.NoError(t, err)
				text, err := io.ReadAll(resp.Body)
				require.NoError(t, err)
				require.NoError(t, resp.Body.Close())
				return facts{
					resp.StatusCode, resp.ContentLength, string(text), resp.Header,
					resp.TransferEncoding, resp.Close, resp.Body == http.NoBody,
				}
			}
			want := send(httptestx.NewTransport(t))
			for _, limit := range []time.Duration{0, time.Minute} {
				got := send(bodyRT(t, httptestx.NewTransport(t), retrip.WithAttemptTimeout(limit)))
				require.Equal(t, want, got)
			}
		})
	}
}

// respEcho switches protocols and sends back what it gets.
func respEcho(w http.ResponseWriter, r *http.Request) {
	conn, rw, err := w.(http.Hijacker).Hijack()
	if err != nil {
		panic(err)
	}
	defer conn.Close()
	fmt.Fprintf(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: %s\r\n\r\n", r.Header.Get("Upgrade"))
	_ = rw.Flush()
	_, _ = io.Copy(conn, rw)
}

func TestAnUpgradedConnectionIsTheCallersToWriteTo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := httptestx.ServeMemory(t, http.HandlerFunc(respEcho))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		req := bodyRequest(t, http.MethodGet, "http://origin.test/", nil).WithContext(ctx)
		req.Header.Set("Connection", "Upgrade")
		req.Header.Set("Upgrade", "echo")
		resp, err := bodyRT(t, base, retrip.WithAttemptTimeout(respTimeout), retrip.WithTotalTimeout(2*respTimeout)).RoundTrip(req)
		require.NoError(t, err)
		require.Equal(t, http.StatusSwitchingProtocols, resp.StatusCode)
		defer resp.Body.Close()
		conn, ok := resp.Body.(io.ReadWriteCloser)
		require.True(t, ok, "a body of type %T", resp.Body)
		time.Sleep(10 * respTimeout) // virtual: no limit cuts the connection
		_, err = io.WriteString(conn, "ping")
		require.NoError(t, err)
		text := make([]byte, 4)
		_, err = io.ReadFull(conn, text)
		require.NoError(t, err)
		require.Equal(t, "ping", string(text))
	})
}

// Discarded answers.

func TestASmallDiscardedAnswerLeavesItsConnection(t *testing.T) {
	chunked := func(n int) httptestx.Play {
		return httptestx.Play{httptestx.ReadAll, httptestx.Write(fmt.Sprintf(
			"HTTP/1.1 503 Busy\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", n, strings.Repeat("x", n)))}
	}
	sized := func(n int) httptestx.Play { return httptestx.Status(503, strings.Repeat("x", n)) }
	for name, play := range map[string]httptestx.Play{
		"empty": sized(0), "2 KiB": sized(2 << 10), "16 KiB": sized(16 << 10), "64 KiB": sized(64 << 10),
		"2 KiB chunked": chunked(2 << 10), "64 KiB chunked": chunked(64 << 10),
	} {
		t.Run(name, func(t *testing.T) {
			httptestx.Leaks(t)
			o := httptestx.NewOrigin(t, httptestx.Sequence(play, play, httptestx.OK("done")))
			r := bodyDo(t, bodyRT(t, httptestx.NewTransport(t)), bodyRequest(t, http.MethodGet, o.URL, nil))
			require.NoError(t, r.err)
			require.Equal(t, "done", r.text)
			require.Equal(t, 3, o.Heads())
			require.Equal(t, 1, o.Conns())
		})
	}
}

// respDiscard gives one body to be discarded and tells when the retry went out.
func respDiscard(t *testing.T, body io.ReadCloser, length int64, delay time.Duration) (retryAfter time.Duration) {
	t.Helper()
	start := time.Now()
	calls := 0
	base := httptestx.RoundTripFunc(func(req *http.Request) (*http.Response, error) {
		if calls++; calls > 1 {
			retryAfter = time.Since(start)
			return httptestx.Canned(req, 200, "done"), nil
		}
		resp := httptestx.Canned(req, 503, "")
		resp.Body, resp.ContentLength = body, length
		return resp, nil
	})
	r := bodyDo(t, bodyRT(t, base, retrip.WithBackoff(retrip.Constant(delay))), bodyRequest(t, http.MethodGet, "http://origin.test/", nil))
	require.NoError(t, r.err)
	require.Equal(t, "done", r.text)
	return retryAfter
}

func TestADiscardedAnswerOfGreaterLengthIsClosedUnread(t *testing.T) {
	body := httptestx.NewBody(httptestx.Pattern(1 << 20))
	respDiscard(t, body, 64<<10+1, 0)
	require.Zero(t, body.Reads())
	body.CheckClosedOnce(t)
}

func TestAnEndlessDiscardedAnswerCostsAtMost64KiB(t *testing.T) {
	body := httptestx.NewBody(bodyZeros{})
	respDiscard(t, body, -1, 0)
	require.LessOrEqual(t, body.BytesRead(), int64(64<<10+32<<10))
	require.GreaterOrEqual(t, body.BytesRead(), int64(64<<10))
	body.CheckClosedOnce(t)
}

func TestADiscardedAnswerIsClosedBeforeTheWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, length := range []int64{10, -1, 1 << 20} {
			body := httptestx.NewBody(strings.NewReader("0123456789"))
			time.AfterFunc(time.Minute, func() { assert.Equal(t, 1, body.Closes()) })
			require.Equal(t, time.Hour, respDiscard(t, body, length, time.Hour))
			require.Equal(t, 1, body.Closes())
		}
	})
}

func TestADiscardedAnswerThatFailsDoesNotStopTheRetry(t *testing.T) {
	body := httptestx.NewBody(httptestx.FailAfter("0123456789", 4, errBodyDisk))
	respDiscard(t, body, 10, 0)
	body.CheckClosedOnce(t)
}

// respPipe is a body that Close unblocks, as net/http's do.
type respPipe struct {
	*io.PipeReader

	closes atomic.Int32
}

func (p *respPipe) Close() error {
	p.closes.Add(1)
	return p.PipeReader.Close()
}

func TestATricklingOrSilentDiscardedAnswerDelaysTheRetryBy50Milliseconds(t *testing.T) {
	for name, pause := range map[string]time.Duration{"1 byte per 10 ms": 10 * time.Millisecond, "silent": time.Hour} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				read, write := io.Pipe()
				stop := make(chan struct{})
				defer close(stop)
				go func() {
					for {
						select {
						case <-time.After(pause):
							_, _ = write.Write([]byte("x"))
						case <-stop:
							return
						}
					}
				}()
				body := &respPipe{PipeReader: read}
				took := respDiscard(t, body, -1, 20*time.Millisecond)
				require.LessOrEqual(t, took, 100*time.Millisecond)
				require.GreaterOrEqual(t, took, 20*time.Millisecond)
				require.EqualValues(t, 1, body.closes.Load())
			})
		})
	}
}

// The same over the network's own bodies, with a length, chunked and compressed.
func TestATricklingAnswerOfARealOriginDoesNotHoldTheRetryUp(t *testing.T) {
	for name, head := range map[string]string{
		"with a length": "Content-Length: 65536\r\n",
		"chunked":       "Transfer-Encoding: chunked\r\n",
		"until the end": "Connection: close\r\n",
		"compressed":    "Content-Length: 65536\r\nContent-Encoding: gzip\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			httptestx.Leaks(t)
			o := httptestx.NewOrigin(t, httptestx.ByConn(
				[]httptestx.Play{{
					httptestx.ReadAll, httptestx.Write("HTTP/1.1 503 Busy\r\n" + head + "\r\n"),
					httptestx.Trickle(strings.Repeat("1\r\nx\r\n", 100), 1, 20*time.Millisecond),
				}},
				[]httptestx.Play{httptestx.OK("done")}))
			r := bodyDo(t, bodyRT(t, httptestx.NewTransport(t)), bodyRequest(t, http.MethodGet, o.URL, nil))
			require.NoError(t, r.err)
			require.Equal(t, "done", r.text)
			seen := o.Requests()
			require.Len(t, seen, 2)
			require.Less(t, seen[1].Start.Sub(seen[0].Start), 5*time.Second, "the trickle takes 12 s")
		})
	}
}

func TestACanceledOperationDoesNotWaitForADrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := httptestx.ServeMemory(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(http.StatusServiceUnavailable)
			w.(http.Flusher).Flush()
			<-r.Context().Done() // silent until the client goes away
		}))
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		time.AfterFunc(20*time.Millisecond, cancel)
		start := time.Now()
		r := bodyDo(t, bodyRT(t, base, retrip.WithBackoff(retrip.Constant(time.Hour))),
			bodyRequest(t, http.MethodGet, "http://origin.test/", nil).WithContext(ctx))
		require.ErrorIs(t, r.err, context.Canceled)
		require.Equal(t, 20*time.Millisecond, time.Since(start))
	})
}

func TestTheFinalAnswerIsWholeWhateverEndedTheOperation(t *testing.T) {
	text := strings.Repeat("0123456789", 20_000)
	asked := 0
	for _, c := range []struct {
		want   retrip.Reason
		method string
		body   io.Reader
		opts   []retrip.Option
	}{
		{want: retrip.ReasonAttemptsExhausted},
		{want: retrip.ReasonBudgetExhausted, opts: []retrip.Option{retrip.WithBudget(retrip.NewBudget(0, 0, 0))}},
		{want: retrip.ReasonDeadlineExceeded, opts: []retrip.Option{
			retrip.WithTotalTimeout(time.Minute), retrip.WithBackoff(retrip.Constant(time.Hour)),
		}},
		{want: retrip.ReasonBodyNotReplayable, method: http.MethodPut, body: httptestx.OneShot(strings.NewReader("once"))},
		{want: retrip.ReasonNotRepeatable, method: http.MethodPost},
		{want: retrip.ReasonForbidden, opts: []retrip.Option{retrip.WithIdempotent(false)}},
		{want: retrip.ReasonPolicy, opts: []retrip.Option{retrip.WithRetryIf(func(a retrip.Attempt) retrip.Verdict {
			peeked, _ := io.ReadAll(a.Response.Body)
			assert.Len(t, peeked, 4096)
			return retrip.VerdictStop
		})}},
		{want: retrip.ReasonGateClosed, opts: []retrip.Option{retrip.WithGate(func(*http.Request) (func(error), error) {
			if asked++; asked > 1 {
				return nil, errBodyDisk
			}
			return func(error) {}, nil
		})}},
	} {
		t.Run(string(c.want), func(t *testing.T) {
			httptestx.Leaks(t)
			o := httptestx.NewOrigin(t, httptestx.Sequence(httptestx.Status(503, text)))
			r := bodyDo(t, bodyRT(t, httptestx.NewTransport(t), c.opts...), bodyRequest(t, c.method, o.URL, c.body))
			require.NoError(t, r.err)
			require.Equal(t, 503, r.code)
			require.Equal(t, c.want, r.last(t).Reason)
			require.Equal(t, respSum(text), respSum(r.text), "%d bytes of %d", len(r.text), len(text))
		})
	}
}

// respSum keeps a large text out of the report of a failure.
func respSum(text string) [sha256.Size]byte { return sha256.Sum256([]byte(text)) }

// What a predicate began to read and did not wait for is the caller's, or the drain's.
func TestAPredicateThatReadsASlowAnswerLeavesItWhole(t *testing.T) {
	for _, status := range []int{200, 503} {
		t.Run(strconv.Itoa(status), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				hits := 0
				base := httptestx.ServeMemory(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if hits++; hits > 1 {
						_, _ = io.WriteString(w, "second")
						return
					}
					w.WriteHeader(status)
					for _, piece := range []string{"alpha-", "beta-", "gamma"} {
						_, _ = io.WriteString(w, piece)
						w.(http.Flusher).Flush()
						select {
						case <-time.After(time.Second):
						case <-r.Context().Done():
							return
						}
					}
				}))
				rt := bodyRT(t, base, retrip.WithRetryIf(func(a retrip.Attempt) retrip.Verdict {
					start := time.Now()
					peeked, _ := io.ReadAll(a.Response.Body)
					assert.Contains(t, []string{"alpha-", "second"}, string(peeked))
					assert.LessOrEqual(t, time.Since(start), 50*time.Millisecond)
					return retrip.VerdictDefault
				}))
				start := time.Now()
				r := bodyDo(t, rt, bodyRequest(t, http.MethodGet, "http://origin.test/", nil))
				require.NoError(t, r.err)
				if status == 200 {
					require.Equal(t, "alpha-beta-gamma", r.text)
					return
				}
				require.Equal(t, "second", r.text)
				require.LessOrEqual(t, time.Since(start), 110*time.Millisecond)
			})
		})
	}
}

func TestAnAnswerCutInItsMiddleIsTheCallersToSee(t *testing.T) {
	httptestx.Leaks(t)
	for _, opt := range []retrip.Option{retrip.WithAttemptTimeout(0), retrip.WithAttemptTimeout(time.Minute)} {
		o := httptestx.NewOrigin(t, httptestx.Sequence(
			httptestx.Play{httptestx.ReadAll, httptestx.Respond(200, "0123456789", "Content-Length: 100"), httptestx.FIN},
			httptestx.OK("never")))
		resp := respGet(t, bodyRT(t, httptestx.NewTransport(t), opt), o.URL)
		text, err := io.ReadAll(resp.Body)
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		require.Equal(t, "0123456789", string(text))
		require.NoError(t, resp.Body.Close())
		require.Equal(t, 1, o.Heads(), "an answer that began is not asked for again")
	}
}

func TestAnOperationCanceledInAWaitLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var bodies sync.Map
		base := httptestx.RoundTripFunc(func(req *http.Request) (*http.Response, error) {
			resp := httptestx.Canned(req, 503, "busy")
			bodies.Store(resp.Body, true)
			return resp, nil
		})
		rt := retrip.Must(retrip.New(base, retrip.WithBackoff(retrip.Constant(time.Hour)), retrip.WithBudget(nil),
			retrip.WithAttemptTimeout(time.Hour)))
		ctx, cancel := context.WithCancel(t.Context())
		req := bodyRequest(t, http.MethodGet, "http://origin.test/", nil)
		var waiting sync.WaitGroup
		var canceled atomic.Int32
		const operations = 1000
		for range operations {
			waiting.Go(func() {
				_, err := rt.RoundTrip(req.Clone(ctx)) //nolint:bodyclose,contextcheck // there is no body; the request carries ctx
				if errors.Is(err, context.Canceled) {
					canceled.Add(1)
				}
			})
		}
		synctest.Wait() // all are in their wait, and nothing else is
		start := time.Now()
		cancel()
		waiting.Wait()
		require.Zero(t, time.Since(start))
		require.EqualValues(t, operations, canceled.Load())
		n := 0
		bodies.Range(func(body, _ any) bool {
			n++
			return assert.Equal(t, 1, body.(*httptestx.Body).Closes())
		})
		require.Equal(t, operations, n)
	}) // a goroutine that is left fails the bubble
}

func TestACompressedAnswerArrivesWhole(t *testing.T) {
	text := strings.Repeat("0123456789", 5000)
	synctest.Test(t, func(t *testing.T) {
		n := 0
		base := httptestx.ServeMemory(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			assert.Equal(t, "gzip", r.Header.Get("Accept-Encoding"))
			w.Header().Set("Content-Encoding", "gzip")
			if n++; n == 1 {
				w.WriteHeader(http.StatusServiceUnavailable)
			}
			zip := gzip.NewWriter(w)
			_, _ = io.WriteString(zip, text)
			_ = zip.Close()
		}))
		resp := respGet(t, bodyRT(t, base, retrip.WithAttemptTimeout(time.Minute)), "http://origin.test/")
		got, err := io.ReadAll(bufio.NewReader(resp.Body))
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		require.Equal(t, respSum(text), respSum(string(got)))
		require.True(t, resp.Uncompressed)
		require.Equal(t, 2, n)
	})
}
