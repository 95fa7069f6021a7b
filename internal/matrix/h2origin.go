package matrix

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/retrip/retrip/internal/httptestx"
)

// lingerLimit bounds how long the origin reads on after its last word.
const lingerLimit = 3 * time.Second

// errEnded is how a step says that the connection is over on purpose.
var errEnded = errors.New("matrix: the connection was ended")

// H2Turn names the stream that a script is asked about. All count from 1.
type H2Turn struct {
	Conn   int // the connection, over the origin's life
	OnConn int // the stream on that connection, first to arrive is 1
	Total  int // the stream, over the origin's life
}

// H2Play is the list of steps played for one stream, from its HEADERS on. It
// runs beside the connection's reader, which goes on noting what arrives.
type H2Play []H2Step

// H2Step is one act of the origin on a stream.
type H2Step func(*H2Stream) error

// H2Script decides what an H2Origin does.
type H2Script struct {
	// Settings are sent when a connection begins.
	Settings []http2.Setting
	// Begin, where set, plays a connection in place of the origin: the
	// handshake is made, nothing is read or sent. It returns true to go on.
	Begin func(conn int, c *H2Conn) bool
	// Streams decides per stream.
	Streams func(H2Turn) H2Play
	// NoCredit keeps the receive windows shut, so that a large upload stops.
	NoCredit bool
}

// H2Sequence hands out one play per stream in order, over all connections; the
// last one repeats.
func H2Sequence(plays ...H2Play) H2Script {
	return H2Script{Streams: func(t H2Turn) H2Play { return plays[min(t.Total, len(plays))-1] }}
}

// H2Origin is an HTTP/2 origin over TLS on a loopback port. It is safe for
// concurrent use.
type H2Origin struct {
	httptestx.Ledger

	// URL is the base URL, without a trailing slash; Addr is host and port.
	URL, Addr string

	script  H2Script
	stopped context.Context //nolint:containedctx // ends every blocked step with the origin
	stop    context.CancelFunc

	mu       sync.Mutex
	listener net.Listener
	active   map[*H2Conn]struct{}
	streams  int
	running  sync.WaitGroup
}

// NewH2Origin starts an origin; it is closed when the test ends.
func NewH2Origin(tb httptestx.TB, script H2Script) *H2Origin {
	tb.Helper()
	ln := httptestx.Listen(tb)
	o := &H2Origin{
		URL:      "https://" + ln.Addr().String(),
		Addr:     ln.Addr().String(),
		script:   script,
		listener: ln,
		active:   map[*H2Conn]struct{}{},
	}
	o.stopped, o.stop = context.WithCancel(context.Background())
	o.accept(ln)
	tb.Cleanup(o.Close)
	return o
}

func (o *H2Origin) accept(ln net.Listener) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.listener = ln
	o.running.Go(func() {
		for {
			raw, err := ln.Accept()
			if err != nil {
				return
			}
			o.admit(raw)
		}
	})
}

// Accept opens the port again after Refuse.
func (o *H2Origin) Accept(tb httptestx.TB) {
	tb.Helper()
	ln, err := new(net.ListenConfig).Listen(context.Background(), "tcp", o.Addr)
	if err != nil {
		tb.Fatalf("matrix: open the port again: %v", err)
	}
	o.accept(ln)
}

// Refuse closes the port and leaves open connections alone.
func (o *H2Origin) Refuse() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.listener.Close()
}

// Close closes the port and every connection and waits for all plays to end.
func (o *H2Origin) Close() {
	o.stop()
	o.Refuse()
	o.mu.Lock()
	for c := range o.active {
		c.raw.Close()
	}
	o.mu.Unlock()
	o.running.Wait()
}

func (o *H2Origin) admit(raw net.Conn) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.stopped.Err() != nil {
		raw.Close()
		return
	}
	c := &H2Conn{o: o, raw: raw, Number: o.Accepted(), streams: map[uint32]*H2Stream{}}
	o.active[c] = struct{}{}
	o.running.Go(c.serve)
}

