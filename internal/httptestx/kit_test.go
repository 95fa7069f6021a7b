package httptestx

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// recordingTB keeps the failures that a checker reports.
type recordingTB struct {
	testing.TB
	mu       sync.Mutex
	failures []string
	cleanups []func()
}

func (r *recordingTB) Errorf(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = append(r.failures, fmt.Sprintf(format, args...))
}

func (r *recordingTB) Cleanup(f func()) { r.cleanups = append(r.cleanups, f) }

func (r *recordingTB) finish() string {
	for _, f := range slices.Backward(r.cleanups) {
		f()
	}
	return strings.Join(r.failures, "; ")
}

func TestCheckedFindsEachBreach(t *testing.T) {
	ok := func(req *http.Request) (*http.Response, error) { return Canned(req, 200, ""), nil }
	tests := []struct {
		name, want string
		rt         RoundTripFunc
	}{
		{"neither", "neither response nor error", func(*http.Request) (*http.Response, error) { return nil, nil }}, //nolint:nilnil // the breach itself
		{"both", "response 200 and error", func(r *http.Request) (*http.Response, error) { return Canned(r, 200, ""), io.EOF }},
		{"no body", "without a body", func(r *http.Request) (*http.Response, error) { return &http.Response{Request: r}, nil }},
		{"foreign request", "not the caller's", func(r *http.Request) (*http.Response, error) { return ok(r.Clone(r.Context())) }},
		{"header", "Header's content", func(r *http.Request) (*http.Response, error) { r.Header.Set("X-A", "b"); return ok(r) }},
		{"header map", "changed: Header", func(r *http.Request) (*http.Response, error) { r.Header = r.Header.Clone(); return ok(r) }},
		{"url", "URL's content", func(r *http.Request) (*http.Response, error) { r.URL.Host = "other"; return ok(r) }},
		{"url user", "URL's content", func(r *http.Request) (*http.Response, error) { *r.URL.User = *url.User("x"); return ok(r) }},
		{"body", "changed: Body", func(r *http.Request) (*http.Response, error) { r.Body = http.NoBody; return ok(r) }},
		{"get body", "changed: GetBody", func(r *http.Request) (*http.Response, error) { r.GetBody = nil; return ok(r) }},
		{"length", "changed: ContentLength", func(r *http.Request) (*http.Response, error) { r.ContentLength++; return ok(r) }},
		{"host", "changed: Host", func(r *http.Request) (*http.Response, error) { r.Host = "x"; return ok(r) }},
		{"trailer", "Trailer's content", func(r *http.Request) (*http.Response, error) { r.Trailer.Set("X-T", "b"); return ok(r) }},
		{"encoding", "TransferEncoding's content", func(r *http.Request) (*http.Response, error) {
			r.TransferEncoding[0] = "gzip"
			return ok(r)
		}},
		{"form", "Form's content", func(r *http.Request) (*http.Response, error) { r.Form.Set("a", "b"); return ok(r) }},
		{"closed twice", "closed 2 times", func(r *http.Request) (*http.Response, error) { r.Body.Close(); return ok(r) }},
		{"faithful", "", ok},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			rec := &recordingTB{TB: t}
			req := NewBodies("abc").Request(t.Context(), t, http.MethodPut, "http://u:p@origin.test/")
			req.Trailer = http.Header{"X-T": nil}
			req.TransferEncoding = []string{"chunked"}
			req.Form = url.Values{}
			body := req.Body
			resp, err := Checked(rec, tt.rt).RoundTrip(req)
			body.Close()
			if err == nil && resp != nil && resp.Body != nil {
				resp.Body.Close()
			}
			if tt.want == "" {
				assert.Empty(t, rec.finish())
				return
			}
			assert.Contains(t, rec.finish(), tt.want)
		})
	}
}

func TestCheckedForwardsWhatItWraps(t *testing.T) {
	base := NewTransport(t)
	rt := Checked(t, base)
	assert.Same(t, base, rt.(interface{ Unwrap() http.RoundTripper }).Unwrap())
	o := NewOrigin(t, Sequence(OK("")))
	_, err := send(t, rt, http.MethodGet, o.URL, nil)
	require.NoError(t, err)
	rt.(interface{ CloseIdleConnections() }).CloseIdleConnections()
	o.Await(t, "the idle connection to go", func() bool { return o.Open() == 0 })
}

func TestLeaksFindsAGoroutineAndASocket(t *testing.T) {
	rec := &recordingTB{TB: t}
	Leaks(rec)
	stop := make(chan struct{})
	go func() { <-stop }()
	all := goroutines()
	found := false
	for _, stack := range all {
		found = found || strings.Contains(stack, "TestLeaksFindsAGoroutineAndASocket.func1")
	}
	assert.True(t, found, "the goroutine is seen")
	before := countSockets()
	ln := Listen(t)
	assert.Equal(t, before+1, countSockets())
	ln.Close()
	close(stop)
	assert.Empty(t, rec.finish())
}

