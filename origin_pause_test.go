package retrip_test

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
)

// pauseOrigin makes the origin ask for a wait, by an answer that is not repeated itself.
func (c originClient) pauseOrigin(t *testing.T, seconds string) {
	t.Helper()
	require.Equal(t, 503, c.do(http.MethodPost, "503?after="+seconds).status)
}

func TestAPauseHoldsBackFirstAttemptsOfOtherOperations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newOriginHost(t).client(t, retrip.WithOriginPause(true))
		start := time.Now()
		c.pauseOrigin(t, "5")
		require.Zero(t, time.Since(start), "its own operation does not wait")

		res := c.do(http.MethodPost, "200")
		require.Equal(t, 200, res.status)
		require.GreaterOrEqual(t, time.Since(start), 5*time.Second)
		require.LessOrEqual(t, time.Since(start), 5500*time.Millisecond)
		require.Len(t, res.events, 1)
		require.Equal(t, 1, res.end().Attempt)

		over := time.Now()
		require.Equal(t, 200, c.get("200").status)
		require.Zero(t, time.Since(over), "the pause is over")
	})
}

func TestAPauseConcernsOneOriginInAllItsSpellings(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newOriginHost(t).client(t, retrip.WithOriginPause(true))
		c.pauseOrigin(t, "5")
		start := time.Now()
		for _, url := range []string{"http://other.test/200", "http://origin.test:8080/200"} {
			require.Equal(t, 200, c.send(t.Context(), http.MethodGet, url).status)
		}
		require.Zero(t, time.Since(start))
		require.Equal(t, 200, c.send(t.Context(), http.MethodGet, "http://ORIGIN.test:80/200").status)
		require.GreaterOrEqual(t, time.Since(start), 5*time.Second)
	})
}

func TestWithoutOriginPauseAHintConcernsItsOperationAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newOriginHost(t)
		c := h.client(t)
		c.pauseOrigin(t, "5")
		start := time.Now()
		require.Equal(t, 200, c.get("200").status)
		require.Zero(t, time.Since(start))

		on := retrip.WithOriginPause(true)
		c.get("503?after=5", on, retrip.WithMaxAttempts(1))
		require.Equal(t, 200, c.get("200").status)
		require.Zero(t, time.Since(start))
		require.Equal(t, 200, c.get("200", on).status)
		require.GreaterOrEqual(t, time.Since(start), 5*time.Second)
	})
}

func TestThoseThatWaitForAPauseAreSpreadAndNoneIsEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newOriginHost(t)
		c := h.client(t, retrip.WithOriginPause(true))
		c.pauseOrigin(t, "1")
		start := time.Now()
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() { c.get("200") })
		}
		wg.Wait()
		var at []time.Duration
		for _, a := range h.arrivals[1:] {
			at = append(at, a.at.Sub(start))
		}
		require.Len(t, at, 50)
		require.GreaterOrEqual(t, slices.Min(at), time.Second)
		require.LessOrEqual(t, slices.Max(at), 1100*time.Millisecond)
		require.GreaterOrEqual(t, slices.Max(at)-slices.Min(at), 50*time.Millisecond)
	})
}

func TestClientsThatAreToldTheSameSecondDoNotReturnTogetherOrEarly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newOriginHost(t)
		start := time.Now()
		var wg sync.WaitGroup
		for range 50 {
			c := h.client(t) // each with a Transport of its own
			wg.Go(func() { c.get("503,200?after=1") })
		}
		wg.Wait()
		back := h.repeats()
		require.Len(t, back, 50)
		slices.SortFunc(back, time.Time.Compare)
		require.GreaterOrEqual(t, back[0].Sub(start), time.Second)
		require.LessOrEqual(t, back[49].Sub(start), 1100*time.Millisecond)
		require.GreaterOrEqual(t, back[49].Sub(back[0]), 50*time.Millisecond)
	})
}

func TestTheDelayOfARepeatIsTheRestOfTheOriginsPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newOriginHost(t).client(t, retrip.WithOriginPause(true), retrip.WithBudget(nil))
		start := time.Now()
		var wg sync.WaitGroup
		wg.Go(func() { // begun before the pause, fails in it without a hint
			res := c.get("hang,200", retrip.WithAttemptTimeout(2*time.Second))
			require.Equal(t, 200, res.status)
			require.GreaterOrEqual(t, res.events[0].Delay, 4*time.Second)
		})
		time.Sleep(time.Second)
		c.pauseOrigin(t, "5")
		wg.Wait()
		require.GreaterOrEqual(t, time.Since(start), 6*time.Second)
		require.LessOrEqual(t, time.Since(start), 6500*time.Millisecond)
	})
}