func (o *H2Origin) dismiss(c *H2Conn) {
	c.raw.Close()
	o.mu.Lock()
	delete(o.active, c)
	o.mu.Unlock()
	o.Gone()
}

// H2Conn is the origin's end of one connection.
type H2Conn struct {
	// Number is the connection's number, from 1.
	Number int

	o       *H2Origin
	raw     net.Conn
	tls     *tls.Conn
	streams map[uint32]*H2Stream // written by the reader under writing, read by it without
	last    uint32

	writing sync.Mutex // guards the framer's writing half, buf and enc
	framer  *http2.Framer
	buf     bytes.Buffer
	enc     *hpack.Encoder
	away    bool   // a GOAWAY was sent
	limit   uint32 // the last stream it covers
}

// TLS returns the connection after the handshake.
func (c *H2Conn) TLS() *tls.Conn { return c.tls }

// Stopped is closed when the origin is.
func (c *H2Conn) Stopped() <-chan struct{} { return c.o.stopped.Done() }

func (c *H2Conn) serve() {
	ctx, cancel := context.WithCancel(c.o.stopped)
	var plays sync.WaitGroup
	defer c.o.dismiss(c)
	defer plays.Wait()
	defer c.raw.Close()
	defer cancel()

	c.tls = tls.Server(c.raw, httptestx.ServerTLS(httptestx.GoodCert, "h2"))
	if c.tls.HandshakeContext(ctx) != nil {
		return
	}
	if c.o.script.Begin != nil && !c.o.script.Begin(c.Number, c) {
		return
	}
	in := countingReader{c.tls, &c.o.Ledger}
	c.framer = http2.NewFramer(c.tls, in)
	c.framer.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	c.framer.MaxHeaderListSize = 16 << 20
	c.enc = hpack.NewEncoder(&c.buf)

	preface := make([]byte, len(http2.ClientPreface))
	if _, err := io.ReadFull(in, preface); err != nil || string(preface) != http2.ClientPreface {
		return
	}
	if c.write(c.greet) != nil {
		return
	}
	for {
		frame, err := c.framer.ReadFrame()
		if err != nil {
			return
		}
		if c.handle(ctx, &plays, frame) != nil {
			return
		}
	}
}

// greet sends the first SETTINGS and, unless the script says otherwise, opens
// the windows so far that an upload need not wait for more.
func (c *H2Conn) greet(w *http2.Framer) error {
	const wide = 16 << 20
	if c.o.script.NoCredit {
		return w.WriteSettings(c.o.script.Settings...)
	}
	settings := append([]http2.Setting{{ID: http2.SettingInitialWindowSize, Val: wide}}, c.o.script.Settings...)
	if err := w.WriteSettings(settings...); err != nil {
		return err
	}
	return w.WriteWindowUpdate(0, wide)
}

type countingReader struct {
	r io.Reader
	l *httptestx.Ledger
}

func (r countingReader) Read(p []byte) (int, error) {
	n, err := r.r.Read(p)
	r.l.Arrived(n)
	return n, err
}

func (c *H2Conn) write(f func(*http2.Framer) error) error {
	c.writing.Lock()
	defer c.writing.Unlock()
	return f(c.framer)
}

func (c *H2Conn) handle(ctx context.Context, plays *sync.WaitGroup, frame http2.Frame) error {
	switch f := frame.(type) {
	case *http2.SettingsFrame:
		if !f.IsAck() {
			return c.write((*http2.Framer).WriteSettingsAck)
		}
	case *http2.PingFrame:
		if !f.IsAck() {
			return c.write(func(w *http2.Framer) error { return w.WritePing(true, f.Data) })
		}
	case *http2.MetaHeadersFrame:
		s := c.begin(ctx, f)
		plays.Go(s.play)
	case *http2.DataFrame:
		return c.data(f)
	case *http2.RSTStreamFrame:
		if s := c.streams[f.StreamID]; s != nil {
			s.reset.Do(func() { close(s.aborted) })
		}
	}
	return nil
}

