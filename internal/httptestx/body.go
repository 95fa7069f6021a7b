package httptestx

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// closeLimit bounds how long a body may take to be closed: a transport closes
// request bodies after RoundTrip has returned.
const closeLimit = 5 * time.Second

// Body is a request or response body that counts what is done with it. It is
// safe for concurrent use as far as its source is.
type Body struct {
	src    io.Reader
	reads  atomic.Int64
	bytes  atomic.Int64
	closes atomic.Int64
	late   atomic.Int64
}

// NewBody counts over the source and closes it too where it can be closed.
func NewBody(src io.Reader) *Body { return &Body{src: src} }

// Read implements io.Reader.
func (b *Body) Read(p []byte) (int, error) {
	b.reads.Add(1)
	if b.closes.Load() > 0 {
		b.late.Add(1)
	}
	n, err := b.src.Read(p)
	b.bytes.Add(int64(n))
	return n, err
}

// Close implements io.Closer.
func (b *Body) Close() error {
	b.closes.Add(1)
	if c, ok := b.src.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

// Reads returns how often Read was called.
func (b *Body) Reads() int { return int(b.reads.Load()) }

// BytesRead returns how many bytes were read.
func (b *Body) BytesRead() int64 { return b.bytes.Load() }

// Closes returns how often Close was called.
func (b *Body) Closes() int { return int(b.closes.Load()) }

// LateReads returns how many reads began after the first Close.
func (b *Body) LateReads() int { return int(b.late.Load()) }

// CheckClosedOnce fails the test unless the body is closed exactly once within
// five seconds.
func (b *Body) CheckClosedOnce(tb TB) {
	tb.Helper()
	poll(closeLimit, func() bool { return b.Closes() > 0 })
	if n := b.Closes(); n != 1 {
		tb.Errorf("httptestx: a body was closed %d times, want once", n)
	}
}

// Bodies hands out independent bodies of one text and remembers each.
type Bodies struct {
	text string

	mu       sync.Mutex
	all      []*Body
	failFrom int
	failWith error
}

// NewBodies hands out bodies of the text.
func NewBodies(text string) *Bodies { return &Bodies{text: text} }

// FailFrom lets the nth call of GetBody (from 1) and all later ones fail.
func (b *Bodies) FailFrom(n int, err error) *Bodies {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.failFrom, b.failWith = n, err
	return b
}

// Request makes a request whose Body and GetBody come from b.
func (b *Bodies) Request(ctx context.Context, tb TB, method, url string) *http.Request {
	tb.Helper()
	req, err := http.NewRequestWithContext(ctx, method, url, b.next())
	if err != nil {
		tb.Fatalf("httptestx: make a request: %v", err)
	}
	req.ContentLength = int64(len(b.text))
	calls := 0
	req.GetBody = func() (io.ReadCloser, error) {
		b.mu.Lock()
		calls++
		failed := b.failFrom > 0 && calls >= b.failFrom
		err := b.failWith
		b.mu.Unlock()
		if failed {
			return nil, err
		}
		return b.next(), nil
	}
	return req
}

// All returns the bodies handed out so far, the request's first Body included.
func (b *Bodies) All() []*Body {
	b.mu.Lock()
	defer b.mu.Unlock()
	return append([]*Body(nil), b.all...)
}

// CheckClosedOnce fails the test unless every body handed out is closed exactly
// once.
func (b *Bodies) CheckClosedOnce(tb TB) {
	tb.Helper()
	for _, body := range b.All() {
		body.CheckClosedOnce(tb)
	}
}

func (b *Bodies) next() *Body {
	b.mu.Lock()
	defer b.mu.Unlock()
	body := NewBody(strings.NewReader(b.text))
	b.all = append(b.all, body)
	return body
}

// OneShot hides what a reader is, so that http.NewRequest knows neither its
// length nor how to read it again.
func OneShot(r io.Reader) io.Reader { return struct{ io.Reader }{r} }

// FailAfter yields the first n bytes of the text, then the error.
func FailAfter(text string, n int, err error) io.Reader {
	return io.MultiReader(strings.NewReader(text[:n]), errReader{err})
}

type errReader struct{ err error }

func (r errReader) Read([]byte) (int, error) { return 0, r.err }

// Slow yields the source in pieces of size bytes with a pause before each.
func Slow(src io.Reader, size int, pause time.Duration) io.Reader {
	return &slowReader{src, size, pause}
}

type slowReader struct {
	src   io.Reader
	size  int
	pause time.Duration
}

func (r *slowReader) Read(p []byte) (int, error) {
	<-time.After(r.pause)
	return r.src.Read(p[:min(len(p), r.size)])
}

// Pattern yields n bytes that differ from their neighbours and uses no memory:
// a large upload whose hash shows a shifted or repeated piece.
func Pattern(n int64) io.Reader { return &patternReader{left: n} }

type patternReader struct{ at, left int64 }

func (r *patternReader) Read(p []byte) (int, error) {
	if r.left == 0 {
		return 0, io.EOF
	}
	p = p[:min(int64(len(p)), r.left)]
	for i := range p {
		p[i] = byte((r.at + int64(i)) % 251) //nolint:gosec // below 251
	}
	r.at += int64(len(p))
	r.left -= int64(len(p))
	return len(p), nil
}

// poll asks until ready reports true or the limit has passed.
func poll(limit time.Duration, ready func() bool) bool {
	for end := time.Now().Add(limit); !ready(); {
		if time.Now().After(end) {
			return false
		}
		time.Sleep(2 * time.Millisecond)
	}
	return true
}
