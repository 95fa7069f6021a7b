package matrix

import (
	"bytes"
	"context"
	"crypto/tls"
	"flag"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/httptestx"
)

var stressOps = flag.Int("ops", 2000, "operations of the stress test; the long run has 20000 or more")

// stressWorkers send beside each other, so that connections are shared and lost
// under way.
const stressWorkers = 8

// TestStress sends requests while the origin fails and the caller ends at random
// moments, and holds every claim of retrip's against what the origin saw and
// what the client wrote.
func TestStress(t *testing.T) {
	httptestx.Leaks(t)
	for _, part := range []struct {
		proto proto
		share int // percent of the operations
	}{{h1, 64}, {h1tls, 14}, {h2, 22}} {
		t.Run(string(part.proto), func(t *testing.T) {
			newStress(t, part.proto).run(*stressOps * part.share / 100)
		})
	}
}

// stress is one run against one origin.
type stress struct {
	t      *testing.T
	scene  *scene
	rt     http.RoundTripper
	wire   *wireTap
	nextOp atomic.Int64

	mu     sync.Mutex
	ops    map[string]stressed
	counts map[string]int
}

// stressed is what became of one operation.
type stressed struct {
	method method
	events []retrip.Event
	maybe  bool
	err    error
}

func newStress(t *testing.T, p proto) *stress {
	t.Helper()
	s := &stress{t: t, scene: newScene(t, p, mGET), wire: &wireTap{lines: map[string]int{}}, ops: map[string]stressed{}, counts: map[string]int{}}
	s.scene.serve(randomPlays, H2Script{Streams: randomStreams})
	if p == h1 {
		s.scene.dialer(s.wire.dial)
	}
	rt, err := retrip.New(s.scene.transport,
		retrip.WithBackoff(retrip.FullJitter(200*time.Microsecond, time.Millisecond)),
		retrip.WithBudget(nil),
		retrip.WithAttemptHeaders(retrip.AttemptHeaders{Attempt: "X-Attempt"}))
	require.NoError(t, err)
	s.rt = httptestx.Checked(t, rt)
	return s
}

func upTo(d time.Duration) time.Duration { return time.Duration(rand.Int64N(int64(d))) }

// randomPlays half-closes rather than closes, so that it notes each byte that
// ever leaves the client; only the resets lose some.
func randomPlays(turn httptestx.Turn) httptestx.Play {
	if turn.OnConn == 1 {
		switch rand.IntN(14) {
		case 0:
			return httptestx.Play{httptestx.FIN}
		case 1:
			return httptestx.Play{httptestx.Handshake, httptestx.FIN}
		case 2:
			return httptestx.Play{httptestx.Handshake, httptestx.Pause(upTo(300 * time.Microsecond)), httptestx.FIN}
		case 3:
			return httptestx.Play{httptestx.Handshake, httptestx.RST}
		}
	}
	answer := httptestx.OK("fine")
	switch rand.IntN(24) {
	case 0:
		return httptestx.Play{httptestx.ReadHead, httptestx.FIN}
	case 1:
		return httptestx.Play{httptestx.ReadAll, httptestx.FIN}
	case 2:
		return httptestx.Play{httptestx.ReadAll, httptestx.RST}
	case 3:
		return httptestx.Play{httptestx.AwaitByte, httptestx.Close}
	case 4:
		return httptestx.Play{httptestx.ReadAll, httptestx.Write("HTTP/1.1 2"), httptestx.FIN}
	case 5:
		return httptestx.Status(http.StatusServiceUnavailable, "busy")
	case 6:
		return httptestx.Play{httptestx.ReadAll, httptestx.Pause(upTo(2 * time.Millisecond)), httptestx.Respond(http.StatusOK, "slow")}
	case 7, 8:
		return append(answer, httptestx.Pause(upTo(400*time.Microsecond)), httptestx.RST)
	case 9, 10, 11:
		return append(answer, httptestx.Pause(upTo(400*time.Microsecond)), httptestx.FIN)
	}
	return answer
}

