package retrip_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/httptestx"
)

var errOriginGate = errors.New("breaker is open")

// An originGate grants all but the attempts it refuses, and notes what it is told.
type originGate struct {
	refuse map[int]bool // by the order of asking, from 1

	mu    sync.Mutex
	asked int
	told  map[int][]error // by the same order
}

func (g *originGate) gate(*http.Request) (func(error), error) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.asked++
	n := g.asked
	if g.refuse[n] {
		return nil, errOriginGate
	}
	return func(err error) {
		g.mu.Lock()
		defer g.mu.Unlock()
		if g.told == nil {
			g.told = make(map[int][]error)
		}
		g.told[n] = append(g.told[n], err)
	}, nil
}

// toldOnce returns what was told of each grant, and fails unless that was one thing.
func (g *originGate) toldOnce(t *testing.T, grants ...int) []error {
	t.Helper()
	g.mu.Lock()
	defer g.mu.Unlock()
	require.Len(t, g.told, len(grants))
	var all []error
	for _, n := range grants {
		require.Len(t, g.told[n], 1, "grant %d", n)
		all = append(all, g.told[n][0])
	}
	return all
}

func TestAGateIsAskedBeforeEveryAttemptAndToldOnceAboutEach(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newOriginHost(t)
		g := &originGate{}
		res := h.client(t, retrip.WithGate(g.gate)).get("503,cut,429")
		require.Equal(t, 429, res.status)
		require.Equal(t, 3, h.count())
		require.Equal(t, 3, g.asked)
		told := g.toldOnce(t, 1, 2, 3)
		require.ErrorContains(t, told[0], "503")
		require.ErrorIs(t, told[1], io.EOF)
		require.NoError(t, told[2], "429: the server answers")
	})
}

func TestAGateIsToldNilForAnAnswerBelow500(t *testing.T) {
	for script, failed := range map[string]bool{
		"200": false, "304": false, "404": false, "429": false, "499": false,
		"500": true, "501": true, "503": true, "599": true,
	} {
		t.Run(script, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := &originGate{}
				newOriginHost(t).client(t, retrip.WithGate(g.gate), retrip.WithMaxAttempts(1)).get(script)
				err := g.toldOnce(t, 1)[0]
				require.Equal(t, failed, err != nil, "%v", err)
				if failed {
					require.Regexp(t, "^retrip: .*"+script, err.Error())
				}
			})
		})
	}
}

func TestAGateIsToldWhenTheHeadersAreThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &originGate{}
		goOn := make(chan struct{})
		base := httptestx.ServeMemory(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.(http.Flusher).Flush()
			<-goOn
		}))
		rt := retrip.Must(retrip.New(base, retrip.WithGate(g.gate)))
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://origin.test/", http.NoBody)
		require.NoError(t, err)
		resp, err := rt.RoundTrip(req)
		require.NoError(t, err)
		require.NoError(t, g.toldOnce(t, 1)[0])
		close(goOn)
		_, err = io.Copy(io.Discard, resp.Body)
		require.NoError(t, err)
		resp.Body.Close()
		g.toldOnce(t, 1)
	})
}

func TestAGateThatRefusesTheFirstAttemptEndsTheOperationWithNothingSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newOriginHost(t)
		g := &originGate{refuse: map[int]bool{1: true}}
		c := h.client(t, retrip.WithGate(g.gate))
		ctx, recorder := retrip.Record(t.Context())
		body := httptestx.NewBody(bytes.NewReader([]byte("x")))
		req, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://origin.test/200", body)
		require.NoError(t, err)
		res := finishOriginRequest(c.rt, req, recorder)

		body.CheckClosedOnce(t)
		require.Zero(t, h.count())
		require.ErrorIs(t, res.err, errOriginGate)
		var e *retrip.Error
		require.ErrorAs(t, res.err, &e)
		require.Equal(t, 0, e.Attempts)
		require.Equal(t, retrip.DecisionReturn, e.Decision)
		require.Equal(t, retrip.ReasonGateClosed, e.Reason)
		require.Equal(t, retrip.DeliveryNotSent, e.Delivery)
		require.False(t, e.MaybeApplied)
		require.NotContains(t, e.Error(), errOriginGate.Error(), "the gate's words are not the network's")

		require.Len(t, res.events, 1)
		event := res.end()
		require.Equal(t, 0, event.Attempt)
		require.Equal(t, retrip.ClassGate, event.Class)
		require.Equal(t, retrip.DeliveryNotSent, event.Delivery)
		require.Equal(t, retrip.DecisionReturn, event.Decision)
		require.Equal(t, retrip.ReasonGateClosed, event.Reason)
		require.ErrorIs(t, event.Err, errOriginGate)
		require.Equal(t, 1, g.asked)
		g.toldOnce(t)
	})
}

