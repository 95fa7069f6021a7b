package backoff

import (
	"fmt"
	"math"
	"math/big"
	"sync"
	"testing"
	"time"
)

const longest = time.Duration(math.MaxInt64)

func TestWindow(t *testing.T) {
	const ms = time.Millisecond
	tests := []struct {
		base, ceiling time.Duration
		attempt       int
		want          time.Duration
	}{
		{100 * ms, 2000 * ms, 1, 100 * ms},
		{100 * ms, 2000 * ms, 2, 200 * ms},
		{100 * ms, 2000 * ms, 5, 1600 * ms},
		{100 * ms, 2000 * ms, 6, 2000 * ms},
		{100 * ms, 2000 * ms, 10_000, 2000 * ms},
		{100 * ms, 2000 * ms, math.MaxInt, 2000 * ms},
		{100 * ms, 2000 * ms, 0, 100 * ms},
		{100 * ms, 2000 * ms, -1, 100 * ms},
		{100 * ms, 2000 * ms, math.MinInt, 100 * ms},
		{100 * ms, 100 * ms, 1, 100 * ms},
		{100 * ms, 100*ms - 1, 1, 100*ms - 1},
		{100 * ms, 200*ms - 1, 2, 200*ms - 1},
		{1, longest, 63, 1 << 62},
		{1, longest, 64, longest},
		{1, longest, 65, longest},
		{3, longest, 62, 3 << 61},
		{3, longest, 63, longest},
		{longest, longest, 1, longest},
		{longest, longest, 2, longest},
		{longest, 1, 1, 1},
		{0, 2000 * ms, 3, 0},
		{-1, 2000 * ms, 3, 0},
		{100 * ms, 0, 3, 0},
		{100 * ms, -1, 3, 0},
		{math.MinInt64, math.MinInt64, math.MinInt, 0},
	}
	for _, tt := range tests {
		if got := Window(tt.base, tt.ceiling, tt.attempt); got != tt.want {
			t.Errorf("Window(%v, %v, %d) = %v, want %v", tt.base, tt.ceiling, tt.attempt, got, tt.want)
		}
	}
}

func TestWindowNeverShrinksAndNeverExceedsTheCeiling(t *testing.T) {
	durations := []time.Duration{1, 3, time.Millisecond, 100 * time.Millisecond, time.Second, 30 * time.Second, time.Hour, longest/2 + 1, longest}
	for _, base := range durations {
		for _, ceiling := range durations {
			last := time.Duration(0)
			for attempt := 1; attempt <= 10_000; attempt++ {
				got := Window(base, ceiling, attempt)
				if got < last || got > ceiling || got <= 0 {
					t.Fatalf("Window(%v, %v, %d) = %v after %v", base, ceiling, attempt, got, last)
				}
				last = got
			}
			if last != ceiling {
				t.Errorf("Window(%v, %v) ends at %v", base, ceiling, last)
			}
		}
	}
}

func FuzzWindow(f *testing.F) {
	f.Add(int64(100*time.Millisecond), int64(2*time.Second), 5)
	f.Add(int64(1), int64(math.MaxInt64), 64)
	f.Add(int64(math.MaxInt64), int64(1), 1)
	f.Add(int64(-1), int64(1), math.MinInt)
	f.Fuzz(func(t *testing.T, base, ceiling int64, attempt int) {
		got := Window(time.Duration(base), time.Duration(ceiling), attempt)
		if want := slowWindow(base, ceiling, attempt); int64(got) != want {
			t.Errorf("Window(%d, %d, %d) = %d, want %d", base, ceiling, attempt, got, want)
		}
		if next := Window(time.Duration(base), time.Duration(ceiling), attempt/2); attempt > 0 && next > got {
			t.Errorf("attempt %d waits up to %d, attempt %d only %d", attempt/2, next, attempt, got)
		}
		for _, drawn := range []time.Duration{Full(got), Equal(got)} {
			if drawn < 0 || drawn > got {
				t.Errorf("%d drawn from [0, %d]", drawn, got)
			}
		}
	})
}

// slowWindow multiplies in numbers that have no end.
func slowWindow(base, ceiling int64, attempt int) int64 {
	if base <= 0 || ceiling <= 0 {
		return 0
	}
	window := big.NewInt(base)
	for range min(max(attempt, 1)-1, 64) {
		window.Mul(window, big.NewInt(2))
	}
	if window.Cmp(big.NewInt(ceiling)) > 0 {
		return ceiling
	}
	return window.Int64()
}

// draws collects what one function draws from one window.
func draws(n int, draw func(time.Duration) time.Duration, window time.Duration) (lowest, highest, mean time.Duration) {
	lowest = longest
	sum := 0.0
	for range n {
		d := draw(window)
		lowest, highest, sum = min(lowest, d), max(highest, d), sum+float64(d)
	}
	return lowest, highest, time.Duration(sum / float64(n))
}