func randomStreams(H2Turn) H2Play {
	codes := []http2.ErrCode{
		http2.ErrCodeRefusedStream, http2.ErrCodeRefusedStream, http2.ErrCodeProtocol, http2.ErrCodeInternal,
		http2.ErrCodeCancel, http2.ErrCodeEnhanceYourCalm, http2.ErrCodeNo,
	}
	code := codes[rand.IntN(len(codes))]
	pause := func(limit time.Duration) H2Step {
		return func(s *H2Stream) error {
			t := time.NewTimer(upTo(limit))
			defer t.Stop()
			select {
			case <-t.C:
				return nil
			case <-s.ctx.Done():
				return s.ctx.Err()
			}
		}
	}
	switch rand.IntN(24) {
	case 0, 1:
		return H2Play{H2ReadAll, H2Reset(code)}
	case 2:
		return H2Play{H2Reset(code)}
	case 3:
		return H2Play{H2ReadAll, H2GoAwayBelow(http2.ErrCodeNo)}
	case 4:
		return H2Play{H2GoAwayBelow(http2.ErrCodeEnhanceYourCalm)}
	case 5:
		return H2Play{H2ReadAll, H2GoAwayCovering(http2.ErrCodeNo), H2Respond(http.StatusOK, "last")}
	case 6:
		return H2Play{H2ReadAll, H2FIN}
	case 7:
		return H2Play{pause(300 * time.Microsecond), H2FIN}
	case 8:
		return H2Play{H2ReadAll, H2RST}
	case 9:
		return H2Status(http.StatusServiceUnavailable, "busy")
	case 10:
		return H2Play{H2ReadAll, pause(2 * time.Millisecond), H2Respond(http.StatusOK, "slow")}
	case 11:
		return append(H2OK("fine"), pause(400*time.Microsecond), H2FIN)
	}
	return H2OK("fine")
}

func (s *stress) run(ops int) {
	s.t.Helper()
	var workers sync.WaitGroup
	for range stressWorkers {
		workers.Go(func() {
			for s.nextOp.Add(1) <= int64(ops) {
				s.operate()
			}
		})
	}
	workers.Wait()
	s.noneLeft()
	s.judge()
}

// noneLeft waits until the client has no connection. On HTTP/2 net/http itself
// keeps one for ever, now and then, whose stream was reserved for a request that
// ended before it took it: the bare base does so too. Those end with the origin.
func (s *stress) noneLeft() {
	s.t.Helper()
	left := func() bool {
		s.scene.transport.CloseIdleConnections()
		return s.scene.conns.Load() == 0
	}
	if s.scene.proto == h2 {
		for end := time.Now().Add(2 * time.Second); !left() && time.Now().Before(end); {
			<-time.After(time.Millisecond)
		}
		s.counts["connections kept by net/http"] = int(s.scene.conns.Load())
		s.scene.stop()
	}
	assert.Eventually(s.t, left, runLimit, time.Millisecond, "connections of the client are left")
	s.scene.ledger.Await(s.t, "the origin's connections", func() bool { return s.scene.ledger.Open() == 0 })
}

func (s *stress) operate() {
	m := allMethods[rand.IntN(len(allMethods))]
	id := fmt.Sprintf("op-%d", rand.Uint64())
	ctx, cancel := context.WithTimeout(s.t.Context(), 5*time.Second)
	defer cancel()
	ctx, rec := retrip.Record(s.endsSomewhere(ctx, cancel))
	size := 0
	if rand.IntN(4) == 0 {
		size = 40 << 10
	}
	req := m.request(ctx, s.t, s.scene.url+"/"+id, size)
	req.Header.Set("X-Op", id)
	resp, err := s.rt.RoundTrip(req)
	if err == nil {
		_, _ = io.Copy(io.Discard, resp.Body) // cut by the caller's end in some runs
		resp.Body.Close()
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ops[id] = stressed{m, rec.Events(), rec.MaybeApplied(), err}
}

// endsSomewhere ends half of the operations: by cancel, by deadline, by
// AttemptTimeout, at any time or aimed at the moment a connection is there.
func (s *stress) endsSomewhere(ctx context.Context, cancel context.CancelFunc) context.Context {
	aimed := func() { time.AfterFunc(upTo(240*time.Microsecond), cancel) }
	switch rand.IntN(10) {
	case 0:
		time.AfterFunc(upTo(4*time.Millisecond), cancel)
	case 1:
		limited, end := context.WithTimeout(ctx, upTo(4*time.Millisecond))
		context.AfterFunc(limited, end)
		return limited
	case 2:
		return retrip.Override(ctx, retrip.WithAttemptTimeout(100*time.Microsecond+upTo(4*time.Millisecond)))
	case 3:
		return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { aimed() }})
	case 4:
		return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
			ConnectDone:      func(string, string, error) { aimed() },
			TLSHandshakeDone: func(tls.ConnectionState, error) { aimed() },
		})
	}
	return ctx
}

