package retrip_test

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/httptestx"
)

// Theme I: proxies, TLS, DNS, and what no repeat mends.

func TestI01CertificateErrorsAreFinal(t *testing.T) {
	oldTLS := httptestx.ServerTLS(httptestx.GoodCert)
	oldTLS.MaxVersion, oldTLS.ClientAuth = tls.VersionTLS12, tls.RequireAnyClientCert
	as := func(target any) func(error) bool {
		return func(err error) bool { return errors.As(err, target) }
	}
	tests := []struct {
		name string
		play httptestx.Play
		is   func(error) bool
	}{
		{"unknown authority", httptestx.Play{httptestx.Present(httptestx.UnknownCA), httptestx.Handshake, httptestx.FIN}, as(new(x509.UnknownAuthorityError))},
		{"wrong host name", httptestx.Play{httptestx.Present(httptestx.WrongName), httptestx.Handshake, httptestx.FIN}, as(new(x509.HostnameError))},
		{"expired", httptestx.Play{httptestx.Present(httptestx.Expired), httptestx.Handshake, httptestx.FIN}, as(new(x509.CertificateInvalidError))},
		{"verification", httptestx.Play{httptestx.Present(httptestx.Expired), httptestx.Handshake, httptestx.FIN}, as(new(*tls.CertificateVerificationError))},
		{
			"plain server",
			httptestx.Play{httptestx.ReadHello, httptestx.WriteRaw("HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"), httptestx.FIN},
			as(new(tls.RecordHeaderError)),
		},
		{"client certificate wanted", httptestx.Play{httptestx.WithTLS(oldTLS), httptestx.Handshake, httptestx.FIN}, func(err error) bool {
			var op *net.OpError
			return errors.As(err, &op) && op.Op == "remote error"
		}},
	}
	for _, tt := range tests {
		for _, method := range []string{http.MethodGet, http.MethodPost} {
			t.Run(tt.name+" "+method, func(t *testing.T) {
				httptestx.Leaks(t)
				call, o := caseBothOn(t, httptestx.NewTLSOrigin, httptestx.Sequence(tt.play), func(url string) *http.Request {
					return caseRequest(t, method, url, nil)
				})
				require.Error(t, call.err)
				require.True(t, tt.is(call.err), "%T: %v", call.err, call.err)
				// The error is the base's own: nothing is to be added.
				var e *retrip.Error
				require.NotErrorAs(t, call.err, &e)
				call.ended(t, 1, retrip.DecisionReturn, retrip.ReasonNotTransient)
				require.Equal(t, retrip.ClassTLS, call.events[0].Class)
				require.Equal(t, retrip.DeliveryNotSent, call.events[0].Delivery)
				require.Equal(t, 1, o.Conns())
				require.Zero(t, o.Heads())
				require.Less(t, call.took, 300*time.Millisecond)
			})
		}
	}
}

func TestI03DNSThatDoesNotKnowTheNameIsFinal(t *testing.T) {
	lookup := func(e net.DNSError) error {
		e.Err, e.Name = "no answer", "origin.test"
		return &net.OpError{Op: "dial", Net: "tcp", Err: &e}
	}
	tests := []struct {
		name     string
		err      error
		attempts int
	}{
		{"not found", lookup(net.DNSError{IsNotFound: true}), 1},
		{"temporary", lookup(net.DNSError{IsTemporary: true}), 2},
		{"time-out", lookup(net.DNSError{IsTimeout: true}), 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			httptestx.Leaks(t)
			o := httptestx.NewOrigin(t, httptestx.Sequence(httptestx.OK("done")))
			base := httptestx.NewTransport(t)
			base.DialContext = caseDialFailing(tt.err)
			call := caseSend(t, caseNew(t, base), caseRequest(t, http.MethodGet, o.URL, nil))
			require.Equal(t, retrip.ClassDNS, call.events[0].Class)
			require.Equal(t, retrip.DeliveryNotSent, call.events[0].Delivery)
			if tt.attempts == 1 {
				require.Equal(t, tt.err, call.err, "the base's own error")
				call.ended(t, 1, retrip.DecisionReturn, retrip.ReasonNotTransient)
				require.Zero(t, o.Heads())
				return
			}
			call.answered(t, http.StatusOK)
			call.ended(t, 2, retrip.DecisionReturn, retrip.ReasonSuccess)
			require.Equal(t, 1, o.Heads())
		})
	}
}

