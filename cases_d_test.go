package retrip_test

import (
	"errors"
	"io"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
)

// Theme D: Retry-After and the headers of rate limits. Waits are the point, so that the
// origin is in memory and time is virtual.

// caseDoubling is a backoff without jitter.
func caseDoubling(base, ceiling time.Duration) retrip.Option {
	return retrip.WithBackoff(retrip.BackoffFunc(func(attempt int) time.Duration {
		return min(ceiling, base<<(attempt-1))
	}))
}

func TestD01DeltaSecondsAreSeconds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base, o := caseServe(t, caseStatus(429, "slow down", "Retry-After: 1"), caseStatus(200, "done"))
		call := caseSend(t, caseNew(t, base), caseRequest(t, http.MethodGet, caseURL, nil))
		call.answered(t, http.StatusOK)
		hits := o.seen()
		require.Len(t, hits, 2)
		gap := hits[1].at.Sub(hits[0].at)
		require.GreaterOrEqual(t, gap, time.Second)
		require.Less(t, gap, 2500*time.Millisecond)
	})
}

func TestD03AbsurdlyLongRetryAfterEndsTheOperation(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base, o := caseServe(t, caseStatus(429, "slow down", "Retry-After: 86400"), caseStatus(200, "done"))
		rt := caseNew(t, base, retrip.WithMaxRetryAfter(time.Second))
		call := caseSend(t, rt, caseRequest(t, http.MethodGet, caseURL, nil))
		call.answered(t, http.StatusTooManyRequests)
		require.Equal(t, "slow down", call.body)
		require.Equal(t, "86400", call.resp.Header.Get("Retry-After"))
		call.ended(t, 1, retrip.DecisionReturn, retrip.ReasonRetryAfterTooLong)
		require.Less(t, call.took, 300*time.Millisecond)
		require.Len(t, o.seen(), 1)
	})
	t.Run("of the cap's length it is honoured", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			base, o := caseServe(t, caseStatus(429, "slow down", "Retry-After: 1"), caseStatus(200, "done"))
			rt := caseNew(t, base, retrip.WithMaxRetryAfter(time.Second))
			call := caseSend(t, rt, caseRequest(t, http.MethodGet, caseURL, nil))
			call.answered(t, http.StatusOK)
			require.GreaterOrEqual(t, call.took, time.Second)
			require.Len(t, o.seen(), 2)
		})
	})
}

func TestD04ZeroOrPastRetryAfterIsNoHotLoop(t *testing.T) {
	for name, value := range map[string]func() string{
		"zero": func() string { return "0" },
		"a date an hour ago": func() string {
			return time.Now().Add(-time.Hour).UTC().Format(http.TimeFormat)
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				base, o := caseServe(t, caseStatus(429, "slow down", "Retry-After: "+value()))
				rt := caseNew(t, base, retrip.WithMaxAttempts(5), caseDoubling(40*time.Millisecond, 200*time.Millisecond))
				call := caseSend(t, rt, caseRequest(t, http.MethodGet, caseURL, nil))
				call.answered(t, http.StatusTooManyRequests)
				call.ended(t, 5, retrip.DecisionAttemptsExhausted, retrip.ReasonAttemptsExhausted)
				require.Len(t, o.seen(), 5)
				require.Equal(t, (40+80+160+200)*time.Millisecond, call.took)
			})
		})
	}
}

func TestD07EpochInRetryAfterIsNotGuessedAt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		epoch := strconv.FormatInt(time.Now().Unix()+2, 10)
		base, o := caseServe(t, caseStatus(429, "slow down", "Retry-After: "+epoch), caseStatus(200, "done"))
		call := caseSend(t, caseNew(t, base), caseRequest(t, http.MethodGet, caseURL, nil))
		call.answered(t, http.StatusTooManyRequests)
		call.ended(t, 1, retrip.DecisionReturn, retrip.ReasonRetryAfterTooLong)
		require.Len(t, o.seen(), 1)
		require.Less(t, call.took, 300*time.Millisecond)
	})
}

func TestD08Forbidden403IsARateLimitOnlyWhereTheCallerSaysSo(t *testing.T) {
	limit := retrip.WithRetryIf(func(a retrip.Attempt) retrip.Verdict {
		if a.StatusCode() == http.StatusForbidden && a.Response.Header.Get("Retry-After") != "" {
			return retrip.VerdictRetry
		}
		return retrip.VerdictDefault
	})
	tests := []struct {
		name   string
		header []string
		opts   []retrip.Option
		hits   int
		status int
	}{
		{"classifier, header", []string{"Retry-After: 1"}, []retrip.Option{limit}, 2, 200},
		{"classifier, no header", nil, []retrip.Option{limit}, 1, 403},
		{"no classifier, header", []string{"Retry-After: 1"}, nil, 1, 403},
		{"no classifier, no header", nil, nil, 1, 403},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				base, o := caseServe(t, caseStatus(403, "no", tt.header...), caseStatus(200, "done"))
				call := caseSend(t, caseNew(t, base, tt.opts...), caseRequest(t, http.MethodGet, caseURL, nil))
				call.answered(t, tt.status)
				hits := o.seen()
				require.Len(t, hits, tt.hits)
				if tt.hits == 2 {
					require.GreaterOrEqual(t, hits[1].at.Sub(hits[0].at), time.Second)
					require.Equal(t, retrip.ReasonPolicy, call.events[0].Reason)
				}
			})
		})
	}
}

