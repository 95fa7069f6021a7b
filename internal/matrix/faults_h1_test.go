package matrix

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/httptestx"
)

// once plays the fault in the first turn and answers 200 in the others.
func once(play httptestx.Play) httptestx.Script {
	return httptestx.Sequence(play, httptestx.OK("fine"))
}

// httpOneRows break a fresh connection before any answer.
func httpOneRows() []row {
	fresh := func(size int, play httptestx.Play, two H2Play) func(*scene) {
		return func(s *scene) {
			s.size = size
			s.serve(once(play), H2Sequence(two, H2OK("fine")))
		}
	}
	lost := always(unknown(broken...))
	return []row{
		{
			id: "f01", fault: "closes its side at once and reads on", protos: httpOne, methods: allMethods, bare: bareFails(-1),
			setup: fresh(0, httptestx.Play{httptestx.Handshake, httptestx.FIN}, nil),
			want: func(m method, _ proto) []first {
				sent, unread := unknown(broken...), unknown(broken...)
				unread.bodyRead = false // one-shot, of which nothing was read
				return []first{sent, unread, notSent(broken...)}
			},
		},
		{
			id: "f02", fault: "resets with the request unread", protos: onlyH1, methods: allMethods, bare: bareFails(0),
			setup: fresh(0, httptestx.Play{httptestx.AwaitByte, httptestx.RST}, nil), want: lost,
		},
		{
			id: "f03", fault: "resets within the headers", protos: httpOne, methods: allMethods, bare: bareFails(0),
			setup: fresh(0, httptestx.Play{httptestx.ReadBytes(20), httptestx.RST}, nil), want: lost,
		},
		{
			id: "f04", fault: "resets after the headers", protos: allProtos, methods: allMethods, bare: bareFails(1),
			setup: fresh(0, httptestx.Play{httptestx.ReadHead, httptestx.RST}, H2Play{H2RST}), want: lost,
		},
		{
			id: "f05", fault: "resets in the body, after a quarter of 1 MiB", protos: allProtos, methods: withBody, bare: bareFails(1),
			setup: fresh(bigSize, httptestx.Play{httptestx.ReadHead, httptestx.ReadBody(bigSize / 4), httptestx.RST},
				H2Play{H2ReadBody(bigSize / 4), H2RST}),
			want: lost,
		},
		{
			id: "f05c", fault: "closes in the body, after a quarter of 1 MiB, and reads on", protos: httpOne, methods: withBody, bare: bareFails(1),
			setup: fresh(bigSize, httptestx.Play{httptestx.ReadHead, httptestx.ReadBody(bigSize / 4), httptestx.FIN}, nil),
			want:  lost,
		},
		{
			id: "f06", fault: "resets after the whole request", protos: allProtos, methods: allMethods, bare: bareFails(1),
			setup: fresh(0, httptestx.Play{httptestx.ReadAll, httptestx.RST}, H2Play{H2ReadAll, H2RST}), want: lost,
		},
		{
			id: "f07", fault: "reads the whole request and closes", protos: allProtos, methods: allMethods, bare: bareFails(1),
			setup: fresh(0, httptestx.Play{httptestx.ReadAll, httptestx.FIN}, H2Play{H2ReadAll, H2FIN}),
			want:  always(unknown(retrip.ClassEOF)),
		},
		{
			id: "f07always", fault: "reads the whole request and closes, every time", protos: allProtos, methods: allMethods, bare: bareFails(1),
			setup: func(s *scene) {
				s.serve(httptestx.Sequence(httptestx.Play{httptestx.ReadAll, httptestx.FIN}), H2Sequence(H2Play{H2ReadAll, H2FIN}))
			},
			want: func(m method, _ proto) []first {
				f := unknown(retrip.ClassEOF).everTime()
				if m.repeatable() {
					return []first{f.atOrigin(3)}
				}
				return []first{f.atOrigin(1)}
			},
		},
		{
			id: "f08", fault: "ResponseHeaderTimeout", protos: allProtos, methods: allMethods, bare: bareFails(1),
			setup: func(s *scene) {
				s.warm = true
				s.transport.ResponseHeaderTimeout = longLimit
				s.serve(httptestx.Sequence(httptestx.OK("warm"), httptestx.Play{httptestx.ReadAll, httptestx.Silence}, httptestx.OK("fine")),
					H2Sequence(H2OK("warm"), H2Play{H2ReadAll, H2Silence}, H2OK("fine")))
			},
			want: always(unknown(retrip.ClassTimeout)),
			check: func(t *testing.T, m method, got result) { //nolint:thelper // a row's check
				if got.err == nil {
					return
				}
				var timeout interface{ Timeout() bool }
				require.ErrorAs(t, got.err, &timeout)
				assert.True(t, timeout.Timeout(), m.name)
			},
		},
	}
}

