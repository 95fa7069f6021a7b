package budget

import (
	"math"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const origin = "https://origin.test:443"

// start is any time but 0.
const start = time.Hour

// at saturates, as the clock would in 292 years.
func at(d time.Duration) time.Duration { return start + min(d, math.MaxInt64-start) }

// grants counts how many reservations of one cost are granted in a row.
func grants(e *Entry, now time.Duration, cost int) int {
	for n := range 1_000_000 {
		if _, ok := e.Reserve(now, cost); !ok {
			return n
		}
	}
	return -1
}

func begin(e *Entry, now time.Duration, n int) {
	for range n {
		e.Begin(now)
	}
}

func mustReserve(t *testing.T, e *Entry, now time.Duration, cost int) Reservation {
	t.Helper()
	r, ok := e.Reserve(now, cost)
	if !ok {
		t.Fatalf("Reserve(%d) refused %v after the start", cost, now-start)
	}
	return r
}

func mustRefuse(t *testing.T, e *Entry, now time.Duration, cost int) {
	t.Helper()
	if _, ok := e.Reserve(now, cost); ok {
		t.Fatalf("Reserve(%d) granted %v after the start", cost, now-start)
	}
}

func TestReserveIsFullAtFirstAndFillsWithTime(t *testing.T) {
	e := New(0, 2, 5).Entry(origin)
	steps := []struct {
		after time.Duration
		want  int
	}{
		{0, 5},
		{0, 0},
		{499 * time.Millisecond, 0},
		{500 * time.Millisecond, 1},
		{2 * time.Second, 3},
		{time.Hour, 5}, // and not a token above the burst
	}
	for _, step := range steps {
		if got := grants(e, at(step.after), 1); got != step.want {
			t.Errorf("%v after the start: %d grants, want %d", step.after, got, step.want)
		}
	}
}

func TestEarnedTokensFade(t *testing.T) {
	tests := []struct {
		after time.Duration
		want  int // of 100·exp(-t/4 s)
	}{
		{0, 100},
		{time.Second, 77},
		{4 * time.Second, 36},
		{8 * time.Second, 13},
		{19 * time.Second, 0},
		{time.Hour, 0},
		{365 * 24 * time.Hour, 0},
		{2 * 365 * 24 * time.Hour, 0},
		{3 * 365 * 24 * time.Hour, 0},
		{math.MaxInt64, 0},
	}
	for _, tt := range tests {
		e := New(1, 0, 0).Entry(origin)
		begin(e, start, 100)
		if got := grants(e, at(tt.after), 1); got != tt.want {
			t.Errorf("after %v: %d grants, want %d", tt.after, got, tt.want)
		}
	}
}

func TestEarnedTokensFadeAlikeInSmallSteps(t *testing.T) {
	e := New(0.1, 0, 0).Entry(origin)
	begin(e, start, 1000)
	// Every look fades what is held by less than a tick or by one: the sum of
	// the steps must be the whole.
	for d := time.Duration(0); d < 4*time.Second; d += time.Millisecond {
		e.earned.add(e.budget.tick(at(d)), 0)
	}
	if got := grants(e, at(4*time.Second), 1); got != 36 {
		t.Errorf("%d grants, want 36", got)
	}
}

// The share of a steady stream is its ratio, whatever the stream's rate.
func TestSteadyTrafficEarnsItsRatioOfFourSeconds(t *testing.T) {
	for _, perSecond := range []int{10, 100, 1000} {
		e := New(0.1, 0, 0).Entry(origin)
		now := start
		for range 60 * perSecond {
			now += time.Second / time.Duration(perSecond)
			e.Begin(now)
		}
		want := 0.4 * float64(perSecond)
		if got := float64(grants(e, now, 1)); math.Abs(got-want) > 1+want/100 {
			t.Errorf("%d/s: %v grants, want about %v", perSecond, got, want)
		}
	}
}

func TestSumsOfARatioMakeWholeTokens(t *testing.T) {
	for _, n := range []int{1, 2, 3, 5, 7, 10, 20, 50, 100} {
		e := New(1/float64(n), 0, 0).Entry(origin)
		begin(e, start, n)
		if got := grants(e, start, 1); got != 1 {
			t.Errorf("%d operations that earn 1/%d: %d grants, want 1", n, n, got)
		}
		begin(e, start, n-1)
		if got := grants(e, start, 1); got != 0 {
			t.Errorf("one operation short of 1/%d: %d grants, want 0", n, got)
		}
	}
}

func TestCostIsSplitAndTakenAsAWhole(t *testing.T) {
	e := New(0.5, 0, 2).Entry(origin)
	e.Begin(start)
	mustRefuse(t, e, start, 3) // 2.5 are there; the refusal must leave them
	r := mustReserve(t, e, start, 2)
	if r.earned != 500 || r.reserve != 1500 {
		t.Errorf("took %d units earned and %d of the reserve, want 500 and 1500", r.earned, r.reserve)
	}
	mustRefuse(t, e, start, 1) // 0.5 are left
	e.Begin(start)
	r = mustReserve(t, e, start, 1)
	if r.earned != 500 || r.reserve != 500 {
		t.Errorf("took %d units earned and %d of the reserve, want 500 and 500", r.earned, r.reserve)
	}
	mustRefuse(t, e, start, 1)
}

func TestEarnedTokensGoFirst(t *testing.T) {
	e := New(1, 0, 5).Entry(origin)
	begin(e, start, 3)
	for range 3 {
		if r := mustReserve(t, e, start, 1); r.reserve != 0 {
			t.Errorf("took %d units of the reserve", r.reserve)
		}
	}
	if got := grants(e, start, 1); got != 5 {
		t.Errorf("%d grants of the reserve, want 5", got)
	}
}

func TestReserveIsClosedAfterATransientEnd(t *testing.T) {
	e := New(1, 0, 5).Entry(origin)
	mustReserve(t, e, start, 1)
	e.End(true)
	mustRefuse(t, e, start, 1)
	e.Begin(start)
	mustRefuse(t, e, start, 2) // one is earned, the other would be the reserve's
	mustReserve(t, e, start, 1)
	e.End(true)
	mustRefuse(t, e, start, 1)
	e.End(false)
	if got := grants(e, start, 1); got != 4 {
		t.Errorf("%d grants once open, want 4", got)
	}
}

func TestClosedReserveFillsAllTheSame(t *testing.T) {
	e := New(0, 1, 3).Entry(origin)
	if got := grants(e, start, 1); got != 3 {
		t.Fatalf("%d grants, want 3", got)
	}
	e.End(true)
	mustRefuse(t, e, at(2*time.Second), 1)
	e.End(false)
	if got := grants(e, at(2*time.Second), 1); got != 2 {
		t.Errorf("%d grants, want 2", got)
	}
}

func TestReturnGivesBackToEachSource(t *testing.T) {
	e := New(0.5, 0, 2).Entry(origin)
	e.Begin(start)
	mustReserve(t, e, start, 2).Return(start)
	e.End(true)
	mustRefuse(t, e, start, 1) // what came from the reserve is in the reserve
	e.Begin(start)
	mustReserve(t, e, start, 1) // and what was earned is not
	e.End(false)
	if got := grants(e, start, 1); got != 2 {
		t.Errorf("%d grants of the reserve, want 2", got)
	}
}

func TestReturnedTokensHaveFaded(t *testing.T) {
	e := New(1, 0, 0).Entry(origin)
	begin(e, start, 100)
	r := mustReserve(t, e, start, 100)
	r.Return(at(4 * time.Second))
	if got := grants(e, at(4*time.Second), 1); got != 36 {
		t.Errorf("%d grants, want 36", got)
	}
}

func TestReturnNeverExceedsTheBurst(t *testing.T) {
	e := New(0, 1, 3).Entry(origin)
	r := mustReserve(t, e, start, 2)
	r.Return(at(time.Minute)) // time has filled the place already
	if got := grants(e, at(time.Minute), 1); got != 3 {
		t.Errorf("%d grants, want 3", got)
	}

	e = New(0, 1, 3).Entry(origin)
	r = mustReserve(t, e, start, 2)
	r.Return(at(time.Second)) // 1 + 1 by time + 2 given back
	if got := grants(e, at(time.Second), 1); got != 3 {
		t.Errorf("%d grants, want 3", got)
	}

	e = New(0, 1, 3).Entry(origin)
	r = mustReserve(t, e, start, 2)
	r.Return(start)
	if got := grants(e, at(time.Minute), 1); got != 3 {
		t.Errorf("%d grants after a minute with units given back, want 3", got)
	}
}

func TestNothingIsReservedForNothing(t *testing.T) {
	e := New(0, 0, 0).Entry(origin)
	for _, cost := range []int{0, -1, math.MinInt} {
		r, ok := e.Reserve(start, cost)
		if !ok || r != (Reservation{}) {
			t.Errorf("Reserve(%d) = %+v, %v", cost, r, ok)
		}
	}
	Reservation{}.Return(start)
	mustRefuse(t, e, start, 1)
}

func TestSettingsOfZero(t *testing.T) {
	tests := []struct {
		name             string
		ratio, perSecond float64
		burst            int
		first, later     int // grants after ten operations, and a minute later
	}{
		{"all", 0, 0, 0, 0, 0},
		{"no ratio", 0, 1, 3, 3, 3},
		{"no refill", 0.1, 0, 3, 4, 0},
		{"no reserve", 0.1, 1, 0, 1, 0},
		{"reserve alone", 0, 0, 3, 3, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := New(tt.ratio, tt.perSecond, tt.burst).Entry(origin)
			begin(e, start, 10)
			if got := grants(e, start, 1); got != tt.first {
				t.Errorf("%d grants at first, want %d", got, tt.first)
			}
			if got := grants(e, at(time.Minute), 1); got != tt.later {
				t.Errorf("%d grants a minute later, want %d", got, tt.later)
			}
		})
	}
}

