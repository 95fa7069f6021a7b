package retrip_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/iotest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/httptestx"
)

var errBodyDisk = errors.New("disk gone")

// bodyRT is a checked Transport that waits next to nothing between attempts and has no
// budget, so that only bodies decide.
func bodyRT(t *testing.T, base http.RoundTripper, opts ...retrip.Option) http.RoundTripper {
	t.Helper()
	all := append([]retrip.Option{
		retrip.WithBackoff(retrip.Constant(time.Millisecond)), retrip.WithBudget(nil),
	}, opts...)
	return httptestx.Checked(t, retrip.Must(retrip.New(base, all...)))
}

// bodyResult is what came of one operation.
type bodyResult struct {
	code   int
	text   string
	err    error
	events []retrip.Event
	maybe  bool
}

func (r bodyResult) last(t *testing.T) retrip.Event {
	t.Helper()
	require.NotEmpty(t, r.events)
	return r.events[len(r.events)-1]
}

// bodyDo sends req and reads the answer to its end.
func bodyDo(t *testing.T, rt http.RoundTripper, req *http.Request) bodyResult {
	t.Helper()
	ctx, rec := retrip.Record(req.Context())
	resp, err := rt.RoundTrip(req.WithContext(ctx))
	r := bodyResult{err: err}
	if err == nil {
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		require.NoError(t, resp.Body.Close())
		r.code, r.text = resp.StatusCode, string(text)
	}
	r.events, r.maybe = rec.Events(), rec.MaybeApplied()
	return r
}

func bodyRequest(t *testing.T, method, url string, body io.Reader) *http.Request {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, body)
	require.NoError(t, err)
	return req
}

// bodyEventually waits for what the base does after RoundTrip has returned.
func bodyEventually(t *testing.T, what string, ready func() bool) {
	t.Helper()
	require.Eventually(t, ready, 5*time.Second, time.Millisecond, what)
}

func bodyFile(t *testing.T, content string, offset int64) *os.File {
	t.Helper()
	name := filepath.Join(t.TempDir(), "body")
	require.NoError(t, os.WriteFile(name, []byte(content), 0o600))
	f, err := os.Open(name)
	require.NoError(t, err)
	_, err = f.Seek(offset, io.SeekStart)
	require.NoError(t, err)
	return f
}

func bodyIsClosed(f *os.File) bool {
	_, err := f.Stat()
	return errors.Is(err, os.ErrClosed)
}

// bodyH2 serves HTTP/2 over TLS and counts the requests whose body arrived whole.
type bodyH2 struct {
	url  string
	base *http.Transport

	mu     sync.Mutex
	heads  int
	bodies []string // the whole ones
}

func newBodyH2(t *testing.T, respond func(o *bodyH2, n int, w http.ResponseWriter, r *http.Request)) *bodyH2 {
	t.Helper()
	o := &bodyH2{base: httptestx.NewTransport(t)}
	o.base.ForceAttemptHTTP2 = true
	ln := httptestx.Listen(t)
	server := &http.Server{
		ReadHeaderTimeout: time.Minute,
		ErrorLog:          log.New(io.Discard, "", 0),
		TLSConfig:         httptestx.ServerTLS(httptestx.GoodCert, "h2", "http/1.1"),
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !assert.Equal(t, 2, r.ProtoMajor) {
				return
			}
			o.mu.Lock()
			o.heads++
			n := o.heads
			o.mu.Unlock()
			respond(o, n, w, r)
		}),
	}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		_ = server.ServeTLS(ln, "", "") // always http.ErrServerClosed
	}()
	t.Cleanup(func() {
		o.base.CloseIdleConnections()
		server.Close()
		<-stopped
	})
	o.url = "https://" + ln.Addr().String() + "/"
	return o
}

// readAll notes the request's body if it is whole.
func (o *bodyH2) readAll(r *http.Request) bool {
	text, err := io.ReadAll(r.Body)
	if err == nil {
		o.mu.Lock()
		o.bodies = append(o.bodies, string(text))
		o.mu.Unlock()
	}
	return err == nil
}

func (o *bodyH2) seen() (heads int, bodies []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.heads, append([]string(nil), o.bodies...)
}

func bodyWhole(o *httptestx.Origin) (texts []string) {
	for _, r := range o.Requests() {
		if r.Complete {
			texts = append(texts, r.Body)
		}
	}
	return texts
}

// bodyUnavailable answers without a look at the body.
func bodyUnavailable() http.RoundTripper {
	return httptestx.RoundTripFunc(func(req *http.Request) (*http.Response, error) {
		return httptestx.Canned(req, http.StatusServiceUnavailable, "busy"), req.Body.Close()
	})
}

func TestEveryAttemptReadsABodyOfItsOwnFromGetBody(t *testing.T) {
	httptestx.Leaks(t)
	o := httptestx.NewOrigin(t, httptestx.Sequence(
		httptestx.Status(503, "one"), httptestx.Play{httptestx.ReadAll, httptestx.RST}, httptestx.OK("done")))
	rt := bodyRT(t, httptestx.NewTransport(t))
	bodies := httptestx.NewBodies("alpha-42")
	r := bodyDo(t, rt, bodies.Request(t.Context(), t, http.MethodPut, o.URL))
	require.NoError(t, r.err)
	require.Equal(t, "done", r.text)
	require.Equal(t, []string{"alpha-42", "alpha-42", "alpha-42"}, bodyWhole(o))
	for _, seen := range o.Requests() {
		assert.EqualValues(t, 8, seen.ContentLength)
		assert.Empty(t, seen.TransferEncoding)
	}
	require.Len(t, bodies.All(), 3)
	bodies.CheckClosedOnce(t)
}

func TestAFileIsSentAgainFromTheOffsetItStoodAt(t *testing.T) {
	content := strings.Repeat("0123456789", 9000)
	for name, c := range map[string]struct{ offset, length int64 }{
		"from the start":                {0, 90000},
		"from an offset":                {12345, 90000 - 12345},
		"without ContentLength":         {0, 0},
		"chunked from an offset":        {12345, 0},
		"ContentLength -1":              {1, -1},
		"at its end":                    {90000, 0},
		"at its end, with a trailing 0": {90000, -1},
	} {
		t.Run(name, func(t *testing.T) {
			httptestx.Leaks(t)
			o := httptestx.NewOrigin(t, httptestx.Sequence(
				httptestx.Status(503, ""), httptestx.Play{httptestx.ReadAll, httptestx.FIN}, httptestx.OK("done")))
			f := bodyFile(t, content, c.offset)
			req := bodyRequest(t, http.MethodPut, o.URL, f)
			req.ContentLength = c.length
			r := bodyDo(t, bodyRT(t, httptestx.NewTransport(t)), req)
			require.NoError(t, r.err)
			require.Equal(t, 200, r.code)
			want := sha256.Sum256([]byte(content[c.offset:]))
			require.Len(t, o.Requests(), 3)
			for i, seen := range o.Requests() {
				assert.True(t, seen.Complete)
				assert.Equal(t, want, seen.SHA256, "attempt %d", i+1)
				assert.Equal(t, o.Requests()[0].ContentLength, seen.ContentLength)
				assert.Equal(t, o.Requests()[0].TransferEncoding, seen.TransferEncoding)
			}
			bodyEventually(t, "the file is closed", func() bool { return bodyIsClosed(f) })
		})
	}
}

