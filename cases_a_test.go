package retrip_test

// The cases of failure that users of retrying clients have met, by theme, with the ids of
// the collection that the tests are named after. This file holds theme A, the replay of
// bodies, and what all themes use.

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/httptestx"
)

// caseSettings are the settings of every case, with opts on top: three attempts, 20 ms to
// 100 ms between them, and a budget that never matters.
func caseSettings(opts ...retrip.Option) []retrip.Option {
	return append([]retrip.Option{
		retrip.WithBackoff(retrip.FullJitter(20*time.Millisecond, 100*time.Millisecond)),
		retrip.WithBudget(retrip.NewBudget(1000, 1000, 1000)),
	}, opts...)
}

func caseNew(t *testing.T, base http.RoundTripper, opts ...retrip.Option) http.RoundTripper {
	t.Helper()
	return httptestx.Checked(t, retrip.Must(retrip.New(base, caseSettings(opts...)...)))
}

// caseRequest makes a request that has five seconds. Headers are lines such as
// "Retry-After: 1".
func caseRequest(t *testing.T, method, url string, body io.Reader, header ...string) *http.Request {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, method, url, body)
	require.NoError(t, err)
	for _, line := range header {
		name, value, _ := strings.Cut(line, ": ")
		req.Header.Add(name, value)
	}
	return req
}

// caseCall is one operation and all that came of it.
type caseCall struct {
	resp    *http.Response // read and closed
	status  int            // 0 with an error
	body    string
	readErr error // of the body
	err     error
	took    time.Duration // up to the response or the error
	rec     *retrip.Recorder
	events  []retrip.Event
}

// caseSend sends req by rt and records it.
func caseSend(t *testing.T, rt http.RoundTripper, req *http.Request) caseCall {
	t.Helper()
	ctx, rec := retrip.Record(req.Context())
	call := caseQuiet(rt, req.WithContext(ctx))
	call.rec, call.events = rec, rec.Events()
	return call
}

