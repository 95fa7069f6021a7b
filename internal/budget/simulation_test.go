package budget

import (
	"container/heap"
	"math/rand/v2"
	"testing"
	"time"
)

// fleet is a number of clients with a budget each, which all meet one outage.
// It runs in virtual time, so that a minute of it takes milliseconds.
type fleet struct {
	clients  int
	every    time.Duration // between two operations of one client
	warm     time.Duration // before the outage
	outage   time.Duration
	attempts int
	cost     int
}

type attempt struct {
	at     time.Duration
	client int
	number int
}

type agenda []attempt

func (a *agenda) Len() int           { return len(*a) }
func (a *agenda) Less(i, j int) bool { return (*a)[i].at < (*a)[j].at }
func (a *agenda) Swap(i, j int)      { (*a)[i], (*a)[j] = (*a)[j], (*a)[i] }
func (a *agenda) Push(x any)         { *a = append(*a, x.(attempt)) }
func (a *agenda) Pop() any {
	last := (*a)[len(*a)-1]
	*a = (*a)[:len(*a)-1]
	return last
}

// amplification returns how many requests of the outage's operations the origin
// got for each of those operations. Delays are full jitter from 100 ms up.
func (f fleet) amplification() float64 {
	random := rand.New(rand.NewPCG(7, 31))
	entries := make([]*Entry, f.clients)
	var todo agenda
	for i := range entries {
		entries[i] = New(0.1, 1, 10).Entry(origin)
		// Clients are spread evenly over one interval.
		for d := f.every * time.Duration(i) / time.Duration(f.clients); d < f.warm+f.outage; d += f.every {
			todo = append(todo, attempt{d, i, 1})
		}
	}
	heap.Init(&todo)
	var operations, requests float64
	for len(todo) > 0 {
		a := heap.Pop(&todo).(attempt)
		e, now := entries[a.client], at(a.at)
		if a.number == 1 {
			e.Begin(now)
		}
		if a.at < f.warm {
			e.End(false)
			continue
		}
		requests++
		if a.number == 1 {
			operations++
		}
		if a.number < f.attempts {
			if _, ok := e.Reserve(now, f.cost); ok {
				window := 100 * time.Millisecond << (a.number - 1)
				heap.Push(&todo, attempt{a.at + time.Duration(random.Int64N(int64(window))), a.client, a.number + 1})
				continue
			}
		}
		e.End(true)
	}
	return requests / operations
}

func TestOutageIsNotAmplified(t *testing.T) {
	const second = time.Second
	tests := []struct {
		name  string
		fleet fleet
		limit float64
	}{
		{"200 quiet clients, 60 s", fleet{clients: 200, every: 10 * second, warm: 60 * second, outage: 60 * second, attempts: 3, cost: 1}, 1.45},
		{"2,000 quiet clients, 60 s", fleet{clients: 2000, every: 10 * second, warm: 10 * second, outage: 60 * second, attempts: 3, cost: 1}, 1.45},
		{"one busy client, 2 s", fleet{clients: 1, every: second / 100, warm: 60 * second, outage: 2 * second, attempts: 3, cost: 1}, 1.4},
		{"one busy client just started, 2 s", fleet{clients: 1, every: second / 100, warm: second, outage: 2 * second, attempts: 3, cost: 1}, 1.4},
		{"four clients of 25/s, 2 s", fleet{clients: 4, every: second / 25, warm: 60 * second, outage: 2 * second, attempts: 3, cost: 1}, 1.4},
		{"four clients of 25/s just started, 2 s", fleet{clients: 4, every: second / 25, warm: second, outage: 2 * second, attempts: 3, cost: 1}, 1.4},
		{"one busy client, timing out for 2 s", fleet{clients: 1, every: second / 100, warm: 60 * second, outage: 2 * second, attempts: 3, cost: 2}, 1.3},
		{"one busy client, 60 s", fleet{clients: 1, every: second / 100, warm: 60 * second, outage: 60 * second, attempts: 3, cost: 1}, 1.12},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := tt.fleet.amplification()
			if got > tt.limit || got <= 1 {
				t.Errorf("amplification %.3f, want above 1 and at most %.2f", got, tt.limit)
			}
			t.Logf("amplification %.3f", got)
		})
	}
}

func TestBusyClientSurvivesABlip(t *testing.T) {
	e := New(0.1, 1, 10).Entry(origin)
	now := start
	for range 1000 {
		now += 10 * time.Millisecond
		e.Begin(now)
		e.End(false)
	}
	begin(e, now, 40)
	for i := range 40 {
		if _, ok := e.Reserve(now, 1); !ok {
			t.Fatalf("only %d of 40 operations that fail together got a token", i)
		}
	}
}

func TestQuietClientRepeatsAnIsolatedFailure(t *testing.T) {
	e := New(0.1, 1, 10).Entry(origin)
	for i := range 1000 {
		// Each fails twice and then succeeds, however often that happens.
		now := at(time.Duration(i) * 10 * time.Second)
		e.Begin(now)
		mustReserve(t, e, now, 2)
		mustReserve(t, e, now, 2)
		e.End(false)
	}
}