func TestAFileBodyOfTheBareBaseArrivesTheSame(t *testing.T) {
	httptestx.Leaks(t)
	for _, length := range []int64{0, 85} {
		o := httptestx.NewOrigin(t, httptestx.Sequence(httptestx.OK("")))
		content := strings.Repeat("0123456789", 9)
		for _, rt := range []http.RoundTripper{httptestx.NewTransport(t), bodyRT(t, httptestx.NewTransport(t))} {
			req := bodyRequest(t, http.MethodPut, o.URL, bodyFile(t, content, 5))
			req.ContentLength = length
			require.NoError(t, bodyDo(t, rt, req).err)
		}
		seen := o.Requests()
		require.Len(t, seen, 2)
		assert.Equal(t, seen[0].RawHead, seen[1].RawHead)
		assert.Equal(t, content[5:], seen[0].Body)
		assert.Equal(t, seen[0].Body, seen[1].Body)
	}
}

func TestAFileStaysOpenAsLongAsAnAttemptCanReadIt(t *testing.T) {
	httptestx.Leaks(t)
	f := bodyFile(t, "alpha-beta-gamma", 6)
	var first io.ReadCloser
	calls := 0
	base := httptestx.RoundTripFunc(func(req *http.Request) (*http.Response, error) {
		if calls++; calls == 1 {
			first = req.Body
			_, err := io.ReadFull(first, make([]byte, 3))
			return httptestx.Canned(req, 503, ""), err
		}
		text, err := io.ReadAll(req.Body)
		if err != nil {
			return nil, err
		}
		return httptestx.Canned(req, 200, string(text)), req.Body.Close()
	})
	req := bodyRequest(t, http.MethodPut, "http://origin.test/", f)
	req.ContentLength = 10
	r := bodyDo(t, bodyRT(t, base), req)
	require.NoError(t, r.err)
	require.Equal(t, "beta-gamma", r.text)

	require.False(t, bodyIsClosed(f), "the first attempt has not closed its body")
	rest, err := io.ReadAll(first)
	require.NoError(t, err)
	require.Equal(t, "a-gamma", string(rest), "the late reader goes on where it was")
	require.NoError(t, first.Close())
	require.True(t, bodyIsClosed(f))
	require.NoError(t, first.Close(), "a second Close reaches nothing")
}

func TestAPipeIsSentOnce(t *testing.T) {
	httptestx.Leaks(t)
	o := httptestx.NewOrigin(t, httptestx.Sequence(httptestx.Status(503, "busy"), httptestx.OK("never")))
	read, write, err := os.Pipe()
	require.NoError(t, err)
	_, err = write.WriteString("through a pipe")
	require.NoError(t, err)
	require.NoError(t, write.Close())
	r := bodyDo(t, bodyRT(t, httptestx.NewTransport(t)), bodyRequest(t, http.MethodPut, o.URL, read))
	require.NoError(t, r.err)
	require.Equal(t, "busy", r.text)
	require.Equal(t, retrip.ReasonBodyNotReplayable, r.last(t).Reason)
	require.Equal(t, retrip.DecisionReturn, r.last(t).Decision)
	require.Equal(t, []string{"through a pipe"}, bodyWhole(o))
	bodyEventually(t, "the pipe is closed", func() bool { return bodyIsClosed(read) })
}

func TestAFileThatCannotBeReadIsAFailedBody(t *testing.T) {
	httptestx.Leaks(t)
	for name, open := range map[string]func(name string) (*os.File, error){
		"closed": func(name string) (*os.File, error) {
			f, err := os.Open(name)
			return f, errors.Join(err, f.Close())
		},
		"write only": func(name string) (*os.File, error) { return os.OpenFile(name, os.O_WRONLY, 0) },
		"a folder":   func(name string) (*os.File, error) { return os.Open(filepath.Dir(name)) },
	} {
		t.Run(name, func(t *testing.T) {
			o := httptestx.NewOrigin(t, httptestx.Sequence(httptestx.OK("never")))
			path := filepath.Join(t.TempDir(), "body")
			require.NoError(t, os.WriteFile(path, []byte("text"), 0o600))
			f, err := open(path)
			require.NoError(t, err)
			req := bodyRequest(t, http.MethodPut, o.URL, f)
			req.ContentLength = 4
			r := bodyDo(t, bodyRT(t, httptestx.NewTransport(t)), req)
			require.Error(t, r.err)
			require.Equal(t, retrip.ClassBody, r.last(t).Class)
			require.Equal(t, retrip.ReasonBodyFailed, r.last(t).Reason)
			require.Empty(t, bodyWhole(o))
			require.True(t, bodyIsClosed(f))
		})
	}
}

// A device is no regular file; an empty one, of which nothing was read, is still fresh.
func TestAnEmptyDeviceIsSentAgain(t *testing.T) {
	httptestx.Leaks(t)
	o := httptestx.NewOrigin(t, httptestx.Sequence(httptestx.Status(503, ""), httptestx.OK("done")))
	f, err := os.Open(os.DevNull)
	require.NoError(t, err)
	r := bodyDo(t, bodyRT(t, httptestx.NewTransport(t)), bodyRequest(t, http.MethodPut, o.URL, f))
	require.NoError(t, r.err)
	require.Equal(t, "done", r.text)
	require.Equal(t, []string{"", ""}, bodyWhole(o))
	bodyEventually(t, "the device is closed", func() bool { return bodyIsClosed(f) })
}

// The length was promised for the file as it was.
func TestAFileThatChangesItsLengthIsNotSentAgain(t *testing.T) {
	for name, size := range map[string]int64{"shorter": 7, "empty": 0, "longer": 20} {
		t.Run(name, func(t *testing.T) {
			httptestx.Leaks(t)
			f := bodyFile(t, bodyText, 0)
			o := httptestx.NewOrigin(t, httptestx.Sequence(
				httptestx.Play{
					httptestx.ReadAll,
					httptestx.Call(func() { assert.NoError(t, os.Truncate(f.Name(), size)) }),
					httptestx.Respond(503, ""),
				},
				httptestx.OK("never")))
			req := bodyRequest(t, http.MethodPut, o.URL, f)
			req.ContentLength = 10
			r := bodyDo(t, bodyRT(t, httptestx.NewTransport(t)), req)
			if size < 10 { // a file that grows may do so under the first attempt's last Read
				require.Error(t, r.err)
			}
			require.Equal(t, retrip.ReasonBodyFailed, r.last(t).Reason)
			require.Equal(t, retrip.ClassBody, r.last(t).Class)
			require.Equal(t, []string{bodyText}, bodyWhole(o))
			bodyEventually(t, "the file is closed", func() bool { return bodyIsClosed(f) })
		})
	}
}

func TestAFileWithGetBodyIsReadByGetBody(t *testing.T) {
	httptestx.Leaks(t)
	o := httptestx.NewOrigin(t, httptestx.Sequence(httptestx.Status(503, ""), httptestx.OK("")))
	f := bodyFile(t, "from the file", 0)
	second := httptestx.NewBody(strings.NewReader("from the file"))
	req := bodyRequest(t, http.MethodPut, o.URL, f)
	req.ContentLength = 13
	req.GetBody = func() (io.ReadCloser, error) { return second, nil }
	r := bodyDo(t, bodyRT(t, httptestx.NewTransport(t)), req)
	require.NoError(t, r.err)
	require.Equal(t, []string{"from the file", "from the file"}, bodyWhole(o))
	require.EqualValues(t, 13, second.BytesRead())
	second.CheckClosedOnce(t)
	bodyEventually(t, "the file is closed", func() bool { return bodyIsClosed(f) })
}