// caseQuiet sends req by rt, and nobody looks.
func caseQuiet(rt http.RoundTripper, req *http.Request) (call caseCall) {
	start := time.Now()
	resp, err := rt.RoundTrip(req)
	call.took = time.Since(start)
	if err != nil {
		call.err = err
		return call
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	call.resp, call.status, call.body, call.readErr = resp, resp.StatusCode, string(text), err
	return call
}

// answered checks the status and that the response's body could be read.
func (c caseCall) answered(t *testing.T, status int) {
	t.Helper()
	require.NoError(t, c.err)
	require.NoError(t, c.readErr)
	require.Equal(t, status, c.status)
}

// ended checks how many attempts there were, and what was decided about the last.
func (c caseCall) ended(t *testing.T, attempts int, decision retrip.Decision, reason retrip.Reason) {
	t.Helper()
	require.Equal(t, attempts, c.rec.Attempts(), "attempts of %v", c.events)
	require.NotEmpty(t, c.events)
	last := c.events[len(c.events)-1]
	require.Equal(t, decision, last.Decision, "decision of %v", last)
	require.Equal(t, reason, last.Reason, "reason of %v", last)
}

// caseBoth plays a script to the bare base and to retrip, unobserved and observed, each
// with an origin of its own, and returns the observed run. What succeeds on the bare base
// must succeed here, a POST or PATCH that no permit was found for arrives at most once or as
// often as the bare base sends it, and whether somebody looks changes nothing.
func caseBoth(t *testing.T, script httptestx.Script, build func(url string) *http.Request, opts ...retrip.Option) (caseCall, *httptestx.Origin) {
	t.Helper()
	return caseBothOn(t, httptestx.NewOrigin, script, build, opts...)
}

func caseBothOn(t *testing.T, start func(httptestx.TB, httptestx.Script) *httptestx.Origin, script httptestx.Script,
	build func(url string) *http.Request, opts ...retrip.Option,
) (caseCall, *httptestx.Origin) {
	t.Helper()
	bareOrigin, quietOrigin, origin := start(t, script), start(t, script), start(t, script)
	bare := caseQuiet(httptestx.NewTransport(t), build(bareOrigin.URL))
	quiet := caseQuiet(caseNew(t, httptestx.NewTransport(t), opts...), build(quietOrigin.URL))
	req := build(origin.URL)
	call := caseSend(t, caseNew(t, httptestx.NewTransport(t), opts...), req)

	if bare.err == nil && bare.status < 400 {
		require.NoError(t, call.err, "the bare base succeeds")
		require.Less(t, call.status, 400, "the bare base succeeds")
	}
	repeated := len(call.events) > 0 && call.events[0].Permit != retrip.PermitNone
	if unsafe := req.Method == http.MethodPost || req.Method == http.MethodPatch; unsafe && !repeated {
		require.LessOrEqual(t, origin.Effects(), max(1, bareOrigin.Effects()), "requests read by the origin")
	}
	require.Equal(t, quiet.status, call.status, "status, unobserved and observed")
	require.Equal(t, quiet.err == nil, call.err == nil, "error, unobserved and observed: %v, %v", quiet.err, call.err)
	require.Equal(t, quietOrigin.Effects(), origin.Effects(), "requests read by the origin, unobserved and observed")
	return call, origin
}

// caseMemory is an origin for cases whose point is time: it runs in a synctest bubble,
// reads each request completely, answers by turn, the last answer repeating, and notes
// when each request came.
type caseMemory struct {
	answers []http.HandlerFunc

	mu   sync.Mutex
	hits []caseHit
}

type caseHit struct {
	at     time.Time
	method string
	path   string
	host   string
	header http.Header
	body   string
}

func (m *caseMemory) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	at := time.Now()
	body, _ := io.ReadAll(r.Body) // a request cut by its client is noted as far as it came
	m.mu.Lock()
	m.hits = append(m.hits, caseHit{at, r.Method, r.URL.Path, r.Host, r.Header, string(body)})
	answer := m.answers[min(len(m.hits), len(m.answers))-1]
	m.mu.Unlock()
	answer(w, r)
}

func (m *caseMemory) seen() []caseHit {
	m.mu.Lock()
	defer m.mu.Unlock()
	return append([]caseHit(nil), m.hits...)
}

// caseServe starts an origin in memory that answers in this order.
func caseServe(t *testing.T, answers ...http.HandlerFunc) (*http.Transport, *caseMemory) {
	t.Helper()
	// A server that cut a request short lingers for half a second, and virtual time stands
	// still once the test has returned.
	t.Cleanup(func() { <-time.After(time.Second) })
	m := &caseMemory{answers: answers}
	return httptestx.ServeMemory(t, m), m
}

// caseStatus answers with the code. Headers are lines such as "Retry-After: 1".
func caseStatus(code int, body string, header ...string) http.HandlerFunc {
	return func(w http.ResponseWriter, _ *http.Request) {
		for _, line := range header {
			name, value, _ := strings.Cut(line, ": ")
			w.Header().Set(name, value)
		}
		w.WriteHeader(code)
		_, _ = io.WriteString(w, body) // the client may be gone, which is its test's affair
	}
}

// caseHang never answers; it ends when the client has gone.
func caseHang(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }

// caseOpenAfter lets a port accept again when attempt n has failed, before the wait.
func caseOpenAfter(t *testing.T, o *httptestx.Origin, n int) retrip.Option {
	t.Helper()
	return retrip.WithRetryIf(func(a retrip.Attempt) retrip.Verdict {
		if a.Number == n {
			o.Accept(t)
		}
		return retrip.VerdictDefault
	})
}

const caseURL = "http://origin.test/"

const caseKey = "Idempotency-Key: ord-7731"

