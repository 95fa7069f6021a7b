package wire

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/textproto"
	"net/url"
	"os"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

type slowError struct{}

func (slowError) Error() string { return "i/o timeout" }
func (slowError) Timeout() bool { return true }

// emptyError is what a join of nothing would be.
type emptyError struct{}

func (emptyError) Error() string   { return "the peer's words" }
func (emptyError) Unwrap() []error { return nil }

func op(name string, err error) error { return &net.OpError{Op: name, Net: "tcp", Err: err} }

func text(s string) error { return errors.New(s) }

func TestClassAndPermanent(t *testing.T) {
	t.Parallel()
	unconnected, sent, untraced := facts(1, 0, 0, 0), facts(1, 1, 1, 1), Facts{}
	rejected := Facts{LocalReject: true}
	const secure, plain, permanent, transient = true, false, true, false

	tests := []struct {
		name   string
		f      Facts
		err    error
		secure bool
		want   string
		stays  bool
	}{
		{"c01 NXDOMAIN", unconnected, op("dial", &net.DNSError{IsNotFound: true}), plain, DNS, permanent},
		{"c02 SERVFAIL", unconnected, op("dial", &net.DNSError{IsTemporary: true}), plain, DNS, transient},
		{"c03 DNS time-out", unconnected, op("dial", &net.DNSError{IsTimeout: true}), plain, DNS, transient},
		{"c01 untraced", untraced, op("dial", &net.DNSError{IsNotFound: true}), plain, DNS, permanent},
		{"c05", unconnected, op("dial", os.NewSyscallError("connect", syscall.ECONNREFUSED)), plain, Dial, transient},
		{"c06", unconnected, op("dial", slowError{}), plain, Dial, transient},
		{"c08 a dialer's own words", unconnected, text("my dialer error"), plain, Dial, transient},
		{"c08 a dialer's own time-out", unconnected, slowError{}, plain, Dial, transient},
		{"t01", unconnected, tls.RecordHeaderError{Msg: "first record"}, secure, TLS, permanent},
		{"t02", unconnected, &tls.CertificateVerificationError{Err: x509.UnknownAuthorityError{}}, secure, TLS, permanent},
		{"t02 bare", unconnected, x509.UnknownAuthorityError{}, secure, TLS, permanent},
		{"t03", unconnected, x509.HostnameError{Certificate: &x509.Certificate{}}, secure, TLS, permanent},
		{"expired", unconnected, x509.CertificateInvalidError{}, secure, TLS, permanent},
		{"t04", unconnected, text(handshakeTimeout), secure, TLS, transient},
		{"t05", unconnected, io.EOF, secure, TLS, transient},
		{"t06", unconnected, op("read", syscall.ECONNRESET), secure, TLS, transient},
		{"p05 closed on CONNECT", unconnected, io.ErrUnexpectedEOF, secure, TLS, transient},
		{"t07", unconnected, op("remote error", tls.AlertError(70)), secure, TLS, permanent},
		{"t07 bare", unconnected, tls.AlertError(70), secure, TLS, permanent},
		{"our own alert", unconnected, op("local error", tls.AlertError(70)), secure, TLS, permanent},
		{"t09", sent, op("remote error", tls.AlertError(116)), secure, TLS, permanent},
		{"TLS by its words", unconnected, text("tls: server selected unsupported protocol version 301"), secure, TLS, permanent},
		{"p01", unconnected, op("proxyconnect", op("dial", syscall.ECONNREFUSED)), plain, Proxy, transient},
		{"p09", unconnected, op("socks connect", text("unknown error connection refused")), plain, Proxy, transient},
		{"p02 the proxy's 502", unconnected, text("Bad Gateway"), secure, Dial, transient},
		{"p03 the proxy's 407", unconnected, text("Proxy Authentication Required"), secure, Dial, permanent},
		{"the proxy's 403", unconnected, text("Forbidden"), secure, Dial, permanent},
		{"a 4xx by another base", untraced, text("Forbidden"), secure, Other, permanent},
		{"r06", sent, &url.Error{Op: "Get", Err: slowError{}}, plain, Timeout, transient},
		{"h19", sent, op("write", slowError{}), secure, Timeout, transient},
		{"x05", sent, context.DeadlineExceeded, plain, Timeout, transient},
		{"f05 h1", sent, op("readfrom", op("write", net.ErrClosed)), plain, Write, transient},
		{"f05 tls", sent, net.ErrClosed, secure, Write, transient},
		{"f01 tls", sent, op("write", syscall.EPIPE), secure, Write, transient},
		{"EPIPE bare", sent, syscall.EPIPE, secure, Write, transient},
		{"f06", sent, op("read", syscall.ECONNRESET), plain, Reset, transient},
		{"aborted", sent, op("read", syscall.ECONNABORTED), plain, Reset, transient},
		{"h18", sent, text("http2: client connection lost"), secure, Reset, transient},
		{"f07", sent, io.EOF, plain, EOF, transient},
		{"f07 over TLS", sent, io.EOF, secure, EOF, transient},
		{"f07 untraced", untraced, io.EOF, secure, EOF, transient},
		{"an EOF of a plain dial", unconnected, io.EOF, plain, EOF, transient},
		{"the idle race", sent, text("http: server closed idle connection"), plain, EOF, transient},
		{"r01", sent, text(`net/http: HTTP/1.x transport connection broken: malformed HTTP status code "20"`), plain, Protocol, transient},
		{"r03", sent, fmt.Errorf("net/http: HTTP/1.x transport connection broken: %w", textproto.ProtocolError("malformed")), plain, Protocol, transient},
		{"textproto", sent, &textproto.Error{Code: 1}, plain, Protocol, transient},
		{"h09", sent, resetError{2, errPeer}, secure, Protocol, transient},
		{"h05", sent, text("http2: server sent GOAWAY and closed the connection"), secure, Protocol, transient},
		{"an HTTP/2 answer", sent, text("net/http: HTTP/2 something"), plain, Protocol, transient},
		{"a connection error", sent, text("connection error: PROTOCOL_ERROR"), secure, Protocol, transient},
		{"v01", rejected, text("net/http: invalid header field value"), plain, Other, permanent},
		{"odd", sent, text("odd"), plain, Other, transient},
		{"odd, untraced", untraced, text("odd"), plain, Other, transient},
	}
	for _, tt := range tests {
		class := Class(tt.f, tt.err, tt.secure)
		assert.Equal(t, tt.want, class, tt.name)
		assert.Equal(t, tt.stays, Permanent(tt.f, class, tt.err), tt.name)
	}
}

