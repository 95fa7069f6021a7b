package retrip

import (
	"io"
	"net/http"
	"sync"
	"time"
)

const (
	// A discarded body within these bounds is read to its end, so that its connection is
	// used again: a dial costs more than 64 KiB, and a trickle must not hold the repeat up
	// (WIRE.md part D).
	drainBytes = 64 << 10
	drainTime  = 50 * time.Millisecond

	peekBytes = 4 << 10
	peekTime  = 50 * time.Millisecond
)

// discard gives the response of an attempt up for a repeat.
func discard(resp *http.Response, a *traced) {
	if resp.Body == nil || resp.Body == http.NoBody {
		return
	}
	var once sync.Once
	closeBody := func() {
		once.Do(func() {
			// First the context: on HTTP/2 Close waits for a Read of the request's body
			// that is in flight, as long as the context lasts. On HTTP/1 the connection is
			// idle already where the end was read.
			if a != nil {
				a.release()
			}
			_ = resp.Body.Close()
		})
	}
	if resp.ContentLength > drainBytes {
		closeBody()
		return
	}
	// Close unblocks a Read in flight, which a limit of bytes alone would wait for.
	timer := time.AfterFunc(drainTime, closeBody)
	// One byte more than the limit: where the length is unknown, the end shows only then.
	_, _ = io.CopyN(io.Discard, resp.Body, drainBytes+1)
	timer.Stop()
	closeBody()
}

// closeResponse closes a response that nobody gets.
func closeResponse(resp *http.Response) {
	if resp != nil && resp.Body != nil {
		_ = resp.Body.Close()
	}
}

// answerBody is an attempt as the body of its response: it releases the attempt's context
// when that is done with.
type answerBody traced

func (b *answerBody) Read(p []byte) (int, error) {
	n, err := b.answer.Read(p)
	if err != nil {
		(*traced)(b).answerRead()
	}
	return n, err
}

func (b *answerBody) Close() error {
	err := b.answer.Close()
	b.cancel()
	return err
}

// keep makes the response of an attempt the caller's: its body releases the attempt's
// context. A 101 is left untouched, since its body is a connection to write to; ending
// the context after it would do no harm, and not ending it costs nothing but memory until
// the caller's context ends (WIRE.md C16, C17).
func (a *traced) keep(resp *http.Response) {
	switch {
	case a.cancel == nil || resp.StatusCode == http.StatusSwitchingProtocols:
	case resp.Body == nil || resp.Body == http.NoBody:
		a.answerRead()
	default:
		a.answer = resp.Body
		resp.Body = (*answerBody)(a)
	}
}

// answerRead tells that the answer was read to its end, or failed. On HTTP/2 an answer can
// end while the request is still being sent, and the base goes on with it: the context then
// lasts until that is done, or until Close.
func (a *traced) answerRead() {
	a.mu.Lock()
	a.read = true
	over := !a.uploading()
	a.mu.Unlock()
	if over {
		a.cancel()
	}
}

// uploading reports whether a body is still being sent. It requires that mu is held.
func (a *traced) uploading() bool {
	return hasBody(&a.request) && a.seen.GotConn > 0 && !a.sent
}

// peekBody is a response body that a predicate may look into: what it reads is held for
// whoever gets the response. Only a predicate that reads costs a goroutine, because the
// base's Read cannot be interrupted without losing the rest.
type peekBody struct {
	src io.ReadCloser

	deadline time.Time
	at       int // how far the predicate has read

	mu      sync.Mutex
	held    []byte
	err     error         // what src ended with
	reading chan struct{} // closed when the Read in flight is over; nil: none
}

// peek puts a body in place that f may read from, and afterwards one that is whole.
func peek(resp *http.Response, f func()) {
	if resp == nil || resp.Body == nil || resp.Body == http.NoBody {
		f()
		return
	}
	body := resp.Body
	p := &peekBody{src: body}
	resp.Body = p
	defer func() { // a predicate that panics leaves a body to close
		if resp.Body = body; p.used() {
			resp.Body = &peekedBody{peek: p}
		}
	}()
	f()
}

func (p *peekBody) used() bool { return !p.deadline.IsZero() }

// Read reads for the predicate, up to its bounds.
func (p *peekBody) Read(b []byte) (int, error) {
	if p.deadline.IsZero() {
		p.deadline = time.Now().Add(peekTime)
	}
	for {
		p.mu.Lock()
		n := copy(b, p.held[p.at:])
		p.at += n
		err, reading := p.err, p.reading
		p.mu.Unlock()
		switch {
		case n > 0 || len(b) == 0:
			return n, nil
		case p.at >= peekBytes:
			return 0, io.EOF
		case err != nil:
			return 0, err
		case reading == nil:
			reading = p.fetch(peekBytes - p.at)
		}
		timer := time.NewTimer(time.Until(p.deadline))
		select {
		case <-reading:
			timer.Stop()
		case <-timer.C:
			return 0, io.EOF
		}
	}
}

func (p *peekBody) fetch(n int) chan struct{} {
	done := make(chan struct{})
	p.mu.Lock()
	p.reading = done
	p.mu.Unlock()
	go func() {
		buf := make([]byte, n)
		n, err := p.src.Read(buf)
		p.mu.Lock()
		p.held, p.err, p.reading = append(p.held, buf[:n]...), err, nil
		p.mu.Unlock()
		close(done)
	}()
	return done
}

// Close does nothing: the body is not the predicate's.
func (p *peekBody) Close() error { return nil }

// peekedBody gives what a predicate read, then the rest.
type peekedBody struct {
	peek *peekBody
	at   int
}

func (b *peekedBody) Read(p []byte) (int, error) {
	for {
		b.peek.mu.Lock()
		n := copy(p, b.peek.held[b.at:])
		b.at += n
		err, reading := b.peek.err, b.peek.reading
		b.peek.mu.Unlock()
		switch {
		case n > 0 || len(p) == 0:
			return n, nil
		case err != nil:
			return 0, err
		case reading == nil:
			return b.peek.src.Read(p)
		}
		<-reading
	}
}

func (b *peekedBody) Close() error { return b.peek.src.Close() }
