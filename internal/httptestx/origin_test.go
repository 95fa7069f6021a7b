package httptestx

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// reply is an answer that was read to its end.
type reply struct {
	code   int
	header http.Header
	text   string
}

func send(t *testing.T, rt http.RoundTripper, method, url string, body io.Reader) (reply, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, body)
	require.NoError(t, err)
	resp, err := rt.RoundTrip(req)
	if err != nil {
		return reply{}, err
	}
	text, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	return reply{resp.StatusCode, resp.Header, string(text)}, err
}

func TestOriginCountsWhatArrives(t *testing.T) {
	Leaks(t)
	for name, start := range map[string]func(TB, Script) *Origin{"plain": NewOrigin, "tls": NewTLSOrigin} {
		t.Run(name, func(t *testing.T) {
			o := start(t, Sequence(Status(503, "busy", "Retry-After: 7"), OK("fine")))
			rt := NewTransport(t)
			got, err := send(t, rt, http.MethodPut, o.URL+"/a?b=c", strings.NewReader("alpha-42"))
			require.NoError(t, err)
			assert.Equal(t, 503, got.code)
			assert.Equal(t, "busy", got.text)
			assert.Equal(t, "7", got.header.Get("Retry-After"))
			got, err = send(t, rt, http.MethodPost, o.URL, OneShot(strings.NewReader("chunks")))
			require.NoError(t, err)
			assert.Equal(t, 200, got.code)
			assert.Equal(t, "fine", got.text)

			assert.Equal(t, 1, o.Conns())
			assert.Equal(t, 2, o.Heads())
			assert.Equal(t, 2, o.Effects())
			seen := o.Requests()
			assert.Equal(t, "/a?b=c", seen[0].Target)
			assert.Equal(t, "alpha-42", seen[0].Body)
			assert.Equal(t, sha256.Sum256([]byte("alpha-42")), seen[0].SHA256)
			assert.EqualValues(t, 8, seen[0].ContentLength)
			assert.Contains(t, seen[0].RawHead, "Content-Length: 8\r\n")
			assert.Equal(t, 2, seen[1].OnConn)
			assert.Equal(t, []string{"chunked"}, seen[1].TransferEncoding)
			assert.Equal(t, "chunks", seen[1].Body)
			assert.True(t, seen[1].Complete)

			rt.CloseIdleConnections()
			o.Await(t, "the end of the connection", func() bool { return o.Open() == 0 })
		})
	}
}

func TestOriginFailsAtTheChosenPlace(t *testing.T) {
	Leaks(t)
	big := strings.Repeat("x", 8<<20)
	tests := []struct {
		name    string
		play    Play
		body    string
		heads   int
		effects int
		check   func(*testing.T, error)
	}{
		{"reset after the whole request", Play{ReadAll, RST}, "a", 1, 1, isReset},
		{"close after the whole request", Play{ReadAll, FIN}, "a", 1, 1, isEOF},
		{"killed with the request unread", Play{AwaitByte, Close}, "a", 0, 0, isReset},
		{"reset within the headers", Play{ReadBytes(10), RST}, "a", 0, 0, isAny},
		{"reset after the headers", Play{ReadHead, RST}, "a", 1, 0, isAny},
		{"reset in the body", Play{ReadHead, ReadBody(1 << 20), RST}, big, 1, 0, isAny},
		{"half a status line", Play{ReadAll, Write("HTTP/1.1 20"), FIN}, "a", 1, 1, isBroken},
		{"garbage", Play{ReadAll, Write("\x00\x01garbage\r\n\r\n"), FIN}, "a", 1, 1, isBroken},
		{"half of the headers", Play{ReadAll, Write("HTTP/1.1 200 OK\r\nConte"), FIN}, "a", 1, 1, isBroken},
		{"1xx, then closed", Play{ReadAll, Write("HTTP/1.1 103 Early Hints\r\n\r\n"), FIN}, "a", 1, 1, isBroken},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o := NewOrigin(t, Sequence(tt.play))
			_, err := send(t, NewTransport(t), http.MethodPost, o.URL, strings.NewReader(tt.body))
			require.Error(t, err)
			tt.check(t, err)
			o.Await(t, "the end of the connection", func() bool { return o.Open() == 0 })
			assert.Equal(t, tt.heads, o.Heads())
			assert.Equal(t, tt.effects, o.Effects())
			for _, s := range o.Requests() {
				assert.Equal(t, tt.effects == 1, s.Complete)
			}
		})
	}
}

func isReset(t *testing.T, err error) { t.Helper(); assert.ErrorIs(t, err, syscall.ECONNRESET) }
func isEOF(t *testing.T, err error)   { t.Helper(); assert.Equal(t, io.EOF, err) }
func isAny(t *testing.T, err error)   { t.Helper(); assert.NotErrorIs(t, err, context.Canceled) }

func isBroken(t *testing.T, err error) {
	t.Helper()
	assert.ErrorContains(t, err, "HTTP/1.x transport connection broken")
}