func TestWithBodyBufferHoldsWhatFits(t *testing.T) {
	const limit = 1000
	readers := map[string]func(io.Reader) io.Reader{
		"whole":    func(r io.Reader) io.Reader { return r },
		"one byte": iotest.OneByteReader,
		"data+EOF": iotest.DataErrReader,
	}
	for name, wrap := range readers {
		for _, size := range []int{0, 1, limit - 1, limit, limit + 1, 5 * limit} {
			for _, known := range []bool{true, false} {
				t.Run(name, func(t *testing.T) {
					httptestx.Leaks(t)
					o := httptestx.NewOrigin(t, httptestx.Sequence(
						httptestx.Status(503, "busy"), httptestx.Status(503, "busy"), httptestx.OK("done")))
					text := strings.Repeat("0123456789", 500)[:size]
					body := httptestx.NewBody(wrap(strings.NewReader(text)))
					req := bodyRequest(t, http.MethodPut, o.URL, body)
					if known {
						req.ContentLength = int64(size)
					}
					r := bodyDo(t, bodyRT(t, httptestx.NewTransport(t), retrip.WithBodyBuffer(limit)), req)
					require.NoError(t, r.err)
					if size > limit {
						require.Equal(t, "busy", r.text)
						require.Equal(t, retrip.ReasonBodyNotReplayable, r.last(t).Reason)
						require.Equal(t, []string{text}, bodyWhole(o), "complete and in order")
						return
					}
					require.Equal(t, "done", r.text)
					require.Equal(t, []string{text, text, text}, bodyWhole(o))
				})
			}
		}
	}
}

func TestWithoutWithBodyBufferNothingIsHeld(t *testing.T) {
	httptestx.Leaks(t)
	const size = 32 << 20
	o := httptestx.NewOrigin(t, httptestx.Sequence(httptestx.OK("warm"), httptestx.OK("")))
	rt := bodyRT(t, httptestx.NewTransport(t))
	require.NoError(t, bodyDo(t, rt, bodyRequest(t, http.MethodGet, o.URL, nil)).err)

	req := bodyRequest(t, http.MethodPut, o.URL, httptestx.NewBody(io.LimitReader(bodyZeros{}, size)))
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	r := bodyDo(t, rt, req)
	runtime.ReadMemStats(&after)
	require.NoError(t, r.err)
	require.EqualValues(t, size, o.Requests()[1].BodyBytes)
	require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(4<<20), "bytes allocated for a body of 32 MiB")
}

// bodyZeros is an endless reader that costs nothing.
type bodyZeros struct{}

func (bodyZeros) Read(p []byte) (int, error) { return len(p), nil }

func TestWithBodyBufferGivesItsMemoryBack(t *testing.T) {
	const size = 8 << 20
	live := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	send := func(t *testing.T, o *httptestx.Origin, opts ...retrip.Option) (before int64, answer io.Closer) {
		t.Helper()
		// The time-out ties the answer's body to its attempt.
		rt := bodyRT(t, httptestx.NewTransport(t), append(opts, retrip.WithAttemptTimeout(time.Minute))...)
		ctx, cancel := context.WithCancel(t.Context())
		t.Cleanup(cancel)
		req := bodyRequest(t, http.MethodPut, o.URL, httptestx.NewBody(io.LimitReader(bodyZeros{}, size))).WithContext(ctx)
		before = live()
		resp, err := rt.RoundTrip(req)
		require.NoError(t, err)
		t.Cleanup(func() { runtime.KeepAlive(req) })
		return before, resp.Body
	}
	for name, c := range map[string]struct {
		limit int64
		plays []httptestx.Play
	}{
		"held and answered":     {size, []httptestx.Play{httptestx.OK("text")}},
		"held and sent again":   {size, []httptestx.Play{httptestx.Status(503, ""), httptestx.OK("text")}},
		"longer than the limit": {size - 1, []httptestx.Play{httptestx.Status(503, "text")}},
	} {
		t.Run(name, func(t *testing.T) {
			httptestx.Leaks(t)
			o := httptestx.NewOrigin(t, httptestx.Sequence(c.plays...))
			before, answer := send(t, o, retrip.WithBodyBuffer(c.limit))
			after := live() // the request and the open answer are still in hand
			require.NoError(t, answer.Close())
			require.Less(t, after-before, int64(2<<20))
		})
	}
	t.Run("in the only attempt", func(t *testing.T) {
		httptestx.Leaks(t)
		var during int64
		o := httptestx.NewOrigin(t, httptestx.Sequence(httptestx.Play{
			httptestx.ReadHead, httptestx.ReadBody(size - 1), httptestx.Call(func() { during = live() }),
			httptestx.ReadAll, httptestx.Respond(200, "text"),
		}))
		before, answer := send(t, o, retrip.WithBodyBuffer(size), retrip.WithMaxAttempts(1))
		require.NoError(t, answer.Close())
		require.Less(t, during-before, int64(2<<20))
	})
}

// bodyGate gives its first part, then blocks in Read until it is opened.
type bodyGate struct {
	first, rest io.Reader
	inside      chan struct{} // closed when a Read waits
	open        chan struct{}
	once        sync.Once
}

func newBodyGate(first, rest string) *bodyGate {
	return &bodyGate{
		first: strings.NewReader(first), rest: strings.NewReader(rest),
		inside: make(chan struct{}), open: make(chan struct{}),
	}
}

func (g *bodyGate) Read(p []byte) (int, error) {
	if n, err := g.first.Read(p); err == nil {
		return n, nil
	}
	g.once.Do(func() { close(g.inside) })
	<-g.open
	return g.rest.Read(p)
}

func TestAReadInFlightUnderAnEarlyAnswerLeavesItsBytesToTheNextAttempt(t *testing.T) {
	httptestx.Leaks(t)
	gate := newBodyGate("alpha-", "beta-gamma")
	o := httptestx.NewOrigin(t, httptestx.ByConn(
		[]httptestx.Play{{
			httptestx.ReadHead, httptestx.ReadBody(6), httptestx.WaitFor(gate.inside),
			httptestx.Respond(503, "early", "Connection: close"), httptestx.HalfClose, httptestx.Silence,
		}},
		[]httptestx.Play{httptestx.OK("done")}))
	sends := 0
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) {
		if sends++; sends == 2 {
			close(gate.open)
		}
	}})
	body := httptestx.NewBody(gate)
	req := bodyRequest(t, http.MethodPut, o.URL, body)
	r := bodyDo(t, bodyRT(t, httptestx.NewTransport(t), retrip.WithBodyBuffer(64)), req.WithContext(ctx))
	require.NoError(t, r.err)
	require.Equal(t, "done", r.text)
	require.Equal(t, []string{"alpha-beta-gamma"}, bodyWhole(o))
	body.CheckClosedOnce(t)
	require.Zero(t, body.LateReads())
}