func TestA01SecondAttemptSendsTheWholeBody(t *testing.T) {
	httptestx.Leaks(t)
	script := httptestx.Sequence(httptestx.Status(503, "busy"), httptestx.Status(503, "busy"), httptestx.OK("done"))
	call, o := caseBoth(t, script, func(url string) *http.Request {
		return caseRequest(t, http.MethodPut, url, strings.NewReader("alpha-42"))
	})
	call.answered(t, http.StatusOK)
	call.ended(t, 3, retrip.DecisionReturn, retrip.ReasonSuccess)
	require.Less(t, call.took, time.Second)
	require.Equal(t, 3, o.Heads())
	for i, seen := range o.Requests() {
		require.Equal(t, "alpha-42", seen.Body, "request %d", i+1)
		require.Equal(t, int64(8), seen.ContentLength, "request %d", i+1)
		require.Empty(t, seen.TransferEncoding, "request %d", i+1)
		require.True(t, seen.Complete, "request %d", i+1)
	}
}

func TestA03MultipartFromAPipeIsNotSentAgainWithEmptyParts(t *testing.T) {
	httptestx.Leaks(t)
	script := httptestx.Sequence(httptestx.Status(503, "busy"), httptestx.OK("done"))
	call, o := caseBoth(t, script, func(url string) *http.Request {
		r, w := io.Pipe()
		form := multipart.NewWriter(w)
		go func() {
			err := form.WriteField("name", "report")
			if err == nil {
				err = form.WriteField("content", "alpha-42")
			}
			if err == nil {
				err = form.Close()
			}
			w.CloseWithError(err)
		}()
		req := caseRequest(t, http.MethodPost, url, r, caseKey, "Content-Type: "+form.FormDataContentType())
		require.Nil(t, req.GetBody)
		return req
	})
	call.answered(t, http.StatusServiceUnavailable)
	require.Equal(t, "busy", call.body)
	call.ended(t, 1, retrip.DecisionReturn, retrip.ReasonBodyNotReplayable)
	require.Equal(t, 1, o.Heads())
	require.Contains(t, o.Requests()[0].Body, "alpha-42")
}

func TestA04BodyWithoutGetBodyIsSentOnce(t *testing.T) {
	text := strings.Repeat("k", 1000)
	oneShot := func(url string) *http.Request {
		return caseRequest(t, http.MethodPut, url, httptestx.NewBody(strings.NewReader(text)))
	}
	t.Run("a 503 comes back as it is", func(t *testing.T) {
		httptestx.Leaks(t)
		call, o := caseBoth(t, httptestx.Sequence(httptestx.Status(503, "busy"), httptestx.OK("done")), oneShot)
		call.answered(t, http.StatusServiceUnavailable)
		require.Equal(t, "busy", call.body)
		call.ended(t, 1, retrip.DecisionReturn, retrip.ReasonBodyNotReplayable)
		require.Equal(t, 1, o.Heads())
	})
	t.Run("a reset comes back as the base's error", func(t *testing.T) {
		httptestx.Leaks(t)
		call, o := caseBoth(t, httptestx.Sequence(httptestx.Play{httptestx.ReadAll, httptestx.FIN}, httptestx.OK("done")), oneShot)
		require.ErrorIs(t, call.err, io.EOF)
		require.ErrorIs(t, call.err, retrip.ErrOutcomeUnknown)
		call.ended(t, 1, retrip.DecisionReturn, retrip.ReasonBodyNotReplayable)
		require.Equal(t, 1, o.Heads())
	})
	t.Run("a 200 is a 200", func(t *testing.T) {
		httptestx.Leaks(t)
		call, o := caseBoth(t, httptestx.Sequence(httptestx.OK("done")), oneShot)
		call.answered(t, http.StatusOK)
		require.Equal(t, 1, o.Heads())
		require.Equal(t, text, o.Requests()[0].Body)
	})
	t.Run("unread after a refused dial it is still fresh", func(t *testing.T) {
		httptestx.Leaks(t)
		o := httptestx.NewOrigin(t, httptestx.Sequence(httptestx.OK("done")))
		o.Refuse()
		rt := caseNew(t, httptestx.NewTransport(t), caseOpenAfter(t, o, 1))
		call := caseSend(t, rt, oneShot(o.URL))
		call.answered(t, http.StatusOK)
		call.ended(t, 2, retrip.DecisionReturn, retrip.ReasonSuccess)
		require.Equal(t, retrip.PermitNotSent, call.events[0].Permit)
		require.Equal(t, 1, o.Heads())
		require.Equal(t, text, o.Requests()[0].Body)
	})
}