func (c *H2Conn) begin(ctx context.Context, f *http2.MetaHeadersFrame) *H2Stream {
	if s := c.streams[f.StreamID]; s != nil { // trailers
		s.finish()
		return &H2Stream{ctx: ctx, c: c}
	}
	c.last = f.StreamID
	seen := httptestx.Seen{
		Conn:          c.Number,
		OnConn:        len(c.streams) + 1,
		Stream:        f.StreamID,
		Method:        f.PseudoValue("method"),
		Target:        f.PseudoValue("path"),
		Host:          f.PseudoValue("authority"),
		Proto:         "HTTP/2.0",
		Header:        http.Header{},
		ContentLength: -1,
	}
	for _, h := range f.RegularFields() {
		seen.Header.Add(h.Name, h.Value)
	}
	if n, err := strconv.ParseInt(seen.Header.Get("Content-Length"), 10, 64); err == nil {
		seen.ContentLength = n
	}
	c.o.mu.Lock()
	c.o.streams++
	turn := H2Turn{Conn: c.Number, OnConn: seen.OnConn, Total: c.o.streams}
	c.o.mu.Unlock()
	s := &H2Stream{
		ctx:     ctx,
		c:       c,
		id:      f.StreamID,
		method:  seen.Method,
		entry:   c.o.Head(seen),
		whole:   make(chan struct{}),
		aborted: make(chan struct{}),
		steps:   c.o.script.Streams(turn),
		more:    make(chan struct{}, 1),
	}
	c.writing.Lock()
	c.streams[s.id] = s
	if c.away && s.id > c.limit {
		s.refuse()
	}
	c.writing.Unlock()
	if f.StreamEnded() {
		s.finish()
	}
	return s
}

func (c *H2Conn) data(f *http2.DataFrame) error {
	s := c.streams[f.StreamID]
	if s == nil {
		return nil
	}
	s.entry.Data(f.Data())
	s.got.Add(int64(len(f.Data())))
	select {
	case s.more <- struct{}{}:
	default:
	}
	if f.StreamEnded() {
		s.finish()
		return nil
	}
	n := uint32(len(f.Data())) //nolint:gosec // a frame's payload is below 2^24 bytes
	if n == 0 || c.o.script.NoCredit {
		return nil
	}
	return c.write(func(w *http2.Framer) error {
		if err := w.WriteWindowUpdate(0, n); err != nil {
			return err
		}
		return w.WriteWindowUpdate(f.StreamID, n)
	})
}

// closeWrite says goodbye and leaves the reader at work until the client closes.
func (c *H2Conn) closeWrite() error {
	if err := c.raw.SetReadDeadline(time.Now().Add(lingerLimit)); err != nil {
		return err
	}
	c.writing.Lock()
	defer c.writing.Unlock()
	if err := c.tls.CloseWrite(); err != nil {
		return err
	}
	return c.raw.(*net.TCPConn).CloseWrite()
}

// goAway sends a GOAWAY and keeps its promise: streams above the last one that
// were not answered yet never are.
func (c *H2Conn) goAway(last uint32, code http2.ErrCode, debug string) error {
	return c.write(func(w *http2.Framer) error {
		c.away, c.limit = true, last
		for id, s := range c.streams {
			if id > last && !s.answered {
				s.refuse()
			}
		}
		return w.WriteGoAway(last, code, []byte(debug))
	})
}

func (s *H2Stream) headers(end bool, code int, header ...string) error {
	c := s.c
	return c.write(func(w *http2.Framer) error {
		if s.refused {
			return errEnded
		}
		s.answered = true
		c.buf.Reset()
		fields := []hpack.HeaderField{{Name: ":status", Value: strconv.Itoa(code)}}
		for _, line := range header {
			name, value, _ := strings.Cut(line, ":")
			fields = append(fields, hpack.HeaderField{Name: strings.ToLower(name), Value: strings.TrimSpace(value)})
		}
		for _, f := range fields {
			if err := c.enc.WriteField(f); err != nil {
				return err
			}
		}
		return w.WriteHeaders(http2.HeadersFrameParam{
			StreamID:      s.id,
			BlockFragment: c.buf.Bytes(),
			EndStream:     end,
			EndHeaders:    true,
		})
	})
}
