package matrix

import (
	"context"
	"net"
	"net/http"
	"sync"
	"sync/atomic"

	"golang.org/x/net/http2"

	"github.com/retrip/retrip/internal/httptestx"
)

// H2Stream is one stream while a play runs on it.
type H2Stream struct {
	ctx    context.Context //nolint:containedctx // the connection's life
	c      *H2Conn
	id     uint32
	method string
	entry  *httptestx.Entry
	steps  H2Play

	answered, refused bool // guarded by the connection's writing lock

	whole   chan struct{} // closed when the request is complete
	ended   sync.Once
	aborted chan struct{} // closed when the client resets the stream
	reset   sync.Once
	got     atomic.Int64
	more    chan struct{}
}

func (s *H2Stream) play() {
	for _, step := range s.steps {
		if step(s) != nil {
			return
		}
	}
}

func (s *H2Stream) finish() {
	s.ended.Do(func() {
		s.entry.Done(nil)
		close(s.whole)
	})
}

// refuse notes that the origin has promised not to process the stream.
func (s *H2Stream) refuse() {
	s.refused = true
	s.entry.Refuse()
}

// wait ends with the channel, the client's reset, or the connection.
func (s *H2Stream) wait(ch <-chan struct{}) error {
	select {
	case <-ch:
		return nil
	case <-s.aborted:
		return errEnded
	case <-s.ctx.Done():
		return s.ctx.Err()
	}
}

// H2OK reads the whole request and answers 200 with the body.
func H2OK(body string, header ...string) H2Play {
	return H2Play{H2ReadAll, H2Respond(http.StatusOK, body, header...)}
}

// H2Status reads the whole request and answers with the code.
func H2Status(code int, body string, header ...string) H2Play {
	return H2Play{H2ReadAll, H2Respond(code, body, header...)}
}

// H2ReadAll waits for the end of the request.
func H2ReadAll(s *H2Stream) error { return s.wait(s.whole) }

// H2ReadBody waits for n bytes of the body.
func H2ReadBody(n int64) H2Step {
	return func(s *H2Stream) error {
		for s.got.Load() < n {
			if err := s.wait(s.more); err != nil {
				return err
			}
		}
		return nil
	}
}

// H2Respond answers with a complete response. Headers are lines such as
// "Retry-After: 1".
func H2Respond(code int, body string, header ...string) H2Step {
	return func(s *H2Stream) error {
		bare := body == "" || s.method == http.MethodHead
		if err := s.headers(bare, code, header...); err != nil || bare {
			return err
		}
		return s.c.write(func(w *http2.Framer) error { return w.WriteData(s.id, true, []byte(body)) })
	}
}

// H2Begin answers with the headers of a response and a first piece of its body.
func H2Begin(code int, piece string, header ...string) H2Step {
	return func(s *H2Stream) error {
		if err := s.headers(false, code, header...); err != nil || piece == "" {
			return err
		}
		return s.c.write(func(w *http2.Framer) error { return w.WriteData(s.id, false, []byte(piece)) })
	}
}

// H2Reset resets the stream with the code.
func H2Reset(code http2.ErrCode) H2Step {
	return func(s *H2Stream) error {
		return s.c.write(func(w *http2.Framer) error {
			if code == http2.ErrCodeRefusedStream && !s.answered {
				s.refuse()
			}
			return w.WriteRSTStream(s.id, code)
		})
	}
}

// H2GoAwayBelow sends a GOAWAY whose last stream lies below this one: the
// origin promises not to have processed it (RFC 9113 §6.8).
func H2GoAwayBelow(code http2.ErrCode) H2Step {
	return func(s *H2Stream) error {
		return s.c.goAway(max(s.id, 2)-2, code, "below")
	}
}

// H2GoAwayCovering sends a GOAWAY whose last stream is this one.
func H2GoAwayCovering(code http2.ErrCode) H2Step {
	return func(s *H2Stream) error {
		return s.c.goAway(s.id, code, "covering")
	}
}

// H2FIN ends the origin's side of the connection; what the client still sends
// is noted until it closes.
func H2FIN(s *H2Stream) error {
	if err := s.c.closeWrite(); err != nil {
		return err
	}
	return errEnded
}

// H2RST resets the connection.
func H2RST(s *H2Stream) error {
	if t, ok := s.c.raw.(*net.TCPConn); ok {
		if err := t.SetLinger(0); err != nil {
			return err
		}
	}
	s.c.raw.Close()
	return errEnded
}

// H2Silence says nothing until the client resets the stream or closes.
func H2Silence(s *H2Stream) error { return s.wait(nil) }

// H2WaitFor waits for the channel.
func H2WaitFor(ch <-chan struct{}) H2Step {
	return func(s *H2Stream) error { return s.wait(ch) }
}

// H2Call runs f.
func H2Call(f func()) H2Step {
	return func(*H2Stream) error {
		f()
		return nil
	}
}