// caseHeap notes the most heap that was in use while a body was read.
type caseHeap struct {
	io.Reader
	every, read, next int64
	most              uint64
}

func (h *caseHeap) Read(p []byte) (int, error) {
	n, err := h.Reader.Read(p)
	if h.read += int64(n); h.read >= h.next {
		h.next += h.every
		h.most = max(h.most, caseHeapInUse())
	}
	return n, err
}

// caseZeros never ends.
type caseZeros struct{}

func (caseZeros) Read(p []byte) (int, error) {
	clear(p)
	return len(p), nil
}

func caseHeapInUse() uint64 {
	runtime.GC()
	var stats runtime.MemStats
	runtime.ReadMemStats(&stats)
	return stats.HeapAlloc
}

func TestA05StreamedBodyIsNotHeldInMemory(t *testing.T) {
	t.Run("without a buffer", func(t *testing.T) {
		httptestx.Leaks(t)
		o := httptestx.NewOrigin(t, httptestx.Sequence(httptestx.OK("done")))
		rt := caseNew(t, httptestx.NewTransport(t))
		const size = 64 << 20
		before := caseHeapInUse()
		body := &caseHeap{Reader: io.LimitReader(caseZeros{}, size), every: 8 << 20}
		req := caseRequest(t, http.MethodPut, o.URL, body)
		call := caseSend(t, rt, req)
		call.answered(t, http.StatusOK)
		require.Less(t, body.most, before+8<<20, "heap in use, %d before", before)
		require.Equal(t, 1, o.Heads())
		require.Equal(t, int64(size), o.Requests()[0].BodyBytes)
	})
	t.Run("longer than the buffer", func(t *testing.T) {
		httptestx.Leaks(t)
		const size = 2 << 20
		whole, err := io.ReadAll(httptestx.Pattern(size))
		require.NoError(t, err)
		script := httptestx.Sequence(httptestx.Status(503, "busy"), httptestx.OK("done"))
		call, o := caseBoth(t, script, func(url string) *http.Request {
			return caseRequest(t, http.MethodPut, url, httptestx.OneShot(httptestx.Pattern(size)))
		}, retrip.WithBodyBuffer(1<<20))
		call.answered(t, http.StatusServiceUnavailable)
		call.ended(t, 1, retrip.DecisionReturn, retrip.ReasonBodyNotReplayable)
		require.Equal(t, 1, o.Heads())
		require.Equal(t, int64(size), o.Requests()[0].BodyBytes)
		require.Equal(t, sha256.Sum256(whole), o.Requests()[0].SHA256)
	})
}