func TestOriginHandshakes(t *testing.T) {
	Leaks(t)
	tests := []struct {
		name  string
		play  Play
		check func(*testing.T, error)
	}{
		{"dropped", Play{ReadHello, FIN}, isEOF},
		{"reset", Play{ReadHello, RST}, isReset},
		{"alert", Play{Alert(40)}, func(t *testing.T, err error) { //nolint:thelper // a check, named by its row
			assert.ErrorContains(t, err, "remote error: tls: handshake failure")
		}},
		{"unknown authority", Play{Present(UnknownCA), Handshake}, func(t *testing.T, err error) { //nolint:thelper // as above
			assert.ErrorAs(t, err, new(x509.UnknownAuthorityError))
		}},
		{"wrong name", Play{Present(WrongName), Handshake}, func(t *testing.T, err error) { //nolint:thelper // as above
			assert.ErrorAs(t, err, new(x509.HostnameError))
		}},
		{"expired", Play{Present(Expired), Handshake}, func(t *testing.T, err error) { //nolint:thelper // as above
			assert.ErrorAs(t, err, new(x509.CertificateInvalidError))
		}},
		{"plain server", Play{ReadHello, WriteRaw("HTTP/1.1 400 Bad Request\r\n\r\n"), FIN}, func(t *testing.T, err error) { //nolint:thelper // as above
			assert.ErrorAs(t, err, new(tls.RecordHeaderError))
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			o := NewTLSOrigin(t, Sequence(tt.play))
			_, err := send(t, NewTransport(t), http.MethodPost, o.URL, strings.NewReader("a"))
			require.Error(t, err)
			tt.check(t, err)
			assert.Equal(t, 1, o.Conns())
			assert.Zero(t, o.Bytes())
		})
	}
}

func TestOriginRefusesAndAcceptsAgain(t *testing.T) {
	Leaks(t)
	o := NewOrigin(t, Sequence(OK("fine")))
	o.Refuse()
	rt := NewTransport(t)
	_, err := send(t, rt, http.MethodGet, o.URL, nil)
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	assert.Zero(t, o.Conns())
	o.Accept(t)
	got, err := send(t, rt, http.MethodGet, o.URL, nil)
	require.NoError(t, err)
	assert.Equal(t, "fine", got.text)
}

func TestOriginClosesAKeptConnectionAsTheNextRequestArrives(t *testing.T) {
	Leaks(t)
	o := NewOrigin(t, ByConn([]Play{OK("warm"), {AwaitByte, Close}}, []Play{OK("again")}))
	rt := NewTransport(t)
	_, err := send(t, rt, http.MethodGet, o.URL, nil)
	require.NoError(t, err)
	_, err = send(t, rt, http.MethodPost, o.URL, strings.NewReader("a"))
	require.ErrorIs(t, err, syscall.ECONNRESET)
	assert.Equal(t, 1, o.Heads())
	got, err := send(t, rt, http.MethodPost, o.URL, strings.NewReader("a"))
	require.NoError(t, err)
	assert.Equal(t, "again", got.text)
}

func TestOriginAnswersEarlyAndDrains(t *testing.T) {
	Leaks(t)
	o := NewOrigin(t, Sequence(Play{ReadHead, Respond(413, "too large", "Connection: close"), HalfClose, Silence}))
	body := NewBody(Pattern(4 << 20))
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, o.URL, body)
	require.NoError(t, err)
	req.ContentLength = 4 << 20
	resp, err := Checked(t, NewTransport(t)).RoundTrip(req)
	require.NoError(t, err)
	text, err := io.ReadAll(resp.Body)
	resp.Body.Close()
	require.NoError(t, err)
	assert.Equal(t, 413, resp.StatusCode)
	assert.Equal(t, "too large", string(text))
	o.Await(t, "the end of the connection", func() bool { return o.Open() == 0 })
	assert.Equal(t, 1, o.Heads())
}

func TestOriginHashesLargeBodies(t *testing.T) {
	Leaks(t)
	o := NewOrigin(t, Sequence(OK("")))
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, o.URL, Pattern(1<<20))
	require.NoError(t, err)
	resp, err := NewTransport(t).RoundTrip(req)
	require.NoError(t, err)
	resp.Body.Close()
	var all bytes.Buffer
	_, err = all.ReadFrom(Pattern(1 << 20))
	require.NoError(t, err)
	seen := o.Requests()[0]
	assert.EqualValues(t, 1<<20, seen.BodyBytes)
	assert.Equal(t, sha256.Sum256(all.Bytes()), seen.SHA256)
	assert.Len(t, seen.Body, keptBody)
}

func TestOriginStopsBlockedPlays(t *testing.T) {
	Leaks(t)
	for name, play := range map[string]Play{
		"frozen": {ReadAll, Freeze},
		"silent": {ReadAll, Silence},
		"paused": {ReadAll, Pause(time.Hour)},
		"waits":  {ReadAll, WaitFor(make(chan struct{}))},
		"slow":   {ReadAll, Trickle("HTTP/1.1 200 OK\r\n", 1, time.Hour)},
	} {
		t.Run(name, func(t *testing.T) {
			o := NewOrigin(t, Sequence(play))
			ctx, cancel := context.WithCancelCause(t.Context())
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, o.URL, http.NoBody)
			require.NoError(t, err)
			done := make(chan error, 1)
			go func() {
				resp, err := NewTransport(t).RoundTrip(req)
				if err == nil {
					resp.Body.Close()
				}
				done <- err
			}()
			o.Await(t, "the request", func() bool { return o.Effects() == 1 })
			enough := errors.New("enough")
			cancel(enough)
			assert.Equal(t, enough, <-done)
			o.Close()
			assert.Zero(t, o.Open())
		})
	}
}