// staleRows fail a connection that served a request before.
func staleRows() []row {
	stale := func(plays ...httptestx.Play) func(*scene) {
		return func(s *scene) {
			s.warm = true
			s.serveH1(httptestx.Sequence(append([]httptestx.Play{httptestx.OK("warm")}, plays...)...))
		}
	}
	// hidden: net/http sends these again by itself on a reused connection.
	hidden := func(m method) bool { return m.verb == http.MethodGet || m.key }
	resent := func(heads int) func(method, proto) []first {
		return func(m method, _ proto) []first {
			if hidden(m) {
				return []first{answered(200).taking(2).atOrigin(heads)}
			}
			return []first{unknown(broken...)}
		}
	}
	bareResent := func(heads, other int) func(method, proto) (int, int) {
		return func(m method, _ proto) (int, int) {
			if hidden(m) {
				return 200, heads
			}
			return 0, other
		}
	}
	return []row{
		{
			id: "s01", fault: "reused: killed with the request unread", protos: onlyH1, methods: allMethods,
			setup: stale(httptestx.Play{httptestx.AwaitByte, httptestx.Close}, httptestx.OK("fine")),
			want:  resent(1), bare: bareResent(1, 0),
		},
		{
			id: "s02", fault: "reused: reads the whole request and closes", protos: httpOne, methods: allMethods,
			setup: stale(httptestx.Play{httptestx.ReadAll, httptestx.FIN}, httptestx.OK("fine")),
			want:  resent(2), bare: bareResent(2, 1),
		},
		{
			id: "s03", fault: "reused: reads the whole request and resets", protos: httpOne, methods: allMethods,
			setup: stale(httptestx.Play{httptestx.ReadAll, httptestx.RST}, httptestx.OK("fine")),
			want:  resent(2), bare: bareResent(2, 1),
		},
		{
			id: "s04", fault: "reused: reads the whole request and closes, later connections too", protos: httpOne, methods: allMethods,
			setup: stale(httptestx.Play{httptestx.ReadAll, httptestx.FIN}),
			want: func(m method, _ proto) []first {
				f := unknown(retrip.ClassEOF).everTime()
				switch {
				case hidden(m):
					return []first{f.taking(2).atOrigin(4)}
				case m.repeatable():
					return []first{f.taking(1).atOrigin(3)}
				}
				return []first{f.taking(1).atOrigin(1)}
			},
			bare: func(m method, _ proto) (int, int) {
				if hidden(m) {
					return 0, 2
				}
				return 0, 1
			},
		},
		{
			id: "s05", fault: "reused: reads the whole request, stops listening, closes", protos: allProtos, methods: allMethods, bare: bareFails(1),
			setup: func(s *scene) {
				s.warm = true
				if s.proto == h2 {
					var o *H2Origin
					o = s.serveH2(H2Sequence(H2OK("warm"), H2Play{H2ReadAll, H2Call(func() { o.Refuse() }), H2FIN}))
					return
				}
				var o *httptestx.Origin
				o = s.serveH1(httptestx.Sequence(httptestx.OK("warm"),
					httptestx.Play{httptestx.ReadAll, httptestx.Call(func() { o.Refuse() }), httptestx.FIN}))
			},
			want: func(m method, p proto) []first {
				class := retrip.ClassEOF
				if hidden(m) && p != h2 {
					class = retrip.ClassDial // what the base says of a request that was sent
				}
				return []first{unknown(class).everTime().atOrigin(1)}
			},
		},
		{
			id: "s06", fault: "reused: closed while idle", protos: allProtos, methods: allMethods, bare: bareAnswers(200, 1),
			setup: func(s *scene) {
				s.warm = true
				s.serve(httptestx.Sequence(append(httptestx.OK("warm"), httptestx.FIN), httptestx.OK("fine")),
					H2Sequence(append(H2OK("warm"), H2FIN), H2OK("fine")))
				s.settle = func() { s.awaitClientConns(0) }
			},
			want: always(answered(200)),
		},
		{
			id: "s07", fault: "reused: reset while idle", protos: httpOne, methods: allMethods, bare: bareAnswers(200, 1),
			setup: func(s *scene) {
				s.warm = true
				idle := make(chan struct{})
				s.serveH1(httptestx.Sequence(append(httptestx.OK("warm"), httptestx.WaitFor(idle), httptestx.RST), httptestx.OK("fine")))
				s.settle = func() {
					close(idle)
					s.awaitClientConns(0)
				}
			},
			want: always(answered(200)),
		},
		{
			id: "s08", fault: "reused: 408 and closed while idle", protos: httpOne, methods: allMethods, bare: bareAnswers(200, 1),
			setup: func(s *scene) {
				s.warm = true
				idle := make(chan struct{})
				s.serveH1(httptestx.Sequence(append(httptestx.OK("warm"), httptestx.WaitFor(idle),
					httptestx.Write("HTTP/1.1 408 Request Timeout\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"), httptestx.FIN),
					httptestx.OK("fine")))
				s.settle = func() {
					close(idle)
					s.awaitClientConns(0)
				}
			},
			want: always(answered(200)),
		},
	}
}