func TestAGateThatRefusesARepeatReturnsTheAnswerInHandAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newOriginHost(t)
		g := &originGate{refuse: map[int]bool{2: true}}
		start := time.Now()
		res := h.client(t, retrip.WithGate(g.gate), retrip.WithBackoff(retrip.Constant(time.Hour))).get("503")
		require.Zero(t, time.Since(start), "asked before the wait")
		require.NoError(t, res.err)
		require.Equal(t, 503, res.status)
		require.Equal(t, "503", res.body)
		require.Equal(t, 1, h.count())
		require.Len(t, res.events, 1)
		event := res.end()
		require.Equal(t, 1, event.Attempt)
		require.Equal(t, retrip.ClassNone, event.Class)
		require.Equal(t, 503, event.StatusCode)
		require.Equal(t, retrip.DecisionReturn, event.Decision)
		require.Equal(t, retrip.ReasonGateClosed, event.Reason)
		require.Equal(t, retrip.PermitNone, event.Permit)
		require.ErrorIs(t, event.Err, errOriginGate)
		g.toldOnce(t, 1)
	})
}

func TestAGateThatRefusesARepeatAfterALostAnswerIsInTheError(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newOriginHost(t)
		g := &originGate{refuse: map[int]bool{2: true}}
		res := h.client(t, retrip.WithGate(g.gate)).get("cut")
		require.ErrorIs(t, res.err, io.EOF)
		require.ErrorIs(t, res.err, errOriginGate)
		var e *retrip.Error
		require.ErrorAs(t, res.err, &e)
		require.Equal(t, 1, e.Attempts)
		require.Equal(t, retrip.ReasonGateClosed, e.Reason)
		require.Equal(t, retrip.ClassEOF, res.end().Class, "the attempt's class stays")
	})
}

func TestAGateIsNotAskedForAnAttemptThatIsNotDue(t *testing.T) {
	tests := map[string]func(c originClient) originResult{
		"success":        func(c originClient) originResult { return c.get("200") },
		"not repeatable": func(c originClient) originResult { return c.do(http.MethodPost, "503") },
		"last attempt":   func(c originClient) originResult { return c.get("503", retrip.WithMaxAttempts(1)) },
		"budget empty":   func(c originClient) originResult { return c.get("503", retrip.WithBudget(retrip.NewBudget(0, 0, 0))) },
		"does not fit": func(c originClient) originResult {
			return c.get("503?after=5", retrip.WithTotalTimeout(time.Second))
		},
	}
	for name, run := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := &originGate{}
				run(newOriginHost(t).client(t, retrip.WithGate(g.gate)))
				require.Equal(t, 1, g.asked)
				g.toldOnce(t, 1)
			})
		})
	}
}

func TestAGateIsToldOfAGrantedAttemptThatIsNotMade(t *testing.T) {
	t.Run("cancelled in the wait", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := &originGate{}
			c := newOriginHost(t).client(t, retrip.WithGate(g.gate), retrip.WithBackoff(retrip.Constant(time.Hour)))
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Second, cancel)
			c.send(ctx, http.MethodGet, "http://origin.test/503")
			require.ErrorIs(t, g.toldOnce(t, 1, 2)[1], context.Canceled)
		})
	})
	t.Run("without a body", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g, gone := &originGate{}, errors.New("the file is gone")
			c := newOriginHost(t).client(t, retrip.WithGate(g.gate))
			c.put(func() (io.ReadCloser, error) { return nil, gone })
			require.ErrorIs(t, g.toldOnce(t, 1, 2)[1], gone)
		})
	})
	t.Run("left by a panic of GetBody", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			g := &originGate{}
			c := newOriginHost(t).client(t, retrip.WithGate(g.gate))
			require.Panics(t, func() { c.put(func() (io.ReadCloser, error) { panic("no body") }) })
			require.Error(t, g.toldOnce(t, 1, 2)[1])
		})
	})
	t.Run("left by a panic of the base", func(t *testing.T) {
		g := &originGate{}
		base := httptestx.RoundTripFunc(func(*http.Request) (*http.Response, error) { panic("no base") })
		rt := retrip.Must(retrip.New(base, retrip.WithGate(g.gate)))
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://origin.test/", http.NoBody)
		require.NoError(t, err)
		require.PanicsWithValue(t, "no base", func() {
			resp, err := rt.RoundTrip(req)
			require.NoError(t, err)
			resp.Body.Close()
		})
		require.Error(t, g.toldOnce(t, 1)[0])
	})
}

func TestAGateMayHaveNothingToBeTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newOriginHost(t).client(t, retrip.WithGate(func(*http.Request) (func(error), error) {
			return nil, nil //nolint:nilnil // allowed, and the point of the test
		}))
		require.Equal(t, 200, c.get("503,200").status)
	})
}

func TestAGateSeesTheCallersRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newOriginHost(t)
		var seen []*http.Request
		c := h.client(t, retrip.WithGate(func(req *http.Request) (func(error), error) {
			seen = append(seen, req)
			return nil, nil //nolint:nilnil // a Gate may have nothing to be told
		}))
		ctx, recorder := retrip.Record(t.Context())
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://origin.test/503,200", http.NoBody)
		require.NoError(t, err)
		finishOriginRequest(c.rt, req, recorder)
		require.Len(t, seen, 2)
		require.Same(t, req, seen[0])
		require.Same(t, req, seen[1])
	})
}

func TestAnOverrideMayBringAGateOrTakeItAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newOriginHost(t)
		closed := retrip.WithGate(func(*http.Request) (func(error), error) { return nil, errOriginGate })
		require.ErrorIs(t, h.client(t).get("200", closed).err, errOriginGate)
		require.Equal(t, 200, h.client(t, closed).get("200", retrip.WithGate(nil)).status)
	})
}
