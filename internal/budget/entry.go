package budget

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// The states of an entry. Open and closed are those of its reserve.
const (
	open uint32 = iota
	closed
	gone
)

// cacheLine is at least the length of one on what Go runs on, but for the largest machines.
const cacheLine = 64

// Entry is the state of one origin, or of several that share one for want of
// places. All its methods are safe for concurrent use.
type Entry struct {
	budget *Budget
	origin string
	state  atomic.Uint32

	// Each operation writes to earned, so that it has a cache line of its own: what is only
	// read then stays with every core.
	_      [cacheLine]byte
	earned earned
	_      [cacheLine]byte

	mu      sync.Mutex // guards the reserve: the fields below
	limiter *rate.Limiter
	back    int           // units given back, spent before the limiter's
	asOf    time.Duration // the latest time at which the reserve was looked at
}

func newEntry(b *Budget, origin string) *Entry {
	e := &Entry{budget: b, origin: origin, limiter: rate.NewLimiter(b.perSecond, b.burst)}
	e.earned.add(b.latest.Load(), 0) // not idle since the beginning of time
	return e
}

// Gone reports whether the entry has lost its place, for good, so that who kept
// a pointer to it must look the origin up again.
func (e *Entry) Gone() bool { return e.state.Load() == gone }

// Begin counts an operation that begins: the origin earns the ratio. It takes
// no lock and does not allocate. What is earned by an entry that is gone is
// lost.
func (e *Entry) Begin(now time.Duration) {
	e.earned.add(e.budget.tick(now), e.budget.ratio)
}

// End counts an operation that ended: with a transient outcome it closes the
// reserve, with any other it opens it. An operation that says nothing of the
// origin, such as one that its caller ended, must not be counted. End takes no
// lock unless the entry is gone, in which case the origin is looked up again. It does
// nothing for a nil Entry, which is that of an operation without a budget.
func (e *Entry) End(transient bool) {
	// Nearly every operation succeeds after one that did.
	if e != nil && (transient || e.state.Load() != open) {
		e.turn(transient)
	}
}

// turn opens or closes the reserve.
func (e *Entry) turn(transient bool) {
	want := open
	if transient {
		want = closed
	}
	for {
		switch state := e.state.Load(); {
		case state == want:
			// A store here would take the cache line from everybody else.
			return
		case state == gone:
			e.budget.Entry(e.origin).End(transient)
			return
		case e.state.CompareAndSwap(state, want):
			return
		}
	}
}

// Reserve takes cost tokens for a repeat, all or none: those that were earned
// first, the rest from the reserve where that is open. A cost of zero or less
// is free. The origin of an entry that is gone is looked up again.
func (e *Entry) Reserve(now time.Duration, cost int) (Reservation, bool) {
	if cost <= 0 {
		return Reservation{}, true
	}
	e.mu.Lock()
	if e.Gone() {
		e.mu.Unlock()
		// What this entry still holds would come on top of the new one's.
		return e.budget.Entry(e.origin).Reserve(now, cost)
	}
	defer e.mu.Unlock()

	reserve := e.settle(now)
	if e.state.Load() == closed {
		reserve = 0
	}
	tick := e.budget.tick(now)
	need := min(cost, math.MaxInt32/unit) * unit
	earned, ok := e.earned.take(tick, need, reserve)
	if !ok {
		return Reservation{}, false
	}
	e.spend(need - earned)
	return Reservation{entry: e, tick: tick, earned: earned, reserve: need - earned}, true
}

// settle brings the reserve up to now and returns how many units it holds. It
// requires that mu is held.
func (e *Entry) settle(now time.Duration) int {
	// The limiter would pay for a stretch of time twice when asked about an
	// earlier time than before.
	e.asOf = max(e.asOf, now)
	held := int(e.limiter.TokensAt(instant(e.asOf)))
	e.back = min(e.back, e.budget.burst-held)
	return held + e.back
}

// spend takes n units from the reserve, which was settled and holds them. It
// requires that mu is held.
func (e *Entry) spend(n int) {
	back := min(n, e.back)
	e.back -= back
	e.limiter.AllowN(instant(e.asOf), n-back)
}

// instant is a time as the limiter takes it.
func instant(now time.Duration) time.Time { return time.Time{}.Add(now) }

// full reports whether forgetting the entry would give nothing away: whether
// its reserve is full and open.
func (e *Entry) full(now time.Duration) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.state.Load() == open && e.settle(now) >= e.budget.burst
}

// evict makes the entry gone if it is still full, and reports whether it did.
func (e *Entry) evict(now time.Duration) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.settle(now) >= e.budget.burst && e.state.CompareAndSwap(open, gone)
}

// Reservation is what one call of Reserve took. The zero value took nothing.
type Reservation struct {
	entry   *Entry
	tick    int64 // when it was taken
	earned  int   // units
	reserve int   // units
}

// Return gives back what was taken, because the repeat is not made: what was
// earned as if it had stayed, faded by now, and the rest to the reserve, which
// never holds more than the burst. It may be called once for one Reserve.
func (r Reservation) Return(now time.Duration) {
	e := r.entry
	if e == nil {
		return
	}
	tick := e.budget.tick(now)
	e.earned.add(tick, float32(fade(float64(r.earned)/unit, tick-r.tick)))

	e.mu.Lock()
	defer e.mu.Unlock()
	// A rate.Reservation cannot be cancelled once its time to act has come,
	// which is at once here; so the units are kept beside the limiter.
	e.back += r.reserve
	e.settle(now)
}
