package wire

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
)

// resetError has what net/http's own stream error has: errors.As fills a look-alike by it.
type resetError struct {
	code  uint32
	cause error
}

func (e resetError) Error() string { return fmt.Sprintf("stream error: stream ID 1; code %d", e.code) }

func (e resetError) As(target any) bool {
	l, ok := target.(*lookalike)
	if ok {
		*l = lookalike{StreamID: 1, Code: e.code, Cause: e.cause}
	}
	return ok
}

var (
	errPeer    = errors.New("received from peer")
	errRefused = resetError{codeRefusedStream, errPeer}
	errDial    = &net.OpError{Op: "dial", Err: syscall.ECONNREFUSED}
)

// facts of an attempt with the five counters of WIRE.md, all hooks attached.
func facts(g, c, h, r int32, set ...func(*Facts)) Facts {
	f := Facts{Traced: true, WritesTraced: true, GetConn: g, GotConn: c, WroteHeaders: h, WroteRequest: r, Std: true}
	for _, s := range set {
		s(&f)
	}
	return f
}

func TestDelivery(t *testing.T) {
	t.Parallel()
	other := func(f *Facts) { f.Std = false }
	alpn := func(f *Facts) { f.OtherProto = true }
	body := func(f *Facts) { f.BodyRead = true }
	ended := func(f *Facts) { f.Ended = true }
	moved := func(f *Facts) { f.Moved = true }
	distrusted := func(f *Facts) { f.Distrusted = true }
	untraced := func(f *Facts) { *f = Facts{Std: f.Std} }
	writesUnseen := func(f *Facts) { f.WritesTraced = false }
	rejected := func(f *Facts) { f.LocalReject = true }

	tests := []struct {
		name string
		f    Facts
		err  error
		want string
	}{
		// N1.
		{"c05 dial refused", facts(1, 0, 0, 0), errDial, NotSent},
		{"t05 handshake dropped", facts(1, 0, 0, 0), io.EOF, NotSent},
		{"c07 dial under a deadline", facts(1, 0, 0, 0, ended), context.DeadlineExceeded, NotSent},
		{"c05 with another base", facts(1, 0, 0, 0, other), errDial, NotSent},
		{"several dials, none connected", facts(3, 0, 0, 0), errDial, NotSent},
		{"s05 dial refused after a send", facts(2, 1, 1, 1), errDial, Unknown},
		{"h26 dial refused after a send on HTTP/2", facts(2, 1, 1, 1), errDial, Unknown},
		{"T14 a foreign round tripper behind ALPN", facts(1, 0, 0, 0, alpn), errDial, Unknown},
		{"the body was read", facts(1, 0, 0, 0, body), errDial, Unknown},
		{"headers were written without GotConn", facts(1, 0, 1, 0), errDial, Unknown},
		{"the request was written without GotConn", facts(1, 0, 0, 1), errDial, Unknown},
		{"a base whose hooks lie", facts(1, 0, 0, 0, distrusted), errDial, Unknown},

		// No hooks, no proof.
		{"untraced", facts(1, 0, 0, 0, untraced), errDial, Unknown},
		{"no GetConn", facts(0, 0, 0, 0), errDial, Unknown},
		{"no GetConn, yet a connection", facts(0, 1, 0, 0), io.EOF, Unknown},
		{"x01 context dead before", facts(0, 0, 0, 0, ended), context.Canceled, Unknown},

		// N2.
		{"f01 closed before anything was written", facts(1, 1, 0, 0), io.EOF, NotSent},
		{"h23 header list too large", facts(1, 1, 0, 0), text("http2: request header list larger than peer's advertised limit"), NotSent},
		{"h17 no stream free until the deadline", facts(1, 1, 0, 0, ended), context.DeadlineExceeded, Unknown},
		{"T04 ended by anybody", facts(1, 1, 0, 0, ended), context.Canceled, Unknown},
		{"f01 with another base", facts(1, 1, 0, 0, other), io.EOF, Unknown},
		{"f01, writes unseen", facts(1, 1, 0, 0, writesUnseen), io.EOF, Unknown},
		{"f01, the body was read", facts(1, 1, 0, 0, body), io.EOF, Unknown},
		{"b09 only the request's end was seen", facts(1, 1, 0, 1), io.EOF, Unknown},
		{"only the headers were seen", facts(1, 1, 1, 0), io.EOF, Unknown},
		{"f07 closed after the request", facts(1, 1, 1, 1), io.EOF, Unknown},

		// Refused.
		{"h07 REFUSED_STREAM", facts(1, 1, 1, 1), errRefused, Refused},
		{"h07 with another base", facts(1, 1, 1, 1, other), errRefused, Refused},
		{"h07 wrapped", facts(1, 1, 1, 1), fmt.Errorf("layer: %w", errRefused), Refused},
		{"h07 joined", facts(1, 1, 1, 1), errors.Join(io.EOF, errRefused), Refused},
		{"h08 three times on one connection", facts(3, 3, 3, 3), errRefused, Refused},
		{"h08 on two connections", facts(3, 3, 3, 3, moved), errRefused, Unknown},
		{"REFUSED_STREAM of our own making", facts(1, 1, 1, 1), resetError{codeRefusedStream, errors.New("we say so")}, Unknown},
		{"REFUSED_STREAM without a cause", facts(1, 1, 1, 1), resetError{codeRefusedStream, nil}, Unknown},
		{"h10 CANCEL", facts(1, 1, 1, 1), resetError{8, errPeer}, Unknown},
		{"h11 PROTOCOL_ERROR", facts(1, 1, 1, 1), resetError{1, errPeer}, Unknown},
		{"h01 graceful GOAWAY", facts(1, 1, 1, 1), text(gracefulGoAway), Refused},
		{"h01 with another base", facts(1, 1, 1, 1, other), text(gracefulGoAway), Unknown},
		{"h03 GOAWAY with a code", facts(1, 1, 1, 1), text(firstGoAway + "ENHANCE_YOUR_CALM"), Refused},
		{"h03 after a hidden send", facts(2, 2, 2, 2, moved), text(firstGoAway + "ENHANCE_YOUR_CALM"), Unknown},
		{
			"h01 without GetBody", facts(1, 1, 1, 1),
			text(cannotRetry + gracefulGoAway + "] after Request.Body was written; define Request.GetBody to avoid this error"), Refused,
		},
		{
			"h07 without GetBody", facts(1, 1, 1, 1),
			text(cannotRetry + "stream error: stream ID 1" + refusedStream + "; define Request.GetBody to avoid this error"), Refused,
		},
		{
			"h11 without GetBody", facts(1, 1, 1, 1),
			text(cannotRetry + "stream error: stream ID 1; PROTOCOL_ERROR; received from peer] after Request.Body was written"), Unknown,
		},
		{
			"h07 without GetBody, another base", facts(1, 1, 1, 1, other),
			text(cannotRetry + "stream error: stream ID 1" + refusedStream), Unknown,
		},
		{"h05 GOAWAY at our stream", facts(1, 1, 1, 1), text("http2: server sent GOAWAY and closed the connection; LastStreamID=1"), Unknown},
		{"the words of a GOAWAY inside another text", facts(1, 1, 1, 1), text("layer: " + gracefulGoAway), Unknown},

		// Local rejects.
		{"v01 refused by net/http", facts(0, 0, 0, 0, rejected), text("net/http: invalid header field value"), NotSent},
		{"v01 untraced", facts(0, 0, 0, 0, untraced, rejected), text("net/http: invalid header field value"), NotSent},
		{"v01 from another base", facts(0, 0, 0, 0, rejected, other), text("net/http: invalid header field value"), Unknown},
	}
	for _, tt := range tests {
		assert.Equal(t, tt.want, Delivery(tt.f, tt.err), tt.name)
	}
}

