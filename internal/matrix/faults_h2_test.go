package matrix

import (
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"

	"github.com/retrip/retrip"
)

// bodyless requests are what net/http sends again on HTTP/2 whatever GetBody is.
func bodyless(m method) bool { return !m.body }

func h2Fault(warm bool, plays ...H2Play) func(*scene) {
	if warm {
		plays = append([]H2Play{H2OK("warm")}, plays...)
	}
	return func(s *scene) {
		s.warm = warm
		s.serveH2(H2Sequence(plays...))
	}
}

// unhidden is the bare result of a request that net/http sends again by itself
// until it is answered; it cannot where a body has no GetBody.
func unhidden(heads int) func(method, proto) (int, int) {
	return func(m method, _ proto) (int, int) {
		if m.body && !m.get {
			return 0, 1
		}
		return 200, heads
	}
}

// unprotected POSTs without a body lose the repeats that net/http would make on
// another connection: nothing tells retrip there that the first was refused.
func bodylessPost(m method) bool { return m.name == mPOST0.name }

func streamRows() []row {
	rows := []row{
		{
			id: "h07", fault: "REFUSED_STREAM", protos: onlyH2, methods: allMethods, bare: unhidden(2),
			setup: h2Fault(false, H2Play{H2ReadAll, H2Reset(http2.ErrCodeRefusedStream)}, H2OK("fine")),
			want: func(m method, _ proto) []first {
				if bodyless(m) { // net/http repeats it on the same connection
					return []first{answered(200).taking(2).atOrigin(2)}
				}
				return []first{refused()}
			},
		},
		{
			id: "h07w", fault: "REFUSED_STREAM on a reused connection", protos: onlyH2, methods: allMethods, bare: unhidden(2),
			setup: h2Fault(true, H2Play{H2ReadAll, H2Reset(http2.ErrCodeRefusedStream)}, H2OK("fine")),
			want: func(m method, _ proto) []first {
				if bodyless(m) {
					return []first{answered(200).taking(2).atOrigin(2)}
				}
				return []first{refused()}
			},
		},
		{
			id: "h08", fault: "REFUSED_STREAM, every time", protos: onlyH2, methods: []method{mPUT, mPOST, mPOSTkey, mPOSTnr},
			setup: func(s *scene) {
				h2Fault(false, H2Play{H2ReadAll, H2Reset(http2.ErrCodeRefusedStream)})(s)
				s.bareLimit = 2 * shortLimit
			},
			want: always(refused().everTime()),
		},
		{
			id: "h08b", fault: "REFUSED_STREAM, every time, the caller's deadline ends", protos: onlyH2, methods: []method{mGET, mPOST0}, bare: bareFails(-1),
			setup: func(s *scene) {
				h2Fault(true, H2Play{H2ReadAll, H2Reset(http2.ErrCodeRefusedStream)})(s)
				s.settle = func() { s.deadline(longLimit / 4) }
			},
			want: always(unknown(retrip.ClassDeadline).callerEnds(retrip.DecisionDeadlineExceeded).atOrigin(1, 2, 3)),
		},
		{
			id: "h11", fault: "PROTOCOL_ERROR after the whole request, every time", protos: onlyH2, methods: allMethods,
			setup: func(s *scene) {
				h2Fault(false, H2Play{H2ReadAll, H2Reset(http2.ErrCodeProtocol)})(s)
				s.bareLimit = 2 * shortLimit
			},
			want:  bounded,
			check: namesBound,
		},
		{
			id: "h11once", fault: "PROTOCOL_ERROR after the whole request", protos: onlyH2, methods: allMethods, bare: unhidden(2),
			setup: h2Fault(false, H2Play{H2ReadAll, H2Reset(http2.ErrCodeProtocol)}, H2OK("fine")),
			want: func(m method, _ proto) []first {
				if m.safe() {
					return []first{answered(200).taking(2).atOrigin(2)}
				}
				return []first{unknown(retrip.ClassProtocol)}
			},
			worse: func(m method) bool { return !m.repeatable() },
		},
		{
			id: "h20", fault: "answer's headers, then INTERNAL_ERROR in its body", protos: onlyH2, methods: getPutPost, bare: bareAnswers(200, 1),
			setup: h2Fault(false, H2Play{H2ReadAll, H2Begin(200, "part"), H2Reset(http2.ErrCodeInternal)}),
			want:  always(first{status: 200, delivery: retrip.DeliveryAnswered, bodyErr: true}),
		},
		{
			id: "h21", fault: "answer's headers, then REFUSED_STREAM in its body", protos: onlyH2, methods: getPutPost, bare: bareAnswers(200, 1),
			setup: h2Fault(false, H2Play{H2ReadAll, H2Begin(200, "part"), H2Reset(http2.ErrCodeRefusedStream)}),
			want:  always(first{status: 200, delivery: retrip.DeliveryAnswered, bodyErr: true}),
		},
		{
			id: "h24", fault: "200 before the body is read, then NO_ERROR", protos: onlyH2, methods: withBody, bare: bareAnswers(200, 1),
			setup: func(s *scene) {
				s.size = bigSize
				h2Fault(false, H2Play{H2Respond(200, "fine"), H2Reset(http2.ErrCodeNo)})(s)
			},
			want: always(answered(200)),
		},
	}
	for _, code := range []http2.ErrCode{
		http2.ErrCodeNo, http2.ErrCodeInternal, http2.ErrCodeFlowControl, http2.ErrCodeSettingsTimeout, http2.ErrCodeStreamClosed,
		http2.ErrCodeFrameSize, http2.ErrCodeCancel, http2.ErrCodeCompression, http2.ErrCodeConnect, http2.ErrCodeEnhanceYourCalm,
		http2.ErrCodeInadequateSecurity, http2.ErrCodeHTTP11Required,
	} {
		rows = append(rows, row{
			id: "h09-" + code.String(), fault: code.String() + " after the whole request", protos: onlyH2, methods: allMethods, bare: bareFails(1),
			setup: h2Fault(false, H2Play{H2ReadAll, H2Reset(code)}, H2OK("fine")),
			want:  always(unknown(retrip.ClassProtocol)),
		})
	}
	return rows
}