func TestD09VendorHeaderInThePastIsNoHint(t *testing.T) {
	parser := retrip.WithWaitHint(func(resp *http.Response) (time.Duration, bool) {
		epoch, err := strconv.ParseInt(resp.Header.Get("X-Ratelimit-Reset"), 10, 64)
		return time.Until(time.Unix(epoch, 0)), err == nil
	})
	tests := []struct {
		name     string
		reset    time.Duration
		min, max time.Duration
	}{
		{"a minute ago", -time.Minute, 0, 100 * time.Millisecond},
		{"in two seconds", 2 * time.Second, time.Second, 3500 * time.Millisecond},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				reset := strconv.FormatInt(time.Now().Add(tt.reset).Unix(), 10)
				base, o := caseServe(t, caseStatus(429, "slow down", "X-RateLimit-Reset: "+reset), caseStatus(200, "done"))
				call := caseSend(t, caseNew(t, base, parser), caseRequest(t, http.MethodGet, caseURL, nil))
				call.answered(t, http.StatusOK)
				hits := o.seen()
				require.Len(t, hits, 2)
				gap := hits[1].at.Sub(hits[0].at)
				require.GreaterOrEqual(t, gap, tt.min)
				require.LessOrEqual(t, gap, tt.max)
			})
		})
	}
}

func TestD11JitterOnRetryAfterIsUpwardsOnly(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const clients = 20
		var mu sync.Mutex
		first, gaps := map[string]time.Time{}, []time.Duration{}
		base, _ := caseServe(t, func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			at, again := first[r.URL.Path]
			if again {
				gaps = append(gaps, time.Since(at))
				return
			}
			first[r.URL.Path] = time.Now()
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusTooManyRequests)
		})
		rt := caseNew(t, base)
		var wg sync.WaitGroup
		for i := range clients {
			req := caseRequest(t, http.MethodGet, caseURL+strconv.Itoa(i), nil)
			wg.Go(func() {
				if call := caseQuiet(rt, req); call.err != nil || call.status != http.StatusOK {
					t.Errorf("client %d: status %d, error %v", i, call.status, call.err)
				}
			})
		}
		wg.Wait()
		require.Len(t, gaps, clients)
		require.GreaterOrEqual(t, slices.Min(gaps), time.Second)
		require.Less(t, slices.Max(gaps), 2500*time.Millisecond)
		require.GreaterOrEqual(t, slices.Max(gaps)-slices.Min(gaps), 20*time.Millisecond)
	})
}

func TestD12OriginPauseHoldsSiblingsBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base, o := caseServe(t, caseStatus(429, "slow down", "Retry-After: 1"), caseStatus(200, "done"))
		rt := caseNew(t, base, retrip.WithOriginPause(true))
		var wg sync.WaitGroup
		start := time.Now()
		send := func(url string, after time.Duration) {
			req := caseRequest(t, http.MethodGet, url, nil)
			wg.Go(func() {
				<-time.After(after)
				if call := caseQuiet(rt, req); call.err != nil || call.status != http.StatusOK {
					t.Errorf("%s: status %d, error %v", url, call.status, call.err)
				}
			})
		}
		send("http://limited.test/first", 0)
		send("http://limited.test/second", 50*time.Millisecond)
		send("http://other.test/third", 50*time.Millisecond)
		wg.Wait()
		came := map[string]time.Duration{}
		for _, hit := range o.seen() {
			came[hit.path] = hit.at.Sub(start) // the last of each
		}
		require.Len(t, o.seen(), 4)
		require.GreaterOrEqual(t, came["/second"], time.Second)
		require.GreaterOrEqual(t, came["/first"], time.Second)
		require.Equal(t, 50*time.Millisecond, came["/third"])
	})
}

func TestD13ThrottledPOSTIsRepeatedOnlyByOptIn(t *testing.T) {
	tests := []struct {
		name   string
		opts   []retrip.Option
		hits   int
		reason retrip.Reason
	}{
		{"default", nil, 1, retrip.ReasonNotRepeatable},
		{"the caller knows that 429 means unprocessed", []retrip.Option{retrip.WithUnprocessedStatus(429)}, 2, retrip.ReasonTransient},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				base, o := caseServe(t, caseStatus(429, "slow down", "Retry-After: 0"), caseStatus(200, "done"))
				call := caseSend(t, caseNew(t, base, tt.opts...), caseRequest(t, http.MethodPost, caseURL, strings.NewReader("x")))
				require.NoError(t, call.err)
				require.Len(t, o.seen(), tt.hits)
				require.Equal(t, tt.reason, call.events[0].Reason)
				if tt.hits == 2 {
					require.Equal(t, retrip.PermitUnprocessedStatus, call.events[0].Permit)
					require.Equal(t, "x", o.seen()[1].body)
				}
			})
		})
	}
}

func TestD14PredicateThatReadsTheBodyLeavesItWhole(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answer := `{"code":"monthly_cap","detail":"` + strings.Repeat("z", 100_000) + `"}`
		base, o := caseServe(t, caseStatus(429, answer))
		rt := caseNew(t, base, retrip.WithRetryIf(func(a retrip.Attempt) retrip.Verdict {
			prefix := make([]byte, 64)
			n, err := io.ReadFull(a.Response.Body, prefix)
			if err != nil && !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("read the prefix: %v", err)
			}
			if strings.Contains(string(prefix[:n]), `"monthly_cap"`) {
				return retrip.VerdictStop
			}
			return retrip.VerdictDefault
		}))
		call := caseSend(t, rt, caseRequest(t, http.MethodGet, caseURL, nil))
		call.answered(t, http.StatusTooManyRequests)
		require.Equal(t, answer, call.body)
		call.ended(t, 1, retrip.DecisionReturn, retrip.ReasonPolicy)
		require.Len(t, o.seen(), 1)
	})
}