func TestA06GetBodyOfAnotherLengthNeverCompletesARequest(t *testing.T) {
	const promised, actual = 60_000, 200_000
	build := func(getBody func() (io.ReadCloser, error)) func(url string) *http.Request {
		return func(url string) *http.Request {
			req := caseRequest(t, http.MethodPut, url, bytes.NewReader(make([]byte, promised)), "Content-Encoding: gzip")
			req.GetBody = getBody
			return req
		}
	}
	script := httptestx.Sequence(httptestx.Status(503, "busy"), httptestx.OK("done"))

	t.Run("a reader that tells its length", func(t *testing.T) {
		httptestx.Leaks(t)
		call, o := caseBoth(t, script, build(func() (io.ReadCloser, error) {
			return io.NopCloser(bytes.NewReader(make([]byte, actual))), nil
		}))
		// The mismatch shows before anything is given up, so that the answer comes back.
		call.answered(t, http.StatusServiceUnavailable)
		require.Equal(t, "busy", call.body)
		call.ended(t, 1, retrip.DecisionReturn, retrip.ReasonBodyFailed)
		require.Equal(t, retrip.ClassBody, call.events[0].Class)
		require.Equal(t, 1, o.Heads())
		require.Equal(t, 1, o.Effects())
	})
	t.Run("a reader that does not", func(t *testing.T) {
		httptestx.Leaks(t)
		call, o := caseBoth(t, script, build(func() (io.ReadCloser, error) {
			return io.NopCloser(httptestx.OneShot(bytes.NewReader(make([]byte, actual)))), nil
		}))
		var e *retrip.Error
		require.ErrorAs(t, call.err, &e)
		require.True(t, e.MaybeApplied)
		call.ended(t, 2, retrip.DecisionReturn, retrip.ReasonBodyFailed)
		require.Equal(t, retrip.ClassBody, call.events[1].Class)
		require.Equal(t, 1, o.Effects(), "complete requests")
	})
}

func TestA10BodyIsResetAfterANetworkErrorToo(t *testing.T) {
	httptestx.Leaks(t)
	script := httptestx.Sequence(httptestx.Play{httptestx.ReadAll, httptestx.RST}, httptestx.OK("done"))
	call, o := caseBoth(t, script, func(url string) *http.Request {
		return caseRequest(t, http.MethodPut, url, strings.NewReader("abc"))
	})
	call.answered(t, http.StatusOK)
	call.ended(t, 2, retrip.DecisionReturn, retrip.ReasonSuccess)
	require.Equal(t, retrip.ClassReset, call.events[0].Class)
	require.Equal(t, 2, o.Heads())
	require.Equal(t, "abc", o.Requests()[1].Body)
}

func TestA11EverySpellingOfNoBodyIsReplayable(t *testing.T) {
	bodies := map[string]func(req *http.Request){
		"nil":    func(req *http.Request) { req.Body = nil },
		"NoBody": func(req *http.Request) { req.Body = http.NoBody },
		"empty": func(req *http.Request) {
			req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader("")), nil }
			req.Body, _ = req.GetBody()
		},
	}
	for name, set := range bodies {
		t.Run(name, func(t *testing.T) {
			httptestx.Leaks(t)
			script := httptestx.Sequence(httptestx.Status(503, "busy"), httptestx.OK("done"))
			call, o := caseBoth(t, script, func(url string) *http.Request {
				req := caseRequest(t, http.MethodGet, url, nil)
				set(req)
				return req
			})
			call.answered(t, http.StatusOK)
			call.ended(t, 2, retrip.DecisionReturn, retrip.ReasonSuccess)
			require.Equal(t, 2, o.Heads())
			for i, seen := range o.Requests() {
				require.Empty(t, seen.TransferEncoding, "request %d", i+1)
				require.Zero(t, seen.BodyBytes, "request %d", i+1)
			}
		})
	}
}

