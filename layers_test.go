package retrip_test

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/httptestx"
)

// layerText reads an answer of an http.Client.
func layerText(t *testing.T, resp *http.Response, err error) string {
	t.Helper()
	require.NoError(t, err)
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return string(text)
}

func TestAClientFollowsRedirectsWithBodies(t *testing.T) {
	for _, code := range []int{http.StatusTemporaryRedirect, http.StatusPermanentRedirect} {
		for _, method := range []string{http.MethodPut, http.MethodPost} {
			t.Run(method+strconv.Itoa(code), func(t *testing.T) {
				httptestx.Leaks(t)
				o := httptestx.NewOrigin(t, httptestx.Sequence(
					httptestx.Status(503, "busy"),
					httptestx.Status(code, "", "Location: /b"),
					httptestx.Status(503, "busy"),
					httptestx.OK("done")))
				client := &http.Client{Transport: retrip.Must(retrip.New(httptestx.NewTransport(t),
					retrip.WithBackoff(retrip.Constant(0))))}
				bodies := httptestx.NewBodies("alpha-42")
				req := bodies.Request(t.Context(), t, method, o.URL+"/a")
				req.Header.Set("Idempotency-Key", "k1")
				resp, err := client.Do(req)
				require.Equal(t, "done", layerText(t, resp, err))
				var targets []string
				for _, seen := range o.Requests() {
					targets = append(targets, seen.Target)
					assert.Equal(t, "alpha-42", seen.Body)
					assert.Equal(t, method, seen.Method)
					assert.Equal(t, "k1", seen.Header.Get("Idempotency-Key"))
				}
				require.Equal(t, []string{"/a", "/a", "/b", "/b"}, targets)
				var closes []int
				for _, b := range bodies.All() {
					closes = append(closes, b.Closes())
				}
				// The client closes the body of a hop that it leaves, once more.
				require.Equal(t, []int{2, 1, 1, 1}, closes)
			})
		}
	}
}

// Without GetBody the client cannot follow: it returns the 307, as with the bare base.
func TestAClientReturnsARedirectOfABodyReadOnce(t *testing.T) {
	httptestx.Leaks(t)
	o := httptestx.NewOrigin(t, httptestx.Sequence(httptestx.Status(307, "", "Location: /b")))
	for _, rt := range []http.RoundTripper{httptestx.NewTransport(t), bodyRT(t, httptestx.NewTransport(t))} {
		client := &http.Client{Transport: rt}
		req := bodyRequest(t, http.MethodPut, o.URL, httptestx.OneShot(strings.NewReader("once")))
		resp, err := client.Do(req)
		layerText(t, resp, err)
		require.Equal(t, 307, resp.StatusCode)
	}
	require.Equal(t, 2, o.Heads())
}

func TestAClientsLoopOfRedirectsIsNotRepeated(t *testing.T) {
	httptestx.Leaks(t)
	o := httptestx.NewOrigin(t, httptestx.Sequence(httptestx.Status(302, "", "Location: /again")))
	client := &http.Client{Transport: bodyRT(t, httptestx.NewTransport(t))}
	resp, err := client.Do(bodyRequest(t, http.MethodGet, o.URL, nil))
	require.ErrorContains(t, err, "stopped after 10 redirects")
	require.NoError(t, resp.Body.Close())
	require.Equal(t, 10, o.Heads())
}

