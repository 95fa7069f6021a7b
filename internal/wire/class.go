package wire

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"net/url"
	"reflect"
	"strings"
	"syscall"
)

// The classes that an error of the base can have.
const (
	DNS      = "dns"
	Dial     = "dial"
	Proxy    = "proxy"
	TLS      = "tls"
	Write    = "write"
	Timeout  = "timeout"
	Reset    = "reset"
	EOF      = "eof"
	Protocol = "protocol"
	Other    = "other"
)

// Class tells what kind of failure err is. secure says that the request was for https.
func Class(f Facts, err error, secure bool) string {
	unconnected := f.Traced && f.GetConn > 0 && f.GotConn == 0
	var op *net.OpError
	hasOp := errors.As(err, &op)
	switch {
	case f.LocalReject:
		return Other
	case isA[*net.DNSError](err):
		return DNS
	case hasOp && (op.Op == "proxyconnect" || op.Op == "socks connect"):
		return Proxy
	case hasOp && op.Op == "dial":
		return Dial
	case isTLS(err, op):
		return TLS
	case unconnected && secure && (isEOF(err) || isReset(err)):
		return TLS // the peer went away within the handshake (t05, t06, p06)
	case unconnected && isTimeout(err):
		return Dial
	case isTimeout(err):
		return Timeout
	case hasOp && (op.Op == "write" || op.Op == "readfrom"), errors.Is(err, net.ErrClosed), errors.Is(err, syscall.EPIPE):
		return Write
	case isReset(err), err.Error() == "http2: client connection lost":
		return Reset
	case isEOF(err), err.Error() == "http: server closed idle connection":
		return EOF
	case isProtocol(err):
		return Protocol
	case unconnected:
		return Dial // custom dialers' errors and CONNECT answers are bare texts (c08, p02)
	default:
		return Other
	}
}

// Permanent reports whether the same request would fare the same: certificates and TLS
// itself, a name that does not exist, a request that net/http refuses, a proxy's 4xx.
func Permanent(f Facts, class string, err error) bool {
	switch class {
	case DNS:
		var dns *net.DNSError
		return errors.As(err, &dns) && dns.IsNotFound
	case TLS:
		return isTLSProtocol(err)
	case Dial, Other:
		return f.LocalReject || isClientErrorText(err)
	default:
		return false
	}
}

func isA[E error](err error) bool {
	var e E
	return errors.As(err, &e)
}

const brokenPrefix = "net/http: HTTP/1.x transport connection broken: "

const handshakeTimeout = "net/http: TLS handshake timeout"

func isTLS(err error, op *net.OpError) bool {
	return isTLSProtocol(err) || err.Error() == handshakeTimeout ||
		op != nil && (op.Op == "remote error" || op.Op == "local error")
}

// isTLSProtocol finds what a second handshake would meet again. An alert comes as a
// net.OpError whose Op says which side it is from (t07–t09).
func isTLSProtocol(err error) bool {
	var op *net.OpError
	return isA[tls.RecordHeaderError](err) || isA[*tls.CertificateVerificationError](err) ||
		isA[x509.UnknownAuthorityError](err) || isA[x509.HostnameError](err) ||
		isA[x509.CertificateInvalidError](err) || isA[tls.AlertError](err) ||
		errors.As(err, &op) && (op.Op == "remote error" || op.Op == "local error") ||
		strings.HasPrefix(err.Error(), "tls: ")
}

func isEOF(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF)
}

func isReset(err error) bool {
	return errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.ECONNABORTED)
}

func isTimeout(err error) bool {
	var t interface{ Timeout() bool }
	return errors.As(err, &t) && t.Timeout()
}

// isProtocol finds what the peer said wrongly or as an error of its protocol: an answer
// that is cut or malformed, an HTTP/2 stream or connection error.
func isProtocol(err error) bool {
	if _, _, ok := streamError(err); ok || isA[textproto.ProtocolError](err) || isA[*textproto.Error](err) {
		return true
	}
	text := err.Error()
	return strings.HasPrefix(text, brokenPrefix) ||
		strings.HasPrefix(text, "http2: ") || strings.HasPrefix(text, "net/http: HTTP/2") ||
		strings.HasPrefix(text, "connection error: ")
}

