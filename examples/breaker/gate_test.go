package main

import (
	"context"
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/sony/gobreaker/v2"
	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/httptestx"
)

func TestTheStoryIsAsStated(t *testing.T) {
	httptestx.Leaks(t)
	require.NoError(t, run(t.Context(), io.Discard))
}

// scene is an origin in virtual time, and a client whose breaker opens after two failures.
type scene struct {
	received atomic.Int64
	code     atomic.Int64
	slow     atomic.Int64 // nanoseconds
	gates    *gates
	client   *http.Client
}

func newScene(t *testing.T, limit rate.Limit, burst int) *scene {
	t.Helper()
	s := &scene{}
	s.code.Store(http.StatusOK)
	base := httptestx.ServeMemory(t, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		s.received.Add(1)
		time.Sleep(time.Duration(s.slow.Load()))
		w.WriteHeader(int(s.code.Load()))
	}))
	s.gates = newGates(gobreaker.Settings{
		Timeout:     time.Minute,
		ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= 2 },
	}, limit, burst)
	s.client = &http.Client{Transport: retrip.Must(retrip.New(base, retrip.WithGate(s.gates.gate)))}
	return s
}

const url = "http://origin.test"

func (s *scene) state() gobreaker.State { return s.gates.of(url).breaker.State() }

func TestAHalfOpenBreakerLetsOneOfManyThrough(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, 1000, 1000)
		s.code.Store(http.StatusServiceUnavailable)
		do(t.Context(), s.client, url)
		require.Equal(t, gobreaker.StateOpen, s.state())
		require.EqualValues(t, 2, s.received.Load())

		time.Sleep(time.Minute + 1)
		s.code.Store(http.StatusOK)
		s.slow.Store(int64(time.Second))
		var wg sync.WaitGroup
		var served atomic.Int64
		for range 50 {
			wg.Go(func() {
				if do(t.Context(), s.client, url) == "200" {
					served.Add(1)
				}
			})
		}
		wg.Wait()
		require.EqualValues(t, 1, served.Load())
		require.EqualValues(t, 3, s.received.Load())
		require.Equal(t, gobreaker.StateClosed, s.state())
	})
}

func TestTheBreakersErrorReachesTheCaller(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, 1000, 1000)
		s.code.Store(http.StatusServiceUnavailable)
		do(t.Context(), s.client, url)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
		require.NoError(t, err)
		resp, err := s.client.Do(req)
		if err == nil {
			resp.Body.Close()
		}
		require.ErrorIs(t, err, gobreaker.ErrOpenState)
		require.EqualValues(t, 2, s.received.Load())
	})
}

func TestACallerWhoLeavesDoesNotOpenTheBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, 1000, 1000)
		s.slow.Store(int64(time.Minute))
		for range 5 {
			ctx, cancel := context.WithCancel(t.Context())
			time.AfterFunc(time.Second, cancel)
			do(ctx, s.client, url)
		}
		require.Equal(t, gobreaker.StateClosed, s.state())
		require.EqualValues(t, 5, s.received.Load())
		time.Sleep(2 * time.Minute) // the handlers end
	})
}

func TestAnAttemptThatTheLimiterRefusesDoesNotHoldTheBreakersTrial(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, 1.0/600, 2)
		s.code.Store(http.StatusServiceUnavailable)
		do(t.Context(), s.client, url) // uses both of the limiter's tokens
		require.Equal(t, gobreaker.StateOpen, s.state())

		time.Sleep(time.Minute + 1)
		s.code.Store(http.StatusOK)
		_, events := get(t.Context(), s.client, url)
		require.Equal(t, []string{"0: gate return (gate_closed)"}, events)
		require.Equal(t, gobreaker.StateHalfOpen, s.state())

		time.Sleep(10 * time.Minute)
		require.Equal(t, "200", do(t.Context(), s.client, url))
		require.Equal(t, gobreaker.StateClosed, s.state())
	})
}

func TestAnAnswerBelow500IsASuccessToTheBreaker(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newScene(t, 1000, 1000)
		for _, code := range []int64{http.StatusTooManyRequests, http.StatusNotFound} {
			s.code.Store(code)
			for range 5 {
				require.True(t, strings.HasPrefix(do(t.Context(), s.client, url), "4"))
			}
		}
		require.Equal(t, gobreaker.StateClosed, s.state())
	})
}