func TestAClientsTimeoutEndsTheOperation(t *testing.T) {
	// The virtual clock makes these exact: the client's limit is one for all attempts.
	t.Run("in an attempt", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			base := httptestx.ServeMemory(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				<-r.Context().Done()
			}))
			client := &http.Client{Timeout: time.Second, Transport: bodyRT(t, base)}
			start := time.Now()
			_, err := client.Do(bodyRequest(t, http.MethodGet, "http://origin.test/", nil)) //nolint:bodyclose // there is none
			var timeout interface{ Timeout() bool }
			require.ErrorAs(t, err, &timeout)
			require.True(t, timeout.Timeout())
			require.Equal(t, time.Second, time.Since(start))
		})
	})
	t.Run("a wait that does not fit", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			hits := 0
			base := httptestx.ServeMemory(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				hits++
				w.WriteHeader(http.StatusServiceUnavailable)
				_, _ = io.WriteString(w, "busy")
			}))
			client := &http.Client{Timeout: time.Second, Transport: bodyRT(t, base, retrip.WithBackoff(retrip.Constant(2*time.Second)))}
			start := time.Now()
			resp, err := client.Do(bodyRequest(t, http.MethodGet, "http://origin.test/", nil))
			require.Equal(t, "busy", layerText(t, resp, err))
			require.Zero(t, time.Since(start))
			require.Equal(t, 1, hits)
		})
	})
	t.Run("attempts within it", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			hits := 0
			base := httptestx.ServeMemory(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if hits++; hits == 1 {
					<-r.Context().Done()
					return
				}
				_, _ = io.WriteString(w, "done")
			}))
			client := &http.Client{Timeout: time.Second, Transport: bodyRT(t, base, retrip.WithAttemptTimeout(150*time.Millisecond))}
			resp, err := client.Do(bodyRequest(t, http.MethodGet, "http://origin.test/", nil))
			require.Equal(t, "done", layerText(t, resp, err))
			require.Equal(t, 2, hits)
		})
	})
	t.Run("in a wait", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			base := httptestx.ServeMemory(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(http.StatusServiceUnavailable)
			}))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			time.AfterFunc(100*time.Millisecond, cancel)
			client := &http.Client{Timeout: time.Hour, Transport: bodyRT(t, base, retrip.WithBackoff(retrip.Constant(time.Minute)))}
			start := time.Now()
			_, err := client.Do(bodyRequest(t, http.MethodGet, "http://origin.test/", nil).WithContext(ctx)) //nolint:bodyclose // there is none
			require.ErrorIs(t, err, context.Canceled)
			require.Equal(t, 100*time.Millisecond, time.Since(start))
		})
	})
}

// A client's time-out covers the body too: it is the client's to cut, not ours to lengthen.
func TestAClientsTimeoutStillCutsABody(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := httptestx.ServeMemory(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			_, _ = io.WriteString(w, "text")
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}))
		client := &http.Client{Timeout: time.Second, Transport: bodyRT(t, base, retrip.WithAttemptTimeout(time.Hour))}
		start := time.Now()
		resp, err := client.Do(bodyRequest(t, http.MethodGet, "http://origin.test/", nil))
		require.NoError(t, err)
		_, err = io.ReadAll(resp.Body)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, time.Second, time.Since(start))
		require.NoError(t, resp.Body.Close())
	})
}

// The client sees the last answer alone: a cookie of a discarded one is lost, and each
// attempt carries the cookies of the operation's begin.
func TestCookiesAreThoseOfTheAnswerThatCameBack(t *testing.T) {
	httptestx.Leaks(t)
	o := httptestx.NewOrigin(t, httptestx.Sequence(
		httptestx.OK("", "Set-Cookie: session=1"),
		httptestx.Status(503, "", "Set-Cookie: session=lost"),
		httptestx.OK("", "Set-Cookie: session=2"),
		httptestx.OK("")))
	jar, err := cookiejar.New(nil)
	require.NoError(t, err)
	client := &http.Client{Jar: jar, Transport: bodyRT(t, httptestx.NewTransport(t))}
	for range 3 {
		resp, err := client.Do(bodyRequest(t, http.MethodGet, o.URL, nil))
		layerText(t, resp, err)
	}
	var sent []string
	for _, seen := range o.Requests() {
		sent = append(sent, seen.Header.Get("Cookie"))
	}
	require.Equal(t, []string{"", "session=1", "session=1", "session=2"}, sent)
}

func TestAReverseProxyOverRetripSendsAgain(t *testing.T) {
	httptestx.Leaks(t)
	o := httptestx.NewOrigin(t, httptestx.Sequence(
		httptestx.Status(503, "busy"),
		httptestx.Play{httptestx.ReadAll, httptestx.Write("HTTP/1.1 200 OK\r\nTrailer: Checksum\r\nTransfer-Encoding: chunked\r\n\r\n4\r\ntext\r\n0\r\nChecksum: 77\r\n\r\n")},
		httptestx.Status(503, "busy"),
		httptestx.OK("never")))
	target, err := url.Parse(o.URL)
	require.NoError(t, err)
	front, client := layerProxy(t, target, bodyRT(t, httptestx.NewTransport(t)))
	resp, err := client.Do(bodyRequest(t, http.MethodGet, front, nil))
	require.Equal(t, "text", layerText(t, resp, err))
	require.Equal(t, "77", resp.Trailer.Get("Checksum"))
	require.Equal(t, 2, o.Heads())

	// A body that a proxy passes on can be read once.
	resp, err = client.Do(bodyRequest(t, http.MethodPut, front, strings.NewReader("alpha-42")))
	require.Equal(t, "busy", layerText(t, resp, err))
	require.Equal(t, 503, resp.StatusCode)
	require.Equal(t, 3, o.Heads())
	require.Equal(t, "alpha-42", o.Requests()[2].Body)
}

