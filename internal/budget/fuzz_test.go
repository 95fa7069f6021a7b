package budget

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"
)

// model is the budget of one origin as one would write it down: in real
// numbers, with every lot of earned tokens on its own.
type model struct {
	ratio, perSecond, burst float64

	lots     []lot
	latest   float64 // the latest tick that was handed in
	reserve  float64
	filledAt time.Duration
	closed   bool

	earned, spent float64 // in all
}

type lot struct{ tokens, tick float64 }

func ticks(now time.Duration) float64 { return math.Floor(now.Seconds() * ticksPerSecond) }

// tick is the one that now counts as.
func (m *model) tick(now time.Duration) float64 {
	m.latest = max(m.latest, ticks(now))
	return m.latest
}

func (m *model) held(now time.Duration) float64 {
	tick, sum := m.tick(now), 0.0
	for _, l := range m.lots {
		sum += l.tokens * math.Exp(-(tick-l.tick)/(4*ticksPerSecond))
	}
	return sum
}

func (m *model) add(now time.Duration, tokens float64) {
	m.lots = append(m.lots, lot{tokens, m.tick(now)})
}

func (m *model) fill(now time.Duration) {
	if now > m.filledAt {
		m.reserve = min(m.burst, m.reserve+m.perSecond*(now-m.filledAt).Seconds())
		m.filledAt = now
	}
}

func (m *model) take(now time.Duration, earned, reserve float64) {
	held := m.held(now)
	if held > 0 {
		for i := range m.lots {
			m.lots[i].tokens *= max(1-earned/held, 0)
		}
	}
	m.reserve = max(m.reserve-reserve, 0)
	m.spent += earned + reserve
}

// tolerance is in tokens: the units are thousandths, what is earned is a
// float32, and both are rounded down.
const tolerance = 0.02

type kept struct {
	r    Reservation
	tick float64
}

// schedule plays data as operations on an Entry and on a model, and checks that
// they agree.
func schedule(t *testing.T, data []byte) {
	t.Helper()
	if len(data) < 4 {
		return
	}
	ratio, perSecond, burst := float64(data[0])/100, float64(data[1])/8, int(data[2])%20
	e := New(ratio, perSecond, burst).Entry(origin)
	m := &model{ratio: ratio, perSecond: perSecond, burst: float64(burst), reserve: float64(burst)}
	e.budget.tick(start)

	var now, top time.Duration
	var open []kept
	for i := 3; i+1 < len(data); i += 2 {
		arg := int(data[i+1])
		switch data[i] % 8 {
		case 0:
			for range arg%8 + 1 {
				e.Begin(at(now))
				m.add(now, ratio)
				m.earned += ratio
			}
		case 1:
			now += time.Duration(arg*arg) * 1_000_003
			top = max(top, now)
		case 2: // Not further back than the times of concurrent callers differ.
			now = max(now-time.Duration(arg)*time.Millisecond, top-10*time.Second, 0)
		case 3, 4:
			m.closed = data[i]%8 == 3
			e.End(m.closed)
		case 5:
			if r, ok := reserve(t, e, m, now, arg%3+1); ok {
				open = append(open, kept{r, m.tick(now)})
			}
		case 6:
			if len(open) > 0 {
				giveBack(e, m, now, open[0])
				open = open[1:]
			}
		case 7:
			before := total(e, now)
			if r, ok := reserve(t, e, m, now, arg%3+1); ok {
				giveBack(e, m, now, kept{r, m.tick(now)})
			}
			if after := total(e, now); math.Abs(after-before) > tolerance {
				t.Fatalf("step %d: %v tokens before a reservation that is given back, %v after", i, before, after)
			}
		}
		check(t, e, m, now, i)
	}
}

func reserve(t *testing.T, e *Entry, m *model, now time.Duration, cost int) (Reservation, bool) {
	t.Helper()
	m.fill(now)
	held := m.held(now)
	available := held
	if !m.closed {
		available += m.reserve
	}
	r, ok := e.Reserve(at(now), cost)
	if ok && available < float64(cost)-tolerance || !ok && available > float64(cost)+tolerance {
		t.Fatalf("Reserve(%d) = %v with %v earned and %v in the reserve, closed %v", cost, ok, held, m.reserve, m.closed)
	}
	if !ok {
		return r, false
	}
	earned, reserved := float64(r.earned)/unit, float64(r.reserve)/unit
	if math.Abs(earned-min(held, float64(cost))) > tolerance || math.Abs(earned+reserved-float64(cost)) > 1e-9 || m.closed && reserved != 0 {
		t.Fatalf("Reserve(%d) took %v of %v earned and %v of the reserve, closed %v", cost, earned, held, reserved, m.closed)
	}
	m.take(now, earned, reserved)
	if limit := m.burst + m.perSecond*m.filledAt.Seconds() + m.earned; m.spent > limit+tolerance {
		t.Fatalf("%v spent, %v were ever there", m.spent, limit)
	}
	return r, true
}

func giveBack(e *Entry, m *model, now time.Duration, k kept) {
	k.r.Return(at(now))
	m.fill(now)
	earned, reserved := float64(k.r.earned)/unit, float64(k.r.reserve)/unit
	m.add(now, earned*math.Exp(-(m.tick(now)-k.tick)/(4*ticksPerSecond)))
	m.reserve = min(m.burst, m.reserve+reserved)
	m.spent -= earned + reserved
}

func state(e *Entry, now time.Duration) (earned, reserve float64) {
	tokens, _ := unpack(e.earned.word.Load(), e.budget.tick(at(now)))
	e.mu.Lock()
	defer e.mu.Unlock()
	return float64(tokens), float64(e.settle(at(now))) / unit
}

func total(e *Entry, now time.Duration) float64 {
	earned, reserve := state(e, now)
	return earned + reserve
}

func check(t *testing.T, e *Entry, m *model, now time.Duration, step int) {
	t.Helper()
	m.fill(now)
	earned, reserve := state(e, now)
	if held := m.held(now); math.Abs(earned-held) > tolerance || earned < 0 {
		t.Fatalf("step %d: %v earned, want %v", step, earned, held)
	}
	if math.Abs(reserve-m.reserve) > tolerance || reserve < 0 || reserve > m.burst {
		t.Fatalf("step %d: %v in the reserve, want %v", step, reserve, m.reserve)
	}
}

func FuzzBudget(f *testing.F) {
	f.Add([]byte{10, 8, 10, 0, 7, 5, 0, 5, 1, 3, 0, 5, 0, 1, 80, 4, 0, 6, 0, 7, 1})
	f.Add([]byte{0, 0, 0, 5, 0, 7, 2})
	f.Add([]byte{255, 255, 19, 0, 255, 1, 255, 2, 255, 5, 2, 5, 2, 2, 90, 6, 0, 1, 9, 6, 0})
	f.Fuzz(schedule)
}

func TestRandomSchedulesAgreeWithTheModel(t *testing.T) {
	random := rand.New(rand.NewPCG(11, 13))
	for range 500 {
		data := make([]byte, 3+2*random.IntN(150))
		for i := range data {
			data[i] = byte(random.Uint32())
		}
		schedule(t, data)
	}
}
