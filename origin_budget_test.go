package retrip_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/httptestx"
)

func TestARepeatCostsOneTokenAndTwoAfterATimeout(t *testing.T) {
	const limit = time.Second
	for name, prepare := range map[string]func(h *originHost) []retrip.Option{
		"of the attempt": func(*originHost) []retrip.Option { return []retrip.Option{retrip.WithAttemptTimeout(limit)} },
		"of the base": func(h *originHost) []retrip.Option {
			h.base.ResponseHeaderTimeout = limit
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newOriginHost(t)
				c := h.client(t, append(prepare(h), retrip.WithBudget(retrip.NewBudget(0, 0, 6)))...)

				require.Equal(t, 2, c.get("hang,200").end().Attempt, "6 tokens, costs 2")
				require.Equal(t, 2, c.get("503,200").end().Attempt, "4 tokens, costs 1")
				require.Equal(t, 2, c.get("cut,200").end().Attempt, "3 tokens, costs 1")
				require.Equal(t, 2, c.get("503,200").end().Attempt, "2 tokens, costs 1")
				refused := c.get("hang,200")
				require.Equal(t, 1, refused.end().Attempt, "1 token, would cost 2")
				require.Equal(t, retrip.DecisionBudgetExhausted, refused.end().Decision)
				require.Equal(t, retrip.ReasonBudgetExhausted, refused.end().Reason)
				require.Equal(t, 200, c.get("200").status)
				require.Equal(t, 2, c.get("503,200").end().Attempt, "1 token, costs 1")
				require.Equal(t, 1, c.get("503,200").end().Attempt, "0 tokens")
			})
		})
	}
}

func TestAnEmptyBudgetReturnsTheAnswerInHandWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newOriginHost(t)
		c := h.client(t, retrip.WithBudget(retrip.NewBudget(0, 0, 0)), retrip.WithBackoff(retrip.Constant(time.Hour)))
		start := time.Now()
		res := c.get("503")
		require.NoError(t, res.err)
		require.Equal(t, 503, res.status)
		require.Equal(t, "503", res.body)
		require.Len(t, res.events, 1)
		require.Equal(t, retrip.PermitNone, res.end().Permit)
		require.Equal(t, 1, h.count())
		require.Zero(t, time.Since(start))

		cut := c.get("cut")
		var e *retrip.Error
		require.ErrorAs(t, cut.err, &e)
		require.Equal(t, retrip.DecisionBudgetExhausted, e.Decision)
		require.Equal(t, 1, e.Attempts)
	})
}

func TestATokenIsGivenBackWhereTheRepeatIsNotMade(t *testing.T) {
	noBody := errors.New("the file is gone")
	tests := []struct {
		name string
		run  func(c originClient) originResult
		want retrip.Decision
	}{
		{"cancelled in the wait", func(c originClient) originResult {
			ctx, cancel := context.WithCancel(c.t.Context())
			time.AfterFunc(time.Second, cancel)
			return c.send(ctx, http.MethodGet, "http://origin.test/503", retrip.WithBackoff(retrip.Constant(time.Hour)))
		}, retrip.DecisionCancel},
		{"cancelled in the wait after a time-out", func(c originClient) originResult {
			ctx, cancel := context.WithCancel(c.t.Context())
			time.AfterFunc(2*time.Second, cancel)
			return c.send(ctx, http.MethodGet, "http://origin.test/hang", retrip.WithAttemptTimeout(time.Second),
				retrip.WithBackoff(retrip.Constant(time.Hour)))
		}, retrip.DecisionCancel},
		{"refused by the gate", func(c originClient) originResult {
			asked := 0
			return c.get("503", retrip.WithGate(func(*http.Request) (func(error), error) {
				if asked++; asked > 1 {
					return nil, errOriginGate
				}
				return nil, nil //nolint:nilnil // a Gate may have nothing to be told
			}))
		}, retrip.DecisionReturn},
		{"without a body", func(c originClient) originResult {
			return c.put(func() (io.ReadCloser, error) { return nil, noBody })
		}, retrip.DecisionReturn},
		{"left by a panic", func(c originClient) originResult {
			require.PanicsWithValue(c.t, "no body", func() {
				c.put(func() (io.ReadCloser, error) { panic("no body") })
			})
			return originResult{}
		}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newOriginHost(t)
				c := h.client(t, retrip.WithBudget(retrip.NewBudget(0, 0, 2)))
				if res := tt.run(c); tt.want != "" {
					require.Equal(t, tt.want, res.end().Decision)
				}
				require.Equal(t, 1, h.count())
				require.Equal(t, 200, c.get("200").status, "opens the reserve")
				require.Equal(t, 3, c.get("503,503,200").end().Attempt, "both tokens are there")
				require.Equal(t, 1, c.get("503,200").end().Attempt, "and no more")
			})
		})
	}
}