// responseRows break the answer.
func responseRows() []row {
	one := func(steps ...httptestx.Step) func(*scene) {
		return func(s *scene) { s.serveH1(once(append(httptestx.Play{httptestx.ReadAll}, steps...))) }
	}
	cut := always(unknown(retrip.ClassProtocol, retrip.ClassEOF, retrip.ClassReset))
	bodyFails := always(first{status: 200, delivery: retrip.DeliveryAnswered, bodyErr: true})
	bodyShort := func(end httptestx.Step, two H2Step) func(*scene) {
		return func(s *scene) {
			s.serve(once(httptestx.Play{httptestx.ReadAll, httptestx.Write("HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n1234567890"), end}),
				H2Sequence(H2Play{H2ReadAll, H2Begin(200, "1234567890", "Content-Length: 100"), two}, H2OK("fine")))
		}
	}
	early := func(code int, end ...httptestx.Step) func(*scene) {
		return func(s *scene) {
			s.size = bigSize
			play := append(httptestx.Play{httptestx.ReadHead, httptestx.Respond(code, "no", "Connection: close")}, end...)
			s.serve(once(play), H2Sequence(H2Play{H2Respond(code, "no")}, H2OK("fine")))
		}
	}
	return []row{
		{
			id: "r01", fault: "half a status line, closed", protos: httpOne, methods: allMethods, bare: bareFails(1), want: cut,
			setup: one(httptestx.Write("HTTP/1.1 20"), httptestx.FIN),
		},
		{
			id: "r02", fault: "garbage, closed", protos: httpOne, methods: allMethods, bare: bareFails(1), want: cut,
			setup: one(httptestx.Write("\x00\x01garbage\r\n\r\n"), httptestx.FIN),
		},
		{
			id: "r03", fault: "half of the headers, closed", protos: httpOne, methods: allMethods, bare: bareFails(1), want: cut,
			setup: one(httptestx.Write("HTTP/1.1 200 OK\r\nConte"), httptestx.FIN),
		},
		{
			id: "r03r", fault: "half of the headers, reset", protos: httpOne, methods: getPutPost, bare: bareFails(1), want: cut,
			setup: one(httptestx.Write("HTTP/1.1 200 OK\r\nConte"), httptestx.RST),
		},
		{
			id: "r04", fault: "headers and part of the body, closed", protos: allProtos, methods: getPutPost, bare: bareAnswers(200, 1), want: bodyFails,
			setup: bodyShort(httptestx.FIN, H2FIN),
		},
		{
			id: "r07", fault: "413 before the body is read, closed at once", protos: httpOne, methods: withBody,
			setup: early(413, httptestx.Close),
			want: func(m method, _ proto) []first {
				way := unknown(broken...)
				if m.repeatable() {
					way = way.atOrigin(2)
				}
				return []first{answered(413), way}
			},
			worse: func(method) bool { return true },
		},
		{
			id: "r08", fault: "413 before the body is read, then drained", protos: allProtos, methods: withBody, bare: bareAnswers(413, 1),
			setup: early(413, httptestx.HalfClose, httptestx.Silence), want: always(answered(413)),
		},
		{
			id: "r09", fault: "503 before the body is read, then drained", protos: allProtos, methods: withBody, bare: bareAnswers(503, 1),
			setup: early(503, httptestx.HalfClose, httptestx.Silence), want: always(answered(503)),
		},
		{
			id: "r10", fault: "answer's headers too large", protos: httpOne, methods: getPutPost, bare: bareFails(1), want: cut,
			setup: func(s *scene) {
				s.transport.MaxResponseHeaderBytes = 2000
				s.serveH1(once(httptestx.Play{httptestx.ReadAll, httptestx.Respond(200, "", "X-Large: "+strings.Repeat("x", 10000)), httptestx.FIN}))
			},
		},
		{
			id: "r11", fault: "malformed chunk in the answer's body", protos: httpOne, methods: getPutPost, bare: bareAnswers(200, 1), want: bodyFails,
			setup: one(httptestx.Write("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n"), httptestx.FIN),
		},
		{
			id: "i01", fault: "none: 103, 103, 200", protos: httpOne, methods: allMethods, bare: bareAnswers(200, 1), want: always(answered(200)),
			setup: one(httptestx.Write("HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\n"), httptestx.Respond(200, "fine")),
		},
		{
			id: "i02", fault: "103, then closed", protos: httpOne, methods: allMethods, bare: bareFails(1), want: cut,
			setup: one(httptestx.Write("HTTP/1.1 103 Early Hints\r\n\r\n"), httptestx.FIN),
		},
	}
}