func TestABodyOfWhichNothingWasReadIsStillFresh(t *testing.T) {
	for _, method := range []string{http.MethodPut, http.MethodPost} {
		for _, buffer := range []int64{0, 100} {
			t.Run(method, func(t *testing.T) {
				httptestx.Leaks(t)
				o := httptestx.NewOrigin(t, httptestx.Sequence(httptestx.OK("done")))
				o.Refuse()
				rt := bodyRT(t, httptestx.NewTransport(t), retrip.WithBodyBuffer(buffer),
					retrip.WithBackoff(retrip.BackoffFunc(func(int) time.Duration {
						o.Accept(t)
						return 0
					})))
				body := httptestx.NewBody(strings.NewReader("read once"))
				r := bodyDo(t, rt, bodyRequest(t, method, o.URL, body))
				require.NoError(t, r.err)
				require.Equal(t, []string{"read once"}, bodyWhole(o))
				require.Len(t, r.events, 2)
				require.Equal(t, retrip.PermitNotSent, r.events[0].Permit)
				body.CheckClosedOnce(t)
			})
		}
	}
}

// A base that refuses at once, as a breaker does, has not read the body either.
func TestABodyThatABaseClosedUnreadIsStillFresh(t *testing.T) {
	httptestx.Leaks(t)
	calls := 0
	base := httptestx.RoundTripFunc(func(req *http.Request) (*http.Response, error) {
		if calls++; calls < 3 {
			return httptestx.Canned(req, 503, ""), req.Body.Close()
		}
		text, err := io.ReadAll(req.Body)
		return httptestx.Canned(req, 200, string(text)), errors.Join(err, req.Body.Close())
	})
	body := httptestx.NewBody(strings.NewReader("read once"))
	r := bodyDo(t, bodyRT(t, base), bodyRequest(t, http.MethodPut, "http://origin.test/", body))
	require.NoError(t, r.err)
	require.Equal(t, "read once", r.text)
	body.CheckClosedOnce(t)
}

func TestABodyReadOnceGivesTheFirstOutcomeBack(t *testing.T) {
	httptestx.Leaks(t)
	t.Run("an answer", func(t *testing.T) {
		o := httptestx.NewOrigin(t, httptestx.Sequence(httptestx.Status(503, "busy"), httptestx.OK("never")))
		body := httptestx.NewBody(strings.NewReader("once"))
		r := bodyDo(t, bodyRT(t, httptestx.NewTransport(t)), bodyRequest(t, http.MethodPut, o.URL, body))
		require.NoError(t, r.err)
		require.Equal(t, "busy", r.text)
		require.Equal(t, retrip.ReasonBodyNotReplayable, r.last(t).Reason)
		require.Equal(t, 1, o.Heads())
		body.CheckClosedOnce(t)
	})
	t.Run("an error", func(t *testing.T) {
		o := httptestx.NewOrigin(t, httptestx.Sequence(
			httptestx.Play{httptestx.ReadAll, httptestx.FIN}, httptestx.OK("never")))
		body := httptestx.NewBody(strings.NewReader("once"))
		r := bodyDo(t, bodyRT(t, httptestx.NewTransport(t)), bodyRequest(t, http.MethodPut, o.URL, body))
		require.ErrorIs(t, r.err, io.EOF)
		require.ErrorIs(t, r.err, retrip.ErrOutcomeUnknown)
		require.Equal(t, retrip.ReasonBodyNotReplayable, r.last(t).Reason)
		require.Equal(t, retrip.ClassEOF, r.last(t).Class)
		require.Equal(t, 1, o.Heads())
		body.CheckClosedOnce(t)
	})
}

// bodyFault is a reader that does not deliver what ContentLength promises.
type bodyFault struct {
	name  string
	make  func() io.ReadCloser
	cause error // of the reader's own, in the chain
}

const bodyText = "0123456789"

func bodyFaults() []bodyFault {
	return []bodyFault{
		{"fails at once", func() io.ReadCloser {
			return io.NopCloser(httptestx.FailAfter(bodyText, 0, errBodyDisk))
		}, errBodyDisk},
		{"fails half-way", func() io.ReadCloser {
			return io.NopCloser(httptestx.FailAfter(bodyText, 5, errBodyDisk))
		}, errBodyDisk},
		{"fails after its last byte", func() io.ReadCloser {
			return io.NopCloser(httptestx.FailAfter(bodyText, 10, errBodyDisk))
		}, errBodyDisk},
		{"fails with its last byte", func() io.ReadCloser {
			return io.NopCloser(&bodyLastByte{text: bodyText, err: errBodyDisk})
		}, errBodyDisk},
		{"is short", func() io.ReadCloser {
			return io.NopCloser(httptestx.OneShot(strings.NewReader(bodyText[:7])))
		}, nil},
		{"is empty", func() io.ReadCloser {
			return io.NopCloser(httptestx.OneShot(strings.NewReader("")))
		}, nil},
		{"is no body", func() io.ReadCloser { return http.NoBody }, nil},
		{"is long", func() io.ReadCloser {
			return io.NopCloser(httptestx.OneShot(strings.NewReader(bodyText + "more")))
		}, nil},
		{"is long by one byte, in pieces", func() io.ReadCloser {
			return io.NopCloser(iotest.OneByteReader(strings.NewReader(bodyText + "+")))
		}, nil},
		{"never ends nor delivers", func() io.ReadCloser {
			return io.NopCloser(io.MultiReader(strings.NewReader(bodyText), bodyNothing{}))
		}, nil},
	}
}

type bodyLastByte struct {
	text string
	err  error
}

func (b *bodyLastByte) Read(p []byte) (int, error) {
	n := copy(p, b.text)
	if b.text = b.text[n:]; b.text == "" {
		return n, b.err
	}
	return n, nil
}

type bodyNothing struct{}

func (bodyNothing) Read([]byte) (int, error) { return 0, nil }

// A replay of other bytes than the length says ends the operation, and the origin gets no
// second complete request.
func TestAReplayThatFailsOrHasAnotherLengthEndsTheOperation(t *testing.T) {
	check := func(t *testing.T, r bodyResult, fault bodyFault, whole []string) {
		t.Helper()
		require.Equal(t, []string{bodyText}, whole)
		require.Len(t, r.events, 2)
		last := r.last(t)
		assert.Equal(t, retrip.ClassBody, last.Class)
		assert.Equal(t, retrip.DecisionReturn, last.Decision)
		assert.Equal(t, retrip.ReasonBodyFailed, last.Reason)
		var failed *retrip.Error
		require.ErrorAs(t, r.err, &failed)
		assert.Equal(t, 2, failed.Attempts)
		assert.Equal(t, retrip.ReasonBodyFailed, failed.Reason)
		if fault.cause != nil {
			require.ErrorIs(t, r.err, fault.cause)
			require.ErrorIs(t, last.Err, fault.cause)
		}
	}
	request := func(t *testing.T, url string, fault bodyFault) (*http.Request, *httptestx.Body) {
		t.Helper()
		req := bodyRequest(t, http.MethodPut, url, strings.NewReader(bodyText))
		replay := httptestx.NewBody(fault.make())
		req.GetBody = func() (io.ReadCloser, error) { return replay, nil }
		return req, replay
	}
	for _, fault := range bodyFaults() {
		if fault.name == "fails after its last byte" || fault.name == "fails with its last byte" {
			continue // see below: the bytes are right
		}
		t.Run("h1 "+fault.name, func(t *testing.T) {
			httptestx.Leaks(t)
			o := httptestx.NewOrigin(t, httptestx.Sequence(httptestx.Status(503, ""), httptestx.OK("never")))
			req, replay := request(t, o.URL, fault)
			r := bodyDo(t, bodyRT(t, httptestx.NewTransport(t)), req)
			replay.CheckClosedOnce(t)
			check(t, r, fault, bodyWhole(o))
		})
		t.Run("h2 "+fault.name, func(t *testing.T) {
			httptestx.Leaks(t)
			o := newBodyH2(t, func(o *bodyH2, n int, w http.ResponseWriter, r *http.Request) {
				if o.readAll(r) && n == 1 {
					w.WriteHeader(http.StatusServiceUnavailable)
				}
			})
			req, replay := request(t, o.url, fault)
			r := bodyDo(t, bodyRT(t, o.base), req)
			replay.CheckClosedOnce(t)
			_, whole := o.seen()
			check(t, r, fault, whole)
		})
	}
}