// put sends a body that is not made of memory net/http knows.
func (c originClient) put(getBody func() (io.ReadCloser, error)) originResult {
	c.t.Helper()
	ctx, recorder := retrip.Record(c.t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, "http://origin.test/503", bytes.NewBufferString("x"))
	require.NoError(c.t, err)
	req.GetBody = getBody
	return finishOriginRequest(c.rt, req, recorder)
}

func TestTheReserveIsClosedWhileTheOperationThatEndedLastHadFailed(t *testing.T) {
	cancelled := func(c originClient, script string) {
		ctx, cancel := context.WithCancel(c.t.Context())
		time.AfterFunc(time.Second, cancel)
		c.send(ctx, http.MethodGet, "http://origin.test/"+script, retrip.WithBackoff(retrip.Constant(time.Hour)))
	}
	const opened, closed, asBefore = "opened", "closed", "as before"
	tests := []struct {
		name string
		want string
		run  func(c originClient)
	}{
		{"200", opened, func(c originClient) { c.get("200") }},
		{"301", opened, func(c originClient) { c.get("301") }},
		{"404", opened, func(c originClient) { c.get("404") }},
		{"500", opened, func(c originClient) { c.get("500") }},
		{"503 that may not be repeated", closed, func(c originClient) { c.do(http.MethodPost, "503") }},
		{"503 that is forbidden to repeat", closed, func(c originClient) { c.get("503", retrip.WithIdempotent(false)) }},
		{"503 without attempts", closed, func(c originClient) { c.get("503", retrip.WithMaxAttempts(1)) }},
		{"503 over the cap", closed, func(c originClient) { c.get("503?after=3600") }},
		{"a lost answer of unknown outcome", closed, func(c originClient) { c.do(http.MethodPost, "cut") }},
		{"a time-out", closed, func(c originClient) {
			c.get("hang", retrip.WithMaxAttempts(1), retrip.WithAttemptTimeout(time.Second))
		}},
		{"404 that RetryIf makes transient", closed, func(c originClient) {
			c.get("404", retrip.WithMaxAttempts(1), retrip.WithRetryIf(func(retrip.Attempt) retrip.Verdict { return retrip.VerdictRetry }))
		}},
		{"the caller's end in an attempt", asBefore, func(c originClient) { cancelled(c, "hang") }},
		{"the caller's end in a wait", asBefore, func(c originClient) { cancelled(c, "503") }},
		{"the caller's end before the first attempt", asBefore, func(c originClient) {
			ctx, cancel := context.WithCancel(c.t.Context())
			cancel()
			c.send(ctx, http.MethodGet, "http://origin.test/503")
		}},
		{"a gate before the first attempt", asBefore, func(c originClient) {
			c.get("503", retrip.WithGate(func(*http.Request) (func(error), error) { return nil, errOriginGate }))
		}},
		{"a bad option", asBefore, func(c originClient) { c.get("503", retrip.WithMaxAttempts(0)) }},
		{"a panic", asBefore, func(c originClient) {
			require.Panics(c.t, func() {
				c.get("503", retrip.WithRetryIf(func(retrip.Attempt) retrip.Verdict { panic("no verdict") }))
			})
		}},
	}
	for _, tt := range tests {
		for _, before := range []string{opened, closed} {
			t.Run(tt.name+", "+before+" before", func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					h := newOriginHost(t)
					c := h.client(t, retrip.WithBudget(retrip.NewBudget(0, 0, 10)))
					if before == closed {
						c.do(http.MethodPost, "503")
					}
					tt.run(c)
					want := tt.want
					if want == asBefore {
						want = before
					}
					res := c.get("503,200")
					if want == opened {
						require.Equal(t, 2, res.end().Attempt)
					} else {
						require.Equal(t, retrip.DecisionBudgetExhausted, res.end().Decision)
					}
				})
			})
		}
	}
}

