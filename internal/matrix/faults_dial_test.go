package matrix

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/httptestx"
)

// shortLimit ends what would hang for ever; a dial on loopback under load stays
// well below it.
const shortLimit = 150 * time.Millisecond

// longLimit ends one attempt and must not end the next one, which is answered:
// it leaves room for a handshake on a busy machine.
const longLimit = 2 * time.Second

var (
	getPost    = []method{mGET, mPOST}
	getPutPost = []method{mGET, mPUT, mPOST}
)

func statusRows() []row {
	rows := []row{
		{
			id: "ok", fault: "none: 200", protos: allProtos, methods: allMethods,
			setup: func(s *scene) { s.serveOK() },
			want:  always(answered(200)), bare: bareAnswers(200, 1),
		},
		{
			id: "ok2", fault: "none: 200 on a reused connection", protos: allProtos, methods: allMethods,
			setup: func(s *scene) { s.warm = true; s.serveOK() },
			want:  always(answered(200)), bare: bareAnswers(200, 1),
			check: func(t *testing.T, _ method, got result) { //nolint:thelper // a row's check
				assert.True(t, got.events[0].ConnReused)
			},
		},
		{
			id: "st503always", fault: "503, every time", protos: allProtos, methods: allMethods,
			setup: func(s *scene) {
				s.serve(httptestx.Sequence(httptestx.Status(503, "busy")), H2Sequence(H2Status(503, "busy")))
			},
			want: func(m method, _ proto) []first {
				f := answered(503).everTime()
				return []first{f}
			},
			bare: bareAnswers(503, 1),
		},
	}
	for _, code := range []int{404, 429, 500, 502, 503, 504} {
		rows = append(rows, row{
			id:    fmt.Sprint("st", code),
			fault: http.StatusText(code), protos: allProtos, methods: allMethods,
			setup: func(s *scene) {
				s.serve(httptestx.Sequence(httptestx.Status(code, "why"), httptestx.OK("fine")),
					H2Sequence(H2Status(code, "why"), H2OK("fine")))
			},
			want: always(answered(code)), bare: bareAnswers(code, 1),
		})
	}
	return rows
}

// slowNames answers DNS queries with the code, or not at all where it is
// negative. It returns a dialer that asks it.
func slowNames(s *scene, code *atomic.Int32, timeout time.Duration) {
	s.t.Helper()
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	require.NoError(s.t, err)
	done := make(chan struct{})
	go func() {
		defer close(done)
		buf := make([]byte, 512)
		for {
			n, from, err := server.ReadFrom(buf)
			if err != nil {
				return
			}
			c := code.Load()
			if c < 0 {
				continue
			}
			reply := append([]byte(nil), buf[:n]...)
			reply[2], reply[3] = 0x81, 0x80|byte(c)
			reply[10], reply[11] = 0, 0 // no additional records
			end := 12
			for reply[end] != 0 {
				end += int(reply[end]) + 1
			}
			end += 5
			reply = reply[:end]
			if c == 0 && reply[end-3] == 1 { // an A record for a query of type A
				reply[6], reply[7] = 0, 1
				reply = append(reply, 0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 0, 0, 4, 127, 0, 0, 1)
			}
			if _, err := server.WriteTo(reply, from); err != nil {
				return
			}
		}
	}()
	s.t.Cleanup(func() {
		server.Close()
		<-done
	})
	dialer := &net.Dialer{Timeout: timeout, Resolver: &net.Resolver{
		PreferGo: true,
		Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "udp", server.LocalAddr().String())
		},
	}}
	s.dialer(dialer.DialContext)
	_, port, err := net.SplitHostPort(s.url[len("http://"):])
	require.NoError(s.t, err)
	s.url = "http://origin.test.:" + port
}

func dnsFault(code int32, timeout time.Duration) func(*scene) {
	return func(s *scene) {
		s.serveOK()
		answer := new(atomic.Int32)
		answer.Store(code)
		slowNames(s, answer, timeout)
		s.heal = func() { answer.Store(0) }
	}
}

// failDials lets the first n dials fail.
func failDials(s *scene, n int32, fail func(ctx context.Context) error) {
	var dials atomic.Int32
	s.dialer(func(ctx context.Context, network, addr string) (net.Conn, error) {
		if dials.Add(1) <= n {
			return nil, fail(ctx)
		}
		return new(net.Dialer).DialContext(ctx, network, addr)
	})
}

