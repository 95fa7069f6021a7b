package budget

import (
	"runtime"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

func host(i int) string { return "https://host-" + strconv.Itoa(i) + ".test:443" }

// filled returns a Budget in which every place is taken.
func filled(ratio, perSecond float64, burst int) (*Budget, []*Entry) {
	b := New(ratio, perSecond, burst)
	entries := make([]*Entry, MaxOrigins)
	for i := range entries {
		entries[i] = b.Entry(host(i))
	}
	return b, entries
}

func places(b *Budget) int {
	n := 0
	b.entries.Range(func(any, any) bool { n++; return true })
	return n
}

// evictAll has as many newcomers as there are places, and e is to be gone then.
func evictAll(t *testing.T, b *Budget, now time.Duration, e *Entry) {
	t.Helper()
	b.Entry(host(0)).Begin(now)
	for i := range MaxOrigins {
		b.Entry(host(MaxOrigins + i))
	}
	if !e.Gone() {
		t.Fatal("the entry is not gone")
	}
}

func TestOriginsHaveTokensOfTheirOwn(t *testing.T) {
	b := New(0.1, 1, 3)
	for i := range 10 {
		if got := grants(b.Entry(host(i)), start, 1); got != 3 {
			t.Errorf("host %d: %d grants, want 3", i, got)
		}
	}
	if got := places(b); got != 10 {
		t.Errorf("%d entries for 10 origins", got)
	}
	mustRefuse(t, b.Entry(host(4)), start, 1)
}

func TestFullEntriesMakeRoom(t *testing.T) {
	b, entries := filled(0.1, 1, 3)
	for i := range 3 * MaxOrigins {
		e := b.Entry(host(MaxOrigins + i))
		if e == b.overflow || e.Gone() {
			t.Fatalf("newcomer %d found no place", i)
		}
	}
	if got := places(b); got != MaxOrigins {
		t.Errorf("%d places, want %d", got, MaxOrigins)
	}
	for i, e := range entries {
		if !e.Gone() {
			t.Errorf("entry %d outlived 3 × %d newcomers", i, MaxOrigins)
		}
	}
}

func TestEvictionNeverRefills(t *testing.T) {
	tests := []struct {
		name  string
		drain func(*Entry)
	}{
		{"spent", func(e *Entry) { e.Reserve(start, 1) }},
		{"closed", func(e *Entry) { e.End(true) }},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b, entries := filled(0, 0, 3)
			for _, e := range entries {
				tt.drain(e)
			}
			shared := b.Entry("https://newcomer.test:443")
			for i := range 2 * MaxOrigins {
				if b.Entry(host(MaxOrigins+i)) != shared {
					t.Fatalf("newcomer %d does not share", i)
				}
			}
			if shared.Gone() {
				t.Error("the shared entry is gone")
			}
			if got := grants(shared, start, 1); got != 3 {
				t.Errorf("%d grants for all newcomers together, want 3", got)
			}
			for i, e := range entries {
				if b.Entry(host(i)) != e || e.Gone() {
					t.Fatalf("entry %d was evicted", i)
				}
			}
		})
	}
}

func TestEntriesThatTimeHasFilledMakeRoom(t *testing.T) {
	b, entries := filled(0.1, 1, 3)
	for _, e := range entries {
		mustReserve(t, e, start, 2)
	}
	if b.Entry("https://a.test:443") != b.overflow {
		t.Fatal("an entry that is not full made room")
	}
	// The table has no clock: it learns the time from the operations.
	b.Entry("https://b.test:443").Begin(at(1900 * time.Millisecond))
	if b.Entry("https://c.test:443") != b.overflow {
		t.Error("an entry made room before it was full")
	}
	b.Entry("https://d.test:443").Begin(at(2100 * time.Millisecond))
	if b.Entry("https://e.test:443") == b.overflow {
		t.Error("a full entry made no room")
	}
}

func TestBusyEntriesKeepTheirPlaces(t *testing.T) {
	b, entries := filled(0.1, 1, 3)
	busy := entries[MaxOrigins/2]
	now := start
	for i := range 3 * MaxOrigins {
		now += 20 * time.Millisecond
		busy.Begin(now)
		b.Entry(host(MaxOrigins + i)).Begin(now)
	}
	if busy.Gone() {
		t.Error("a busy entry had to go for idle ones")
	}
}

// The time of the search is read before an entry is looked at.
func TestEntryUsedDuringTheSearchIsNotIdle(t *testing.T) {
	e := New(0.1, 1, 3).Entry(origin)
	e.earned.add(ticksPerSecond, 0)
	for _, tick := range []int64{0, ticksPerSecond - 1, ticksPerSecond} {
		if idle := e.earned.idle(tick); idle != 0 {
			t.Errorf("idle for %d ticks at %d", idle, tick)
		}
	}
	if idle := e.earned.idle(3 * ticksPerSecond); idle != 2*ticksPerSecond {
		t.Errorf("idle for %d ticks, want %d", idle, 2*ticksPerSecond)
	}
}