func TestBodyLength(t *testing.T) {
	t.Parallel()
	std, other := Facts{Std: true}, Facts{}
	broken := text("net/http: HTTP/1.x transport connection broken: http: ContentLength=10 with Body length 4")
	unflushed := text("http: ContentLength=10 with Body length 4")
	tooLong := text("http2: request body larger than specified content length")
	for _, err := range []error{broken, unflushed, tooLong} {
		assert.True(t, BodyLength(std, err), err)
		assert.False(t, BodyLength(other, err), "another base's words prove nothing: %v", err)
	}
	assert.False(t, BodyLength(std, io.EOF))
	assert.False(t, BodyLength(std, text("net/http: HTTP/1.x transport connection broken: malformed HTTP response")))
}

var errDialed = errors.New("dialed")

// dialing is a transport that accepts a request where it dials for it.
func dialing() *http.Transport {
	return &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return nil, errDialed }}
}

// send gives the error that net/http has for the request.
func send(tb testing.TB, req *http.Request) error {
	tb.Helper()
	resp, err := dialing().RoundTrip(req)
	if resp != nil {
		resp.Body.Close()
	}
	require.Error(tb, err)
	return err
}

func newRequest(tb testing.TB) *http.Request {
	tb.Helper()
	req, err := http.NewRequestWithContext(tb.Context(), http.MethodPost, "http://origin.test/", http.NoBody)
	require.NoError(tb, err)
	return req
}