func TestAWaitThatMeetsANewPauseIsProlonged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newOriginHost(t)
		c := h.client(t, retrip.WithOriginPause(true))
		start := time.Now()
		var wg sync.WaitGroup
		wg.Go(func() {
			res := c.get("503,200", retrip.WithBackoff(retrip.Constant(2*time.Second)))
			require.Equal(t, 200, res.status)
		})
		time.Sleep(time.Second)
		c.pauseOrigin(t, "5")
		wg.Wait()
		require.GreaterOrEqual(t, h.repeats()[0].Sub(start), 6*time.Second)
	})
}

func TestAPauseIsProlongedAndNeverShortened(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newOriginHost(t)
		c := h.client(t, retrip.WithOriginPause(true))
		start := time.Now()
		var wg sync.WaitGroup
		// Three are under way when the first of them is told to wait.
		for _, hint := range []string{"10", "20", "5"} {
			wg.Go(func() { c.pauseOrigin(t, hint+"&takes=1s") })
		}
		wg.Wait()
		require.Equal(t, time.Second, time.Since(start))
		c.get("200")
		require.GreaterOrEqual(t, time.Since(start), 21*time.Second)
	})
}

func TestOnlyARetrySetAnswerWithAHintPausesItsOrigin(t *testing.T) {
	tests := map[string]func(c originClient) originResult{
		"503 without a hint": func(c originClient) originResult { return c.do(http.MethodPost, "503") },
		"500 with a hint":    func(c originClient) originResult { return c.get("500?after=5") },
		"403 made transient": func(c originClient) originResult { return c.get("403?after=5", originVerdict(retrip.VerdictRetry)) },
		"a hint of 0":        func(c originClient) originResult { return c.do(http.MethodPost, "503?after=0") },
		"a malformed hint":   func(c originClient) originResult { return c.do(http.MethodPost, "503?after=soon") },
		"503 not in the set": func(c originClient) originResult { return c.get("503?after=5", retrip.WithRetryStatus(429)) },
		"pause switched off": func(c originClient) originResult {
			return c.do(http.MethodPost, "503?after=5", retrip.WithOriginPause(false))
		},
		"another's, no pause": func(c originClient) originResult {
			return c.send(c.t.Context(), http.MethodPost, "http://other.test/503?after=5")
		},
	}
	for name, run := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				c := newOriginHost(t).client(t, retrip.WithOriginPause(true), retrip.WithMaxAttempts(1))
				run(c)
				start := time.Now()
				require.Equal(t, 200, c.get("200").status)
				require.Zero(t, time.Since(start))
			})
		})
	}
}

func originVerdict(v retrip.Verdict) retrip.Option {
	return retrip.WithRetryIf(func(retrip.Attempt) retrip.Verdict { return v })
}

func TestAHintOfAnotherKindPausesTheOriginToo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hint := retrip.WithWaitHint(func(*http.Response) (time.Duration, bool) { return 7 * time.Second, true })
		c := newOriginHost(t).client(t, retrip.WithOriginPause(true), hint)
		start := time.Now()
		c.do(http.MethodPost, "429")
		require.Equal(t, 200, c.get("200").status)
		require.GreaterOrEqual(t, time.Since(start), 7*time.Second)
	})
}

func TestAPauseThatDoesNotFitTheDeadlineEndsTheOperationAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newOriginHost(t)
		gate := &originGate{}
		c := h.client(t, retrip.WithOriginPause(true), retrip.WithGate(gate.gate))
		c.pauseOrigin(t, "5")
		start := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		res := c.send(ctx, http.MethodPost, "http://origin.test/200")
		require.Zero(t, time.Since(start))
		require.Equal(t, 1, h.count())
		require.Equal(t, 1, gate.asked, "the pause comes before the gate")

		require.ErrorIs(t, res.err, context.DeadlineExceeded)
		var e *retrip.Error
		require.ErrorAs(t, res.err, &e)
		require.Equal(t, 0, e.Attempts)
		require.Equal(t, retrip.DecisionDeadlineExceeded, e.Decision)
		require.Equal(t, retrip.DeliveryNotSent, e.Delivery)
		require.True(t, e.Timeout())
		require.False(t, e.MaybeApplied)
		require.Contains(t, e.Error(), "5s", "names the pause")

		require.Len(t, res.events, 1)
		event := res.end()
		require.Equal(t, 0, event.Attempt)
		require.Equal(t, retrip.ClassNone, event.Class)
		require.Equal(t, retrip.DeliveryNotSent, event.Delivery)
		require.Equal(t, retrip.DecisionDeadlineExceeded, event.Decision)
		require.Equal(t, retrip.ReasonDeadlineExceeded, event.Reason)
	})
}