func (s *stress) judge() {
	s.t.Helper()
	type attempt struct{ op, number string }
	heads, executed, effects := map[attempt]int{}, map[attempt]int{}, map[string]int{}
	for _, seen := range s.scene.ledger.Requests() {
		op := seen.Header.Get("X-Op")
		at := attempt{op, seen.Header.Get("X-Attempt")}
		heads[at]++
		if seen.Complete && !seen.Refused {
			executed[at]++
			effects[op]++
		}
	}
	claims, refusals := 0, 0
	for id, op := range s.ops {
		sends := 0
		for _, e := range op.events {
			s.counts["delivery "+string(e.Delivery)]++
			if e.Attempt == 0 {
				continue
			}
			at := attempt{id, strconv.Itoa(e.Attempt)}
			n := heads[at]
			if e.Delivery == retrip.DeliveryNotSent {
				claims++
				assert.Zero(s.t, n, "%s attempt %d of a %s is called not_sent, the origin has its headers: %v", id, e.Attempt, op.method.name, e.Err)
				continue
			}
			assert.LessOrEqual(s.t, n, e.Sends, "%s: the origin saw more than Sends", id)
			sends += e.Sends
			switch {
			case e.Delivery == retrip.DeliveryRefused:
				refusals++
				assert.Zero(s.t, executed[at], "%s attempt %d is called refused and was executed: %v", id, e.Attempt, e.Err)
			case e.Delivery == retrip.DeliveryUnknown && executed[at] > 0 && !op.method.safe():
				assert.True(s.t, op.maybe, "%s attempt %d was executed unanswered, and MaybeApplied is false", id, e.Attempt)
			}
		}
		assert.LessOrEqual(s.t, s.wire.count(id), sends, "%s: bytes left for an attempt called not_sent", id)
		if !op.method.repeatable() {
			s.counts["unprotected"]++
			assert.LessOrEqual(s.t, effects[id], 1, "an unprotected %s took effect twice: %+v", op.method.name, op.events)
		}
		if op.err != nil {
			s.counts["failed"]++
		}
		s.counts["attempts"] += len(op.events)
		s.counts["effects"] += effects[id]
	}
	assert.NotZero(s.t, claims, "the run proves nothing: no attempt was called not_sent")
	var b strings.Builder
	for _, k := range slices.Sorted(maps.Keys(s.counts)) {
		fmt.Fprintf(&b, "%s %d, ", k, s.counts[k])
	}
	if s.scene.proto == h2 {
		assert.NotZero(s.t, refusals, "no attempt was called refused")
	}
	s.t.Logf("%s: %d operations: %s%d claims of not_sent, %d of refused; %d connections, header blocks %d",
		s.scene.proto, len(s.ops), b.String(), claims, refusals, s.scene.ledger.Conns(), s.scene.ledger.Heads())
}

// wireTap counts, on connections without TLS, the request lines that the client
// hands to the system, by the operation they name.
type wireTap struct {
	mu    sync.Mutex
	lines map[string]int
}

func (w *wireTap) dial(ctx context.Context, network, addr string) (net.Conn, error) {
	c, err := new(net.Dialer).DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return &tappedConn{c, w}, nil
}

func (w *wireTap) count(op string) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lines[op]
}

type tappedConn struct {
	net.Conn
	tap *wireTap
}

func (c *tappedConn) Write(p []byte) (int, error) {
	if _, rest, ok := bytes.Cut(p, []byte(" /op-")); ok {
		id, _, _ := bytes.Cut(rest, []byte("/"))
		c.tap.mu.Lock()
		c.tap.lines["op-"+string(id)]++
		c.tap.mu.Unlock()
	}
	return c.Conn.Write(p)
}

// TestResetRace resets kept connections around the moment of the next POST. What
// net/http sends again because nothing was written must still be sent again
// through retrip: it may not fail more often than the base alone.
func TestResetRace(t *testing.T) {
	httptestx.Leaks(t)
	const posts = 3000
	race := func(wrap func(http.RoundTripper) http.RoundTripper) (ok, resent int) {
		s := newScene(t, h1, mPOST)
		s.serveH1(func(httptestx.Turn) httptestx.Play {
			return append(httptestx.OK("fine"), httptestx.Pause(upTo(150*time.Microsecond)), httptestx.RST)
		})
		rt := wrap(s.transport)
		for range posts {
			sends := 0
			ctx := httptrace.WithClientTrace(s.t.Context(), &httptrace.ClientTrace{
				GotConn: func(httptrace.GotConnInfo) { sends++ },
			})
			resp, err := rt.RoundTrip(mPOST.request(ctx, t, s.url, 0))
			if err != nil {
				continue
			}
			_, _ = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			ok++
			if sends > 1 {
				resent++
			}
		}
		for _, seen := range s.ledger.Requests() {
			assert.Equal(t, payload, seen.Body)
		}
		assert.LessOrEqual(t, s.ledger.Effects(), posts)
		return ok, resent
	}
	bare, bareResent := race(func(rt http.RoundTripper) http.RoundTripper { return rt })
	ours, oursResent := race(func(rt http.RoundTripper) http.RoundTripper {
		return httptestx.Checked(t, retrip.Must(retrip.New(rt, retrip.WithMaxAttempts(1))))
	})
	t.Logf("of %d POSTs: bare %d answered, %d sent again by net/http; retrip with one attempt %d, %d", posts, bare, bareResent, ours, oursResent)
	assert.Greater(t, ours, bare*9/10, "retrip fails where the base does not")
	if bareResent > posts/20 {
		assert.NotZero(t, oursResent, "what net/http sends again was stopped")
	}
}
