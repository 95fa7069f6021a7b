package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"

	"github.com/retrip/retrip/examples/payments/internal/client"
	"github.com/retrip/retrip/examples/payments/internal/ledger"
)

const (
	chaosPayments = 500
	chaosClients  = 16
	chaosKills    = 6
	chaosPatience = 500 * time.Millisecond // for one attempt
)

var chaosModes = []client.Mode{client.Keys, client.Checked, client.Plain}

// soak is how long the chaos of one mode goes on, in rounds of 500 payments: one
// round without PAYMENTS_SOAK, else as many as begin within its share of that
// time ("10m").
func soak(t *testing.T) time.Duration {
	t.Helper()
	value := os.Getenv("PAYMENTS_SOAK")
	if value == "" {
		return 0
	}
	d, err := time.ParseDuration(value)
	require.NoError(t, err, "PAYMENTS_SOAK")
	return d / time.Duration(len(chaosModes))
}

func TestChaosSQLite(t *testing.T) { //nolint:tparallel // the modes share the soak, one after the other
	t.Parallel()
	chaosOn(t, newSQLite)
}

func TestChaosPostgres(t *testing.T) { //nolint:tparallel // as above
	t.Parallel()
	chaosOn(t, newPostgres)
}

func chaosOn(t *testing.T, newDatabase func(t *testing.T) database) {
	t.Helper()
	for _, mode := range chaosModes {
		t.Run(string(mode), func(t *testing.T) {
			end := time.Now().Add(soak(t))
			for round := 1; round == 1 || time.Now().Before(end); round++ {
				ok := t.Run(fmt.Sprintf("round %d", round), func(t *testing.T) {
					chaos(t, newDatabase(t), mode, uint64(time.Now().UnixNano()))
				})
				if !ok {
					return
				}
			}
		})
	}
}

// told is what a client was told of one payment.
type told struct {
	paid client.Paid
	err  error
}

func chaos(t *testing.T, db database, mode client.Mode, seed uint64) {
	t.Helper()
	began := time.Now()
	p := startProxy(t, seed, chaosPatience)
	s := &servers{flags: append([]string{"-lease", "1s", "-retention", "1h", "-work", "5ms"}, db.flags...)}
	p.forwardTo(s.start(t))
	var (
		results [chaosPayments]told
		next    atomic.Int32
		wg      sync.WaitGroup
		done    = make(chan struct{}, chaosPayments)
		seen    attempts
	)
	// With a permit a client is as patient as it takes: that nothing is lost is
	// to be shown, not that somebody gives up in time. Without one, some are to
	// give up before anything was sent.
	maxAttempts := 200
	if mode == client.Plain {
		maxAttempts = 4
	}
	for range chaosClients {
		wg.Go(func() {
			base := http.DefaultTransport.(*http.Transport).Clone()
			defer base.CloseIdleConnections()
			c, err := client.New(client.Config{URL: p.url(), Account: payer, Mode: mode, Base: base, Options: []retrip.Option{
				retrip.WithMaxAttempts(maxAttempts), retrip.WithBudget(nil), retrip.WithHook(seen.hook),
				retrip.WithBackoff(retrip.FullJitter(5*time.Millisecond, 100*time.Millisecond)),
				retrip.WithAttemptTimeout(chaosPatience),
			}})
			if err != nil {
				assert.Fail(t, err.Error())
				return
			}
			for i := next.Add(1) - 1; i < chaosPayments; i = next.Add(1) - 1 {
				// The limit is for a machine that has other things to do; no client
				// but Plain's gives up before.
				ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
				results[i].paid, results[i].err = c.Pay(ctx, newOrder(reference(int(i)), int64(i)+1))
				cancel()
				done <- struct{}{}
			}
		})
	}
	for i := range chaosPayments {
		<-done
		if i%(chaosPayments/(chaosKills+1)) == chaosPayments/(chaosKills+1)-1 && s.kills < chaosKills {
			p.down()
			s.kill()
			p.up(t, s.start(t))
		}
	}
	wg.Wait()
	p.drain()
	s.kill() // the last one, with nothing to do

	verify(t, db.store, mode, results[:])
	t.Logf("%s: %d payments, %d clients, %d SIGKILLs, %.1f s, seed %d, operations taken over %d\nattempts:%s\nexchanges of the proxy:%s",
		mode, chaosPayments, chaosClients, s.kills-1, time.Since(began).Seconds(), seed,
		strings.Count(s.log.String(), "took over"), &seen, p)
	assert.NotContains(t, s.log.String(), "DATA RACE")
}

// attempts counts what the clients' events say.
type attempts struct {
	mu     sync.Mutex
	counts map[string]int
}

func (a *attempts) hook(_ context.Context, e retrip.Event) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.counts == nil {
		a.counts = map[string]int{}
	}
	a.counts[fmt.Sprintf("%s %s -> %s (%s) %s", e.Method, e.Delivery, e.Decision, e.Reason, e.Permit)]++
}

func (a *attempts) String() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return table(a.counts)
}

// table prints counts, one a line.
func table[K ~string](counts map[K]int) string {
	var b strings.Builder
	for _, what := range slices.Sorted(maps.Keys(counts)) {
		fmt.Fprintf(&b, "\n  %5d  %s", counts[what], what)
	}
	return b.String()
}

func reference(i int) string { return fmt.Sprintf("inv-%04d", i) }

// verify compares what every client was told with what the database holds.
func verify(t *testing.T, store ledger.Store, mode client.Mode, results []told) {
	t.Helper()
	payments, err := store.Payments(t.Context(), payer)
	require.NoError(t, err)
	held := map[string][]ledger.Payment{}
	for _, p := range payments {
		held[p.Reference] = append(held[p.Reference], p)
	}
	tally := map[string]int{}
	for i, r := range results {
		rows := held[reference(i)]
		delete(held, reference(i))
		require.LessOrEqual(t, len(rows), 1, "%s was paid twice: %+v", reference(i), r)
		if r.err == nil {
			require.Len(t, rows, 1, "%s is missing, its client was told that it is paid: %+v", reference(i), r)
			if r.paid.Receipt.ID != "" {
				require.Equal(t, rows[0].ID, r.paid.Receipt.ID)
			} else {
				tally["paid, receipt cut"]++
			}
			tally[fmt.Sprintf("paid (replayed %t)", r.paid.Replayed)]++
			continue
		}
		require.Equal(t, client.Plain, mode, "%s: %v", reference(i), r.err)
		var e *client.Error
		require.ErrorAs(t, r.err, &e)
		require.NotEmpty(t, e.Delivery, "a failure that does not name its delivery")
		require.Equal(t, e.MaybePaid, errors.Is(r.err, retrip.ErrOutcomeUnknown))
		if !e.MaybePaid {
			require.Empty(t, rows, "%s is paid, its client was told that it is not: %v", reference(i), r.err)
		}
		tally[fmt.Sprintf("%s (maybe paid %t): %d in the database", e.Delivery, e.MaybePaid, len(rows))]++
	}
	require.Empty(t, held, "payments that nobody ordered")
	t.Logf("%s: clients were told:%s", mode, table(tally))
	if mode == client.Keys {
		for _, r := range results {
			record, err := store.Lookup(t.Context(), payer, r.paid.Key)
			require.NoError(t, err)
			require.True(t, record.Done)
			require.Equal(t, http.StatusCreated, record.Answer.Status)
		}
	}
}
