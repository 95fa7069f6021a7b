package main

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/examples/payments/internal/contract"
)

// fault is the stage of an exchange at which the proxy fails.
type fault string

const (
	faultNone        fault = "none"
	faultRefuse      fault = "connection reset before the request"
	faultNotSent     fault = "request read, not forwarded, reset"
	faultLate        fault = "request forwarded after the client's patience"
	faultLost        fault = "reset after the commit, before the answer"
	faultClosed      fault = "closed after the commit, before the answer"
	faultCutHead     fault = "answer cut in its head"
	faultCutBody     fault = "answer cut in its body"
	faultSlow        fault = "answer after the client's patience"
	faultServerGone  fault = "server gone"                     // not drawn: the process was killed
	attemptRefused   fault = "late attempt refused, as closed" // not a fault: what closing is for
	shareOfExchanges       = 6                                 // per cent, of each fault
)

var drawn = []fault{faultRefuse, faultNotSent, faultLate, faultLost, faultClosed, faultCutHead, faultCutBody, faultSlow}

// proxy stands between the clients and the server and fails at random. It reads
// whole requests and whole answers, so that it knows on which side of the
// commit it fails.
type proxy struct {
	address  string
	target   atomic.Pointer[string] // host:port
	patience time.Duration          // of the clients, for one attempt

	mu       sync.Mutex
	listener net.Listener
	random   *rand.Rand
	counts   map[fault]int
	wg       sync.WaitGroup
}

func startProxy(t *testing.T, seed uint64, patience time.Duration) *proxy {
	t.Helper()
	// While it is down, nobody else may take its port. On Linux every address of
	// 127/8 is the loopback interface, so that each proxy can have its own.
	host := "127.0.0.1"
	if runtime.GOOS == "linux" {
		host = fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))
	}
	listener, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	require.NoError(t, err)
	p := &proxy{
		address: listener.Addr().String(), patience: patience,
		random: rand.New(rand.NewPCG(seed, seed)), counts: map[fault]int{},
	}
	p.listen(listener)
	return p
}

func (p *proxy) url() string { return "http://" + p.address }

func (p *proxy) listen(listener net.Listener) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.listener = listener
	p.wg.Go(func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return // closed by down
			}
			p.wg.Go(func() {
				p.serve(conn)
				_ = conn.Close()
			})
		}
	})
}

// down refuses new connections from now on, as a machine does whose server is
// gone. Connections that are open stay open.
func (p *proxy) down() {
	p.mu.Lock()
	defer p.mu.Unlock()
	_ = p.listener.Close()
}

// up accepts connections again.
func (p *proxy) up(t *testing.T, url string) {
	t.Helper()
	p.forwardTo(url)
	listener, err := net.Listen("tcp", p.address)
	require.NoError(t, err)
	p.listen(listener)
}

func (p *proxy) forwardTo(url string) {
	host := strings.TrimPrefix(url, "http://")
	p.target.Store(&host)
}

// drain waits for every exchange, those that are late too, so that after it
// nothing changes the database any more. Clients have to have closed their
// connections.
func (p *proxy) drain() {
	p.down()
	p.wg.Wait()
}

func (p *proxy) draw() fault {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := faultNone
	if n := p.random.IntN(100); n < shareOfExchanges*len(drawn) {
		f = drawn[n/shareOfExchanges]
	}
	p.counts[f]++
	return f
}

func (p *proxy) count(f fault) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counts[f]++
}

func (p *proxy) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return table(p.counts)
}

// serve carries the exchanges of one connection until one of them fails.
func (p *proxy) serve(conn net.Conn) {
	r := bufio.NewReader(conn)
	for {
		if _, err := r.Peek(1); err != nil {
			return
		}
		f := p.draw()
		if f == faultRefuse {
			reset(conn)
			return
		}
		req, err := http.ReadRequest(r)
		if err != nil {
			return
		}
		body, err := io.ReadAll(req.Body)
		if err != nil {
			return
		}
		req.Body = io.NopCloser(bytes.NewReader(body))
		switch f {
		case faultNotSent:
			reset(conn)
			return
		case faultLate:
			<-time.After(p.patience * 3 / 2)
		}
		head, answer, err := p.exchange(req)
		if err != nil {
			p.count(faultServerGone)
			reset(conn)
			return
		}
		if bytes.Contains(answer, []byte(contract.ProblemAttemptClosed)) {
			p.count(attemptRefused)
		}
		switch f {
		case faultLost:
			reset(conn)
			return
		case faultClosed:
			return
		case faultCutHead:
			_, _ = conn.Write(head[:len(head)/2])
			return
		case faultCutBody:
			_, _ = conn.Write(append(head, answer[:len(answer)/2]...))
			return
		case faultSlow:
			<-time.After(p.patience * 3 / 2)
		}
		if _, err := conn.Write(append(head, answer...)); err != nil {
			return // a client that has hung up
		}
	}
}

// exchange takes a request to the server, by a connection of its own, and
// returns the bytes of the answer.
func (p *proxy) exchange(req *http.Request) (head, body []byte, err error) {
	conn, err := net.Dial("tcp", *p.target.Load())
	if err != nil {
		return nil, nil, err
	}
	defer conn.Close()
	if err := req.Write(conn); err != nil {
		return nil, nil, err
	}
	resp, err := http.ReadResponse(bufio.NewReader(conn), req)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	if body, err = io.ReadAll(resp.Body); err != nil {
		return nil, nil, err
	}
	var b bytes.Buffer
	fmt.Fprintf(&b, "HTTP/1.1 %s\r\n", resp.Status)
	resp.Header.Set("Content-Length", strconv.Itoa(len(body)))
	if err := resp.Header.Write(&b); err != nil {
		return nil, nil, err
	}
	b.WriteString("\r\n")
	return b.Bytes(), body, nil
}

// reset closes a connection by RST.
func reset(conn net.Conn) {
	_ = conn.(*net.TCPConn).SetLinger(0)
	_ = conn.Close()
}
