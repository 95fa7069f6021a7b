package httptestx

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httputil"
	"net/textproto"
	"time"
)

// lingerLimit bounds how long an origin that has said its last word waits for
// the client to close.
const lingerLimit = 3 * time.Second

// errEnded is how a step says that the connection is over on purpose.
var errEnded = errors.New("httptestx: the connection was ended")

// Conn is the origin's end of a connection while a play runs on it. Only the
// play's goroutine may use it.
type Conn struct {
	// Number is the connection's number, from 1.
	Number int

	o     *Origin
	raw   net.Conn
	cert  Cert
	tls   *tls.Config
	layer net.Conn // what the application's bytes go through: raw, or TLS above it
	in    *bufio.Reader
	turns int

	arriving arriving

	request *Entry
	body    io.Reader // what is left of the current request's body; nil: nothing
	method  string
}

func (c *Conn) serve() {
	defer c.o.dismiss(c)
	defer c.raw.Close()
	for {
		if c.turns > 0 && c.awaitByte() != nil {
			return
		}
		c.request, c.body = nil, nil
		for _, step := range c.o.next(c) {
			if err := step(c); err != nil {
				return
			}
		}
		if c.request == nil || c.body != nil {
			return
		}
	}
}

// Context ends when the origin is closed.
func (c *Conn) Context() context.Context { return c.o.stopped }

// stream is the layer of the application's bytes; TLS begins with its first use.
func (c *Conn) stream() net.Conn {
	if c.layer != nil {
		return c.layer
	}
	c.layer = c.raw
	if c.o.secure {
		cfg := c.tls
		if cfg == nil {
			cfg = ServerTLS(c.cert)
		}
		c.layer = tls.Server(c.raw, cfg)
	}
	return c.layer
}

func (c *Conn) reader() *bufio.Reader {
	if c.in == nil {
		c.in = bufio.NewReader(&c.arriving)
		c.arriving = arriving{r: c.stream(), l: &c.o.Ledger}
	}
	return c.in
}

// awaitByte waits for the first byte of a request and takes no more than that
// from the connection: a close that follows then finds unread bytes, and the
// system turns it into a reset.
func (c *Conn) awaitByte() error {
	if c.reader().Buffered() > 0 || c.arriving.held > 0 {
		return nil
	}
	return c.arriving.hold()
}

// arriving counts what is read from the connection and can hold one byte back.
type arriving struct {
	r    io.Reader
	l    *Ledger
	held int
	byte [1]byte
}

func (a *arriving) hold() error {
	n, err := a.r.Read(a.byte[:])
	a.l.Arrived(n)
	a.held = n
	if n > 0 {
		return nil
	}
	return err
}

func (a *arriving) Read(p []byte) (int, error) {
	if a.held > 0 && len(p) > 0 {
		a.held = 0
		return copy(p, a.byte[:]), nil
	}
	n, err := a.r.Read(p)
	a.l.Arrived(n)
	return n, err
}

// readHead reads one header block and notes it.
func (c *Conn) readHead() error {
	var head bytes.Buffer
	for {
		line, err := c.reader().ReadSlice('\n')
		head.Write(line)
		if errors.Is(err, bufio.ErrBufferFull) {
			continue
		}
		if err != nil {
			return err
		}
		if bytes.HasSuffix(head.Bytes(), []byte("\n\r\n")) {
			break
		}
	}
	raw := head.String()
	req, err := http.ReadRequest(bufio.NewReader(&head))
	if err != nil {
		return err
	}
	c.method = req.Method
	c.request = c.o.Head(Seen{
		Conn:             c.Number,
		OnConn:           c.turns,
		Method:           req.Method,
		Target:           req.RequestURI,
		Host:             req.Host,
		Proto:            req.Proto,
		Header:           req.Header,
		ContentLength:    req.ContentLength,
		TransferEncoding: req.TransferEncoding,
		RawHead:          raw,
	})
	switch {
	case len(req.TransferEncoding) > 0:
		c.body = httputil.NewChunkedReader(c.reader())
	case req.ContentLength > 0:
		c.body = &exactReader{c.reader(), req.ContentLength}
	default:
		c.request.Done(nil)
	}
	return nil
}

// readBody reads up to n bytes of the body, all of it where n < 0.
func (c *Conn) readBody(n int64) error {
	buf := make([]byte, 32<<10)
	for n != 0 && c.body != nil {
		p := buf
		if n > 0 && n < int64(len(p)) {
			p = p[:n]
		}
		m, err := c.body.Read(p)
		c.request.Data(p[:m])
		if n > 0 {
			n -= int64(m)
		}
		if errors.Is(err, io.EOF) {
			return c.endBody()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (c *Conn) endBody() error {
	var trailer http.Header
	if _, sized := c.body.(*exactReader); !sized {
		t, err := textproto.NewReader(c.reader()).ReadMIMEHeader()
		if err != nil {
			return err
		}
		if len(t) > 0 {
			trailer = http.Header(t)
		}
	}
	c.body = nil
	c.request.Done(trailer)
	return nil
}

// exactReader reads n bytes; a stream that ends before is io.ErrUnexpectedEOF.
// Its io.EOF comes with the last byte, so that a body is known to be complete
// without another read.
type exactReader struct {
	r io.Reader
	n int64
}

func (e *exactReader) Read(p []byte) (int, error) {
	if int64(len(p)) > e.n {
		p = p[:e.n]
	}
	m, err := e.r.Read(p)
	e.n -= int64(m)
	switch {
	case e.n == 0:
		return m, io.EOF
	case errors.Is(err, io.EOF):
		return m, io.ErrUnexpectedEOF
	}
	return m, err
}

// note reads what the client sends until it closes, as requests where it can be
// parsed as such.
func (c *Conn) note() {
	for {
		if c.body != nil {
			if c.readBody(-1) != nil {
				break
			}
			continue
		}
		if c.readHead() != nil {
			break
		}
	}
	_, _ = io.Copy(io.Discard, c.reader())
}

// closeWrite sends the end of the stream and leaves the other direction open.
func (c *Conn) closeWrite() error {
	if t, ok := c.layer.(*tls.Conn); ok && t.ConnectionState().HandshakeComplete {
		if err := t.CloseWrite(); err != nil {
			return err
		}
	}
	if t, ok := c.raw.(*net.TCPConn); ok {
		return t.CloseWrite()
	}
	return nil
}

// linger reads until the client closes, so that no unread byte turns the close
// into a reset.
func (c *Conn) linger() {
	// The deadline is refused only by a closed connection, which ends the read too.
	_ = c.raw.SetReadDeadline(time.Now().Add(lingerLimit))
	if c.layer == nil {
		_, _ = io.Copy(io.Discard, c.raw)
		return
	}
	c.note()
}
