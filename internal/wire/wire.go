// Package wire holds the rules of what a failed attempt proves: whether the server
// could have acted, and what kind of failure it was.
//
// The errors of net/http do not show the phase in which a request failed: a dropped TLS
// handshake and a close after a full POST are the same bare io.EOF, and "dial:
// connection refused" can follow a request that was sent, because net/http dials again
// by itself. The proof comes from net/http/httptrace: a request is written only behind
// GotConn. The rules never claim more than is proven, since a false "not sent" may
// charge a card twice and a false "unknown" costs a repeat.
package wire

import (
	"reflect"
	"strings"
)

// Facts is what was seen of one attempt, read once when RoundTrip had returned. The
// counters are cumulative over what the base does inside the attempt.
type Facts struct {
	GetConn      int32 // connections asked for
	GotConn      int32 // connections taken: sends, an upper bound of what the origin saw
	WroteHeaders int32
	WroteRequest int32
	Traced       bool // the first two counters were attached; without it nothing is proven
	WritesTraced bool // the last two were

	Moved       bool // a connection was taken after another one that something may have been written to
	OtherProto  bool // a TLS handshake of this attempt negotiated an ALPN other than "" and http/1.1
	BodyRead    bool // a read of the request's body was begun, where it is watched
	Std         bool // the base is an *http.Transport
	Ended       bool // the attempt's context or req.Cancel had ended, whoever ended it
	Distrusted  bool // a response came without GotConn once: this base's hooks prove nothing
	LocalReject bool // net/http refused the request by itself, see LocalReject
}

// The deliveries.
const (
	NotSent = "not_sent"
	Refused = "refused"
	Unknown = "unknown"
)

// Delivery tells what err proves about the request's arrival.
func Delivery(f Facts, err error) string {
	switch {
	case f.LocalReject && f.Std:
		// net/http checks a request before it looks for a connection (WIRE.md v01–v03).
		return NotSent
	case !f.Traced || f.GetConn == 0:
		// A fake, a cache, a round tripper that replaced the context: whatever the error
		// says, a dial error can follow a request that was read (s05, h26, h27).
		return Unknown
	case neverConnected(f):
		return NotSent
	case neverWritten(f):
		return NotSent
	case refused(f, err):
		return Refused
	default:
		return Unknown
	}
}

// neverConnected is rule N1: the request is written by code that GotConn precedes, and
// what net/http sends before it are TLS handshakes and CONNECT. A foreign
// TLSNextProto round tripper sends without GotConn, hence the look at the ALPN (T14).
func neverConnected(f Facts) bool {
	return !f.Distrusted && f.GotConn == 0 && f.WroteHeaders == 0 && f.WroteRequest == 0 &&
		!f.OtherProto && !f.BodyRead
}

// neverWritten is rule N2: *http.Transport fires WroteRequest whenever the writer was
// entered (HTTP/1), and WroteHeaders right after HEADERS left (HTTP/2), before
// RoundTrip returns; but not where the attempt was ended by somebody: then HEADERS can
// leave after the return (T04, 40 of 40 executed POSTs would be called not sent).
func neverWritten(f Facts) bool {
	return f.Std && f.WritesTraced && f.GotConn > 0 && f.WroteHeaders == 0 && f.WroteRequest == 0 &&
		!f.BodyRead && !f.Ended
}

// The texts by which net/http tells of a GOAWAY below our stream, RFC 9113 §6.8.
const (
	gracefulGoAway = "http2: Transport received Server's graceful shutdown GOAWAY"
	firstGoAway    = "http2: Transport received GOAWAY from server ErrCode:"
	cannotRetry    = "http2: Transport: cannot retry err ["
	refusedStream  = "; REFUSED_STREAM; received from peer] after Request.Body was written"
)

// refused is the server's own word that it did not process the stream, RFC 9113 §8.7.
// It holds for the last send only, so that there must have been no other one; on one
// and the same connection earlier sends were refused too, because GOAWAY and
// PROTOCOL_ERROR retire the connection before they end the stream (R2).
func refused(f Facts, err error) bool {
	if f.GotConn == 0 || f.Moved {
		return false
	}
	if code, fromPeer, ok := streamError(err); ok {
		return fromPeer && code == codeRefusedStream
	}
	if !f.Std {
		return false
	}
	text := err.Error()
	if inner, ok := strings.CutPrefix(text, cannotRetry); ok {
		// The chain is gone in this text (%v), and it does not prove anything by itself:
		// PROTOCOL_ERROR after a processed request reads the same (M22).
		return strings.HasPrefix(inner, gracefulGoAway) ||
			strings.HasPrefix(inner, "stream error: ") && strings.Contains(inner, refusedStream)
	}
	return text == gracefulGoAway || strings.HasPrefix(text, firstGoAway)
}

const codeRefusedStream = 7 // RFC 9113 §7

// lookalike has the fields of an HTTP/2 stream error: net/http's own type, unexported,
// lets errors.As fill any such struct.
type lookalike struct {
	StreamID uint32
	Code     uint32
	Cause    error
}

func (lookalike) Error() string { return "" }

// streamError finds the HTTP/2 stream error in err's tree: net/http's by errors.As, that
// of golang.org/x/net/http2, which matches only itself, by its name.
func streamError(err error) (code uint32, fromPeer, ok bool) {
	walk(err, func(err error) bool {
		if as, is := err.(interface{ As(any) bool }); is {
			var e lookalike
			if as.As(&e) {
				code, fromPeer, ok = e.Code, isFromPeer(e.Cause), true
				return true
			}
		}
		v := reflect.ValueOf(err)
		if v.Kind() != reflect.Struct || v.Type().Name() != "StreamError" ||
			!strings.HasSuffix(v.Type().PkgPath(), "golang.org/x/net/http2") {
			return false
		}
		number, cause := v.FieldByName("Code"), v.FieldByName("Cause")
		if number.Kind() != reflect.Uint32 || cause.Kind() != reflect.Interface {
			return false
		}
		peer, _ := reflect.TypeAssert[error](cause)
		code, fromPeer, ok = uint32(number.Uint()), isFromPeer(peer), true //nolint:gosec // of kind uint32
		return true
	})
	return code, fromPeer, ok
}

func isFromPeer(cause error) bool { return cause != nil && cause.Error() == "received from peer" }

// walk calls f for each error of err's tree, until f returns true.
func walk(err error, f func(error) bool) bool {
	for err != nil {
		if f(err) {
			return true
		}
		switch x := err.(type) { //nolint:errorlint // this is what unwraps
		case interface{ Unwrap() error }:
			err = x.Unwrap()
		case interface{ Unwrap() []error }:
			for _, inner := range x.Unwrap() {
				if walk(inner, f) {
					return true
				}
			}
			return false
		default:
			return false
		}
	}
	return false
}