func TestSearchForAPlaceIsBounded(t *testing.T) {
	b, entries := filled(0, 0, 3)
	for i, e := range entries[:MaxOrigins-1] {
		if i%2 == 0 {
			mustReserve(t, e, start, 1)
		} else {
			e.End(true)
		}
	}
	// One full entry among thousands is found in the end, and never by looking
	// at more than a few at a time.
	for i := range MaxOrigins/inspected + 1 {
		before := b.hand
		e := b.Entry(host(MaxOrigins + i))
		if looked := (b.hand - before + MaxOrigins) % MaxOrigins; looked > inspected {
			t.Fatalf("newcomer %d looked at %d entries", i, looked)
		}
		if e != b.overflow {
			if !entries[MaxOrigins-1].Gone() {
				t.Error("another entry than the full one was evicted")
			}
			return
		}
	}
	t.Error("the full entry was not found")
}

func TestEntryThatIsGoneSpendsFromTheNewOne(t *testing.T) {
	b, entries := filled(0, 0, 3)
	old := entries[0]
	evictAll(t, b, start, old)
	if got := grants(b.Entry(host(0)), start, 1); got != 3 {
		t.Fatalf("%d grants, want 3", got)
	}
	mustRefuse(t, old, start, 1)

	fresh := b.Entry(host(0))
	if fresh == old || fresh == b.overflow {
		t.Fatal("the origin has no new entry")
	}
	old.End(true)
	if fresh.state.Load() != closed {
		t.Error("the end of an operation was lost with the entry it began with")
	}
	old.End(false)
	if fresh.state.Load() != open || !old.Gone() {
		t.Error("the end of an operation brought an entry back")
	}
}

func TestReturnToAnEntryThatIsGone(t *testing.T) {
	b, entries := filled(0, 1, 3)
	old := entries[0]
	r := mustReserve(t, old, start, 1)
	evictAll(t, b, at(time.Minute), old)
	if got := grants(b.Entry(host(0)), at(time.Minute), 1); got != 3 {
		t.Fatalf("%d grants, want 3", got)
	}
	r.Return(at(time.Minute)) // time had filled its place before
	mustRefuse(t, b.Entry(host(0)), at(time.Minute), 1)
}

// Between the choice of a victim and its end an operation may have come in.
func TestEvictLooksOnceMore(t *testing.T) {
	b := New(0, 1, 3)
	e := b.Entry(origin)
	e.End(true)
	if e.evict(start) || e.Gone() {
		t.Error("a closed entry was evicted")
	}
	e.End(false)
	mustReserve(t, e, start, 1)
	if e.evict(start) || e.Gone() {
		t.Error("an entry was evicted that had spent")
	}
	if !e.evict(at(time.Second)) || !e.Gone() {
		t.Error("a full entry was not evicted")
	}
	if e.evict(at(time.Second)) {
		t.Error("an entry was evicted twice")
	}
}

// An entry is gone a moment before it is out of the table.
func TestLookupsDuringAnEvictionWaitForItsEnd(t *testing.T) {
	for range 200 {
		b := New(0, 0, 3)
		old := b.Entry(origin)
		found := make([]*Entry, 4)
		var wg sync.WaitGroup

		b.mu.Lock()
		old.evict(start)
		for i := range found {
			wg.Go(func() { found[i] = b.Entry(origin) })
		}
		for range 10 {
			runtime.Gosched() // lets some of them come too early
		}
		b.entries.Delete(origin)
		b.mu.Unlock()

		wg.Wait()
		for _, e := range found {
			if e == old || e != found[0] {
				t.Fatal("lookups found different entries, or the one that is gone")
			}
		}
	}
}

func TestConcurrentNewcomers(t *testing.T) {
	const burst = 2
	b := New(0, 0, burst)
	var granted [3 * MaxOrigins]atomic.Int64
	var wg sync.WaitGroup
	for g := range 4 {
		wg.Go(func() {
			for i := range granted {
				i = (i + g*len(granted)/4) % len(granted)
				e := b.Entry(host(i))
				e.Begin(start)
				if _, ok := e.Reserve(start, 1); ok {
					granted[i].Add(1)
				}
				e.End(i%2 == 0)
			}
		})
	}
	wg.Wait()
	if got := places(b); got != MaxOrigins || len(b.ring) != MaxOrigins {
		t.Errorf("%d places, %d in the ring, want %d", got, len(b.ring), MaxOrigins)
	}
	for _, e := range b.ring {
		if found, _ := b.entries.Load(e.origin); found != e || e.Gone() {
			t.Fatalf("%s is in the ring and not in the table", e.origin)
		}
	}
	total := int64(0)
	for i := range granted {
		n := granted[i].Load()
		total += n
		if n > burst+burst { // its own entry, and before or after that the shared one
			t.Errorf("host %d: %d grants", i, n)
		}
	}
	if limit := int64(burst * (MaxOrigins + 1)); total > limit {
		t.Errorf("%d grants, more than %d entries can hold", total, MaxOrigins+1)
	}
}
