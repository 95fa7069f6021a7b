//go:build !race

// The race detector makes allocations of its own, so these tests are for the plain run.

package retrip_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/httptestx"
)

// benchAllocs is how many allocations each of n runs makes.
func benchAllocs(n int, work func()) int { return int(testing.AllocsPerRun(n, work)) }

func TestAllocationsOfAnOperationThatSucceedsAtOnce(t *testing.T) {
	httptestx.Leaks(t)
	for _, r := range benchRows() {
		t.Run(r.name, func(t *testing.T) {
			req := r.request(t)
			var allocs []int
			for _, c := range r.transports(t) {
				allocs = append(allocs, benchAllocs(500, func() { trips(t, c.rt, req) }))
			}
			t.Logf("bare %d, retrip %d", allocs[0], allocs[1])
			require.LessOrEqual(t, allocs[1]-allocs[0], r.most, "allocations that retrip adds")
		})
	}
}

// The context, what it carries, the list of options and the option itself.
func TestAllocationsOfAnOverridesContext(t *testing.T) {
	ctx := t.Context()
	require.LessOrEqual(t, benchAllocs(500, func() { retrip.Override(ctx, retrip.WithMaxAttempts(2)) }), 2)
}

func TestAllocationsOfARepeatedGET(t *testing.T) {
	httptestx.Leaks(t)
	bare, ours := benchRepeats(t)
	two, repeated := benchAllocs(300, bare), benchAllocs(300, ours)
	t.Logf("two bare exchanges %d, retrip %d", two, repeated)
	require.LessOrEqual(t, repeated-two, 15, "allocations that retrip adds to two bare exchanges")
}