func TestTheReserveIsFilledByTimeUpToTheBurst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newOriginHost(t)
		c := h.client(t, retrip.WithBudget(retrip.NewBudget(0, 0.5, 2)))
		repeats := func() (n int) {
			for range 5 {
				n += c.get("503,200").end().Attempt - 1
			}
			c.get("200")
			return n
		}
		require.Equal(t, 2, repeats(), "full at the start")
		require.Equal(t, 0, repeats())
		time.Sleep(2 * time.Second)
		require.Equal(t, 1, repeats())
		time.Sleep(time.Hour)
		require.Equal(t, 2, repeats(), "never more than the burst")
	})
}

func TestTrafficEarnsTokensThatFade(t *testing.T) {
	// A failing operation earns a tenth itself, so that 11 can be paid from 10 tokens.
	for _, tt := range []struct {
		age  time.Duration
		want int
	}{{0, 11}, {4 * time.Second, 4}, {8 * time.Second, 1}, {time.Minute, 0}} {
		t.Run(tt.age.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newOriginHost(t)
				c := h.client(t, retrip.WithBudget(retrip.NewBudget(0.1, 0, 0)))
				for range 100 {
					c.get("200")
				}
				time.Sleep(tt.age)
				repeats := 0
				for c.get("503,200").end().Attempt == 2 {
					repeats++
				}
				require.Equal(t, tt.want, repeats)
			})
		})
	}
}

func TestACostIsSplitBetweenWhatWasEarnedAndTheReserve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newOriginHost(t)
		c := h.client(t, retrip.WithBudget(retrip.NewBudget(0.5, 0, 1)), retrip.WithAttemptTimeout(time.Second/100))
		c.get("200")
		require.Equal(t, 2, c.get("hang,200").end().Attempt, "one token earned, one in reserve")
		require.Equal(t, 1, c.get("503,200").end().Attempt, "half a token earned")
		require.Equal(t, 2, c.get("503,200").end().Attempt, "the other half")
	})
}

func TestTheDefaultBudgetIsATransportsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newOriginHost(t)
		c := h.client(t)
		// 10 in reserve and what 12 operations earn.
		require.Equal(t, 11, originTogether(c, 12))
		require.Equal(t, 1, c.get("503,200").end().Attempt)
		require.Equal(t, 2, h.client(t).get("503,200").end().Attempt)
		other := c.send(t.Context(), http.MethodGet, "http://other.test/503,200")
		require.Equal(t, 2, other.end().Attempt, "another origin")
	})
}

// originTogether lets n operations fail once at the same time and returns how many were
// repeated.
func originTogether(c originClient, n int) int {
	var wg sync.WaitGroup
	var mu sync.Mutex
	repeats := 0
	for range n {
		wg.Go(func() {
			res := c.get("503,200", retrip.WithBackoff(retrip.Constant(10*time.Millisecond)))
			mu.Lock()
			defer mu.Unlock()
			repeats += res.end().Attempt - 1
		})
	}
	wg.Wait()
	return repeats
}

func TestABudgetMayBeSharedByTransports(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newOriginHost(t)
		shared := retrip.WithBudget(retrip.NewBudget(0, 0, 1))
		require.Equal(t, 2, h.client(t, shared).get("503,200").end().Attempt)
		require.Equal(t, 1, h.client(t, shared).get("503,200").end().Attempt)
	})
}

func TestWithoutABudgetNothingLimitsRepeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newOriginHost(t)
		c := h.client(t, retrip.WithBudget(nil))
		for range 50 {
			require.Equal(t, 3, c.get("503").end().Attempt)
		}
	})
}

func TestAnOverrideMayBringAnotherBudget(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newOriginHost(t)
		own := retrip.NewBudget(0, 0, 1)
		c := h.client(t, retrip.WithBudget(own))
		another := retrip.WithBudget(retrip.NewBudget(0, 0, 1))

		require.Equal(t, 2, c.get("503,200", another).end().Attempt)
		require.Equal(t, 1, c.get("503,200", another).end().Attempt)
		require.Equal(t, 2, c.get("503,200").end().Attempt, "the own one was not touched")
		require.Equal(t, 1, c.get("503,200").end().Attempt)
		require.Equal(t, 2, c.get("503,200", retrip.WithBudget(nil)).end().Attempt)

		empty := h.client(t, retrip.WithBudget(nil))
		require.Equal(t, 1, empty.get("503,200", retrip.WithBudget(own)).end().Attempt)
		require.Equal(t, 2, empty.get("503,200").end().Attempt)
	})
}