// bounded: a refusal that comes back every time ends, within max(2, attempts
// left) sends per attempt.
func bounded(m method, _ proto) []first {
	f := unknown(retrip.ClassProtocol).everTime()
	switch {
	case m.safe():
		f.heads = []int{2, 3, 4, 5, 6, 7}
		f.sends = []int{2, 3, 4} // the one that is cut short is counted
		return []first{f}
	case m.repeatable():
		return []first{f.atOrigin(3)}
	}
	return []first{f.atOrigin(1)}
}

func namesBound(t *testing.T, m method, got result) { //nolint:thelper // a row's check
	if bodylessPost(m) {
		assert.ErrorContains(t, got.err, "stopped from sending the request again")
		assert.NotContains(t, got.err.Error(), "context canceled")
	}
}

func goAwayRows() []row {
	below := func(m method, _ proto) []first {
		if m.safe() {
			return []first{answered(200).taking(2).atOrigin(2)}
		}
		if bodylessPost(m) {
			return []first{unknown(retrip.ClassProtocol).atOrigin(1), refused(), answered(200).atOrigin(2)}
		}
		return []first{refused()}
	}
	return []row{
		{
			id: "h01", fault: "GOAWAY below the stream, NO_ERROR", protos: onlyH2, methods: allMethods, bare: unhidden(2),
			setup: h2Fault(false, H2Play{H2ReadAll, H2GoAwayBelow(http2.ErrCodeNo)}, H2OK("fine")),
			want:  below, worse: bodylessPost,
		},
		{
			id: "h02", fault: "GOAWAY below the stream, NO_ERROR, every time", protos: onlyH2, methods: allMethods,
			setup: func(s *scene) {
				h2Fault(false, H2Play{H2ReadAll, H2GoAwayBelow(http2.ErrCodeNo)})(s)
				s.bareLimit = 2 * shortLimit
			},
			want: func(m method, p proto) []first {
				if m.body {
					return []first{refused().everTime()}
				}
				return append(bounded(m, p), refused().everTime())
			},
			check: namesBound,
		},
		{
			id: "h03", fault: "GOAWAY below the first stream, ENHANCE_YOUR_CALM", protos: onlyH2, methods: allMethods, bare: bareFails(1),
			setup: h2Fault(false, H2Play{H2ReadAll, H2GoAwayBelow(http2.ErrCodeEnhanceYourCalm)}, H2OK("fine")),
			want:  always(refused()),
		},
		{
			id: "h03p", fault: "GOAWAY below the first stream, PROTOCOL_ERROR", protos: onlyH2, methods: allMethods, bare: bareFails(1),
			setup: h2Fault(false, H2Play{H2ReadAll, H2GoAwayBelow(http2.ErrCodeProtocol)}, H2OK("fine")),
			want:  always(refused()),
		},
		{
			id: "h04", fault: "GOAWAY below a later stream, ENHANCE_YOUR_CALM", protos: onlyH2, methods: allMethods, bare: unhidden(2),
			setup: h2Fault(true, H2Play{H2ReadAll, H2GoAwayBelow(http2.ErrCodeEnhanceYourCalm)}, H2OK("fine")),
			want:  below, worse: bodylessPost,
		},
		{
			id: "h04n", fault: "GOAWAY below a later stream, NO_ERROR", protos: onlyH2, methods: allMethods, bare: unhidden(2),
			setup: h2Fault(true, H2Play{H2ReadAll, H2GoAwayBelow(http2.ErrCodeNo)}, H2OK("fine")),
			want:  below, worse: bodylessPost,
		},
		{
			id: "h05", fault: "GOAWAY covering the stream, NO_ERROR, then closed", protos: onlyH2, methods: allMethods, bare: bareFails(1),
			setup: h2Fault(false, H2Play{H2ReadAll, H2GoAwayCovering(http2.ErrCodeNo), H2FIN}, H2OK("fine")),
			want:  always(unknown(retrip.ClassProtocol, retrip.ClassEOF)),
		},
		{
			id: "h05i", fault: "GOAWAY covering the stream, INTERNAL_ERROR, then closed", protos: onlyH2, methods: allMethods, bare: bareFails(1),
			setup: h2Fault(false, H2Play{H2ReadAll, H2GoAwayCovering(http2.ErrCodeInternal), H2FIN}, H2OK("fine")),
			want:  always(unknown(retrip.ClassProtocol, retrip.ClassEOF)),
		},
		{
			id: "h05a", fault: "none: GOAWAY covering the stream, then 200", protos: onlyH2, methods: allMethods, bare: bareAnswers(200, 1),
			setup: h2Fault(false, H2Play{H2ReadAll, H2GoAwayCovering(http2.ErrCodeNo), H2Respond(200, "fine")}),
			want:  always(answered(200)),
		},
		{
			id: "h26", fault: "PROTOCOL_ERROR after the whole request, and the port is closed", protos: onlyH2, methods: allMethods, bare: bareFails(1),
			setup: h2Gone(H2Reset(http2.ErrCodeProtocol)),
			want: func(m method, _ proto) []first {
				if bodyless(m) { // the base's words are of its next dial, not of this request
					return []first{unknown(retrip.ClassDial).everTime().atOrigin(1)}
				}
				return []first{unknown(retrip.ClassProtocol).everTime().atOrigin(1)}
			},
		},
		{
			id: "h27", fault: "GOAWAY below the stream, and the port is closed", protos: onlyH2, methods: allMethods, bare: bareFails(1),
			setup: h2Gone(H2GoAwayBelow(http2.ErrCodeNo)),
			want: func(m method, _ proto) []first {
				if bodyless(m) {
					return []first{unknown(retrip.ClassDial).everTime().atOrigin(1), refused().everTime().atOrigin(1)}
				}
				return []first{refused().everTime().atOrigin(1)}
			},
		},
	}
}

