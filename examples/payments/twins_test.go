package main

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/examples/payments/internal/contract"
)

// post sends an order under a key without any help, so that a test sees each
// answer.
func post(t *testing.T, url, key, reference string) (*http.Response, error) {
	t.Helper()
	order := fmt.Sprintf(`{"reference":%q,"amount":700,"currency":"EUR","to":"globex"}`, reference)
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/payments", strings.NewReader(order))
	if err != nil {
		return nil, err
	}
	req.Header = http.Header{
		"Authorization": {"Bearer " + payer}, "Content-Type": {"application/json"}, contract.KeyHeader: {key},
	}
	return http.DefaultClient.Do(req)
}

type rawAnswer struct {
	status   int
	replayed bool
	body     string
}

func raw(t *testing.T, url, key, reference string) rawAnswer {
	t.Helper()
	resp, err := post(t, url, key, reference)
	if err != nil {
		assert.Fail(t, err.Error())
		return rawAnswer{}
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		assert.Fail(t, err.Error())
	}
	return rawAnswer{resp.StatusCode, resp.Header.Get(contract.ReplayedHeader) == "true", string(b)}
}

func TestTwoServersOneKeyOneEffect(t *testing.T) {
	t.Parallel()
	db := newPostgres(t)
	flags := append([]string{"-work", "2ms"}, db.flags...)
	one, two := startServer(t, flags...), startServer(t, flags...)
	defer http.DefaultClient.CloseIdleConnections()
	defer one.kill()
	defer two.kill()
	urls := []string{one.url, two.url, one.url, two.url}

	const rounds = 200
	winners, tally := map[string]int{}, map[string]int{}
	for round := range rounds {
		key := fmt.Sprintf("key-%04d", round)
		var (
			got   [4]rawAnswer
			start = make(chan struct{})
			wg    sync.WaitGroup
		)
		for i, url := range urls {
			wg.Go(func() {
				<-start
				got[i] = raw(t, url, key, reference(round))
			})
		}
		close(start)
		wg.Wait()

		made, answer := 0, ""
		for i, a := range got {
			switch {
			case a.status == http.StatusCreated && !a.replayed:
				made++
				answer = a.body
				winners[[]string{"first server", "second server"}[i%2]]++
			case a.status == http.StatusCreated:
				tally["replayed"]++
			default:
				require.Equal(t, http.StatusConflict, a.status)
				require.Contains(t, a.body, contract.ProblemInProgress)
				tally["in progress"]++
			}
		}
		require.Equal(t, 1, made, "answers that stand for an effect: %v", got)
		for _, a := range got {
			if a.replayed {
				require.Equal(t, answer, a.body)
			}
		}
		for _, url := range urls[:2] {
			again := raw(t, url, key, reference(round))
			require.Equal(t, rawAnswer{http.StatusCreated, true, answer}, again, "there is one stored answer")
		}
	}
	payments, err := db.store.Payments(t.Context(), payer)
	require.NoError(t, err)
	require.Len(t, payments, rounds)
	t.Logf("%d keys, each sent 4 times at once to 2 servers: %d effects (%v), the others: %v", rounds, len(payments), winners, tally)
	assert.NotZero(t, tally["in progress"], "the requests never met")
}

func TestServerKilledWhileRunning(t *testing.T) {
	t.Parallel()
	for name, newDatabase := range map[string]func(*testing.T) database{"sqlite": newSQLite, "postgres": newPostgres} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := newDatabase(t)
			defer http.DefaultClient.CloseIdleConnections()
			flags := append([]string{"-lease", "2s"}, db.flags...)
			dying := startServer(t, append(flags, "-work", "1h")...)
			var wg sync.WaitGroup
			wg.Go(func() {
				resp, err := post(t, dying.url, "key-0001", "inv-1")
				if assert.Error(t, err, "the server is killed before it can answer") {
					return
				}
				resp.Body.Close()
			})
			require.EventuallyWithT(t, func(c *assert.CollectT) {
				_, err := db.store.Lookup(t.Context(), payer, "key-0001")
				assert.NoError(c, err)
			}, 10*time.Second, 10*time.Millisecond)
			dying.kill()
			wg.Wait()

			next := startServer(t, flags...)
			defer next.kill()
			early := raw(t, next.url, "key-0001", "inv-1")
			assert.Equal(t, http.StatusConflict, early.status, "the lease holds")
			assert.Contains(t, early.body, contract.ProblemInProgress)
			require.EventuallyWithT(t, func(c *assert.CollectT) {
				got := raw(t, next.url, "key-0001", "inv-1")
				assert.Equal(c, http.StatusCreated, got.status)
				assert.False(c, got.replayed)
			}, 20*time.Second, 50*time.Millisecond)
			payments, err := db.store.Payments(t.Context(), payer)
			require.NoError(t, err)
			assert.Len(t, payments, 1)
		})
	}
}