// expectRows are about Expect: 100-continue.
func expectRows() []row {
	posts := []method{mPUT, mPOST, mPOSTnr}
	expecting := func(plays ...httptestx.Play) func(*scene) {
		return func(s *scene) {
			s.size = 256 << 10
			s.transport.ExpectContinueTimeout = runLimit
			s.edit = func(r *http.Request) { r.Header.Set("Expect", "100-continue") }
			s.serveH1(httptestx.Sequence(plays...))
		}
	}
	proceed := httptestx.Write("HTTP/1.1 100 Continue\r\n\r\n")
	served := httptestx.Play{httptestx.ReadHead, proceed, httptestx.ReadAll, httptestx.Respond(200, "fine")}
	return []row{
		{
			id: "e01", fault: "Expect: 417 and closed", protos: httpOne, methods: posts, bare: bareAnswers(417, 1), want: always(answered(417)),
			setup: expecting(httptestx.Play{httptestx.ReadHead, httptestx.Respond(417, "", "Connection: close"), httptestx.FIN}, served),
		},
		{
			id: "e02", fault: "Expect: 503 and closed", protos: httpOne, methods: posts, bare: bareAnswers(503, 1),
			want: func(m method, _ proto) []first {
				way := answered(503)
				if m.replayable() {
					return []first{way}
				}
				return []first{way}
			},
			setup: expecting(httptestx.Play{httptestx.ReadHead, httptestx.Respond(503, "", "Connection: close"), httptestx.FIN}, served),
		},
		{
			id: "e04", fault: "none: Expect, 100, 200", protos: httpOne, methods: posts, bare: bareAnswers(200, 1), want: always(answered(200)),
			setup: expecting(served),
		},
		{
			id: "e05", fault: "Expect: closed instead of answered", protos: httpOne, methods: posts, bare: bareFails(1),
			want: func(m method, _ proto) []first {
				unread := unknown(broken...)
				unread.bodyRead = false
				return []first{unread, unknown(broken...)}
			},
			setup: expecting(httptestx.Play{httptestx.ReadHead, httptestx.FIN}, served),
		},
		{
			id: "e06", fault: "Expect: 100, then reset", protos: httpOne, methods: posts, bare: bareFails(1),
			want:  always(unknown(append([]retrip.Class{retrip.ClassProtocol}, broken...)...)),
			setup: expecting(httptestx.Play{httptestx.ReadHead, proceed, httptestx.RST}, served),
		},
	}
}