// h2Gone closes the port before it ends the stream.
func h2Gone(end H2Step) func(*scene) {
	return func(s *scene) {
		var o *H2Origin
		o = s.serveH2(H2Sequence(H2Play{H2ReadAll, H2Call(func() { o.Refuse() }), end}))
	}
}

func connectionRows() []row {
	silentFirst := func(tune func(*http.Transport)) func(*scene) {
		return func(s *scene) {
			tune(s.transport)
			s.frozen = true
			mute := func(conn int, c *H2Conn) bool {
				if conn > 1 {
					return true
				}
				// It says what a server says first, then neither reads nor answers.
				framer := http2.NewFramer(c.TLS(), nil)
				const wide = 1 << 30
				if framer.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: wide}) == nil &&
					framer.WriteWindowUpdate(0, wide) == nil {
					<-c.Stopped()
				}
				return false
			}
			s.serveH2(H2Script{Begin: mute, Streams: func(H2Turn) H2Play { return H2OK("fine") }})
		}
	}
	begin := func(first func(c *H2Conn)) func(*scene) {
		return func(s *scene) {
			s.serveH2(H2Script{
				Begin: func(conn int, c *H2Conn) bool {
					if conn == 1 {
						first(c)
					}
					return conn > 1
				},
				Streams: func(H2Turn) H2Play { return H2OK("fine") },
			})
		}
	}
	return []row{
		{
			id: "h14", fault: "connection closed after HEADERS", protos: onlyH2, methods: allMethods, bare: bareFails(1),
			setup: h2Fault(false, H2Play{H2FIN}, H2OK("fine")), want: always(unknown(broken...)),
		},
		{
			id: "h15", fault: "none: MAX_CONCURRENT_STREAMS 0 in the first SETTINGS", protos: onlyH2, methods: getPutPost,
			setup: func(s *scene) {
				s.serveH2(H2Script{
					Settings: []http2.Setting{{ID: http2.SettingMaxConcurrentStreams, Val: 0}},
					Streams:  func(H2Turn) H2Play { return H2OK("fine") },
				})
				s.deadline(4 * shortLimit) // SETTINGS may come first: then no stream is ever allowed
			},
			worse: func(method) bool { return true },
			want: always(answered(200), unknown(retrip.ClassDeadline).callerEnds(retrip.DecisionDeadlineExceeded),
				notSent(retrip.ClassDeadline).callerEnds(retrip.DecisionDeadlineExceeded)),
		},
		{
			id: "h16", fault: "none: all streams of the connection are taken, it dials again", protos: onlyH2, methods: getPutPost, bare: bareAnswers(200, 1),
			setup: busyStreams(false, 0), want: always(answered(200)),
		},
		{
			id: "h17", fault: "no stream allowed, StrictMaxConcurrentRequests, the caller's deadline ends", protos: onlyH2, methods: getPutPost,
			bare: bareFails(0), setup: busyStreams(true, shortLimit),
			want: always(unknown(retrip.ClassDeadline).callerEnds(retrip.DecisionDeadlineExceeded).atOrigin(0)),
		},
		{
			id: "h17a", fault: "no stream allowed, StrictMaxConcurrentRequests, AttemptTimeout", protos: onlyH2, methods: getPutPost,
			setup: func(s *scene) {
				busyStreams(true, 0)(s)
				s.bareLimit = shortLimit
				s.opts = []retrip.Option{retrip.WithAttemptTimeout(shortLimit)}
			},
			want: always(unknown(retrip.ClassTimeout).everTime().atOrigin(0)),
		},
		{
			id: "h18", fault: "connection lost: no reply to pings", protos: onlyH2, methods: allMethods, bare: bareFails(-1),
			setup: silentFirst(func(t *http.Transport) {
				t.HTTP2 = &http.HTTP2Config{SendPingTimeout: shortLimit, PingTimeout: longLimit}
			}),
			want: func(m method, _ proto) []first {
				way := unknown(retrip.ClassProtocol, retrip.ClassEOF, retrip.ClassReset, retrip.ClassTimeout, retrip.ClassOther)
				if m.repeatable() {
					return []first{way.atOrigin(1)}
				}
				return []first{way.atOrigin(0)}
			},
		},
		{
			id: "h19", fault: "the peer does not read: WriteByteTimeout", protos: onlyH2, methods: withBody, bare: bareFails(-1),
			setup: func(s *scene) {
				s.size = bigSize
				s.dialer(func(ctx context.Context, network, addr string) (net.Conn, error) {
					c, err := new(net.Dialer).DialContext(ctx, network, addr)
					if err != nil {
						return nil, err
					}
					return c, c.(*net.TCPConn).SetWriteBuffer(32 << 10) // so that the upload does not fit into it
				})
				silentFirst(func(t *http.Transport) {
					t.HTTP2 = &http.HTTP2Config{WriteByteTimeout: longLimit}
				})(s)
			},
			want: func(m method, _ proto) []first {
				way := unknown(retrip.ClassWrite, retrip.ClassTimeout)
				if m.repeatable() {
					return []first{way.atOrigin(0, 1)}
				}
				return []first{way.atOrigin(0)}
			},
		},
		{
			id: "h22", fault: "garbage after the handshake", protos: onlyH2, methods: allMethods, bare: bareFails(0),
			setup: begin(func(c *H2Conn) {
				_, _ = io.WriteString(c.TLS(), "HTTP/1.1 400 Bad Request\r\n\r\n")
				_, _ = io.Copy(io.Discard, c.TLS())
			}),
			want: func(m method, _ proto) []first {
				ways := []first{unknown(retrip.ClassProtocol).atOrigin(0, 1), notSent(retrip.ClassProtocol)}
				unread := unknown(retrip.ClassProtocol).atOrigin(0, 1)
				unread.bodyRead = false
				if !m.repeatable() {
					return []first{ways[0].atOrigin(0), ways[1]}
				}
				return append(ways, unread)
			},
		},
		{
			id: "h23", fault: "the peer's header list limit is below the request's", protos: onlyH2, methods: getPutPost, bare: bareFails(0),
			setup: func(s *scene) {
				s.warm = true
				s.serveH2(H2Script{
					Settings: []http2.Setting{{ID: http2.SettingMaxHeaderListSize, Val: 4096}},
					Streams:  func(H2Turn) H2Play { return H2OK("fine") },
				})
				s.edit = func(r *http.Request) { r.Header.Set("X-Large", strings.Repeat("x", 8192)) }
			},
			want: func(m method, _ proto) []first {
				if m.repeatable() { // not asked what was written: its permit is enough
					return []first{unknown(retrip.ClassProtocol, retrip.ClassOther).everTime().atOrigin(0)}
				}
				return []first{notSent(retrip.ClassProtocol, retrip.ClassOther).everTime()}
			},
		},
		{
			id: "h25", fault: "SETTINGS, then closed without reading", protos: onlyH2, methods: allMethods, bare: bareFails(0),
			setup: begin(func(c *H2Conn) {
				_ = http2.NewFramer(c.TLS(), nil).WriteSettings()
			}),
			want: func(m method, _ proto) []first {
				classes := append([]retrip.Class{retrip.ClassProtocol, retrip.ClassOther}, broken...)
				sent, unsent := unknown(classes...).atOrigin(0, 1), notSent(classes...)
				unread := sent
				unread.bodyRead = false
				if !m.repeatable() {
					sent, unread = sent.atOrigin(0), unread.atOrigin(0)
				}
				return []first{sent, unsent, unread}
			},
		},
		{
			id: "h30", fault: "AttemptTimeout while HEADERS are being written", protos: onlyH2, methods: allMethods,
			setup: func(s *scene) {
				s.warm = true
				s.serveH2(H2Sequence(H2OK("warm"), H2OK("fine")))
				shut, broken := make(chan struct{}), make(chan struct{})
				s.dialer(func(ctx context.Context, network, addr string) (net.Conn, error) {
					c, err := new(net.Dialer).DialContext(ctx, network, addr)
					if err != nil {
						return nil, err
					}
					return &gatedConn{Conn: c, shut: shut, broken: broken}, nil
				})
				s.edit = func(*http.Request) { close(shut) }
				s.after = func() { close(broken) }
				s.bareLimit = shortLimit
				s.opts = []retrip.Option{retrip.WithAttemptTimeout(shortLimit), retrip.WithMaxAttempts(1)}
			},
			want: func(m method, _ proto) []first {
				f := unknown(retrip.ClassTimeout)
				f.ours, f.last = true, true
				return []first{f}
			},
		},
	}
}