func TestTheSpreadAfterAPauseIsCutToTheDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newOriginHost(t).client(t, retrip.WithOriginPause(true))
		for range 30 {
			c.pauseOrigin(t, "5")
			res := c.get("200", retrip.WithTotalTimeout(5*time.Second+time.Millisecond))
			require.NoError(t, res.err)
			require.Equal(t, 200, res.status)
		}
	})
}

func TestAHintOverTheCapPausesForTheCapAndEndsWhoMeetsIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newOriginHost(t)
		c := h.client(t, retrip.WithOriginPause(true), retrip.WithMaxRetryAfter(10*time.Second))
		start := time.Now()
		first := c.get("503?after=3600")
		require.Equal(t, 503, first.status)
		require.Equal(t, retrip.ReasonRetryAfterTooLong, first.end().Reason)

		time.Sleep(9 * time.Second)
		res := c.get("200")
		require.Equal(t, 9*time.Second, time.Since(start))
		require.Equal(t, 1, h.count())
		var e *retrip.Error
		require.ErrorAs(t, res.err, &e)
		require.Equal(t, 0, e.Attempts)
		require.Equal(t, retrip.DecisionReturn, e.Decision)
		require.Equal(t, retrip.ReasonRetryAfterTooLong, e.Reason)
		require.Contains(t, e.Error(), "1s", "names the pause")
		require.Equal(t, 0, res.end().Attempt)
		require.Equal(t, retrip.ClassNone, res.end().Class)

		time.Sleep(time.Second)
		require.Equal(t, 200, c.get("200").status, "the cap's length is over")
		require.Equal(t, 10*time.Second, time.Since(start))
	})
}

func TestAWaitThatMeetsAPauseOverTheCapEndsForThatReason(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newOriginHost(t)
		c := h.client(t, retrip.WithOriginPause(true), retrip.WithMaxRetryAfter(10*time.Second))
		var wg sync.WaitGroup
		wg.Go(func() {
			res := c.get("cut,200", retrip.WithBackoff(retrip.Constant(2*time.Second)))
			var e *retrip.Error
			require.ErrorAs(t, res.err, &e)
			require.Equal(t, retrip.DecisionReturn, e.Decision)
			require.Equal(t, retrip.ReasonRetryAfterTooLong, e.Reason)
			require.NotErrorIs(t, res.err, context.DeadlineExceeded)
		})
		time.Sleep(time.Second)
		c.pauseOrigin(t, "3600")
		wg.Wait()
		require.Equal(t, 2, h.count())
	})
}

func TestTheCallersEndEndsAPauseAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newOriginHost(t)
		c := h.client(t, retrip.WithOriginPause(true))
		c.pauseOrigin(t, "30")
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(3*time.Second, cancel)
		start := time.Now()
		res := c.send(ctx, http.MethodGet, "http://origin.test/200")
		require.Equal(t, 3*time.Second, time.Since(start))
		require.ErrorIs(t, res.err, context.Canceled)
		require.Equal(t, 1, h.count())
		require.Len(t, res.events, 1)
		require.Equal(t, 0, res.end().Attempt)
		require.Equal(t, retrip.ClassCanceled, res.end().Class)
		require.Equal(t, retrip.DecisionCancel, res.end().Decision)
	})
}

func TestAnOperationThatAPauseEndsSaysNothingAboutTheOrigin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newOriginHost(t)
		c := h.client(t, retrip.WithOriginPause(true), retrip.WithBudget(retrip.NewBudget(0, 0, 1)))
		c.pauseOrigin(t, "5") // closes the reserve
		require.Error(t, c.get("200", retrip.WithTotalTimeout(time.Second)).err)
		time.Sleep(5 * time.Second)
		require.Equal(t, retrip.DecisionBudgetExhausted, c.get("503,200").end().Decision, "still closed")
		c.get("200")
		require.Equal(t, 200, c.get("503,200").status)
	})
}