// Where the error comes after the last byte, nothing wrong may be told to be right: the
// reader's error is kept and nothing is sent a third time.
func TestAReplayThatFailsAfterItsLastByteIsNotCompleted(t *testing.T) {
	for _, fault := range bodyFaults()[2:4] {
		t.Run(fault.name, func(t *testing.T) {
			httptestx.Leaks(t)
			o := httptestx.NewOrigin(t, httptestx.Sequence(httptestx.Status(503, ""), httptestx.OK("never")))
			req := bodyRequest(t, http.MethodPut, o.URL, strings.NewReader(bodyText))
			replay := httptestx.NewBody(fault.make())
			req.GetBody = func() (io.ReadCloser, error) { return replay, nil }
			r := bodyDo(t, bodyRT(t, httptestx.NewTransport(t)), req)
			require.ErrorIs(t, r.err, errBodyDisk)
			require.Equal(t, retrip.ReasonBodyFailed, r.last(t).Reason)
			require.Equal(t, retrip.ClassBody, r.last(t).Class)
			require.Equal(t, []string{bodyText}, bodyWhole(o))
			replay.CheckClosedOnce(t)
		})
	}
}

// The first attempt is net/http's own affair on the wire; whatever comes of it, it is the
// only one, and it is a success where it is one on the bare base.
func TestAFirstBodyThatFailsOrHasAnotherLengthIsSentOnce(t *testing.T) {
	request := func(t *testing.T, url, kind string, fault bodyFault) *http.Request {
		t.Helper()
		req := bodyRequest(t, http.MethodPut, url, httptestx.NewBody(fault.make()))
		req.ContentLength = 10
		if kind == "GetBody" {
			req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(bodyText)), nil }
		}
		return req
	}
	check := func(t *testing.T, r bodyResult, fault bodyFault, bare error, fails, passes bool) {
		t.Helper()
		require.Len(t, r.events, 1)
		switch { // where the base's reply and the end of the body race, either is right
		case fails:
			require.Error(t, bare)
			require.Error(t, r.err)
		case passes:
			require.NoError(t, bare)
			require.NoError(t, r.err)
		}
		if r.err == nil {
			return
		}
		last := r.last(t)
		assert.Equal(t, retrip.ClassBody, last.Class)
		assert.Equal(t, retrip.DecisionReturn, last.Decision)
		assert.Equal(t, retrip.ReasonBodyFailed, last.Reason)
		if fault.cause != nil {
			require.ErrorIs(t, r.err, fault.cause)
		}
	}
	for _, fault := range bodyFaults() {
		if fault.name == "is no body" || fault.name == "never ends nor delivers" {
			continue // no body is a request of its own; the other hangs the bare base
		}
		stops := fault.name == "fails at once" || fault.name == "fails half-way"
		short := fault.name == "is short" || fault.name == "is empty"
		for _, kind := range []string{"GetBody", "one-shot", "held"} {
			var buffer int64
			if kind == "held" {
				buffer = 1000
			}
			t.Run("h1 "+kind+" "+fault.name, func(t *testing.T) {
				httptestx.Leaks(t)
				o := httptestx.NewOrigin(t, httptestx.Sequence(httptestx.OK("")))
				bare := bodyDo(t, httptestx.Checked(t, httptestx.NewTransport(t)), request(t, o.URL, kind, fault))

				o = httptestx.NewOrigin(t, httptestx.Sequence(httptestx.OK("")))
				rt := bodyRT(t, httptestx.NewTransport(t), retrip.WithBodyBuffer(buffer))
				r := bodyDo(t, rt, request(t, o.URL, kind, fault))
				check(t, r, fault, bare.err, stops || short, false)
				assert.LessOrEqual(t, o.Heads(), 1)
			})
			t.Run("h2 "+kind+" "+fault.name, func(t *testing.T) {
				httptestx.Leaks(t)
				read := func(o *bodyH2, _ int, _ http.ResponseWriter, r *http.Request) { o.readAll(r) }
				o := newBodyH2(t, read)
				bare := bodyDo(t, httptestx.Checked(t, o.base), request(t, o.url, kind, fault))

				o = newBodyH2(t, read)
				r := bodyDo(t, bodyRT(t, o.base, retrip.WithBodyBuffer(buffer)), request(t, o.url, kind, fault))
				check(t, r, fault, bare.err, stops, short)
				heads, _ := o.seen()
				assert.LessOrEqual(t, heads, 1)
			})
		}
	}
}

// On HTTP/2 a short body looks complete to the origin (WIRE.md b03): a 503 to it must not
// be answered with a second request.
func TestAShortBodyThatWasAnsweredIsNotSentAgain(t *testing.T) {
	httptestx.Leaks(t)
	o := newBodyH2(t, func(o *bodyH2, _ int, w http.ResponseWriter, r *http.Request) {
		o.readAll(r)
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	body := httptestx.NewBody(strings.NewReader(bodyText[:4]))
	req := bodyRequest(t, http.MethodPut, o.url, body)
	req.ContentLength = 10
	req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(bodyText)), nil }
	r := bodyDo(t, bodyRT(t, o.base), req)
	require.Len(t, r.events, 1)
	require.Equal(t, retrip.ReasonBodyFailed, r.last(t).Reason)
	require.Equal(t, retrip.ClassBody, r.last(t).Class)
	heads, _ := o.seen()
	require.Equal(t, 1, heads)
	body.CheckClosedOnce(t)
}

// A layer above has compressed Body and left GetBody as it was.
func TestAStaleGetBodyIsNotSent(t *testing.T) {
	for name, stale := range map[string]func() io.ReadCloser{
		"known to be longer":  func() io.ReadCloser { return io.NopCloser(bytes.NewReader(make([]byte, 200_000))) },
		"known to be shorter": func() io.ReadCloser { return io.NopCloser(strings.NewReader("short")) },
	} {
		t.Run(name, func(t *testing.T) {
			httptestx.Leaks(t)
			o := httptestx.NewOrigin(t, httptestx.Sequence(httptestx.Status(503, "busy"), httptestx.OK("never")))
			req := bodyRequest(t, http.MethodPut, o.URL, bytes.NewReader(make([]byte, 60_000)))
			req.Header.Set("Content-Encoding", "gzip")
			req.GetBody = func() (io.ReadCloser, error) { return stale(), nil }
			r := bodyDo(t, bodyRT(t, httptestx.NewTransport(t)), req)
			require.NoError(t, r.err)
			require.Equal(t, "busy", r.text)
			require.Len(t, r.events, 1)
			require.Equal(t, retrip.ReasonBodyFailed, r.last(t).Reason)
			require.Equal(t, retrip.ClassBody, r.last(t).Class)
			require.Equal(t, 1, o.Heads())
		})
	}
}