func TestLocalRejectKnowsNetHTTPsRefusals(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*http.Request){
		"nil URL":       func(r *http.Request) { r.URL = nil },
		"nil Header":    func(r *http.Request) { r.Header = nil },
		"no host":       func(r *http.Request) { r.URL.Host = "" },
		"scheme":        func(r *http.Request) { r.URL.Scheme = "foo" },
		"no scheme":     func(r *http.Request) { r.URL.Scheme = "" },
		"method":        func(r *http.Request) { r.Method = "BAD METHOD" },
		"header name":   func(r *http.Request) { r.Header["Bad Name"] = []string{"a"} },
		"no name":       func(r *http.Request) { r.Header[""] = []string{"a"} },
		"header value":  func(r *http.Request) { r.Header["Good"] = []string{"a", "b\n"} },
		"trailer name":  func(r *http.Request) { r.Trailer = http.Header{"Bad Name": nil} },
		"trailer value": func(r *http.Request) { r.Trailer = http.Header{"Good": {"\x00"}} },
	} {
		req := newRequest(t)
		spoil(req)
		err := send(t, req)
		require.NotErrorIs(t, err, errDialed, name)
		assert.True(t, LocalReject(req, err), "%s: %v", name, err)
		// A round tripper behind the base may take what net/http refuses.
		assert.False(t, LocalReject(req, errDialed), name)
		// Its words about a request that nothing is wrong with are somebody else's.
		if req.URL != nil && req.Header != nil {
			assert.False(t, LocalReject(newRequest(t), err), name)
		}
	}
	req := newRequest(t)
	req.Method = ""
	assert.False(t, LocalReject(req, text(`net/http: invalid method ""`)), "an empty method is GET")
}

// accepts reports whether net/http takes the request up to a dial.
func accepts(tb testing.TB, change func(*http.Request)) bool {
	tb.Helper()
	req := newRequest(tb)
	change(req)
	return errors.Is(send(tb, req), errDialed)
}

func FuzzToken(f *testing.F) {
	for _, s := range []string{"GET", "", "X-Note", "a b", "a:b", "é", "\x00", "!#$%&'*+-.^_`|~", "x\x7f"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if s == "" {
			require.False(t, Token(s))
			return
		}
		require.Equal(t, accepts(t, func(r *http.Request) { r.Header = http.Header{s: {"a"}} }), Token(s), "as a field name: %q", s)
		require.Equal(t, accepts(t, func(r *http.Request) { r.Method = s }), Token(s), "as a method: %q", s)
	})
}

func FuzzFieldValue(f *testing.F) {
	for _, s := range []string{"", "a", "a b\tc", "é", "a\nb", "\x00", "\x7f", "\x80"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		require.Equal(t, accepts(t, func(r *http.Request) { r.Header = http.Header{"X-Note": {s}} }), FieldValue(s), "%q", s)
	})
}

func TestTokenAndFieldValueForEveryByte(t *testing.T) {
	t.Parallel()
	for b := range 256 {
		s := "a" + string([]byte{byte(b)})
		assert.Equal(t, accepts(t, func(r *http.Request) { r.Header = http.Header{s: {"a"}} }), Token(s), "%q", s)
		assert.Equal(t, accepts(t, func(r *http.Request) { r.Header = http.Header{"X-Note": {s}} }), FieldValue(s), "%q", s)
	}
}

func TestWordsQuoteTheNetworkAlone(t *testing.T) {
	t.Parallel()
	secret := &url.Error{Op: "Get", URL: "https://u:pw@origin.test/p?sig=S3CR", Err: errDial}
	for _, class := range []string{DNS, Dial, Proxy, TLS, Write, Reset, EOF, Timeout} {
		assert.Equal(t, errDial.Error(), Words(class, errDial), class)
		assert.Equal(t, errDial.Error(), Words(class, secret), class)
		assert.Equal(t, errDial.Error(), Words(class, fmt.Errorf("layer: %w", &url.Error{Op: "Get", URL: "?sig=S3CR", Err: secret})), class)
		assert.NotContains(t, Words(class, &url.Error{Op: "Get", URL: "?sig=S3CR"}), "S3CR", class)
	}
	for _, class := range []string{Protocol, Other, "body", "gate", "canceled", "deadline", ""} {
		assert.Empty(t, Words(class, text("malformed HTTP response: the peer's words")), class)
	}
	// Of joined errors the first is the attempt's.
	assert.Equal(t, "EOF", Words(EOF, errors.Join(io.EOF, secret)))
	assert.Empty(t, Words(Dial, emptyError{}))
	// net/http wraps a dialer's error so where a proxy is set.
	assert.NotContains(t, Words(Proxy, op("proxyconnect", secret)), "S3CR")
	// The words of one error never hold those of the layers around it.
	assert.NotContains(t, Words(Dial, fmt.Errorf("key K3Y: %w", secret)), "K3Y")
}
