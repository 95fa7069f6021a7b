// Package budget decides whether an origin can bear one more repeat.
//
// For each origin there are two sources of tokens. What traffic earns is a
// share of the operations begun in the last seconds: with it a busy client
// survives a blip, and an outage costs little more than that share. What time
// fills is a small reserve, with which a quiet client can repeat an isolated
// failure, and only that: while the operation that ended last has failed, the
// reserve is closed, because in an outage every client of a large quiet fleet
// would find its own reserve full.
//
// The package never reads a clock. Every time is handed in, as the time since some
// instant that is the same for all of them: reading that costs half of what time.Now
// does. One that lies before an earlier one counts as that earlier one.
package budget

import (
	"math"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
)

// MaxOrigins is how many origins a Budget tells apart.
const MaxOrigins = 4096

// inspected bounds the work of one search for an entry to evict: a caller that
// goes through host names must not make every newcomer look at all entries.
const inspected = 8

// unit is one token as the reserve counts it: in whole thousandths, so that
// a cost can be split between it and the fractional tokens earned.
const unit = 1000

// Budget holds the tokens of up to MaxOrigins origins. It is made by New, and
// all its methods are safe for concurrent use.
type Budget struct {
	ratio     float32
	perSecond rate.Limit // in units
	burst     int        // in units

	latest atomic.Int64 // the latest time handed in, in ticks

	entries  sync.Map // origin → *Entry
	overflow *Entry   // shared by origins that found no place; never gone

	mu   sync.Mutex // guards the fields below and every change of entries
	ring []*Entry   // the values of entries
	hand int        // where in ring the next search begins
}

// New returns a Budget in which every operation earns ratio tokens, and the
// reserve of each origin, full at first, gains perSecond tokens a second up to
// burst. Each may be 0, none negative or NaN; a burst of 0 means no reserve.
func New(ratio, perSecond float64, burst int) *Budget {
	b := &Budget{
		ratio:     float32(min(ratio, math.MaxFloat32)),
		perSecond: rate.Limit(min(perSecond, math.MaxInt32) * unit),
		burst:     min(burst, math.MaxInt32/unit) * unit,
	}
	b.overflow = newEntry(b, "")
	return b
}

// Entry returns what is remembered of an origin, which is named in a normal
// form, such as scheme://host:port. An origin seen for the first time takes a
// free place or that of an entry whose reserve is full and open, and shares an
// entry with other such origins where it finds neither.
//
// An origin that has a place is found without a lock.
func (b *Budget) Entry(origin string) *Entry {
	if e, ok := b.entries.Load(origin); ok && !e.(*Entry).Gone() {
		return e.(*Entry)
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	if e, ok := b.entries.Load(origin); ok {
		return e.(*Entry)
	}
	place, ok := b.place()
	if !ok {
		return b.overflow
	}
	e := newEntry(b, origin)
	b.ring[place] = e
	b.entries.Store(origin, e)
	return e
}

// place returns a free index of ring. It requires that mu is held.
func (b *Budget) place() (int, bool) {
	if len(b.ring) < MaxOrigins {
		b.ring = append(b.ring, nil)
		return len(b.ring) - 1, true
	}
	now, latest := b.now(), b.latest.Load()
	victim, longest := 0, int64(-1)
	for i := range inspected {
		at := (b.hand + i) % MaxOrigins
		// Of several the one unused for longest goes, so that a busy origin
		// keeps what it has earned.
		if e := b.ring[at]; e.full(now) && e.earned.idle(latest) > longest {
			victim, longest = at, e.earned.idle(latest)
		}
	}
	if longest < 0 {
		b.hand = (b.hand + inspected) % MaxOrigins
		return 0, false
	}
	b.hand = (victim + 1) % MaxOrigins
	if !b.ring[victim].evict(now) {
		return 0, false
	}
	b.entries.Delete(b.ring[victim].origin)
	return victim, true
}

// tick returns now in ticks, no earlier than any before it.
func (b *Budget) tick(now time.Duration) int64 {
	t, latest := int64(now/tickLength), b.latest.Load()
	if t <= latest {
		return latest
	}
	b.note(t)
	return t
}

// note is apart from tick, which is inlined.
func (b *Budget) note(tick int64) {
	for {
		latest := b.latest.Load()
		if tick <= latest || b.latest.CompareAndSwap(latest, tick) {
			return
		}
	}
}

// now returns the latest time handed in, rounded down to a tick.
func (b *Budget) now() time.Duration { return time.Duration(b.latest.Load()) * tickLength }