// The same where net/http itself sends the request again, on a connection that has served.
func TestAStaleGetBodyIsNotSentByNetHTTP(t *testing.T) {
	fresh, stale := bytes.Repeat([]byte("new"), 100_000), bytes.Repeat([]byte("older"), 100_000)
	for _, method := range []string{http.MethodGet, "QUERY", http.MethodPut, http.MethodPost} {
		for _, observed := range []bool{false, true} {
			t.Run(method+" observed "+strconv.FormatBool(observed), func(t *testing.T) {
				httptestx.Leaks(t)
				bodies := make(chan []byte, 10)
				origin := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					body, err := io.ReadAll(r.Body)
					if err == nil { // a whole request
						bodies <- body
					}
					if len(body) > 0 {
						panic(http.ErrAbortHandler)
					}
				}))
				t.Cleanup(origin.Close)
				var opts []retrip.Option
				if observed {
					opts = append(opts, retrip.WithHook(func(context.Context, retrip.Event) {}))
				}
				rt := retrip.Must(retrip.New(httptestx.NewTransport(t), append(opts, retrip.WithMaxAttempts(1))...))
				require.NoError(t, faultTrip(t, rt, bodyRequest(t, http.MethodGet, origin.URL, nil)))
				req := bodyRequest(t, method, origin.URL, bytes.NewReader(fresh))
				req.Header.Set("Idempotency-Key", "k")
				req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(stale)), nil }
				require.Error(t, faultTrip(t, rt, req))
				origin.Close()
				close(bodies)
				require.Empty(t, <-bodies)
				require.Equal(t, fresh, <-bodies)
				for body := range bodies {
					require.Equal(t, fresh, body)
				}
			})
		}
	}
}

func TestAGetBodyThatGivesNoneMakesNoAttempt(t *testing.T) {
	errGone := errors.New("the source is gone")
	for name, c := range map[string]struct {
		getBody func() (io.ReadCloser, error)
		cause   error
	}{
		"an error":  {func() (io.ReadCloser, error) { return nil, errGone }, errGone},
		"a nil one": {func() (io.ReadCloser, error) { return nil, nil }, nil}, //nolint:nilnil // what is tested
	} {
		t.Run(name+" after an answer", func(t *testing.T) {
			httptestx.Leaks(t)
			o := httptestx.NewOrigin(t, httptestx.Sequence(httptestx.Status(503, "busy"), httptestx.OK("never")))
			req := bodyRequest(t, http.MethodPut, o.URL, strings.NewReader(bodyText))
			req.GetBody = c.getBody
			r := bodyDo(t, bodyRT(t, httptestx.NewTransport(t)), req)
			require.NoError(t, r.err)
			require.Equal(t, "busy", r.text, "the answer is whole")
			require.Len(t, r.events, 1)
			last := r.last(t)
			require.Equal(t, retrip.DecisionReturn, last.Decision)
			require.Equal(t, retrip.ReasonBodyNotReplayable, last.Reason)
			require.Equal(t, retrip.ClassNone, last.Class)
			require.Equal(t, 503, last.StatusCode)
			require.Error(t, last.Err)
			if c.cause != nil {
				require.ErrorIs(t, last.Err, c.cause)
			}
			require.Equal(t, 1, o.Heads())
		})
		t.Run(name+" after an error", func(t *testing.T) {
			httptestx.Leaks(t)
			o := httptestx.NewOrigin(t, httptestx.Sequence(
				httptestx.Play{httptestx.ReadAll, httptestx.FIN}, httptestx.OK("never")))
			req := bodyRequest(t, http.MethodPut, o.URL, strings.NewReader(bodyText))
			req.GetBody = c.getBody
			r := bodyDo(t, bodyRT(t, httptestx.NewTransport(t)), req)
			var failed *retrip.Error
			require.ErrorAs(t, r.err, &failed)
			require.Equal(t, retrip.ReasonBodyNotReplayable, failed.Reason)
			require.True(t, failed.MaybeApplied)
			require.Equal(t, 1, failed.Attempts)
			require.ErrorIs(t, r.err, io.EOF)
			if c.cause != nil {
				require.ErrorIs(t, r.err, c.cause)
			}
			require.Equal(t, retrip.ClassEOF, r.last(t).Class)
			require.Equal(t, 1, o.Heads())
		})
	}
}

// bodyCloseFails is a body whose Close fails.
type bodyCloseFails struct {
	io.Reader

	closes int
}

var errBodyClose = errors.New("close failed")

func (b *bodyCloseFails) Close() error {
	b.closes++
	return errBodyClose
}

// On HTTP/1 the bare base fails a request whose body could not be closed, although the
// origin has it (WIRE.md b05): sending it again would be a guess at the reader.
func TestABodyWhoseCloseFailsIsNotSentAgain(t *testing.T) {
	httptestx.Leaks(t)
	o := httptestx.NewOrigin(t, httptestx.Sequence(httptestx.Play{httptestx.ReadAll, httptestx.Silence}))
	request := func() (*http.Request, *bodyCloseFails) {
		body := &bodyCloseFails{Reader: strings.NewReader(bodyText)}
		req := bodyRequest(t, http.MethodPut, o.URL, body)
		req.ContentLength = 10
		req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(bodyText)), nil }
		return req, body
	}
	req, body := request()
	bare := bodyDo(t, httptestx.NewTransport(t), req)
	require.ErrorIs(t, bare.err, errBodyClose)
	require.Equal(t, 1, body.closes)

	req, body = request()
	r := bodyDo(t, bodyRT(t, httptestx.NewTransport(t)), req)
	require.ErrorIs(t, r.err, errBodyClose)
	require.Equal(t, retrip.ClassBody, r.last(t).Class)
	require.Equal(t, retrip.ReasonBodyFailed, r.last(t).Reason)
	require.True(t, r.maybe)
	require.Equal(t, 1, body.closes)
	require.LessOrEqual(t, o.Heads(), 2, "one by each")
}

// net/http itself sends a request with a key again on a stale connection, with a body that
// it takes from GetBody: what that body does is the body's failure, too.
func TestABodyThatFailsInTheBasesOwnRepeatEndsTheOperation(t *testing.T) {
	for _, secure := range []bool{false, true} {
		for _, fault := range bodyFaults()[:2] {
			t.Run(fault.name, func(t *testing.T) {
				httptestx.Leaks(t)
				start := httptestx.NewOrigin
				if secure {
					start = httptestx.NewTLSOrigin
				}
				o := start(t, httptestx.ByConn(
					[]httptestx.Play{httptestx.OK("warm"), {httptestx.AwaitByte, httptestx.Close}},
					[]httptestx.Play{httptestx.OK("again")}))
				rt := bodyRT(t, httptestx.NewTransport(t))
				warm := bodyDo(t, rt, bodyRequest(t, http.MethodGet, o.URL, nil))
				require.NoError(t, warm.err)

				req := bodyRequest(t, http.MethodPost, o.URL, strings.NewReader(bodyText))
				req.Header.Set("Idempotency-Key", "k1")
				calls := 0
				req.GetBody = func() (io.ReadCloser, error) {
					calls++
					return fault.make(), nil
				}
				r := bodyDo(t, rt, req)
				require.ErrorIs(t, r.err, errBodyDisk)
				require.Equal(t, retrip.ClassBody, r.last(t).Class)
				require.Equal(t, retrip.ReasonBodyFailed, r.last(t).Reason)
				require.Len(t, r.events, 1)
				require.Equal(t, 1, calls)
			})
		}
	}
}