func hang(ctx context.Context) error {
	<-ctx.Done()
	return ctx.Err()
}

// hangDials keeps the first n dials until the test ends: a dial's context is not
// cancelled with the request's.
func hangDials(s *scene, n int32) {
	gone, end := context.WithCancel(context.Background())
	s.t.Cleanup(end)
	failDials(s, n, func(context.Context) error { return hang(gone) })
}

func dialRows() []row {
	return []row{
		{
			id: "c01", fault: "DNS: no such host", protos: onlyH1, methods: allMethods,
			setup: dnsFault(3, 0), bare: bareFails(0),
			want: always(notSent(retrip.ClassDNS).permanently()),
		},
		{
			id: "c02", fault: "DNS: server failure", protos: onlyH1, methods: allMethods,
			setup: dnsFault(2, 0), bare: bareFails(0),
			want: always(notSent(retrip.ClassDNS)),
		},
		{
			id: "c03", fault: "DNS: no reply, Dialer.Timeout", protos: onlyH1, methods: getPutPost,
			setup: dnsFault(-1, longLimit), bare: bareFails(0),
			want: always(notSent(retrip.ClassDNS)),
		},
		{
			id: "c05", fault: "connection refused", protos: allProtos, methods: allMethods, bare: bareFails(0),
			setup: func(s *scene) {
				refuse, accept := s.serveOK()
				refuse()
				s.heal = accept
			},
			want: always(notSent(retrip.ClassDial)),
		},
		{
			id: "c05always", fault: "connection refused, every time", protos: allProtos, methods: allMethods, bare: bareFails(0),
			setup: func(s *scene) {
				refuse, _ := s.serveOK()
				refuse()
			},
			want: always(notSent(retrip.ClassDial).everTime()),
		},
		{
			id: "c06", fault: "Dialer.Timeout", protos: allProtos, methods: getPutPost, bare: bareFails(0),
			setup: func(s *scene) {
				s.serveOK()
				failDials(s, 1, func(ctx context.Context) error {
					c, err := (&net.Dialer{Timeout: 1}).DialContext(ctx, "tcp", "127.0.0.1:9")
					if err == nil {
						c.Close()
					}
					return err
				})
			},
			want: always(notSent(retrip.ClassDial), notSent(retrip.ClassTimeout)),
		},
		{
			id: "c07", fault: "dial hangs, the caller's deadline ends", protos: allProtos, methods: getPutPost, bare: bareFails(0),
			setup: func(s *scene) {
				s.serveOK()
				hangDials(s, 9)
				s.deadline(shortLimit)
			},
			want: always(notSent(retrip.ClassDeadline).callerEnds(retrip.DecisionDeadlineExceeded)),
		},
		{
			id: "c07a", fault: "dial hangs once, AttemptTimeout", protos: allProtos, methods: allMethods,
			setup: func(s *scene) {
				s.serveOK()
				hangDials(s, 1)
				s.bareLimit = shortLimit
				s.opts = []retrip.Option{retrip.WithAttemptTimeout(longLimit)}
			},
			want: always(notSent(retrip.ClassTimeout)),
		},
		{
			id: "c07b", fault: "dial hangs every time, AttemptTimeout", protos: allProtos, methods: getPutPost,
			setup: func(s *scene) {
				s.serveOK()
				hangDials(s, 9)
				s.bareLimit = shortLimit
				s.opts = []retrip.Option{retrip.WithAttemptTimeout(shortLimit / 3)}
			},
			want: always(notSent(retrip.ClassTimeout).everTime()),
			check: func(t *testing.T, _ method, got result) { //nolint:thelper // a row's check
				require.ErrorContains(t, got.err, "AttemptTimeout")
				assert.NotContains(t, got.err.Error(), "context canceled")
				var timeout interface{ Timeout() bool }
				require.ErrorAs(t, got.err, &timeout)
				assert.True(t, timeout.Timeout())
			},
		},
		{
			id: "c08", fault: "a dialer's own error", protos: allProtos, methods: getPutPost, bare: bareFails(0),
			setup: func(s *scene) {
				s.serveOK()
				failDials(s, 1, func(context.Context) error { return errors.New("my dialer error") })
			},
			want: always(notSent(retrip.ClassDial)),
		},
		{
			id: "c10", fault: "MaxConnsPerHost used up, the caller's deadline ends", protos: onlyH1, methods: getPutPost, bare: bareFails(0),
			setup: func(s *scene) {
				s.serveOK()
				s.transport.MaxConnsPerHost = 1
				s.settle = func() {
					req, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, s.url, http.NoBody)
					require.NoError(s.t, err)
					resp, err := s.transport.RoundTrip(req) //nolint:bodyclose // after closes it
					require.NoError(s.t, err)
					s.after = func() { resp.Body.Close() }
					s.deadline(shortLimit)
				}
			},
			want: always(notSent(retrip.ClassDeadline).callerEnds(retrip.DecisionDeadlineExceeded)),
		},
	}
}

