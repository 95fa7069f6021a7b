package matrix

import (
	"context"
	"io"
	"net"
	"net/http"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/httptestx"
)

// idlePool lets n idle connections lie in the transport's pool before the
// scene's request: n requests are answered only when all of them are there.
func idlePool(s *scene, n int, after ...httptestx.Step) {
	s.t.Helper()
	all := make(chan struct{})
	var arrived sync.WaitGroup
	arrived.Add(n)
	s.serveH1(func(turn httptestx.Turn) httptestx.Play {
		if turn.Conn <= n && turn.OnConn == 1 {
			return append(httptestx.Play{httptestx.ReadAll, httptestx.Call(arrived.Done), httptestx.WaitFor(all), httptestx.Respond(200, "warm")}, after...)
		}
		if turn.Conn <= n {
			return httptestx.Play{httptestx.ReadAll, httptestx.FIN}
		}
		return httptestx.OK("fine")
	})
	s.fill = func(rt http.RoundTripper) {
		var clients sync.WaitGroup
		for range n {
			clients.Go(func() { s.warmUp(rt) })
		}
		arrived.Wait()
		close(all)
		clients.Wait()
	}
}

// Ten connections lie idle and each is closed as a request arrives on it. The
// base goes through all of them by itself for what it may repeat; a PUT costs
// one attempt each, so three attempts do not reach a fresh connection.
func TestTenStaleIdleConnections(t *testing.T) {
	httptestx.Leaks(t)
	const idle = 10
	tests := []struct {
		method  method
		status  int
		heads   int
		unknown bool
		last    retrip.Decision
	}{
		{mGET, 200, idle + 1, false, retrip.DecisionReturn},
		{mPOSTkey, 200, idle + 1, false, retrip.DecisionReturn},
		{mPUT, 0, 3, true, retrip.DecisionAttemptsExhausted},
		{mPOST, 0, 1, true, retrip.DecisionCheckState},
		{mPOST0, 0, 1, true, retrip.DecisionCheckState},
	}
	for _, p := range httpOne {
		for _, tt := range tests {
			t.Run(string(p)+" "+tt.method.name, func(t *testing.T) {
				s := newScene(t, p, tt.method)
				idlePool(s, idle)
				got := s.runRetrip()
				assert.Equal(t, tt.status, got.status, "%s", got)
				assert.Equal(t, tt.heads, got.heads, "%s", got)
				assert.Equal(t, tt.unknown, got.unknown, "%s", got)
				last := got.events[len(got.events)-1]
				assert.Equal(t, tt.last, last.Decision)
				if tt.status == 200 {
					assert.Equal(t, 1, last.Attempt)
					assert.Equal(t, tt.heads, last.Sends)
				}
			})
		}
	}
}

// Where the ten were closed before the request, nothing is lost for any method.
func TestTenIdleConnectionsClosedBefore(t *testing.T) {
	httptestx.Leaks(t)
	for _, m := range allMethods {
		t.Run(m.name, func(t *testing.T) {
			s := newScene(t, h1, m)
			idlePool(s, 10, httptestx.FIN)
			s.settle = func() { s.awaitClientConns(0) }
			got := s.runRetrip()
			assert.Equal(t, 200, got.status, "%s", got)
			assert.Equal(t, 1, got.heads)
			assert.Len(t, got.events, 1)
		})
	}
}

// An attempt whose time ends in the dial says so, and not "context canceled".
func TestAttemptTimeoutDuringADialIsNamed(t *testing.T) {
	httptestx.Leaks(t)
	for _, p := range allProtos {
		s := newScene(t, p, mPOST)
		s.serveOK()
		hangDials(s, 9)
		s.opts = []retrip.Option{retrip.WithAttemptTimeout(shortLimit / 3), retrip.WithMaxAttempts(1)}
		got := s.runRetrip()
		var e *retrip.Error
		require.ErrorAs(t, got.err, &e)
		assert.Equal(t, retrip.DeliveryNotSent, e.Delivery)
		assert.False(t, e.MaybeApplied)
		assert.True(t, e.Timeout())
		require.ErrorContains(t, e, "AttemptTimeout")
		assert.NotContains(t, e.Error(), "context canceled")
		require.NotErrorIs(t, e, context.Canceled)
	}
}