// isClientErrorText finds a proxy's 4xx to CONNECT, of which net/http leaves the words
// alone (p03).
func isClientErrorText(err error) bool {
	text := err.Error()
	for code := 400; code < 500; code++ {
		if known := http.StatusText(code); known != "" && text == known {
			return true
		}
	}
	return false
}

// BodyLength reports whether *http.Transport found the request's body to be longer or
// shorter than ContentLength, where nobody else watched it (b03, b04).
func BodyLength(f Facts, err error) bool {
	// The prefix is missing where nothing was flushed yet.
	text := strings.TrimPrefix(err.Error(), brokenPrefix)
	return f.Std && (strings.HasPrefix(text, "http: ContentLength=") ||
		text == "http2: request body larger than specified content length")
}

// LocalReject reports whether err is net/http's own refusal of a request that it never
// looked for a connection for. Both must say so: a round tripper behind the base may
// take what net/http would refuse, and fail for another reason.
func LocalReject(req *http.Request, err error) bool {
	text := err.Error()
	switch {
	case req.URL == nil:
		return text == "http: nil Request.URL"
	case req.Header == nil:
		return text == "http: nil Request.Header"
	case strings.HasPrefix(text, "net/http: invalid header "):
		return !validHeaders(req.Header)
	case strings.HasPrefix(text, "net/http: invalid trailer "):
		return !validHeaders(req.Trailer)
	case strings.HasPrefix(text, "unsupported protocol scheme"):
		return req.URL.Scheme != "http" && req.URL.Scheme != "https"
	case strings.HasPrefix(text, "net/http: invalid method "):
		return req.Method != "" && !Token(req.Method)
	default:
		return text == "http: no Host in request URL" && req.URL.Host == ""
	}
}

func validHeaders(h http.Header) bool {
	for name, values := range h {
		if !Token(name) {
			return false
		}
		for _, v := range values {
			if !FieldValue(v) {
				return false
			}
		}
	}
	return true
}

// Token reports whether s is a token, RFC 9110 §5.6.2: a method or a field name.
func Token(s string) bool {
	for i := range len(s) {
		c := s[i]
		if (c < '0' || c > '9') && (c|0x20 < 'a' || c|0x20 > 'z') && !strings.ContainsRune("!#$%&'*+-.^_`|~", rune(c)) {
			return false
		}
	}
	return s != ""
}

// FieldValue reports whether net/http sends s as a header's value, RFC 9110 §5.5.
func FieldValue(s string) bool {
	for i := range len(s) {
		if c := s[i]; c < ' ' && c != '\t' || c == 0x7f {
			return false
		}
	}
	return true
}

// Words returns what may be quoted of an error of the given class: the network's own
// words, empty where there are none. net/http quotes what a peer sent in errors of other
// classes, and what wraps an error may quote anything: a *url.Error has the query.
func Words(class string, err error) string {
	switch class {
	case DNS, Dial, Proxy, TLS, Write, Reset, EOF, Timeout:
		return words(err)
	default:
		return ""
	}
}

func words(err error) string {
	switch x := err.(type) { //nolint:errorlint // this is what unwraps
	case nil:
		return ""
	case *url.Error:
		return words(x.Err)
	case interface{ Unwrap() error }:
		var deep *url.Error // what is above it quotes it
		if inner := x.Unwrap(); inner != nil && (!isNetwork(err) || errors.As(inner, &deep)) {
			return words(inner)
		}
	case interface{ Unwrap() []error }:
		if all := x.Unwrap(); len(all) > 0 {
			return words(all[0])
		}
		return ""
	}
	return err.Error()
}

// isNetwork reports whether err's type is one of the packages that speak for the network.
func isNetwork(err error) bool {
	t := reflect.TypeOf(err)
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.PkgPath() {
	case "net", "net/http", "crypto/tls", "crypto/x509", "os", "syscall", "internal/poll":
		return true
	default:
		return false
	}
}