func TestHugeSettings(t *testing.T) {
	for _, huge := range []float64{math.MaxFloat32, math.MaxFloat64, math.Inf(1)} {
		e := New(huge, huge, math.MaxInt).Entry(origin)
		for i := range 3 {
			now := at(time.Duration(i) * time.Minute)
			begin(e, now, 3)
			mustReserve(t, e, now, 2).Return(now)
			mustReserve(t, e, now, 1)
		}
	}
	// What is too large to add up must fade all the same.
	e := New(math.MaxFloat32, 0, 0).Entry(origin)
	begin(e, start, 3)
	mustReserve(t, e, start, 2)
	mustRefuse(t, e, at(time.Hour), 1)
	// A cost above all that a budget can hold is cut to that, which an
	// ordinary one never has.
	mustRefuse(t, New(0.1, 1, 10).Entry(origin), start, math.MaxInt)
}

func TestTimeThatGoesBackCountsAsStanding(t *testing.T) {
	e := New(0.1, 1, 5).Entry(origin)
	if got := grants(e, at(10*time.Second), 1); got != 5 {
		t.Fatalf("%d grants, want 5", got)
	}
	for range 10 {
		mustRefuse(t, e, at(5*time.Second), 1) // nor does the reserve pay these 5 s
		mustRefuse(t, e, at(10*time.Second), 1)
	}
	if got := grants(e, at(12*time.Second), 1); got != 2 {
		t.Errorf("%d grants, want 2", got)
	}
	mustRefuse(t, e, at(11*time.Second), 1)
	if got := grants(e, at(13*time.Second), 1); got != 1 {
		t.Errorf("%d grants after an earlier time was asked about, want 1", got)
	}

	e = New(0.1, 0, 0).Entry(origin)
	begin(e, at(10*time.Second), 100)
	begin(e, at(3*time.Second), 100)
	r := mustReserve(t, e, at(9*time.Second), 4)
	r.Return(at(8 * time.Second))
	if got := grants(e, at(2*time.Second), 1); got != 20 {
		t.Errorf("%d grants, want the 20 earned", got)
	}
	begin(e, at(-time.Hour), 10) // before the first time of all
	if got := grants(e, at(10*time.Second), 1); got != 1 {
		t.Errorf("%d grants, want 1", got)
	}
}

