package httptestx

import (
	"bytes"
	"context"
	"crypto/sha256"
	"hash"
	"net/http"
	"sync"
	"testing"
	"time"
)

// TB is testing.TB under a name that code outside of test files may use.
type TB = testing.TB

// keptBody is how much of a body a Seen holds in full.
const keptBody = 64 << 10

// awaitLimit bounds Await, so that a test that waits for nothing fails.
const awaitLimit = 10 * time.Second

// Seen is one request whose header block reached an origin completely.
type Seen struct {
	Conn   int    // the connection's number, from 1
	OnConn int    // the request's number on that connection, from 1
	Stream uint32 // HTTP/2 only

	Method, Target, Host, Proto string

	Header           http.Header
	Trailer          http.Header
	ContentLength    int64 // -1 where the request named none
	TransferEncoding []string
	RawHead          string // HTTP/1 only: the header block as it arrived

	Body      string // the first 64 KiB
	BodyBytes int64
	SHA256    [sha256.Size]byte // of the body bytes that arrived
	Complete  bool              // the whole request was read: it may have been executed
	Refused   bool              // the origin told the client, in the protocol's words, that it did not

	Start, End time.Time // header block complete; request complete
}

// Ledger counts what reached an origin. It is safe for concurrent use; the
// zero value is empty and ready.
type Ledger struct {
	mu      sync.Mutex
	conns   int
	open    int
	bytes   int64
	entries []*Entry
	changed chan struct{}
}

// Entry is a request that is being read.
type Entry struct {
	l    *Ledger
	seen Seen
	hash hash.Hash
	body bytes.Buffer
}

// Accepted notes a new connection and returns its number, from 1.
func (l *Ledger) Accepted() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.conns++
	l.open++
	l.notify()
	return l.conns
}

// Gone notes that the origin has closed a connection.
func (l *Ledger) Gone() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.open--
	l.notify()
}

// Arrived notes n bytes of the application's protocol, below any parsing.
func (l *Ledger) Arrived(n int) {
	if n == 0 {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.bytes += int64(n)
	l.notify()
}

// Head notes a complete header block.
func (l *Ledger) Head(s Seen) *Entry {
	l.mu.Lock()
	defer l.mu.Unlock()
	s.Start = time.Now()
	e := &Entry{l: l, seen: s, hash: sha256.New()}
	l.entries = append(l.entries, e)
	l.notify()
	return e
}

// Data notes bytes of the request's body.
func (e *Entry) Data(p []byte) {
	e.l.mu.Lock()
	defer e.l.mu.Unlock()
	e.hash.Write(p)
	e.seen.BodyBytes += int64(len(p))
	if room := keptBody - e.body.Len(); room > 0 {
		e.body.Write(p[:min(room, len(p))])
	}
	e.l.notify()
}

// Done notes that the request was read completely.
func (e *Entry) Done(trailer http.Header) {
	e.l.mu.Lock()
	defer e.l.mu.Unlock()
	e.seen.Complete, e.seen.Trailer, e.seen.End = true, trailer, time.Now()
	e.l.notify()
}

// Refuse notes that the origin promised not to have executed the request.
func (e *Entry) Refuse() {
	e.l.mu.Lock()
	defer e.l.mu.Unlock()
	e.seen.Refused = true
	e.l.notify()
}

// Conns returns how many connections were accepted.
func (l *Ledger) Conns() int { l.mu.Lock(); defer l.mu.Unlock(); return l.conns }

// Open returns how many connections are open at the origin.
func (l *Ledger) Open() int { l.mu.Lock(); defer l.mu.Unlock(); return l.open }

// Bytes returns how many bytes were read, TLS removed.
func (l *Ledger) Bytes() int64 { l.mu.Lock(); defer l.mu.Unlock(); return l.bytes }

// Heads returns how many complete header blocks arrived.
func (l *Ledger) Heads() int { l.mu.Lock(); defer l.mu.Unlock(); return len(l.entries) }

// Effects returns how many requests were read completely and not refused. Each
// may have been executed, whatever was answered to it.
func (l *Ledger) Effects() int {
	n := 0
	for _, s := range l.Requests() {
		if s.Complete && !s.Refused {
			n++
		}
	}
	return n
}

// Requests returns the requests in the order their header blocks arrived.
func (l *Ledger) Requests() []Seen {
	l.mu.Lock()
	defer l.mu.Unlock()
	all := make([]Seen, len(l.entries))
	for i, e := range l.entries {
		all[i] = e.seen
		all[i].Body = e.body.String()
		e.hash.Sum(all[i].SHA256[:0])
	}
	return all
}

// Await blocks until ready reports true. It asks again after each change that
// the ledger notes and fails the test after ten seconds.
func (l *Ledger) Await(tb TB, what string, ready func() bool) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), awaitLimit)
	defer cancel()
	for {
		l.mu.Lock()
		if l.changed == nil {
			l.changed = make(chan struct{})
		}
		changed := l.changed
		l.mu.Unlock()
		if ready() {
			return
		}
		select {
		case <-changed:
		case <-ctx.Done():
			tb.Fatalf("httptestx: waited in vain for %s (connections %d, open %d, heads %d, effects %d)",
				what, l.Conns(), l.Open(), l.Heads(), l.Effects())
		}
	}
}

func (l *Ledger) notify() {
	if l.changed != nil {
		close(l.changed)
		l.changed = nil
	}
}