// Refused dials of requests that may be repeated anyway are still known as not
// sent: nothing is unknown about them.
func TestRefusedDialsLeaveNothingUnknown(t *testing.T) {
	httptestx.Leaks(t)
	for _, p := range allProtos {
		for _, m := range []method{mPUT, mPOSTkey, mPOST, mGET} {
			s := newScene(t, p, m)
			refuse, _ := s.serveOK()
			refuse()
			got := s.runRetrip()
			require.ErrorIs(t, got.err, syscall.ECONNREFUSED)
			require.NotErrorIs(t, got.err, retrip.ErrOutcomeUnknown)
			assert.False(t, got.unknown)
			assert.Len(t, got.events, 3)
			for _, e := range got.events {
				assert.Equal(t, retrip.DeliveryNotSent, e.Delivery)
				assert.Equal(t, retrip.ClassDial, e.Class)
				assert.Zero(t, e.Sends)
			}
		}
	}
}

// The attempt's own time ends while HEADERS are being written: they can leave
// after RoundTrip has returned, so it must never be called not_sent. Here they
// do leave, and the origin executes the request.
func TestHeadersThatLeaveAfterTheReturn(t *testing.T) {
	httptestx.Leaks(t)
	for _, m := range []method{mPOST, mPOST0, mPUT} {
		t.Run(m.name, func(t *testing.T) {
			s := newScene(t, h2, m)
			s.warm = true
			s.serveH2(H2Sequence(H2OK("")))
			shut, open := make(chan struct{}), make(chan struct{})
			s.dialer(func(ctx context.Context, network, addr string) (net.Conn, error) {
				c, err := new(net.Dialer).DialContext(ctx, network, addr)
				if err != nil {
					return nil, err
				}
				return &delayedConn{Conn: c, shut: shut, open: open}, nil
			})
			s.edit = func(*http.Request) { close(shut) }
			s.opts = []retrip.Option{retrip.WithAttemptTimeout(shortLimit), retrip.WithMaxAttempts(1)}
			before := 0
			s.after = func() {
				before = s.ledger.Heads()
				close(open)
				if m.body { // HEADERS go first, whatever becomes of the body
					s.ledger.Await(t, "the HEADERS", func() bool { return s.ledger.Heads() == before+1 })
				}
			}
			got := s.runRetrip()
			require.Error(t, got.err)
			e := got.events[0]
			assert.Equal(t, retrip.DeliveryUnknown, e.Delivery, "%s", got)
			assert.Equal(t, 1, e.Sends)
			assert.True(t, got.unknown)
		})
	}
}

// delayedConn holds back what is written between shut and open.
type delayedConn struct {
	net.Conn
	shut, open <-chan struct{}
}

func (c *delayedConn) Write(p []byte) (int, error) {
	select {
	case <-c.shut:
		<-c.open
	default:
	}
	return c.Conn.Write(p)
}

// A bodyless POST that is refused or met by GOAWAY goes out without a body and
// with Content-Length: 0, on every attempt, as the base sends it.
func TestBodylessPostLooksTheSameOnTheWire(t *testing.T) {
	httptestx.Leaks(t)
	heads := func(run func(*scene) result) []httptestx.Seen {
		s := newScene(t, h2, mPOST0)
		h2Fault(false, H2Play{H2ReadAll, H2Reset(7)}, H2OK("fine"))(s)
		got := run(s)
		require.NoError(t, got.err)
		return s.ledger.Requests()
	}
	bare := heads((*scene).runBare)
	ours := heads(func(s *scene) result { return s.runRetrip() })
	require.Len(t, bare, 2)
	require.Len(t, ours, 2)
	for i := range bare {
		assert.Equal(t, bare[i].Header, ours[i].Header)
		assert.Equal(t, bare[i].ContentLength, ours[i].ContentLength)
		assert.Zero(t, ours[i].BodyBytes)
	}
}

// http.Client.Timeout sets the context and the request's legacy channel: both
// are the caller's end.
func TestClientTimeoutIsTheCallersEnd(t *testing.T) {
	httptestx.Leaks(t)
	for _, p := range allProtos {
		s := newScene(t, p, mPOST)
		s.serve(httptestx.Sequence(httptestx.Play{httptestx.ReadAll, httptestx.Silence}), H2Sequence(H2Play{H2ReadAll, H2Silence}))
		ctx, rec := retrip.Record(t.Context())
		client := &http.Client{Transport: retrip.Must(retrip.New(s.transport)), Timeout: 4 * shortLimit}
		start := time.Now()
		resp, err := client.Do(mPOST.request(ctx, t, s.url, 0))
		if err == nil {
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
		}
		require.Error(t, err)
		assert.Less(t, time.Since(start), runLimit/2)
		require.NotEmpty(t, rec.Events())
		assert.Equal(t, retrip.DecisionDeadlineExceeded, rec.Events()[0].Decision)
		assert.Len(t, rec.Events(), 1)
	}
}