func tlsRows() []row {
	handshake := func(play httptestx.Play) func(*scene) {
		return func(s *scene) {
			if s.proto == h2 {
				// The handshake fails below HTTP: the same origin plays it, then
				// another one, reached by the next dial, serves HTTP/2.
				s.serveH1(httptestx.Sequence(play))
				broken := s.url
				o := s.serveH2(H2Sequence(H2OK("fine")))
				s.url = broken
				var dials atomic.Int32
				s.dialer(func(ctx context.Context, network, addr string) (net.Conn, error) {
					if dials.Add(1) > 1 {
						addr = o.Addr
					}
					return new(net.Dialer).DialContext(ctx, network, addr)
				})
				return
			}
			s.serveH1(httptestx.Sequence(play, httptestx.OK("fine")))
		}
	}
	needsCert := func(version uint16) func(*scene) {
		return func(s *scene) {
			cfg := httptestx.ServerTLS(httptestx.GoodCert)
			cfg.ClientAuth = tls.RequireAnyClientCert
			cfg.MaxVersion = version
			s.serveH1(httptestx.Sequence(httptestx.Play{httptestx.WithTLS(cfg), httptestx.Handshake}))
		}
	}
	permanent := always(notSent(retrip.ClassTLS).permanently())
	return []row{
		{
			id: "t01", fault: "plain HTTP server on the TLS port", protos: tlsProtos, methods: allMethods, bare: bareFails(0),
			setup: handshake(httptestx.Play{httptestx.ReadHello, httptestx.WriteRaw("HTTP/1.1 400 Bad Request\r\n\r\n"), httptestx.FIN}),
			want:  permanent,
		},
		{
			id: "t02", fault: "unknown authority", protos: tlsProtos, methods: allMethods, bare: bareFails(0),
			setup: handshake(httptestx.Play{httptestx.Present(httptestx.UnknownCA), httptestx.Handshake}),
			want:  permanent,
		},
		{
			id: "t03", fault: "wrong name in the certificate", protos: tlsProtos, methods: getPutPost, bare: bareFails(0),
			setup: handshake(httptestx.Play{httptestx.Present(httptestx.WrongName), httptestx.Handshake}),
			want:  permanent,
		},
		{
			id: "t03e", fault: "expired certificate", protos: tlsProtos, methods: getPutPost, bare: bareFails(0),
			setup: handshake(httptestx.Play{httptestx.Present(httptestx.Expired), httptestx.Handshake}),
			want:  permanent,
		},
		{
			id: "t04", fault: "handshake hangs, TLSHandshakeTimeout", protos: tlsProtos, methods: getPutPost, bare: bareFails(0),
			setup: func(s *scene) {
				handshake(httptestx.Play{httptestx.ReadHello, httptestx.Silence})(s)
				s.transport.TLSHandshakeTimeout = longLimit
			},
			want: always(notSent(retrip.ClassTLS), notSent(retrip.ClassTimeout)),
		},
		{
			id: "t05", fault: "handshake: closed", protos: tlsProtos, methods: allMethods, bare: bareFails(0),
			setup: handshake(httptestx.Play{httptestx.ReadHello, httptestx.FIN}),
			want:  always(notSent(retrip.ClassTLS)),
		},
		{
			id: "t06", fault: "handshake: reset", protos: tlsProtos, methods: allMethods, bare: bareFails(0),
			setup: handshake(httptestx.Play{httptestx.ReadHello, httptestx.RST}),
			want:  always(notSent(retrip.ClassTLS)),
		},
		{
			id: "t07", fault: "handshake: alert protocol_version", protos: tlsProtos, methods: getPutPost, bare: bareFails(0),
			setup: handshake(httptestx.Play{httptestx.Alert(70)}), want: permanent,
		},
		{
			id: "t08", fault: "client certificate missing, TLS 1.2", protos: onlyTLSOne, methods: getPutPost, bare: bareFails(0),
			setup: needsCert(tls.VersionTLS12), want: permanent,
		},
		{
			id: "t09", fault: "client certificate missing, TLS 1.3", protos: onlyTLSOne, methods: getPutPost, bare: bareFails(0),
			setup: needsCert(tls.VersionTLS13),
			want: always(unknown(retrip.ClassTLS).permanently(), unknown(broken...).everTime(),
				unknown(retrip.ClassTLS).everTime(), notSent(retrip.ClassTLS).permanently()),
		},
		{
			id: "t10", fault: "handshake hangs, the caller's deadline ends", protos: tlsProtos, methods: getPutPost, bare: bareFails(0),
			setup: func(s *scene) {
				handshake(httptestx.Play{httptestx.ReadHello, httptestx.Silence})(s)
				s.transport.TLSHandshakeTimeout = 4 * shortLimit
				s.deadline(shortLimit)
			},
			want: always(notSent(retrip.ClassDeadline).callerEnds(retrip.DecisionDeadlineExceeded)),
		},
	}
}