// A late reader of a body that is held gets nothing of the next attempt's.
func TestALateReaderGetsNoByteOfTheNextAttempt(t *testing.T) {
	httptestx.Leaks(t)
	var bodies []io.ReadCloser
	base := httptestx.RoundTripFunc(func(req *http.Request) (*http.Response, error) {
		bodies = append(bodies, req.Body)
		if len(bodies) == 1 {
			_, err := io.ReadFull(req.Body, make([]byte, 4))
			return httptestx.Canned(req, 503, ""), err
		}
		// The first attempt's reader and ours take turns, byte by byte.
		var text []byte
		for {
			n, err := bodies[0].Read(make([]byte, 1))
			assert.Zero(t, n)
			require.Error(t, err)
			require.NotErrorIs(t, err, io.EOF, "a torn body must not look complete")
			p := make([]byte, 1)
			n, err = req.Body.Read(p)
			text = append(text, p[:n]...)
			if errors.Is(err, io.EOF) {
				return httptestx.Canned(req, 200, string(text)), req.Body.Close()
			}
			if err != nil {
				return nil, err
			}
		}
	})
	body := httptestx.NewBody(strings.NewReader("alpha-beta"))
	r := bodyDo(t, bodyRT(t, base, retrip.WithBodyBuffer(100)), bodyRequest(t, http.MethodPut, "http://origin.test/", body))
	require.NoError(t, r.err)
	require.Equal(t, "alpha-beta", r.text)
	require.NoError(t, bodies[0].Close())
	body.CheckClosedOnce(t)
}

// What the base still reads when the operation is over is closed by the base's Close.
func TestABodyIsNotClosedUnderItsReader(t *testing.T) {
	httptestx.Leaks(t)
	for _, buffer := range []int64{0, 100} {
		var late io.ReadCloser
		base := httptestx.RoundTripFunc(func(req *http.Request) (*http.Response, error) {
			late = req.Body
			_, err := io.ReadFull(late, make([]byte, 4))
			return httptestx.Canned(req, 200, ""), err
		})
		body := httptestx.NewBody(strings.NewReader("alpha-beta"))
		r := bodyDo(t, bodyRT(t, base, retrip.WithBodyBuffer(buffer)), bodyRequest(t, http.MethodPut, "http://origin.test/", body))
		require.NoError(t, r.err)
		require.Zero(t, body.Closes())
		rest, err := io.ReadAll(late)
		require.NoError(t, err)
		require.Equal(t, "a-beta", string(rest))
		require.NoError(t, late.Close())
		require.Equal(t, 1, body.Closes())
		_ = late.Close()
		require.Equal(t, 1, body.Closes())
	}
}

// bodyPath is a way that an operation can take.
type bodyPath struct {
	name   string
	base   http.RoundTripper
	opts   []retrip.Option
	change func(*http.Request) *http.Request
	panics bool
}

func bodyPaths(t *testing.T) []bodyPath {
	t.Helper()
	stub := func(codes ...int) http.RoundTripper { return httptestx.Statuses(codes...) }
	fails := httptestx.Fails
	set := func(opts ...retrip.Option) []retrip.Option { return opts }
	override := func(opts ...retrip.Option) func(*http.Request) *http.Request {
		return func(req *http.Request) *http.Request {
			return req.WithContext(retrip.Override(req.Context(), opts...))
		}
	}
	refused := httptestx.NewOrigin(t, httptestx.Sequence(httptestx.OK("never")))
	refused.Refuse()
	ctx, cancel := context.WithCancel(t.Context())
	t.Cleanup(cancel)
	dead, kill := context.WithCancel(t.Context())
	kill()
	asked := 0
	return []bodyPath{
		{name: "success", base: stub(200)},
		{name: "retries", base: stub(503, 503, 200)},
		{name: "exhausted", base: stub(503)},
		{name: "errors", base: httptestx.NewStub(fails(io.EOF))}, //nolint:bodyclose // there is none
		{name: "not transient", base: stub(404)},
		{name: "a single attempt", base: stub(503), opts: set(retrip.WithMaxAttempts(1))},
		{name: "a wait that does not fit", base: stub(503), opts: set(
			retrip.WithTotalTimeout(time.Minute), retrip.WithBackoff(retrip.Constant(time.Hour)))},
		{name: "several errors", base: httptestx.NewStub(fails(io.EOF), fails(errBodyDisk))}, //nolint:bodyclose // there is none
		{name: "an empty budget", base: stub(503), opts: set(retrip.WithBudget(retrip.NewBudget(0, 0, 0)))},
		{name: "refused dials", base: httptestx.NewTransport(t), change: func(req *http.Request) *http.Request {
			req.URL.Host = refused.Addr
			return req
		}},
		{name: "a dead context", base: stub(200), change: func(req *http.Request) *http.Request {
			return req.WithContext(dead)
		}},
		{name: "an end in the wait", base: stub(503), opts: set(retrip.WithBackoff(retrip.BackoffFunc(
			func(int) time.Duration {
				cancel()
				return time.Hour
			}))), change: func(req *http.Request) *http.Request { return req.WithContext(ctx) }},
		{name: "a bad option", base: stub(200), change: override(retrip.WithMaxAttempts(0))},
		{
			name: "a bad key", base: stub(200), opts: set(retrip.WithGeneratedKeys(func() string { return "" })),
			change: func(req *http.Request) *http.Request {
				req.Method = http.MethodPost
				return req
			},
		},
		{name: "a gate that refuses", base: stub(200), opts: set(retrip.WithGate(
			func(*http.Request) (func(error), error) { return nil, errBodyDisk }))},
		{name: "a gate that refuses the second", base: stub(503), opts: set(retrip.WithGate(
			func(*http.Request) (func(error), error) {
				if asked++; asked > 1 {
					return nil, errBodyDisk
				}
				return func(error) {}, nil
			}))},
		{name: "a bad method", base: httptestx.NewTransport(t), change: func(req *http.Request) *http.Request {
			req.Method = "BAD METHOD"
			return req
		}},
		{name: "no URL", base: httptestx.NewTransport(t), change: func(req *http.Request) *http.Request {
			req.URL = nil
			return req
		}},
		{name: "a panic of the predicate", base: stub(503), panics: true, opts: set(retrip.WithRetryIf(
			func(retrip.Attempt) retrip.Verdict { panic("predicate") }))},
		{name: "a panic before the first attempt", base: stub(503), panics: true, opts: set(retrip.WithGate(
			func(*http.Request) (func(error), error) { panic("gate") }))},
		{name: "a panic of the backoff", base: bodyUnavailable(), panics: true, opts: set(retrip.WithBackoff(
			retrip.BackoffFunc(func(int) time.Duration { panic("backoff") })))},
	}
}