func TestABudgetOfBadValuesIsAnOptionError(t *testing.T) {
	tests := []struct {
		ratio, perSecond float64
		burst            int
	}{
		{-0.1, 1, 10},
		{math.NaN(), 1, 10},
		{math.Inf(1), 1, 10},
		{0.1, -1, 10},
		{0.1, math.NaN(), 10},
		{0.1, math.Inf(1), 10},
		{0.1, 1, -1},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprint(tt), func(t *testing.T) {
			bad := retrip.WithBudget(retrip.NewBudget(tt.ratio, tt.perSecond, tt.burst))
			_, err := retrip.New(nil, bad)
			var option *retrip.OptionError
			require.ErrorAs(t, err, &option)
			require.Equal(t, "NewBudget", option.Option)
			require.NotEmpty(t, option.Problem)

			c := newOriginClient(t, &originPaths{})
			res := c.get("200", bad)
			require.ErrorAs(t, res.err, &option)
			require.Empty(t, res.events, "nothing was sent")
		})
	}
}

func TestAQuietClientCanAlwaysRepeatAnIsolatedFailure(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newOriginHost(t)
		c := h.client(t)
		for range 100 {
			time.Sleep(10 * time.Second)
			for _, script := range []string{"503,503,200", "cut,cut,200"} {
				res := c.get(script)
				require.NoError(t, res.err)
				require.Equal(t, 200, res.status)
			}
		}
		require.Equal(t, 600, h.count())
	})
}

func TestABusyClientSurvivesABlip(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newOriginHost(t)
		c := h.client(t)
		for range 1000 {
			time.Sleep(10 * time.Millisecond)
			c.get("200")
		}
		require.Equal(t, 40, originTogether(c, 40))
	})
}

// An originOutage is a fleet of clients, each with a Transport and a default budget of its
// own, that meets one outage in virtual time.
type originOutage struct {
	clients int
	every   time.Duration // between two operations of one client
	warm    time.Duration
	length  time.Duration
	stall   bool // nothing is answered; else 503
}

// amplification returns how many requests reach the origin in the outage for each operation
// that begins in it.
func (o originOutage) amplification(t *testing.T) float64 {
	t.Helper()
	start := time.Now()
	down := func() bool {
		since := time.Since(start)
		return since >= o.warm && since < o.warm+o.length
	}
	var begun, arrived atomic.Int64
	base := httptestx.RoundTripFunc(func(req *http.Request) (*http.Response, error) {
		if !down() {
			return httptestx.Canned(req, http.StatusOK, ""), nil
		}
		arrived.Add(1)
		if o.stall {
			<-req.Context().Done()
			return nil, req.Context().Err()
		}
		return httptestx.Canned(req, http.StatusServiceUnavailable, ""), nil
	})
	var wg sync.WaitGroup
	for i := range o.clients {
		rt := retrip.Must(retrip.New(base, retrip.WithAttemptTimeout(400*time.Millisecond)))
		wg.Go(func() {
			time.Sleep(o.every * time.Duration(i) / time.Duration(o.clients))
			for ; time.Since(start) < o.warm+o.length; time.Sleep(o.every) {
				if down() {
					begun.Add(1)
				}
				wg.Go(func() { originVisit(t, rt) })
			}
		})
	}
	wg.Wait()
	return float64(arrived.Load()) / float64(begun.Load())
}

func originVisit(t *testing.T, rt http.RoundTripper) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://origin.test/", http.NoBody)
	if err != nil {
		t.Error(err)
		return
	}
	if resp, err := rt.RoundTrip(req); err == nil {
		_, _ = io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
	}
}

func TestTheDefaultBudgetBoundsWhatAnOutageCosts(t *testing.T) {
	const second = time.Second
	tests := []struct {
		name   string
		outage originOutage
		most   float64
	}{
		{"200 quiet clients", originOutage{clients: 200, every: 10 * second, warm: 60 * second, length: 60 * second}, 1.45},
		{"busy, after 60 s", originOutage{clients: 4, every: second / 25, warm: 60 * second, length: 2 * second}, 1.4},
		{"busy, after 1 s", originOutage{clients: 4, every: second / 25, warm: second, length: 2 * second}, 1.4},
		{"busy, a stall after 60 s", originOutage{clients: 4, every: second / 25, warm: 60 * second, length: 2 * second, stall: true}, 1.3},
		{"busy, a stall after 1 s", originOutage{clients: 4, every: second / 25, warm: second, length: 2 * second, stall: true}, 1.3},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				got := tt.outage.amplification(t)
				require.LessOrEqual(t, got, tt.most)
				require.Greater(t, got, 1.0, "nothing was repeated at all")
				t.Logf("amplification %.3f", got)
			})
		})
	}
}