// behindProxy puts a proxy that plays the script between the client and an
// origin that answers 200. The scene counts at the origin.
func behindProxy(scheme string, script func(origin string) httptestx.Script) func(*scene) {
	return func(s *scene) {
		s.serveOK()
		u, err := url.Parse(s.url)
		require.NoError(s.t, err)
		proxy := httptestx.NewOrigin(s.t, script(u.Host))
		s.transport.Proxy = http.ProxyURL(&url.URL{Scheme: scheme, Host: proxy.Addr})
	}
}

func proxyRows() []row {
	connect := func(play httptestx.Play) func(*scene) {
		return behindProxy("http", func(origin string) httptestx.Script {
			return httptestx.Sequence(play, ConnectTunnel(origin))
		})
	}
	inTunnel := always(notSent(retrip.ClassProxy), notSent(retrip.ClassDial), notSent(retrip.ClassTLS))
	return []row{
		{
			id: "p00", fault: "none: through CONNECT", protos: tlsProtos, methods: allMethods, bare: bareAnswers(200, 1),
			setup: behindProxy("http", func(origin string) httptestx.Script { return httptestx.Sequence(ConnectTunnel(origin)) }),
			want:  always(answered(200)),
		},
		{
			id: "p01", fault: "HTTP proxy refused", protos: allProtos, methods: getPutPost, bare: bareFails(0),
			setup: func(s *scene) {
				s.serveOK()
				proxy := httptestx.NewOrigin(s.t, httptestx.Sequence(httptestx.OK("")))
				proxy.Refuse()
				s.transport.Proxy = http.ProxyURL(&url.URL{Scheme: "http", Host: proxy.Addr})
			},
			want: always(notSent(retrip.ClassProxy).everTime()),
		},
		{
			id: "p02", fault: "proxy answers CONNECT with 502", protos: tlsProtos, methods: allMethods, bare: bareFails(0),
			setup: connect(ConnectStatus(502)),
			want:  always(notSent(retrip.ClassProxy), notSent(retrip.ClassDial)),
		},
		{
			id: "p03", fault: "proxy answers CONNECT with 407", protos: tlsProtos, methods: getPutPost, bare: bareFails(0),
			setup: connect(ConnectStatus(407)),
			want:  always(notSent(retrip.ClassProxy).permanently(), notSent(retrip.ClassDial).permanently()),
		},
		{
			id: "p04", fault: "proxy never answers CONNECT, the caller's deadline ends", protos: tlsProtos, methods: getPutPost, bare: bareFails(0),
			setup: func(s *scene) {
				connect(httptestx.Play{httptestx.ReadHead, httptestx.Silence})(s)
				s.deadline(shortLimit)
			},
			want: always(notSent(retrip.ClassDeadline).callerEnds(retrip.DecisionDeadlineExceeded)),
		},
		{
			id: "p05", fault: "proxy closes on CONNECT", protos: tlsProtos, methods: allMethods, bare: bareFails(0),
			setup: connect(httptestx.Play{httptestx.ReadHead, httptestx.FIN}), want: inTunnel,
		},
		{
			id: "p06", fault: "proxy opens the tunnel and resets in the handshake", protos: tlsProtos, methods: getPutPost, bare: bareFails(0),
			setup: connect(httptestx.Play{httptestx.ReadHead, httptestx.Write("HTTP/1.1 200 OK\r\n\r\n"), httptestx.RST}), want: inTunnel,
		},
		{
			id: "p07", fault: "plain target, the proxy answers 502", protos: onlyH1, methods: allMethods, bare: bareAnswers(502, 1),
			setup: func(s *scene) {
				s.serveH1(httptestx.Sequence(httptestx.Status(502, "upstream"), httptestx.OK("fine")))
				proxy, err := url.Parse(s.url)
				require.NoError(s.t, err)
				s.transport.Proxy = http.ProxyURL(proxy)
				s.url = "http://origin.test"
			},
			want: always(answered(502)),
		},
		{
			id: "p08", fault: "plain target, the proxy reads the request and closes", protos: onlyH1, methods: allMethods, bare: bareFails(1),
			setup: func(s *scene) {
				s.serveH1(httptestx.Sequence(httptestx.Play{httptestx.ReadAll, httptestx.FIN}, httptestx.OK("fine")))
				proxy, err := url.Parse(s.url)
				require.NoError(s.t, err)
				s.transport.Proxy = http.ProxyURL(proxy)
				s.url = "http://origin.test"
			},
			want: always(unknown(retrip.ClassEOF)),
		},
		{
			id: "p09", fault: "SOCKS5 proxy answers 'connection refused'", protos: allProtos, methods: allMethods, bare: bareFails(0),
			setup: behindProxy("socks5", func(origin string) httptestx.Script {
				return httptestx.Sequence(SOCKSReply(5), SOCKSTunnel(origin))
			}),
			want: always(notSent(retrip.ClassProxy), notSent(retrip.ClassDial)),
		},
		{
			id: "p10", fault: "none: through SOCKS5", protos: allProtos, methods: allMethods, bare: bareAnswers(200, 1),
			setup: behindProxy("socks5", func(origin string) httptestx.Script { return httptestx.Sequence(SOCKSTunnel(origin)) }),
			want:  always(answered(200)),
		},
	}
}

