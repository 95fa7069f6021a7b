package budget

import (
	"testing"
	"time"
)

// The clock of the benchmarks moves on by itself, so that reading the time is
// not part of the measurement: a millisecond a call, which has many of them fade
// what is held, or a microsecond where goroutines would drift apart.

func BenchmarkBegin(b *testing.B) {
	e := New(0.1, 1, 10).Entry("https://a:443")
	now := start
	b.ReportAllocs()
	for b.Loop() {
		now += time.Millisecond
		e.Begin(now)
	}
}

func BenchmarkBeginParallel(b *testing.B) {
	e := New(0.1, 1, 10).Entry("https://a:443")
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		now := start
		for pb.Next() {
			now += time.Microsecond
			e.Begin(now)
		}
	})
}

// What a successful request costs beside the clock.
func BenchmarkSuccessParallel(b *testing.B) {
	budget := New(0.1, 1, 10)
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		now := start
		for pb.Next() {
			now += time.Microsecond
			e := budget.Entry("https://a:443")
			e.Begin(now)
			e.End(false)
		}
	})
}

func BenchmarkReserve(b *testing.B) {
	e := New(0.1, 1, 10).Entry("https://a:443")
	now := start
	b.ReportAllocs()
	for b.Loop() {
		now += time.Millisecond
		e.Begin(now)
		if r, ok := e.Reserve(now, 1); ok {
			r.Return(now)
		}
	}
}

// The same with the clock, as a Transport reads it for every request.
func BenchmarkSuccessWithClockParallel(b *testing.B) {
	budget := New(0.1, 1, 10)
	epoch := time.Now()
	b.ReportAllocs()
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			e := budget.Entry("https://a:443")
			e.Begin(time.Since(epoch))
			e.End(false)
		}
	})
}