func TestNothingAllocates(t *testing.T) {
	b := New(0.1, 1, 10)
	e := b.Entry(origin)
	e.Begin(start)
	allocs := testing.AllocsPerRun(100, func() {
		if b.Entry(origin) != e || e.Gone() {
			t.Error("another entry")
		}
		e.Begin(start)
		r, ok := e.Reserve(start, 2)
		if !ok {
			t.Error("refused")
		}
		r.Return(start)
		e.End(true)
		e.End(false)
	})
	if allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
}

// Whoever holds a lock of a budget must not hold up a request that succeeds.
func TestSuccessTakesNoLock(t *testing.T) {
	b := New(0.1, 1, 10)
	e := b.Entry(origin)
	b.mu.Lock()
	defer b.mu.Unlock()
	e.mu.Lock()
	defer e.mu.Unlock()

	done := make(chan struct{})
	go func() {
		defer close(done)
		e := b.Entry(origin)
		e.Begin(start)
		e.End(true)
		e.End(false)
	}()
	select {
	case <-done:
	case <-time.After(10 * time.Second):
		t.Fatal("a successful operation waits for a lock")
	}
}

func TestConcurrentUseLosesAndMakesNoTokens(t *testing.T) {
	const (
		goroutines = 16
		rounds     = 200
		burst      = 1000
	)
	b := New(1, 0, burst)
	var kept atomic.Int64
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			for i := range rounds {
				e := b.Entry(origin)
				e.Begin(start)
				r, ok := e.Reserve(start, 1+i%2)
				switch {
				case !ok:
					t.Error("refused with hundreds of tokens there")
				case (g+i)%4 == 0:
					kept.Add(int64(1 + i%2))
				default:
					r.Return(start)
				}
				e.End(false)
			}
		})
	}
	wg.Wait()
	want := goroutines*rounds + burst - int(kept.Load())
	if got := grants(b.Entry(origin), start, 1); got != want {
		t.Errorf("%d tokens left, want %d", got, want)
	}
}

func TestConcurrentReservesShareOutTheReserve(t *testing.T) {
	e := New(0, 0, 100).Entry(origin)
	var granted atomic.Int64
	var wg sync.WaitGroup
	for range 16 {
		wg.Go(func() {
			for range 100 {
				if _, ok := e.Reserve(start, 1); ok {
					granted.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if granted.Load() != 100 {
		t.Errorf("%d granted, want 100", granted.Load())
	}
}
