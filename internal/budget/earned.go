package budget

import (
	"math"
	"sync/atomic"
	"time"
)

// A tick is the step in which the age of earned tokens is told: short against
// their time constant, and long enough that operations which follow each other
// closely need no exponential.
const (
	ticksPerSecond = 64
	tickLength     = time.Second / ticksPerSecond
	decayTicks     = 4 * ticksPerSecond // the time constant with which tokens fade
)

// lag is how many ticks a time may lie behind the latest one and still count as
// the latest. A greater distance is taken for the turn of the 32-bit count,
// which comes round in two years.
const lag = 16 * ticksPerSecond

// slack is the part of a unit that may be missing from one: sums of a ratio
// such as 0.01 come out a little short.
const slack = 0.01

// earned holds the tokens that traffic earned: how many, as a float32 in the
// upper half, and as of which tick, in the lower. One word, so that every
// operation can add to it without a lock.
type earned struct{ word atomic.Uint64 }

// add adds tokens at a tick.
func (w *earned) add(tick int64, tokens float32) {
	for {
		old := w.word.Load()
		held, as := unpack(old, tick)
		// An infinity would turn into NaN where it fades.
		if w.word.CompareAndSwap(old, pack(min(held+tokens, math.MaxFloat32), as)) {
			return
		}
	}
}

// take takes as many of the needed units as there are, provided that the rest
// is no more than reserve, and returns their number.
func (w *earned) take(tick int64, need, reserve int) (units int, ok bool) {
	for {
		old := w.word.Load()
		held, as := unpack(old, tick)
		units = int(min(float64(held)*unit+slack, float64(need)))
		if need-units > reserve {
			return 0, false
		}
		left := max(float64(held)-float64(units)/unit, 0)
		if w.word.CompareAndSwap(old, pack(float32(left), as)) {
			return units, true
		}
	}
}

// idle returns the number of ticks since tokens were last added or taken.
func (w *earned) idle(tick int64) int64 {
	return since(uint32(w.word.Load()&math.MaxUint32), tick)
}

func pack(tokens float32, as uint32) uint64 {
	return uint64(math.Float32bits(tokens))<<32 | uint64(as)
}

// unpack returns what is left at a tick of the tokens in word, and the tick as
// of which that is.
func unpack(word uint64, tick int64) (tokens float32, as uint32) {
	tokens, as = math.Float32frombits(uint32(word>>32)), uint32(word&math.MaxUint32)
	if since(as, tick) == 0 {
		return tokens, as
	}
	return float32(fade(float64(tokens), since(as, tick))), low(tick)
}

// since returns how many ticks later than as a tick is, and 0 where it is
// earlier.
func since(as uint32, tick int64) int64 {
	now := low(tick)
	if as-now <= lag {
		return 0
	}
	return int64(now - as)
}

// fade returns what is left of tokens after some ticks.
func fade(tokens float64, ticks int64) float64 {
	if ticks <= 0 {
		return tokens
	}
	return tokens * math.Exp(-float64(ticks)/decayTicks)
}

// low returns the part of a tick that a word has room for.
func low(tick int64) uint32 { return uint32(tick & math.MaxUint32) }