// Nothing but the rules above proves anything, whatever the counters are.
func TestDeliveryClaimsNothingWithoutProof(t *testing.T) {
	t.Parallel()
	errs := []error{io.EOF, errDial, errRefused, errors.New(gracefulGoAway), context.Canceled}
	for bits := range int32(1 << 15) {
		flag := func(i int) bool { return bits>>i&1 == 1 }
		count := func(i int) int32 { return bits >> i & 3 % 3 }
		f := Facts{
			Traced: flag(0), WritesTraced: flag(1), Moved: flag(2), OtherProto: flag(3), BodyRead: flag(4), Std: flag(5),
			Ended: flag(6), Distrusted: flag(7), GetConn: count(8), GotConn: count(10), WroteHeaders: count(12), WroteRequest: bits >> 14 & 1,
		}
		for _, err := range errs {
			got := Delivery(f, err)
			switch {
			case got == Unknown:
			case !f.Traced || f.GetConn == 0:
				t.Fatalf("%+v, %v: %s without a trace", f, err, got)
			case got == NotSent && (f.WroteHeaders > 0 || f.WroteRequest > 0 || f.BodyRead):
				t.Fatalf("%+v, %v: not sent, though written", f, err)
			case got == NotSent && f.GotConn == 0 && (f.OtherProto || f.Distrusted):
				t.Fatalf("%+v, %v: not sent by hooks that prove nothing", f, err)
			case got == NotSent && f.GotConn > 0 && (f.Ended || !f.Std || !f.WritesTraced):
				t.Fatalf("%+v, %v: not sent, though a connection was taken", f, err)
			case got == Refused && (f.GotConn == 0 || f.Moved && f.GotConn > 1):
				t.Fatalf("%+v, %v: refused, though not the only send", f, err)
			}
		}
	}
}

func TestStreamErrorIsFoundInEveryShape(t *testing.T) {
	t.Parallel()
	for name, err := range map[string]error{
		"bare":            errRefused,
		"wrapped":         fmt.Errorf("layer: %w", errRefused),
		"joined":          errors.Join(io.EOF, errRefused),
		"joined, wrapped": fmt.Errorf("%w, %w", io.EOF, fmt.Errorf("layer: %w", errRefused)),
	} {
		code, peer, ok := streamError(err)
		assert.True(t, ok, name)
		assert.True(t, peer, name)
		assert.EqualValues(t, codeRefusedStream, code, name)
	}
	for name, err := range map[string]error{"nil": nil, "other": io.EOF, "joined": errors.Join(io.EOF, errDial), "a struct": StreamError{}} {
		_, _, ok := streamError(err)
		assert.False(t, ok, name)
	}
	assert.Empty(t, lookalike{}.Error())
}

// A StreamError of another package proves nothing, whatever it is called.
type StreamError struct {
	Code  uint32
	Cause error
}

func (StreamError) Error() string { return "stream error" }
