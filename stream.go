package retrip

import (
	"io"
	"sync"
)

// stream is a body that can be read once. What was read of it is held for a further
// attempt up to max bytes; with max 0 it can be sent again only while nothing was read.
// Attempts take turns as its owner: a Read that the base of an earlier attempt has in
// flight leaves its bytes to the new one.
type stream struct {
	src     io.ReadCloser
	reading sync.Mutex // one Read of src at a time, across attempts

	mu     sync.Mutex // guards the rest; never held during a Read of src
	max    int64
	total  int64  // read of src
	held   []byte // all that was read of src, unless spent or final
	spent  bool   // more was read than may be held: no further attempt
	final  bool   // no attempt can follow, so that nothing need be held
	ended  error  // what src ended with
	owner  *streamReader
	over   bool // the operation has ended
	closed bool
}

func (s *stream) isSpent() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.spent
}

// open hands the stream to a new owner, from its first byte.
func (s *stream) open() (io.ReadCloser, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.spent {
		return nil, errUnreplayable
	}
	s.owner = &streamReader{stream: s}
	return s.owner, nil
}

// stopHolding gives memory back when no attempt can follow the one that reads.
func (s *stream) stopHolding() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.final = true
}

// finish is the operation's end: src is closed unless the base still reads it.
func (s *stream) finish() {
	s.mu.Lock()
	s.over, s.final = true, true
	last := s.owner == nil || s.owner.closed
	s.mu.Unlock()
	switch {
	case !last:
	case s.reading.TryLock():
		s.reading.Unlock()
		_ = s.close()
	default:
		// A Close may wait for the Read in flight; the answer does not, as in net/http
		// (h2_bundle.go, abortStreamLocked).
		go func() { _ = s.close() }()
	}
}

func (s *stream) close() error {
	s.mu.Lock()
	done := s.closed
	s.closed, s.held = true, nil
	s.mu.Unlock()
	if done {
		return nil
	}
	return s.src.Close()
}

// A streamReader is one attempt's turn.
type streamReader struct {
	*stream

	at     int  // how much of held was read; all of it where src is read
	closed bool // guarded by stream.mu
}

func (r *streamReader) Read(p []byte) (int, error) {
	r.reading.Lock()
	defer r.reading.Unlock()
	if n, err, done := r.readHeld(p); done {
		return n, err
	}
	n, err := r.src.Read(p)

	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.ended = err
	}
	r.total += int64(n)
	if r.owner != r {
		r.held = append(r.held, p[:n]...)
		return 0, errSuperseded
	}
	r.spent = r.spent || r.total > r.max
	if r.spent || r.final {
		r.held = nil
	} else {
		r.held = append(r.held, p[:n]...)
	}
	r.at = len(r.held)
	return n, err
}

func (r *streamReader) readHeld(p []byte) (n int, err error, done bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.owner != r:
		return 0, errSuperseded, true
	case r.at < len(r.held):
		n = copy(p, r.held[r.at:])
		r.at += n
		return n, nil, true
	case r.ended != nil:
		return 0, r.ended, true
	case r.stream.closed:
		return 0, errSuperseded, true
	}
	return 0, nil, false
}

// Close holds the closing of src back while another attempt may need it.
func (r *streamReader) Close() error {
	r.mu.Lock()
	r.closed = true
	last := r.owner == r && (r.over || r.spent)
	r.mu.Unlock()
	if !last {
		return nil
	}
	return r.close()
}
