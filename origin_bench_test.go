package retrip_test

import (
	"net/http"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/retrip/retrip"
)

// BenchmarkBudgetOfASuccess is what the budget adds to operations that succeed, on all cores
// at once: budget-ns/op. One origin is the hard case, since all goroutines earn for the same
// one. Both sides take turns, and medians are compared, so that a machine whose speed changes
// does not count as a difference.
func BenchmarkBudgetOfASuccess(b *testing.B) {
	without := retrip.Must(retrip.New(newNoop(1), retrip.WithBudget(nil)))
	for name, opts := range map[string][]retrip.Option{
		"own":    nil,
		"shared": {retrip.WithBudget(retrip.NewBudget(0.1, 1, 10))},
	} {
		with := retrip.Must(retrip.New(newNoop(1), opts...))
		b.Run(name, func(b *testing.B) {
			const rounds = 100
			each := b.N/rounds + 1
			var plain, budgeted []float64
			for range rounds {
				plain = append(plain, originRound(b, without, each))
				budgeted = append(budgeted, originRound(b, with, each))
			}
			slices.Sort(plain)
			slices.Sort(budgeted)
			b.ReportMetric(plain[rounds/2], "plain-ns/op")
			b.ReportMetric(budgeted[rounds/2]-plain[rounds/2], "budget-ns/op")
		})
	}
}

// originRound lets every core make n round trips and returns the nanoseconds of one.
func originRound(b *testing.B, rt http.RoundTripper, n int) float64 {
	b.Helper()
	var wg sync.WaitGroup
	start := time.Now()
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			req, err := http.NewRequestWithContext(b.Context(), http.MethodGet, "http://origin.test/orders", http.NoBody)
			if err != nil {
				b.Error(err)
				return
			}
			for range n {
				trips(b, rt, req)
			}
		})
	}
	wg.Wait()
	return float64(time.Since(start).Nanoseconds()) / float64(n)
}
