package httptestx

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"
)

// OK reads the whole request and answers 200 with the body; the connection is
// kept.
func OK(body string, header ...string) Play {
	return Play{ReadAll, Respond(http.StatusOK, body, header...)}
}

// Status reads the whole request and answers with the code; the connection is
// kept. Headers are lines such as "Retry-After: 1".
func Status(code int, body string, header ...string) Play {
	return Play{ReadAll, Respond(code, body, header...)}
}

// ReadHead reads the header block of the request.
func ReadHead(c *Conn) error { return c.readHead() }

// ReadAll reads what is left of the request, the header block too where it was
// not read yet.
func ReadAll(c *Conn) error {
	if c.request == nil {
		if err := c.readHead(); err != nil {
			return err
		}
	}
	return c.readBody(-1)
}

// ReadBody reads n more bytes of the body, or what there is of it.
func ReadBody(n int64) Step { return func(c *Conn) error { return c.readBody(n) } }

// ReadBytes reads n bytes and parses nothing.
func ReadBytes(n int64) Step {
	return func(c *Conn) error {
		_, err := io.CopyN(io.Discard, c.reader(), n)
		return err
	}
}

// AwaitByte waits for the first byte of a request and leaves the rest unread, so
// that Close becomes a reset where there is no TLS.
func AwaitByte(c *Conn) error { return c.awaitByte() }

// Handshake makes the TLS handshake, so that a later step finds the client
// connected but nothing read.
func Handshake(c *Conn) error {
	if t, ok := c.stream().(*tls.Conn); ok {
		return t.HandshakeContext(c.Context())
	}
	return nil
}

// Present chooses the certificate of this connection; it comes before any step
// that reads or writes.
func Present(cert Cert) Step {
	return func(c *Conn) error {
		c.cert = cert
		return nil
	}
}

// WithTLS replaces the TLS configuration of this connection; it comes before
// any step that reads or writes.
func WithTLS(cfg *tls.Config) Step {
	return func(c *Conn) error {
		c.tls = cfg
		return nil
	}
}

// ReadHello reads a first piece below TLS: the client's hello.
func ReadHello(c *Conn) error {
	_, err := c.raw.Read(make([]byte, 16<<10))
	return err
}

// WriteRaw writes below TLS: after ReadHello, a plain server on a TLS port.
func WriteRaw(text string) Step {
	return func(c *Conn) error {
		_, err := io.WriteString(c.raw, text)
		return err
	}
}

// Alert reads the client's hello and answers with a fatal TLS alert of that
// code, such as 40 for handshake_failure, and closes.
func Alert(code byte) Step {
	return func(c *Conn) error {
		if err := ReadHello(c); err != nil {
			return err
		}
		if _, err := c.raw.Write([]byte{21, 3, 3, 0, 2, 2, code}); err != nil {
			return err
		}
		return FIN(c)
	}
}

// Write writes the text as it is.
func Write(text string) Step {
	return func(c *Conn) error {
		_, err := io.WriteString(c.stream(), text)
		return err
	}
}

// Respond writes a complete response with a Content-Length. Headers are lines
// such as "Retry-After: 1"; a "Content-Length: n" among them replaces the true
// one. A response to HEAD has no body.
func Respond(code int, body string, header ...string) Step {
	return func(c *Conn) error {
		var b strings.Builder
		fmt.Fprintf(&b, "HTTP/1.1 %d %s\r\n", code, http.StatusText(code))
		sized := code == http.StatusNoContent || code == http.StatusNotModified
		for _, line := range header {
			b.WriteString(line + "\r\n")
			sized = sized || strings.HasPrefix(line, "Content-Length:")
		}
		if !sized {
			fmt.Fprintf(&b, "Content-Length: %d\r\n", len(body))
		}
		b.WriteString("\r\n")
		if c.method != http.MethodHead {
			b.WriteString(body)
		}
		_, err := io.WriteString(c.stream(), b.String())
		return err
	}
}

// Trickle writes the text in pieces of size bytes with a pause before each.
func Trickle(text string, size int, pause time.Duration) Step {
	return func(c *Conn) error {
		for len(text) > 0 {
			n := min(size, len(text))
			if err := Pause(pause)(c); err != nil {
				return err
			}
			if _, err := io.WriteString(c.stream(), text[:n]); err != nil {
				return err
			}
			text = text[n:]
		}
		return nil
	}
}

// Pause lets d pass; it ends early when the origin is closed.
func Pause(d time.Duration) Step {
	return func(c *Conn) error {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
			return nil
		case <-c.Context().Done():
			return c.Context().Err()
		}
	}
}

// WaitFor waits until the channel is closed or gives a value.
func WaitFor(ch <-chan struct{}) Step {
	return func(c *Conn) error {
		select {
		case <-ch:
			return nil
		case <-c.Context().Done():
			return c.Context().Err()
		}
	}
}

// Call runs f: to signal the test, or to change the origin in mid-play.
func Call(f func()) Step {
	return func(*Conn) error {
		f()
		return nil
	}
}

// Silence reads on, notes what arrives, says nothing and ends when the client
// closes.
func Silence(c *Conn) error {
	c.note()
	return errEnded
}

// Freeze neither reads nor writes until the origin is closed.
func Freeze(c *Conn) error {
	<-c.Context().Done()
	return errEnded
}

// Tunnel joins the connection to the address in both directions, as a proxy
// does after CONNECT, and ends with either side.
func Tunnel(addr string) Step {
	return func(c *Conn) error {
		ctx, cancel := context.WithTimeout(c.Context(), awaitLimit)
		defer cancel()
		out, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
		if err != nil {
			return err
		}
		stop := context.AfterFunc(c.Context(), func() { out.Close() })
		defer stop()
		back := make(chan struct{})
		go func() {
			defer close(back)
			_, _ = io.Copy(c.stream(), out)
			c.raw.Close()
		}()
		_, _ = io.Copy(out, c.reader())
		out.Close()
		<-back
		return errEnded
	}
}

// HalfClose sends the end of the origin's stream; later steps can still read.
func HalfClose(c *Conn) error { return c.closeWrite() }

// FIN says its last word in good order: it sends the end of the stream, reads
// what the client still sends (noting it), and closes after the client did.
func FIN(c *Conn) error {
	if err := c.closeWrite(); err != nil {
		return err
	}
	c.linger()
	return errEnded
}

// Close closes at once; bytes of the client that were not read turn it into a
// reset, as with a server that is killed.
func Close(c *Conn) error {
	if t, ok := c.layer.(*tls.Conn); ok {
		t.Close()
	}
	c.raw.Close()
	return errEnded
}

// RST resets the connection.
func RST(c *Conn) error {
	if t, ok := c.raw.(*net.TCPConn); ok {
		if err := t.SetLinger(0); err != nil {
			return err
		}
	}
	c.raw.Close()
	return errEnded
}