func TestJitter(t *testing.T) {
	tests := []struct {
		name           string
		draw           func(time.Duration) time.Duration
		window, lo, hi time.Duration
	}{
		{"Full", Full, 0, 0, 0},
		{"Full", Full, -1, 0, 0},
		{"Full", Full, math.MinInt64, 0, 0},
		{"Full", Full, 1, 0, 1},
		{"Full", Full, 3, 0, 3},
		{"Equal", Equal, 0, 0, 0},
		{"Equal", Equal, -1, 0, 0},
		{"Equal", Equal, math.MinInt64, 0, 0},
		{"Equal", Equal, 1, 0, 1},
		{"Equal", Equal, 7, 3, 7},
		{"Equal", Equal, 8, 4, 8},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprint(tt.name, int64(tt.window)), func(t *testing.T) {
			// Each end is missed by 2,000 draws with a chance of at most
			// (7/8)^2000, which is below 1e-115.
			lowest, highest, _ := draws(2000, tt.draw, tt.window)
			if lowest != tt.lo || highest != tt.hi {
				t.Errorf("drawn from [%d, %d], want [%d, %d]", lowest, highest, tt.lo, tt.hi)
			}
		})
	}
}

func TestJitterIsUniform(t *testing.T) {
	tests := []struct {
		name         string
		draw         func(time.Duration) time.Duration
		window, mean time.Duration
	}{
		{"Full", Full, time.Second, 500 * time.Millisecond},
		{"Equal", Equal, time.Second, 750 * time.Millisecond},
		{"Full", Full, longest, longest / 2},
		{"Equal", Equal, longest, longest / 4 * 3},
	}
	for _, tt := range tests {
		lowest, highest, mean := draws(20_000, tt.draw, tt.window)
		// The standard error of the mean is 0.2 % of the window, so a fiftieth
		// of it is ten of them.
		if (mean - tt.mean).Abs() > tt.window/50 {
			t.Errorf("%s(%v): mean %v, want about %v", tt.name, tt.window, mean, tt.mean)
		}
		if floor := tt.mean - (tt.window - tt.mean); lowest < max(floor-1, 0) || highest > tt.window {
			t.Errorf("%s(%v): drawn from [%v, %v]", tt.name, tt.window, lowest, highest)
		}
	}
}

func TestJitterIsSafeForConcurrentUse(t *testing.T) {
	var wg sync.WaitGroup
	for range 64 {
		wg.Go(func() {
			for range 50 {
				if d := Full(time.Second) + Equal(time.Second); d < time.Second/2 || d > 2*time.Second {
					t.Errorf("drawn %v", d)
				}
			}
		})
	}
	wg.Wait()
}

func TestSpread(t *testing.T) {
	tests := []struct{ hint, want time.Duration }{
		{time.Second, 100 * time.Millisecond},
		{500 * time.Millisecond, 50 * time.Millisecond},
		{499 * time.Millisecond, 50 * time.Millisecond},
		{1, 50 * time.Millisecond},
		{0, 50 * time.Millisecond},
		{math.MinInt64, 50 * time.Millisecond},
		{10 * time.Second, time.Second},
		{50 * time.Second, 5 * time.Second},
		{51 * time.Second, 5 * time.Second},
		{longest, 5 * time.Second},
	}
	for _, tt := range tests {
		if got := Spread(tt.hint); got != tt.want {
			t.Errorf("Spread(%v) = %v, want %v", tt.hint, got, tt.want)
		}
	}
}

func TestAdd(t *testing.T) {
	tests := []struct{ a, b, want time.Duration }{
		{0, 0, 0},
		{1, 2, 3},
		{longest, 0, longest},
		{longest - 1, 1, longest},
		{longest, 1, longest},
		{longest/2 + 1, longest/2 + 1, longest},
		{longest, longest, longest},
		{-1, 5, 5},
		{5, math.MinInt64, 5},
		{math.MinInt64, math.MinInt64, 0},
	}
	for _, tt := range tests {
		if got := Add(tt.a, tt.b); got != tt.want {
			t.Errorf("Add(%d, %d) = %d, want %d", tt.a, tt.b, got, tt.want)
		}
		if got := Add(tt.b, tt.a); got != tt.want {
			t.Errorf("Add(%d, %d) = %d, want %d", tt.b, tt.a, got, tt.want)
		}
	}
}

func TestNothingAllocates(t *testing.T) {
	var sink time.Duration
	allocs := testing.AllocsPerRun(100, func() {
		sink = Add(Full(Window(time.Millisecond, time.Second, 4)), Spread(Equal(time.Second)))
	})
	if allocs != 0 || sink <= 0 {
		t.Errorf("%v allocations, result %v", allocs, sink)
	}
}