func TestTheCallersBodyIsClosedOnceOnEveryPath(t *testing.T) {
	for _, kind := range []string{"GetBody", "one-shot", "held", "file"} {
		t.Run(kind, func(t *testing.T) {
			httptestx.Leaks(t)
			for _, path := range bodyPaths(t) {
				bodies := httptestx.NewBodies(bodyText)
				req := bodies.Request(t.Context(), t, http.MethodPut, "http://origin.test/")
				var f *os.File
				switch kind {
				case "file":
					f = bodyFile(t, bodyText, 0)
					req.Body, req.GetBody = f, nil
				case "held":
					req.GetBody = nil
					path.opts = append(path.opts, retrip.WithBodyBuffer(100))
				case "one-shot":
					req.GetBody = nil
				}
				if path.change != nil {
					req = path.change(req)
				}
				send := func() {
					resp, err := bodyRT(t, path.base, path.opts...).RoundTrip(req)
					if err == nil {
						assert.NoError(t, resp.Body.Close(), path.name)
					}
				}
				if path.panics {
					require.Panics(t, send, path.name)
				} else {
					require.NotPanics(t, send, path.name)
				}
				if f != nil {
					bodyEventually(t, path.name, func() bool { return bodyIsClosed(f) })
					continue
				}
				bodies.CheckClosedOnce(t)
			}
		})
	}
}

func TestRequestTrailersAreSentWithEveryAttempt(t *testing.T) {
	httptestx.Leaks(t)
	o := httptestx.NewOrigin(t, httptestx.Sequence(httptestx.Status(503, ""), httptestx.OK("")))
	req := bodyRequest(t, http.MethodPut, o.URL, nil)
	body := func() (io.ReadCloser, error) {
		return io.NopCloser(io.MultiReader(strings.NewReader(bodyText), bodyAtEnd(func() {
			req.Trailer.Set("Checksum", "77")
		}))), nil
	}
	req.Trailer = http.Header{"Checksum": nil}
	req.Body, _ = body()
	req.GetBody = body
	rt := retrip.Must(retrip.New(httptestx.NewTransport(t), retrip.WithBackoff(retrip.Constant(0))))
	require.NoError(t, bodyDo(t, rt, req).err)
	seen := o.Requests()
	require.Len(t, seen, 2)
	for _, s := range seen {
		require.Equal(t, bodyText, s.Body)
		require.Equal(t, "77", s.Trailer.Get("Checksum"))
	}
}

// bodyAtEnd is called where a body ends.
type bodyAtEnd func()

func (f bodyAtEnd) Read([]byte) (int, error) {
	f()
	return 0, io.EOF
}

// An answer in the middle of an upload: the base goes on reading the first body while the
// second is sent.
func TestUnderAnEarlyAnswerOnHTTP1TheSecondBodyIsIntact(t *testing.T) {
	for _, kind := range []string{"GetBody", "held", "file"} {
		t.Run(kind, func(t *testing.T) {
			httptestx.Leaks(t)
			o := httptestx.NewOrigin(t, func(turn httptestx.Turn) httptestx.Play {
				if turn.Total%2 == 1 {
					return httptestx.Play{
						httptestx.ReadHead, httptestx.ReadBody(1000),
						httptestx.Respond(503, "early", "Connection: close"), httptestx.HalfClose, httptestx.Silence,
					}
				}
				return httptestx.OK("done", "Connection: close")
			})
			e := newBodyEarly(t, kind)
			e.run(t, o.URL, httptestx.NewTransport(t))
			right := 0
			for _, s := range o.Requests() {
				if s.Complete {
					require.Equal(t, e.hash, s.SHA256, "a complete request with other bytes")
					right++
				}
			}
			require.GreaterOrEqual(t, right, e.runs)
		})
	}
}

func TestUnderAnEarlyAnswerOnHTTP2TheSecondBodyIsIntact(t *testing.T) {
	for _, kind := range []string{"GetBody", "held", "file"} {
		t.Run(kind, func(t *testing.T) {
			httptestx.Leaks(t)
			e := newBodyEarly(t, kind)
			right := 0
			o := newBodyH2(t, func(_ *bodyH2, n int, w http.ResponseWriter, r *http.Request) {
				if n%2 == 1 {
					_, _ = io.CopyN(io.Discard, r.Body, 1000)
					w.WriteHeader(http.StatusServiceUnavailable)
					_, _ = io.WriteString(w, "early")
					return
				}
				h := sha256.New()
				if _, err := io.Copy(h, r.Body); assert.NoError(t, err) {
					assert.Equal(t, e.hash, [sha256.Size]byte(h.Sum(nil)))
					right++
				}
			})
			e.run(t, o.url, o.base)
			require.Equal(t, e.runs, right)
		})
	}
}

// bodyEarly uploads chunked bodies, one after the other. Where a body can be made to, it
// stops in its middle until the second attempt is under way, so that both are read at once.
type bodyEarly struct {
	kind    string
	runs    int
	content []byte
	hash    [sha256.Size]byte
	name    string // of a file with the content
}

func newBodyEarly(t *testing.T, kind string) *bodyEarly {
	t.Helper()
	e := &bodyEarly{kind: kind, runs: 200, name: filepath.Join(t.TempDir(), "body")}
	switch kind {
	case "held":
		e.runs = 100
	case "file":
		e.runs = 50 // where nothing stops the first upload, the two race only now and then
	}
	var err error
	e.content, err = io.ReadAll(httptestx.Pattern(128 << 10))
	require.NoError(t, err)
	e.hash = sha256.Sum256(e.content)
	require.NoError(t, os.WriteFile(e.name, e.content, 0o600))
	return e
}

func (e *bodyEarly) run(t *testing.T, url string, base http.RoundTripper) {
	t.Helper()
	rt := bodyRT(t, base, retrip.WithBodyBuffer(int64(len(e.content))))
	for range e.runs {
		const half = 64 << 10
		gate := newBodyGate(string(e.content[:half]), string(e.content[half:]))
		first := httptestx.NewBody(gate)
		second := httptestx.NewBody(bytes.NewReader(e.content))
		sends := 0
		open := sync.OnceFunc(func() { close(gate.open) })
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		t.Cleanup(func() { cancel(); open() })
		ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) {
			if sends++; sends == 2 {
				open()
			}
		}})
		req := bodyRequest(t, http.MethodPut, url, nil).WithContext(ctx)
		req.ContentLength, req.Body = -1, first
		var f *os.File
		switch e.kind {
		case "file":
			var err error
			f, err = os.Open(e.name)
			require.NoError(t, err)
			req.Body = f
		case "GetBody":
			req.GetBody = func() (io.ReadCloser, error) { return second, nil }
		}
		r := bodyDo(t, rt, req)
		require.NoError(t, r.err)
		require.Equal(t, 200, r.code)
		require.Len(t, r.events, 2)
		switch e.kind {
		case "file":
			bodyEventually(t, "the file is closed", func() bool { return bodyIsClosed(f) })
		case "GetBody":
			second.CheckClosedOnce(t)
			first.CheckClosedOnce(t)
		default:
			first.CheckClosedOnce(t)
			require.Zero(t, first.LateReads())
		}
	}
}
