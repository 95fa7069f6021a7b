package httptestx

import (
	"flag"
	"math/rand/v2"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// A Side is one of those that are compared.
type Side struct {
	Name string
	Work func(n int) // does the same n times
}

// slice is how long a side works before another one does: short, since a machine's speed
// changes all the time.
const slice = 2 * time.Millisecond

// Compare has all sides work by turns and in a random order, and reports each of them as a
// sub-benchmark client=Name of b. What makes the machine slower for a while then meets all
// sides alike. Each has the time of -benchtime, and its times are the mean of its slices
// without the fastest and the slowest tenth; with -benchtime Nx there is one slice of N. Beside
// the time the processors' is reported, as cpu-ns/op. The number of iterations that is printed
// says nothing.
func Compare(b *testing.B, sides []Side) {
	b.Helper()
	turns, n := plan(b, sides)
	if b.Failed() {
		return
	}
	took, used := make([][]float64, len(sides)), make([][]float64, len(sides))
	for range turns {
		for _, i := range rand.Perm(len(sides)) {
			before, start := cpuTime(), time.Now()
			sides[i].Work(n[i])
			took[i] = append(took[i], each(time.Since(start), n[i]))
			used[i] = append(used[i], each(cpuTime()-before, n[i]))
		}
	}
	for i, side := range sides {
		allocs, bytes := allocated(side, min(n[i], 1000))
		b.Run("client="+side.Name, func(b *testing.B) {
			b.ReportAllocs()
			b.ReportMetric(middle(took[i]), "ns/op")
			b.ReportMetric(allocs, "allocs/op")
			b.ReportMetric(bytes, "B/op")
			b.ReportMetric(middle(used[i]), "cpu-ns/op") // benchfmt makes seconds of it
		})
	}
}

// plan finds how many turns there are, and how often each side works in one of them.
func plan(b *testing.B, sides []Side) (turns int, n []int) {
	b.Helper()
	setting := flag.Lookup("test.benchtime").Value.String()
	n = make([]int, len(sides))
	if times, ok := strings.CutSuffix(setting, "x"); ok {
		count, err := strconv.Atoi(times)
		if err != nil {
			b.Fatal(err)
		}
		for i := range n {
			n[i] = count
		}
		return 1, n
	}
	total, err := time.ParseDuration(setting)
	if err != nil {
		b.Fatal(err)
	}
	for i, side := range sides {
		n[i] = rate(b, side, min(slice, total))
	}
	return max(1, int(total/slice)), n
}

// rate finds how often a side works in a time; one that fails may take no time at all.
func rate(b *testing.B, side Side, d time.Duration) int {
	b.Helper()
	for n := 1; !b.Failed(); n *= 2 {
		start := time.Now()
		side.Work(n)
		if took := time.Since(start); took >= d/2 {
			return max(1, int(float64(n)*float64(d)/float64(took)))
		}
	}
	return 1
}

// allocated measures what one call allocates, in this process.
func allocated(side Side, n int) (allocs, bytes float64) {
	side.Work(n) // fills pools that a collection has emptied
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	side.Work(n)
	runtime.ReadMemStats(&after)
	return float64(after.Mallocs-before.Mallocs) / float64(n), float64(after.TotalAlloc-before.TotalAlloc) / float64(n)
}

func each(d time.Duration, n int) float64 { return float64(d.Nanoseconds()) / float64(n) }

// middle is the mean without a tenth at either end.
func middle(values []float64) float64 {
	slices.Sort(values)
	values = values[len(values)/10 : len(values)-len(values)/10]
	sum := 0.0
	for _, v := range values {
		sum += v
	}
	return sum / float64(len(values))
}
