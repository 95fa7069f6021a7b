package matrix

import (
	"context"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/internal/httptestx"
)

// proto is how the client talks to the origin.
type proto string

const (
	h1    proto = "h1"
	h1tls proto = "h1tls"
	h2    proto = "h2"
)

var (
	allProtos  = []proto{h1, h1tls, h2}
	httpOne    = []proto{h1, h1tls}
	tlsProtos  = []proto{h1tls, h2}
	onlyH1     = []proto{h1}
	onlyH2     = []proto{h2}
	onlyTLSOne = []proto{h1tls}
)

// method is one kind of request; the kinds differ in what permits a repeat.
type method struct {
	name string
	verb string
	key  bool // carries an Idempotency-Key
	body bool
	get  bool // the body has a GetBody
}

var (
	mGET     = method{name: "GET", verb: http.MethodGet}
	mPUT     = method{name: "PUT", verb: http.MethodPut, body: true, get: true}
	mPOST    = method{name: "POST", verb: http.MethodPost, body: true, get: true}
	mPOSTkey = method{name: "POST+key", verb: http.MethodPost, key: true, body: true, get: true}
	mPOSTnr  = method{name: "POST-nr", verb: http.MethodPost, body: true}
	mPOST0   = method{name: "POST0", verb: http.MethodPost}

	allMethods = []method{mGET, mPUT, mPOST, mPOSTkey, mPOSTnr, mPOST0}
	withBody   = []method{mPUT, mPOST, mPOSTkey, mPOSTnr}
)

// repeatable: the method or the key permits a repeat, whatever happened.
func (m method) repeatable() bool { return m.key || m.verb != http.MethodPost }

// safe: the request can have no effect (RFC 9110 §9.2.1).
func (m method) safe() bool { return m.verb == http.MethodGet }

// replayable: the body can be sent again after it was read.
func (m method) replayable() bool { return !m.body || m.get }

// payload is the small body of the requests; bigSize is that of the uploads
// that are broken in their middle.
const (
	payload = "alpha-42"
	bigSize = 1 << 20
)

// request makes the request of one run. A body of size bytes repeats the
// payload.
func (m method) request(ctx context.Context, t *testing.T, url string, size int) *http.Request {
	t.Helper()
	var body io.Reader
	if m.body {
		text := payload
		if size > 0 {
			text = strings.Repeat(payload, size/len(payload))
		}
		body = strings.NewReader(text)
		size = len(text)
		if !m.get {
			body = httptestx.OneShot(body)
		}
	}
	req, err := http.NewRequestWithContext(ctx, m.verb, url+"/orders?sig=secret", body)
	require.NoError(t, err)
	if m.body {
		req.ContentLength = int64(size)
	}
	if m.key {
		req.Header.Set("Idempotency-Key", "ord-7731")
	}
	return req
}
