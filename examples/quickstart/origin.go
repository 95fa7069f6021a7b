package main

import (
	"context"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// A behaviour is what the origin does to the requests of one scene.
type behaviour struct {
	Answers        []string // one per request, the last one to all that follow: see ServeHTTP
	Refuses        bool     // the port is closed until it is told to open
	DropsHandshake bool     // it speaks TLS and drops the first connection
}

// The answers that are none. Any other is a status, and a header if there is more.
const (
	disconnect = "disconnect"
	noAnswer   = "no answer within 0.3 s"
)

func (b behaviour) String() string {
	text := strings.Join(b.Answers, ", then ")
	switch {
	case b.Refuses:
		return "closed port, then " + text
	case b.DropsHandshake:
		return "handshake dropped, then " + text
	default:
		return text
	}
}

// A sighting is one request as the origin saw it.
type sighting struct {
	At  time.Time
	Key string
}

// The two processes exchange one order and one reply at a time, as JSON.
type (
	order struct {
		Begin *behaviour `json:",omitempty"`
		Open  bool       `json:",omitempty"`
		End   bool       `json:",omitempty"`
	}
	reply struct {
		URL     string     `json:",omitempty"`
		Cert    []byte     `json:",omitempty"`
		Seen    []sighting `json:",omitempty"`
		Problem string     `json:",omitempty"`
	}
)

// An origin is the other process, as the client's side sees it.
type origin struct {
	process *exec.Cmd
	orders  io.WriteCloser
	replies *json.Decoder
}

// A place is where a scene's requests go.
type place struct {
	url   string
	roots *x509.CertPool
}

func startOrigin(ctx context.Context) (*origin, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	o := &origin{process: exec.CommandContext(ctx, self, "-origin")}
	o.process.Stderr = os.Stderr
	out, err := o.process.StdoutPipe()
	if err != nil {
		return nil, err
	}
	o.replies = json.NewDecoder(out)
	if o.orders, err = o.process.StdinPipe(); err != nil {
		return nil, err
	}
	return o, o.process.Start()
}

func (o *origin) begin(b behaviour) (place, error) {
	r, err := o.tell(order{Begin: &b})
	if err != nil {
		return place{}, err
	}
	p := place{url: r.URL, roots: x509.NewCertPool()}
	if r.Cert != nil {
		cert, err := x509.ParseCertificate(r.Cert)
		if err != nil {
			return place{}, err
		}
		p.roots.AddCert(cert)
	}
	return p, nil
}

func (o *origin) open() error {
	_, err := o.tell(order{Open: true})
	return err
}

func (o *origin) end() ([]sighting, error) {
	r, err := o.tell(order{End: true})
	return r.Seen, err
}

func (o *origin) tell(what order) (r reply, err error) {
	if err := json.NewEncoder(o.orders).Encode(what); err != nil {
		return r, err
	}
	if err := o.replies.Decode(&r); err != nil {
		return r, fmt.Errorf("the origin does not reply: %w", err)
	}
	if r.Problem != "" {
		return r, errors.New("the origin: " + r.Problem)
	}
	return r, nil
}

// stop ends the other process, which goes when there are no more orders.
func (o *origin) stop() error {
	return errors.Join(o.orders.Close(), o.process.Wait())
}

// serveOrders is what the other process does, until the orders end.
func serveOrders(orders io.Reader, replies io.Writer) {
	in, out := json.NewDecoder(orders), json.NewEncoder(replies)
	var s *stage
	for {
		var what order
		if in.Decode(&what) != nil {
			return
		}
		var r reply
		var err error
		switch {
		case what.Begin != nil:
			s = &stage{behaviour: *what.Begin}
			r, err = s.begin()
		case what.Open:
			err = s.open()
		case what.End:
			r.Seen, err = s.end()
		}
		if err != nil {
			r.Problem = err.Error()
		}
		if out.Encode(r) != nil {
			return
		}
	}
}

// A stage serves the requests of one scene.
type stage struct {
	behaviour

	addr   string
	server *httptest.Server

	mu   sync.Mutex
	seen []sighting
}

func (s *stage) begin() (reply, error) {
	listener, err := listen()
	if err != nil {
		return reply{}, err
	}
	s.addr = listener.Addr().String()
	if s.Refuses {
		return reply{URL: "http://" + s.addr}, listener.Close()
	}
	s.serve(listener)
	r := reply{URL: s.server.URL}
	if cert := s.server.Certificate(); cert != nil {
		r.Cert = cert.Raw
	}
	return r, nil
}

// open opens a port that was closed; it may be told so more than once.
func (s *stage) open() error {
	if s.server != nil {
		return nil
	}
	listener, err := listenOn(s.addr)
	if err != nil {
		return err
	}
	s.serve(listener)
	return nil
}

func (s *stage) serve(listener net.Listener) {
	s.server = httptest.NewUnstartedServer(s)
	s.server.Listener.Close()
	s.server.Listener = listener
	if s.DropsHandshake {
		s.server.Listener = &dropFirst{Listener: listener}
		s.server.StartTLS()
		return
	}
	s.server.Start()
}

func (s *stage) end() ([]sighting, error) {
	if s.server == nil {
		return nil, errors.New("the port was never opened")
	}
	s.server.CloseClientConnections()
	s.server.Close()
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.seen, nil
}

// ServeHTTP reads the request to its end before it misbehaves: whatever the client sees
// then, a real origin could have done the work.
func (s *stage) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return
	}
	switch answer := s.note(r); answer {
	case disconnect:
		panic(http.ErrAbortHandler)
	case noAnswer:
		<-r.Context().Done()
	default:
		status, header, _ := strings.Cut(answer, " ")
		if name, value, ok := strings.Cut(header, ": "); ok {
			w.Header().Set(name, value)
		}
		code, err := strconv.Atoi(status)
		if err != nil {
			panic(err)
		}
		w.WriteHeader(code)
	}
}

// note keeps what was seen and finds the answer.
func (s *stage) note(r *http.Request) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen = append(s.seen, sighting{At: time.Now(), Key: r.Header.Get("Idempotency-Key")})
	return s.Answers[min(len(s.seen), len(s.Answers))-1]
}

// listen takes a port below those that systems give to outgoing connections, so that one
// which is closed for a while is still free when it is opened again.
func listen() (listener net.Listener, err error) {
	for range 100 {
		port := 20000 + rand.IntN(10000)
		if listener, err = listenOn(net.JoinHostPort("127.0.0.1", strconv.Itoa(port))); err == nil {
			return listener, nil
		}
	}
	return nil, err
}

func listenOn(addr string) (net.Listener, error) {
	return new(net.ListenConfig).Listen(context.Background(), "tcp", addr)
}

// dropFirst drops the first connection after the client has spoken on it.
type dropFirst struct {
	net.Listener

	dropped atomic.Bool
}

func (d *dropFirst) Accept() (net.Conn, error) {
	conn, err := d.Listener.Accept()
	if err != nil || d.dropped.Swap(true) {
		return conn, err
	}
	hello := make([]byte, 4096)
	_, _ = conn.Read(hello)
	conn.Close()
	return d.Listener.Accept()
}