func TestBodyCounts(t *testing.T) {
	inner := NewBody(strings.NewReader("abcdef"))
	b := NewBody(inner)
	p := make([]byte, 4)
	n, err := b.Read(p)
	require.NoError(t, err)
	assert.Equal(t, 4, n)
	require.NoError(t, b.Close())
	_, err = b.Read(p)
	require.NoError(t, err)
	assert.Equal(t, 2, b.Reads())
	assert.EqualValues(t, 6, b.BytesRead())
	assert.Equal(t, 1, b.LateReads())
	assert.Equal(t, 1, inner.Closes())
	b.CheckClosedOnce(t)
	b.Close()
	rec := &recordingTB{TB: t}
	b.CheckClosedOnce(rec)
	assert.Contains(t, rec.finish(), "closed 2 times")
}

func TestBodiesAreIndependentAndRemembered(t *testing.T) {
	broken := errors.New("gone")
	b := NewBodies("alpha").FailFrom(2, broken)
	req := b.Request(t.Context(), t, http.MethodPut, "http://origin.test/")
	assert.EqualValues(t, 5, req.ContentLength)
	second, err := req.GetBody()
	require.NoError(t, err)
	_, err = req.GetBody()
	require.ErrorIs(t, err, broken)
	for _, body := range []io.ReadCloser{second, req.Body} {
		text, err := io.ReadAll(body)
		require.NoError(t, err)
		assert.Equal(t, "alpha", string(text))
		body.Close()
	}
	assert.Len(t, b.All(), 2)
	b.CheckClosedOnce(t)
}

func TestReaders(t *testing.T) {
	broken := errors.New("disk gone")
	text, err := io.ReadAll(FailAfter("abcdef", 3, broken))
	require.ErrorIs(t, err, broken)
	assert.Equal(t, "abc", string(text))

	pattern, err := io.ReadAll(Pattern(600))
	require.NoError(t, err)
	assert.Len(t, pattern, 600)
	assert.EqualValues(t, 250, pattern[250])
	assert.EqualValues(t, 0, pattern[251])

	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://origin.test/", OneShot(strings.NewReader("abc")))
	require.NoError(t, err)
	assert.Nil(t, req.GetBody)
	assert.Zero(t, req.ContentLength)

	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		text, err := io.ReadAll(Slow(strings.NewReader("abcdef"), 2, time.Second))
		require.NoError(t, err)
		assert.Equal(t, "abcdef", string(text))
		assert.Equal(t, 4*time.Second, time.Since(start))
	})
}

func TestServeMemoryWorksInABubble(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hits := 0
		rt := ServeMemory(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			hits++
			text, err := io.ReadAll(r.Body)
			assert.NoError(t, err)
			time.Sleep(time.Hour)
			w.Header().Set("X-Length", strconv.Itoa(len(text)))
			_, err = io.WriteString(w, r.URL.Path)
			assert.NoError(t, err)
		}))
		start := time.Now()
		for range 2 {
			got, err := send(t, rt, http.MethodPost, "http://origin.test/a", strings.NewReader(strings.Repeat("x", 1<<20)))
			require.NoError(t, err)
			assert.Equal(t, "/a", got.text)
			assert.Equal(t, "1048576", got.header.Get("X-Length"))
		}
		assert.Equal(t, 2*time.Hour, time.Since(start))
		assert.Equal(t, 2, hits)
	})
}

func TestMemoryRefusesAfterClose(t *testing.T) {
	m := NewMemory()
	m.Close()
	m.Close()
	_, err := m.DialContext(t.Context(), "tcp", "origin.test:80")
	require.ErrorContains(t, err, "connection refused")
	_, err = m.Accept()
	require.Error(t, err)
}

func TestStubAnswersFromItsList(t *testing.T) {
	s := Statuses(503, 200)
	for _, want := range []int{503, 200, 200} {
		body := NewBody(strings.NewReader("abc"))
		got, err := send(t, s, http.MethodPost, "http://origin.test/", body)
		require.NoError(t, err)
		assert.Equal(t, want, got.code)
		assert.Equal(t, http.StatusText(want), got.text)
		assert.EqualValues(t, 3, body.BytesRead())
		body.CheckClosedOnce(t)
	}
	assert.Equal(t, 3, s.Calls())
	for _, b := range s.Bodies() {
		b.CheckClosedOnce(t)
	}
	_, err := send(t, NewStub(Fails(io.EOF)), http.MethodGet, "http://origin.test/", nil) //nolint:bodyclose // an error has none
	require.ErrorIs(t, err, io.EOF)
	broken := errors.New("disk gone")
	_, err = send(t, s, http.MethodPost, "http://origin.test/", FailAfter("a", 1, broken))
	require.ErrorIs(t, err, broken)
	resp := Canned(&http.Request{}, 429, "x", "Retry-After: 3")
	resp.Body.Close()
	assert.Equal(t, "3", resp.Header.Get("Retry-After"))
}

// A side that fails at once would be tried ever more often, to find how long it takes.
func TestComparisonOfASideThatFailsEnds(t *testing.T) {
	calls := 0
	got := testing.Benchmark(func(b *testing.B) {
		b.Helper()
		Compare(b, []Side{{Name: "broken", Work: func(int) { calls++; b.Fail() }}})
	})
	require.Zero(t, got.N)
	require.Equal(t, 1, calls)
}