// layerProxy runs a reverse proxy to target and a client of its own for it.
func layerProxy(t *testing.T, target *url.URL, rt http.RoundTripper) (front string, client *http.Client) {
	t.Helper()
	proxy := &httputil.ReverseProxy{
		Transport: rt,
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(target) },
	}
	server := httptest.NewUnstartedServer(proxy)
	require.NoError(t, server.Listener.Close())
	server.Listener = httptestx.Listen(t)
	server.Start()
	t.Cleanup(server.Close)
	return server.URL, &http.Client{Transport: httptestx.NewTransport(t)}
}

func TestAReverseProxyOverRetripPassesUpgrades(t *testing.T) {
	httptestx.Leaks(t)
	server := httptest.NewServer(http.HandlerFunc(respEcho))
	defer server.Close()
	target, err := url.Parse(server.URL)
	require.NoError(t, err)
	front, client := layerProxy(t, target, bodyRT(t, httptestx.NewTransport(t), retrip.WithAttemptTimeout(5*time.Second)))
	req := bodyRequest(t, http.MethodGet, front, nil)
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", "websocket")
	resp, err := client.Do(req)
	require.NoError(t, err)
	require.Equal(t, http.StatusSwitchingProtocols, resp.StatusCode)
	require.Equal(t, "websocket", resp.Header.Get("Upgrade"))
	defer resp.Body.Close()
	conn, ok := resp.Body.(io.ReadWriteCloser)
	require.True(t, ok)
	reader := bufio.NewReader(conn)
	for _, text := range []string{"ping\n", "pong\n"} {
		_, err = io.WriteString(conn, text)
		require.NoError(t, err)
		echo, err := reader.ReadString('\n')
		require.NoError(t, err)
		require.Equal(t, text, echo)
	}
}

// layerTokens sets a token as golang.org/x/oauth2 does: on a copy of the request, asking
// for it anew each time.
type layerTokens struct {
	base http.RoundTripper

	mu    sync.Mutex
	asked int
	fails int // the first calls
}

var errLayerToken = errors.New("no token")

func (l *layerTokens) RoundTrip(req *http.Request) (*http.Response, error) {
	l.mu.Lock()
	l.asked++
	n, failed := l.asked, l.asked <= l.fails
	l.mu.Unlock()
	if failed {
		if req.Body != nil {
			_ = req.Body.Close()
		}
		return nil, errLayerToken
	}
	clone := req.Clone(req.Context())
	clone.Header.Add("Authorization", "Bearer token-"+strconv.Itoa(n))
	return l.base.RoundTrip(clone)
}

func TestATokenLayerBelowIsAskedForEachAttempt(t *testing.T) {
	httptestx.Leaks(t)
	o := httptestx.NewOrigin(t, httptestx.Sequence(
		httptestx.Status(503, ""), httptestx.Play{httptestx.ReadAll, httptestx.FIN}, httptestx.OK("done")))
	tokens := &layerTokens{base: httptestx.NewTransport(t)}
	bodies := httptestx.NewBodies("alpha-42")
	r := bodyDo(t, bodyRT(t, tokens), bodies.Request(t.Context(), t, http.MethodPut, o.URL))
	require.NoError(t, r.err)
	require.Equal(t, "done", r.text)
	var sent []string
	for _, seen := range o.Requests() {
		require.Equal(t, "alpha-42", seen.Body)
		sent = append(sent, seen.Header["Authorization"]...)
	}
	require.Equal(t, []string{"Bearer token-1", "Bearer token-2", "Bearer token-3"}, sent)
	bodies.CheckClosedOnce(t)
}

