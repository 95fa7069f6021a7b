package httptestx

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"fmt"
	"math/big"
	"net"
	"sync"
	"time"
)

// Cert names one of the kit's server certificates.
type Cert int

// The certificates an origin can present. All but UnknownCA are signed by the
// authority that [ClientTLS] trusts.
const (
	GoodCert  Cert = iota // 127.0.0.1, ::1, localhost, origin.test
	WrongName             // elsewhere.test only
	Expired               // ended an hour ago
	UnknownCA             // signed by an authority nobody trusts
)

type authority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
}

// The keys are made once per process: 4 P-256 signatures, about a millisecond.
var certificates = sync.OnceValue(func() (all struct {
	pool   *x509.CertPool
	leaves map[Cert]tls.Certificate
},
) {
	trusted, stranger := newAuthority("retrip test authority"), newAuthority("unknown authority")
	all.pool = x509.NewCertPool()
	all.pool.AddCert(trusted.cert)
	now := time.Now()
	names := []string{"localhost", "origin.test"}
	all.leaves = map[Cert]tls.Certificate{
		GoodCert:  trusted.sign(names, now.Add(time.Hour)),
		WrongName: trusted.sign([]string{"elsewhere.test"}, now.Add(time.Hour)),
		Expired:   trusted.sign(names, now.Add(-time.Hour)),
		UnknownCA: stranger.sign(names, now.Add(time.Hour)),
	}
	return all
})

// ClientTLS returns a new client configuration that trusts the kit's authority.
func ClientTLS() *tls.Config {
	return &tls.Config{RootCAs: certificates().pool, MinVersion: tls.VersionTLS12}
}

// ServerTLS returns a new server configuration with the certificate and the
// ALPN protocols given; no protocol means HTTP/1.
func ServerTLS(c Cert, protocols ...string) *tls.Config {
	return &tls.Config{
		Certificates: []tls.Certificate{certificates().leaves[c]},
		NextProtos:   protocols,
		MinVersion:   tls.VersionTLS12,
	}
}

func newAuthority(name string) authority {
	key := newKey()
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: name},
		NotBefore:             time.Now().Add(-24 * time.Hour),
		NotAfter:              time.Now().Add(24 * time.Hour),
		IsCA:                  true,
		BasicConstraintsValid: true,
		KeyUsage:              x509.KeyUsageCertSign,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		panic(fmt.Sprintf("httptestx: make the authority: %v", err))
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		panic(fmt.Sprintf("httptestx: read the authority back: %v", err))
	}
	return authority{cert, key}
}

func (a authority) sign(names []string, until time.Time) tls.Certificate {
	key := newKey()
	template := &x509.Certificate{
		SerialNumber: big.NewInt(time.Now().UnixNano()),
		Subject:      pkix.Name{CommonName: names[0]},
		DNSNames:     names,
		NotBefore:    time.Now().Add(-24 * time.Hour),
		NotAfter:     until,
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	if names[0] == "localhost" {
		template.IPAddresses = []net.IP{net.IPv4(127, 0, 0, 1), net.IPv6loopback}
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, &key.PublicKey, a.key)
	if err != nil {
		panic(fmt.Sprintf("httptestx: sign a certificate: %v", err))
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

func newKey() *ecdsa.PrivateKey {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(fmt.Sprintf("httptestx: make a key: %v", err))
	}
	return key
}