func contextRows() []row {
	canceled := func(f first) first { return f.callerEnds(retrip.DecisionCancel) }
	expired := func(f first) first { return f.callerEnds(retrip.DecisionDeadlineExceeded) }
	silent := func(s *scene, on func()) {
		s.serve(httptestx.Sequence(httptestx.Play{httptestx.ReadAll, httptestx.Call(on), httptestx.Silence}),
			H2Sequence(H2Play{H2ReadAll, H2Call(on), H2Silence}))
	}
	before := func(f first) first {
		f.never = true
		return f
	}
	return []row{
		{
			id: "x01", fault: "cancelled before the call", protos: allProtos, methods: allMethods, bare: bareFails(0),
			setup: func(s *scene) { s.serveOK(); s.cancel() },
			want:  always(before(canceled(notSent(retrip.ClassCanceled)))),
		},
		{
			id: "x01d", fault: "the deadline has passed before the call", protos: allProtos, methods: getPutPost, bare: bareFails(0),
			setup: func(s *scene) { s.serveOK(); s.deadline(-time.Second) },
			want:  always(before(expired(notSent(retrip.ClassDeadline)))),
		},
		{
			id: "x03", fault: "cancelled during the dial", protos: allProtos, methods: allMethods, bare: bareFails(0),
			setup: func(s *scene) {
				s.serveOK()
				failDials(s, 9, func(context.Context) error {
					s.cancel()
					<-s.ctx.Done()
					return s.ctx.Err()
				})
			},
			want: always(canceled(notSent(retrip.ClassCanceled))),
		},
		{
			id: "x04", fault: "cancelled after the request was sent", protos: allProtos, methods: allMethods, bare: bareFails(1),
			setup: func(s *scene) { silent(s, func() { s.cancel() }) },
			want:  always(canceled(unknown(retrip.ClassCanceled)).atOrigin(1)),
		},
		{
			id: "x05", fault: "the caller's deadline ends after the request was sent", protos: allProtos, methods: allMethods, bare: bareFails(-1),
			setup: func(s *scene) {
				silent(s, func() {})
				s.deadline(2 * shortLimit)
			},
			want: always(expired(unknown(retrip.ClassDeadline)), expired(notSent(retrip.ClassDeadline))),
		},
		{
			id: "x05a", fault: "AttemptTimeout after the request was sent", protos: allProtos, methods: allMethods,
			setup: func(s *scene) {
				s.warm = true
				s.serve(httptestx.Sequence(httptestx.OK("warm"), httptestx.Play{httptestx.ReadAll, httptestx.Silence}, httptestx.OK("fine")),
					H2Sequence(H2OK("warm"), H2Play{H2ReadAll, H2Silence}, H2OK("fine")))
				s.bareLimit = shortLimit
				s.opts = []retrip.Option{retrip.WithAttemptTimeout(longLimit)}
			},
			want: always(unknown(retrip.ClassTimeout)),
		},
		{
			id: "x05t", fault: "TotalTimeout after the request was sent", protos: allProtos, methods: allMethods,
			setup: func(s *scene) {
				s.warm = true
				s.serve(httptestx.Sequence(httptestx.OK("warm"), httptestx.Play{httptestx.ReadAll, httptestx.Silence}),
					H2Sequence(H2OK("warm"), H2Play{H2ReadAll, H2Silence}))
				s.bareLimit = shortLimit
				s.opts = []retrip.Option{retrip.WithTotalTimeout(2 * shortLimit)}
			},
			want: func(m method, _ proto) []first {
				f := expired(unknown(retrip.ClassDeadline))
				f.ours = true
				return []first{f}
			},
			check: func(t *testing.T, _ method, got result) { //nolint:thelper // a row's check
				require.ErrorIs(t, got.err, context.DeadlineExceeded)
				assert.ErrorContains(t, got.err, "TotalTimeout")
			},
		},
		{
			id: "x06", fault: "cancelled while the body is sent and the peer does not read", protos: allProtos, methods: withBody, bare: bareFails(1),
			setup: func(s *scene) {
				s.size, s.frozen = bigSize, true
				cancel := func() { s.cancel() }
				two := H2Sequence(H2Play{H2Call(cancel), H2Silence})
				two.NoCredit = true
				s.serve(httptestx.Sequence(httptestx.Play{httptestx.ReadHead, httptestx.Call(cancel), httptestx.Freeze}), two)
			},
			want: always(canceled(unknown(retrip.ClassCanceled)).atOrigin(1)),
		},
		{
			id: "x07", fault: "cancelled while the answer's body is read", protos: allProtos, methods: getPutPost, bare: bareAnswers(200, 1),
			setup: func(s *scene) {
				s.answer = func() { s.cancel() }
				s.serve(httptestx.Sequence(httptestx.Play{
					httptestx.ReadAll, httptestx.Write("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\npart"), httptestx.Silence,
				}), H2Sequence(H2Play{H2ReadAll, H2Begin(200, "part"), H2Silence}))
			},
			want: always(first{status: 200, delivery: retrip.DeliveryAnswered, bodyErr: true}),
		},
	}
}

func rejectRows() []row {
	reject := func(edit func(*http.Request)) func(*scene) {
		return func(s *scene) {
			s.serveOK()
			s.edit = edit
		}
	}
	want := always(notSent(retrip.ClassOther).permanently())
	return []row{
		{
			id: "v01", fault: "invalid header value", protos: allProtos, methods: getPutPost, bare: bareFails(0), want: want,
			setup: reject(func(r *http.Request) { r.Header["X-Bad"] = []string{"a\nb"} }),
		},
		{
			id: "v02", fault: "no host in the URL", protos: onlyH1, methods: getPutPost, bare: bareFails(0), want: want,
			setup: reject(func(r *http.Request) { r.URL.Host = "" }),
		},
		{
			id: "v03", fault: "unsupported scheme", protos: onlyH1, methods: getPutPost, bare: bareFails(0), want: want,
			setup: reject(func(r *http.Request) { r.URL.Scheme = "foo" }),
		},
		{
			id: "v04", fault: "invalid method", protos: onlyH1, methods: []method{mPOST}, bare: bareFails(0), want: want,
			setup: reject(func(r *http.Request) { r.Method = "BAD METHOD" }),
		},
	}
}
