package main

import (
	"testing"
	"time"
)

func ms(times ...int) []time.Duration {
	var all []time.Duration
	for _, t := range times {
		all = append(all, time.Duration(t)*time.Millisecond)
	}
	return all
}

func TestMostWithinCountsAnyWindowNotOnlyWholeOnes(t *testing.T) {
	tests := []struct {
		times []time.Duration
		want  int
	}{
		{nil, 0},
		{ms(5), 1},
		{ms(30, 8, 17, 9, 12), 4},
		{ms(0, 10, 20, 30), 1},
		{ms(0, 0, 0, 9, 10), 4},
	}
	for _, tt := range tests {
		if got := mostWithin(tt.times, 10*time.Millisecond); got != tt.want {
			t.Errorf("%v: got %d, want %d", tt.times, got, tt.want)
		}
	}
}

func TestAnOriginWorksOffWhatQueuedUpWhileItStalled(t *testing.T) {
	start := time.Now()
	o := &queueOrigin{fault: stalls, down: start.Add(time.Second), up: start.Add(3 * time.Second)}
	for _, tt := range []struct{ at, want time.Duration }{
		{0, served},
		{0, 2 * served},
		{time.Second, 3*time.Second + served},
		{2 * time.Second, 3*time.Second + 2*served},
		{4 * time.Second, 4*time.Second + served},
	} {
		done, ok := o.enqueue(start.Add(tt.at))
		if got := done.Sub(start); !ok || got != tt.want {
			t.Errorf("arrived at %v: done at %v, want %v", tt.at, got, tt.want)
		}
	}

	o = &queueOrigin{fault: answers503, down: start.Add(time.Second), up: start.Add(3 * time.Second)}
	for at, want := range map[time.Duration]bool{0: true, time.Second: false, 3*time.Second - 1: false, 3 * time.Second: true} {
		if _, ok := o.enqueue(start.Add(at)); ok != want {
			t.Errorf("arrived at %v: served %v, want %v", at, ok, want)
		}
	}
}

func TestWhatIsToldOfAnOutage(t *testing.T) {
	o := &outage{length: 2 * time.Second, tail: 3 * time.Second}
	for at := -time.Second; at < 5*time.Second; at += 100 * time.Millisecond {
		// It fails until 0.7 s after the outage, and each failure is sent twice.
		ok := at < 0 || at >= 2700*time.Millisecond
		o.visits = append(o.visits, visit{at, ok})
		o.arrivals = append(o.arrivals, at)
		if !ok {
			o.arrivals = append(o.arrivals, at+50*time.Millisecond)
		}
	}
	if got := o.amplification(); got != 2 {
		t.Errorf("amplification %v, want 2", got)
	}
	if failed, of := o.failed(); failed != 27 || of != 50 {
		t.Errorf("failed %d of %d, want 27 of 50", failed, of)
	}
	if d, ok := o.recovery(); !ok || d != 700*time.Millisecond {
		t.Errorf("recovery %v, %v, want 700ms", d, ok)
	}
	o.visits = o.visits[:36]
	if d, ok := o.recovery(); ok {
		t.Errorf("recovery %v of an origin that never did", d)
	}
}