func TestI04CONNECTRefusedByTheProxy(t *testing.T) {
	refuse := func(code int) httptestx.Play { return httptestx.Play{httptestx.ReadHead, httptestx.Respond(code, "")} }
	run := func(t *testing.T, proxyScript func(origin string) httptestx.Script) (caseCall, *httptestx.Origin, *httptestx.Origin) {
		t.Helper()
		httptestx.Leaks(t)
		o := httptestx.NewTLSOrigin(t, httptestx.Sequence(httptestx.OK("done")))
		proxy := httptestx.NewOrigin(t, proxyScript(o.Addr))
		address, err := url.Parse(proxy.URL)
		require.NoError(t, err)
		base := httptestx.NewTransport(t)
		base.Proxy = http.ProxyURL(address)
		call := caseSend(t, caseNew(t, base), caseRequest(t, http.MethodPost, o.URL, strings.NewReader("x")))
		return call, o, proxy
	}
	t.Run("503, then a tunnel", func(t *testing.T) {
		call, o, proxy := run(t, func(origin string) httptestx.Script {
			return httptestx.Sequence(refuse(503), httptestx.Play{
				httptestx.ReadHead, httptestx.Write("HTTP/1.1 200 Connection established\r\n\r\n"), httptestx.Tunnel(origin),
			})
		})
		call.answered(t, http.StatusOK)
		call.ended(t, 2, retrip.DecisionReturn, retrip.ReasonSuccess)
		require.Equal(t, retrip.DeliveryNotSent, call.events[0].Delivery)
		require.Equal(t, retrip.PermitNotSent, call.events[0].Permit)
		require.Equal(t, 1, o.Heads())
		require.Equal(t, 2, proxy.Heads())
	})
	for _, code := range []int{403, 407} {
		t.Run(http.StatusText(code), func(t *testing.T) {
			call, o, proxy := run(t, func(string) httptestx.Script { return httptestx.Sequence(refuse(code)) })
			require.EqualError(t, call.err, http.StatusText(code))
			call.ended(t, 1, retrip.DecisionReturn, retrip.ReasonNotTransient)
			require.Equal(t, retrip.DeliveryNotSent, call.events[0].Delivery)
			require.Zero(t, o.Conns())
			require.Equal(t, 1, proxy.Heads())
		})
	}
}

func TestI06Early413IsFinalAndALostOneIsNoHotLoop(t *testing.T) {
	upload := func(t *testing.T, end ...httptestx.Step) (caseCall, *httptestx.Origin) {
		t.Helper()
		httptestx.Leaks(t)
		play := append(httptestx.Play{
			httptestx.ReadHead, httptestx.ReadBody(64 << 10), httptestx.Respond(413, "too large", "Connection: close"),
		}, end...)
		o := httptestx.NewOrigin(t, httptestx.Sequence(play))
		bodies := httptestx.NewBodies(strings.Repeat("u", 4<<20))
		call := caseSend(t, caseNew(t, httptestx.NewTransport(t)), bodies.Request(t.Context(), t, http.MethodPut, o.URL))
		bodies.CheckClosedOnce(t)
		return call, o
	}
	t.Run("with a drain", func(t *testing.T) {
		call, o := upload(t, httptestx.HalfClose, httptestx.Silence)
		call.answered(t, http.StatusRequestEntityTooLarge)
		require.Equal(t, "too large", call.body)
		call.ended(t, 1, retrip.DecisionReturn, retrip.ReasonNotTransient)
		require.Equal(t, 1, o.Heads())
	})
	// The answer and the write into the closed socket race.
	t.Run("with an abrupt close", func(t *testing.T) {
		call, o := upload(t, httptestx.Close)
		require.LessOrEqual(t, o.Heads(), 3)
		if call.err == nil {
			require.Equal(t, http.StatusRequestEntityTooLarge, call.status)
			return
		}
		call.ended(t, 3, retrip.DecisionAttemptsExhausted, retrip.ReasonAttemptsExhausted)
		for _, e := range call.events {
			require.Equal(t, retrip.DeliveryUnknown, e.Delivery)
		}
	})
}

func TestI08NewerStatusesAreRepeatedByOptIn(t *testing.T) {
	tests := []struct {
		name   string
		status int
		opts   []retrip.Option
		heads  int
	}{
		{"425 in the set", 425, []retrip.Option{retrip.WithRetryStatus(425)}, 2},
		{"425", 425, nil, 1},
		{"421", 421, nil, 1},
		{"421 in the set", 421, []retrip.Option{retrip.WithRetryStatus(421)}, 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			httptestx.Leaks(t)
			script := httptestx.Sequence(httptestx.Status(tt.status, "not now"), httptestx.OK("done"))
			call, o := caseBoth(t, script, func(url string) *http.Request {
				return caseRequest(t, http.MethodGet, url, nil)
			}, tt.opts...)
			require.NoError(t, call.err)
			require.Equal(t, tt.heads, o.Heads())
		})
	}
}