func TestA12FailureOfTheCallersReaderIsFinal(t *testing.T) {
	const promised, given = 4096, 1000
	errDisk := errors.New("the disk is gone")
	text := strings.Repeat("d", promised)
	tests := []struct {
		name string
		body func() io.ReadCloser
		is   error
	}{
		{"reader fails", func() io.ReadCloser { return httptestx.NewBody(httptestx.FailAfter(text, given, errDisk)) }, errDisk},
		{"reader is short", func() io.ReadCloser { return httptestx.NewBody(strings.NewReader(text[:given])) }, nil},
		{"short in memory", func() io.ReadCloser { return io.NopCloser(strings.NewReader(text[:given])) }, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			httptestx.Leaks(t)
			o := httptestx.NewOrigin(t, httptestx.Sequence(httptestx.Play{httptestx.ReadAll, httptestx.Respond(200, "done")}))
			// One token: had the failure taken it, the repeat below would not have one.
			rt := caseNew(t, httptestx.NewTransport(t), retrip.WithBudget(retrip.NewBudget(0, 0, 1)))
			req := caseRequest(t, http.MethodPut, o.URL, tt.body())
			req.ContentLength = promised
			req.GetBody = func() (io.ReadCloser, error) { return tt.body(), nil }

			call := caseSend(t, rt, req)
			require.Error(t, call.err)
			if tt.is != nil {
				require.ErrorIs(t, call.err, tt.is)
			}
			require.Less(t, call.took, 500*time.Millisecond)
			call.ended(t, 1, retrip.DecisionReturn, retrip.ReasonBodyFailed)
			require.Equal(t, retrip.ClassBody, call.events[0].Class)
			require.LessOrEqual(t, o.Heads(), 1)
			require.Zero(t, o.Effects(), "complete requests")

			busy := httptestx.NewOrigin(t, httptestx.Sequence(httptestx.Status(503, "busy"), httptestx.OK("done")))
			again := caseRequest(t, http.MethodGet, busy.URL, nil)
			caseSend(t, rt, again).answered(t, http.StatusOK)
		})
	}
}

func TestA14AnswerBeforeTheBodyIsWrittenDoesNotSpoilTheNextAttempt(t *testing.T) {
	httptestx.Leaks(t)
	// The base waits 50 ms for the rest of the first body, so that ten run at once.
	// 256 KiB over a small send buffer stay unwritten as 4 MiB over the system's do, at a
	// sixteenth of what the race detector makes of it.
	const workers, rounds, size = 10, 20, 256 << 10
	whole, err := io.ReadAll(httptestx.Pattern(size))
	require.NoError(t, err)
	sum, text := sha256.Sum256(whole), string(whole)
	early := httptestx.Play{httptestx.ReadHead, httptestx.Respond(503, "busy"), httptestx.Pause(300 * time.Millisecond), httptestx.Close}
	// Each attempt has a new connection: the window of one that was used is large enough to
	// take the whole body, and the base would use it again.
	ok := httptestx.OK("done", "Connection: close")
	var origins [workers]*httptestx.Origin
	var bodies [workers][rounds]*httptestx.Bodies
	var wg sync.WaitGroup
	for w := range workers {
		o := httptestx.NewOrigin(t, func(turn httptestx.Turn) httptestx.Play {
			if turn.Total%2 == 1 {
				return early
			}
			return ok
		})
		origins[w] = o
		base := httptestx.NewTransport(t)
		base.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			conn, err := new(net.Dialer).DialContext(ctx, network, addr)
			if err == nil {
				err = conn.(*net.TCPConn).SetWriteBuffer(16 << 10)
			}
			return conn, err
		}
		// Without waits between the attempts, so that the second one starts while the first
		// one's body is surely still being written.
		rt := caseNew(t, base, retrip.WithBackoff(retrip.Constant(0)))
		wg.Go(func() {
			for i := range rounds {
				bodies[w][i] = httptestx.NewBodies(text)
				if call := caseQuiet(rt, bodies[w][i].Request(t.Context(), t, http.MethodPut, o.URL)); call.status != http.StatusOK {
					t.Errorf("round %d: status %d, error %v", i, call.status, call.err)
				}
			}
		})
	}
	wg.Wait()
	for w, o := range origins {
		seen := o.Requests()
		require.Len(t, seen, 2*rounds)
		for i, handed := range bodies[w] {
			handed.CheckClosedOnce(t)
			require.Len(t, handed.All(), 2, "round %d", i)
			require.Less(t, handed.All()[0].BytesRead(), int64(size), "of the first body, round %d", i)
			require.Equal(t, sum, seen[2*i+1].SHA256, "round %d", i)
		}
	}
}