// busyStreams takes the one stream that the peer allows, then sends the row's
// request. Where strict, the base waits for it. A limit is the caller's deadline.
func busyStreams(strict bool, limit time.Duration) func(*scene) {
	return func(s *scene) {
		s.transport.HTTP2 = &http.HTTP2Config{StrictMaxConcurrentRequests: strict}
		s.serveH2(H2Script{
			Settings: []http2.Setting{{ID: http2.SettingMaxConcurrentStreams, Val: 1}},
			Streams: func(t H2Turn) H2Play {
				if t.Conn == 1 && t.OnConn == 2 {
					return H2Play{H2ReadAll, H2Begin(200, "hold"), H2Silence}
				}
				return H2OK("fine")
			},
		})
		s.settle = func() {
			s.warmUp(s.transport)
			ctx, release := context.WithCancel(s.t.Context())
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url, http.NoBody)
			require.NoError(s.t, err)
			resp, err := s.transport.RoundTrip(req) //nolint:bodyclose // after closes it
			require.NoError(s.t, err)
			s.after = func() {
				release()
				resp.Body.Close()
			}
			if limit > 0 {
				s.deadline(limit)
			}
		}
	}
}

// gatedConn keeps what is written once shut is closed, as a peer whose window
// is full, and fails when broken is.
type gatedConn struct {
	net.Conn
	shut, broken <-chan struct{}
}

func (c *gatedConn) Write(p []byte) (int, error) {
	select {
	case <-c.shut:
		<-c.broken
		return 0, net.ErrClosed
	default:
		return c.Conn.Write(p)
	}
}