var (
	errDisk  = errors.New("disk gone")
	errClose = errors.New("close failed")
)

// failingBody is a request body with faults of its own.
type failingBody struct {
	io.Reader
	close error
}

func (b failingBody) Close() error { return b.close }

// bodyRows fail in the caller's own body.
func bodyRows() []row {
	mPUTnr := method{name: "PUT-nr", verb: http.MethodPut, body: true}
	own := func(body func() io.ReadCloser, length int64) func(*scene) {
		return func(s *scene) {
			s.serve(once(httptestx.Play{httptestx.ReadAll, httptestx.Respond(200, "fine")}), H2Sequence(H2OK("fine")))
			s.edit = func(r *http.Request) {
				r.Body, r.ContentLength = body(), length
				r.GetBody = nil
				if s.method.get {
					r.GetBody = func() (io.ReadCloser, error) { return body(), nil }
				}
			}
		}
	}
	failing := func(n int) func() io.ReadCloser {
		return func() io.ReadCloser {
			return io.NopCloser(httptestx.FailAfter(strings.Repeat("x", 64<<10), n, errDisk))
		}
	}
	sized := func(n int) func() io.ReadCloser {
		return func() io.ReadCloser {
			return io.NopCloser(httptestx.OneShot(strings.NewReader(strings.Repeat("x", n))))
		}
	}
	failed := always(unknown(retrip.ClassBody).atOrigin(0, 1))
	methods := []method{mPUT, mPUTnr, mPOST, mPOSTkey}
	keepsError := func(t *testing.T, _ method, got result) { //nolint:thelper // a row's check
		assert.ErrorIs(t, got.err, errDisk)
	}
	return []row{
		{
			id: "b01", fault: "body: the first read fails", protos: allProtos, methods: methods, bare: bareFails(-1), want: failed,
			setup: own(failing(0), 64<<10), check: keepsError,
		},
		{
			id: "b02", fault: "body: a read fails half-way", protos: allProtos, methods: methods, bare: bareFails(-1), want: failed,
			setup: own(failing(32<<10), 64<<10), check: keepsError,
		},
		{
			id: "b03", fault: "body shorter than its ContentLength", protos: httpOne, methods: methods, bare: bareFails(-1), want: failed,
			setup: own(sized(2048), 4096),
		},
		{
			id: "b03h", fault: "body shorter than its ContentLength", protos: onlyH2, methods: methods, bare: bareAnswers(200, 1),
			setup: own(sized(2048), 4096), want: always(answered(200), unknown(retrip.ClassBody).atOrigin(0, 1)),
			worse: func(method) bool { return true },
		},
		{
			id: "b04", fault: "body longer than its ContentLength", protos: allProtos, methods: methods, bare: bareFails(-1), want: failed,
			setup: own(sized(2048), 1000),
		},
		{
			id: "b05", fault: "body: Close fails", protos: httpOne, methods: []method{mPUT, mPOST}, bare: bareFails(1),
			setup: own(func() io.ReadCloser { return failingBody{strings.NewReader(payload), errClose} }, int64(len(payload))),
			want:  always(answered(200), unknown(retrip.ClassBody), unknown(retrip.ClassProtocol), unknown(retrip.ClassOther)),
		},
		{
			id: "b06", fault: "body: a read blocks, the caller's deadline ends", protos: allProtos, methods: []method{mPUT, mPOSTnr}, bare: bareFails(-1),
			setup: func(s *scene) {
				own(func() io.ReadCloser {
					ctx, cancel := context.WithTimeout(context.Background(), 3*shortLimit)
					s.t.Cleanup(cancel)
					return io.NopCloser(io.MultiReader(strings.NewReader("begin"), waitingReader{ctx}))
				}, 4096)(s)
				s.deadline(2 * shortLimit)
			},
			want: always(unknown(retrip.ClassDeadline).callerEnds(retrip.DecisionDeadlineExceeded).atOrigin(0, 1),
				notSent(retrip.ClassDeadline).callerEnds(retrip.DecisionDeadlineExceeded)),
		},
		{
			id: "b07", fault: "reads the request and closes; GetBody fails", protos: allProtos, methods: []method{mPUT, mPOSTkey}, bare: bareFails(1),
			setup: func(s *scene) {
				s.serve(once(httptestx.Play{httptestx.ReadAll, httptestx.FIN}), H2Sequence(H2Play{H2ReadAll, H2FIN}, H2OK("fine")))
				s.edit = func(r *http.Request) { r.GetBody = func() (io.ReadCloser, error) { return nil, errDisk } }
			},
			want: func(m method, _ proto) []first {
				way := unknown(retrip.ClassEOF).atOrigin(1)
				way.noBody = true
				return []first{way}
			},
			check: func(t *testing.T, _ method, got result) { //nolint:thelper // a row's check
				require.ErrorIs(t, got.err, errDisk)
				assert.True(t, errors.Is(got.err, io.EOF) || errors.Is(got.err, io.ErrUnexpectedEOF))
			},
		},
		{
			id: "b07s", fault: "503; GetBody fails", protos: allProtos, methods: []method{mPUT, mPOSTkey}, bare: bareAnswers(503, 1),
			setup: func(s *scene) {
				s.serve(once(httptestx.Status(503, "busy")), H2Sequence(H2Status(503, "busy"), H2OK("fine")))
				s.edit = func(r *http.Request) { r.GetBody = func() (io.ReadCloser, error) { return nil, errDisk } }
			},
			want: func(m method, _ proto) []first {
				way := answered(503)
				way.noBody = true
				return []first{way}
			},
			check: func(t *testing.T, _ method, got result) { //nolint:thelper // a row's check
				assert.ErrorIs(t, got.events[0].Err, errDisk)
			},
		},
		{
			id: "b08", fault: "chunked body, reset in its middle", protos: allProtos, methods: withBody, bare: bareFails(1),
			setup: func(s *scene) {
				s.size = bigSize
				s.edit = func(r *http.Request) { r.ContentLength = -1 }
				s.serve(once(httptestx.Play{httptestx.ReadHead, httptestx.ReadBody(bigSize / 4), httptestx.RST}),
					H2Sequence(H2Play{H2ReadBody(bigSize / 4), H2RST}, H2OK("fine")))
			},
			want: always(unknown(broken...)),
		},
		{
			id: "b09", fault: "6 MiB of headers, the peer reads 2000 bytes and stops, cancelled", protos: httpOne, methods: getPost, bare: bareFails(0),
			setup: func(s *scene) {
				s.frozen = true
				s.edit = func(r *http.Request) { r.Header.Set("X-Large", strings.Repeat("x", 6<<20)) }
				s.serveH1(once(httptestx.Play{httptestx.ReadBytes(2000), httptestx.Call(func() { s.cancel() }), httptestx.Freeze}))
			},
			want: always(unknown(retrip.ClassCanceled).callerEnds(retrip.DecisionCancel).atOrigin(0)),
		},
	}
}

// waitingReader blocks until its context ends.
type waitingReader struct {
	ctx context.Context //nolint:containedctx // what the reader waits for
}

func (r waitingReader) Read([]byte) (int, error) {
	<-r.ctx.Done()
	return 0, r.ctx.Err()
}