func TestA15FinalStatusBefore100ContinueIsNoProofOfAnUnreadBody(t *testing.T) {
	const size = 1 << 20
	whole, err := io.ReadAll(httptestx.Pattern(size))
	require.NoError(t, err)
	sum := sha256.Sum256(whole)
	goOn := httptestx.Play{
		httptestx.ReadHead, httptestx.Write("HTTP/1.1 100 Continue\r\n\r\n"),
		httptestx.ReadAll, httptestx.Respond(200, "done"),
	}
	closing := httptestx.Play{httptestx.ReadHead, httptestx.Respond(503, "busy", "Connection: close"), httptestx.FIN}
	send := func(t *testing.T, refusal httptestx.Play, patience time.Duration, body io.Reader) (caseCall, *httptestx.Origin) {
		t.Helper()
		o := httptestx.NewOrigin(t, httptestx.Sequence(refusal, goOn))
		base := httptestx.NewTransport(t)
		base.ExpectContinueTimeout = patience
		req := caseRequest(t, http.MethodPut, o.URL, body, "Expect: 100-continue")
		req.ContentLength = size
		return caseSend(t, caseNew(t, base), req), o
	}

	t.Run("with GetBody", func(t *testing.T) {
		httptestx.Leaks(t)
		call, o := send(t, closing, 200*time.Millisecond, bytes.NewReader(whole))
		call.answered(t, http.StatusOK)
		call.ended(t, 2, retrip.DecisionReturn, retrip.ReasonSuccess)
		require.Equal(t, 2, o.Heads())
		require.Equal(t, sum, o.Requests()[1].SHA256)
	})
	// A one-shot body of which nothing was read is still fresh, whatever the answer; that
	// is seen by the reads, never concluded from the status.
	t.Run("one-shot and unread", func(t *testing.T) {
		httptestx.Leaks(t)
		call, o := send(t, closing, 5*time.Second, httptestx.NewBody(bytes.NewReader(whole)))
		call.answered(t, http.StatusOK)
		require.Equal(t, 2, o.Heads())
		require.Zero(t, o.Requests()[0].BodyBytes)
		require.Equal(t, sum, o.Requests()[1].SHA256)
	})
	t.Run("one-shot and read", func(t *testing.T) {
		httptestx.Leaks(t)
		late := httptestx.Play{httptestx.ReadHead, httptestx.ReadBody(1), httptestx.Respond(503, "busy", "Connection: close"), httptestx.FIN}
		call, o := send(t, late, 10*time.Millisecond, httptestx.NewBody(bytes.NewReader(whole)))
		call.answered(t, http.StatusServiceUnavailable)
		require.Equal(t, "busy", call.body)
		call.ended(t, 1, retrip.DecisionReturn, retrip.ReasonBodyNotReplayable)
		require.Equal(t, 1, o.Heads())
	})
	// Where the connection is kept net/http writes the body after the refusal, at the same
	// time as the answer is judged.
	t.Run("one-shot on a kept connection", func(t *testing.T) {
		httptestx.Leaks(t)
		kept := httptestx.Play{httptestx.ReadHead, httptestx.Respond(503, "busy"), httptestx.ReadAll}
		call, o := send(t, kept, 5*time.Second, httptestx.NewBody(bytes.NewReader(whole)))
		require.NoError(t, call.err)
		if call.rec.Attempts() == 1 {
			call.answered(t, http.StatusServiceUnavailable)
			call.ended(t, 1, retrip.DecisionReturn, retrip.ReasonBodyNotReplayable)
			return
		}
		call.answered(t, http.StatusOK)
		seen := o.Requests()
		require.Equal(t, sum, seen[len(seen)-1].SHA256, fmt.Sprint("the body of the last of ", len(seen)))
	})
}