// Its failure comes before any connection, but nothing proves that: a request that must
// not be sent twice is not sent again.
func TestATokenLayerBelowThatFailsProvesNothing(t *testing.T) {
	httptestx.Leaks(t)
	for _, method := range []string{http.MethodPut, http.MethodPost} {
		o := httptestx.NewOrigin(t, httptestx.Sequence(httptestx.OK("done")))
		tokens := &layerTokens{base: httptestx.NewTransport(t), fails: 1}
		bodies := httptestx.NewBodies("alpha-42")
		r := bodyDo(t, bodyRT(t, tokens), bodies.Request(t.Context(), t, method, o.URL))
		bodies.CheckClosedOnce(t)
		require.Equal(t, retrip.DeliveryUnknown, r.events[0].Delivery)
		require.Equal(t, retrip.ClassOther, r.events[0].Class)
		if method == http.MethodPut {
			require.Equal(t, "done", r.text)
			continue
		}
		require.ErrorIs(t, r.err, errLayerToken)
		require.ErrorIs(t, r.err, retrip.ErrOutcomeUnknown)
		require.Zero(t, o.Heads())
	}
}

func TestATokenLayerAboveIsAskedOncePerOperation(t *testing.T) {
	httptestx.Leaks(t)
	o := httptestx.NewOrigin(t, httptestx.Sequence(httptestx.Status(503, ""), httptestx.OK("done")))
	tokens := &layerTokens{base: bodyRT(t, httptestx.NewTransport(t))}
	bodies := httptestx.NewBodies("alpha-42")
	resp, err := (&http.Client{Transport: tokens}).Do(bodies.Request(t.Context(), t, http.MethodPut, o.URL))
	require.Equal(t, "done", layerText(t, resp, err))
	for _, seen := range o.Requests() {
		require.Equal(t, []string{"Bearer token-1"}, seen.Header["Authorization"])
		require.Equal(t, "alpha-42", seen.Body)
	}
	require.Equal(t, 2, o.Heads())
	bodies.CheckClosedOnce(t)
}

// httputil.DumpRequestOut is how many layers look at what they send: it reads the body by
// the request's own means and must find the caller's.
func TestALayerBelowThatDumpsTheRequestLeavesItWhole(t *testing.T) {
	httptestx.Leaks(t)
	o := httptestx.NewOrigin(t, httptestx.Sequence(httptestx.Status(503, ""), httptestx.OK("done")))
	inner := httptestx.NewTransport(t)
	dumps := 0
	base := httptestx.RoundTripFunc(func(req *http.Request) (*http.Response, error) {
		clone := req.Clone(req.Context())
		dump, err := httputil.DumpRequestOut(clone, true)
		if err != nil {
			return nil, err
		}
		if strings.HasSuffix(string(dump), "\r\n\r\nalpha-42") {
			dumps++
		}
		return inner.RoundTrip(clone)
	})
	bodies := httptestx.NewBodies("alpha-42")
	r := bodyDo(t, bodyRT(t, base), bodies.Request(t.Context(), t, http.MethodPut, o.URL))
	require.NoError(t, r.err)
	require.Equal(t, "done", r.text)
	require.Equal(t, 2, dumps)
	require.Equal(t, []string{"alpha-42", "alpha-42"}, bodyWhole(o))
}

// gzip by the transport is negotiated per attempt; see also
// TestACompressedAnswerArrivesWhole.
func TestGzipByTheTransportIsKeptOff(t *testing.T) {
	httptestx.Leaks(t)
	o := httptestx.NewOrigin(t, httptestx.Sequence(httptestx.Status(503, ""), httptestx.OK("done")))
	for _, off := range []bool{false, true} {
		base := httptestx.NewTransport(t)
		base.DisableCompression = off
		r := bodyDo(t, bodyRT(t, base), bodyRequest(t, http.MethodGet, o.URL, nil))
		require.NoError(t, r.err)
	}
	var sent []string
	for _, seen := range o.Requests() {
		sent = append(sent, seen.Header.Get("Accept-Encoding"))
	}
	require.Equal(t, []string{"gzip", "gzip", ""}, sent)
}

func TestAClientClosesIdleConnectionsThroughRetrip(t *testing.T) {
	httptestx.Leaks(t)
	o := httptestx.NewOrigin(t, httptestx.Sequence(httptestx.OK("done")))
	client := &http.Client{Transport: retrip.Must(retrip.New(httptestx.NewTransport(t)))}
	resp, err := client.Do(bodyRequest(t, http.MethodGet, o.URL, nil))
	layerText(t, resp, err)
	require.Equal(t, 1, o.Open())
	client.CloseIdleConnections()
	o.Await(t, "the idle connection to be closed", func() bool { return o.Open() == 0 })
}
