package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"
)

// herdDelay is the naive loop's delay here, and what retrip's grow from.
const herdDelay = 300 * time.Millisecond

// herd is a number of clients that fail at the same millisecond.
type herd struct {
	clients    int
	policy     policy
	retryAfter int // seconds the origin asks to wait, 0: it does not
}

// run returns when the clients came back, since they failed.
func (h herd) run(ctx context.Context) ([]time.Duration, error) {
	gate := &barrier{wait: h.clients, retryAfter: h.retryAfter, open: make(chan struct{})}
	url, stop, err := serve(ctx, gate)
	if err != nil {
		return nil, err
	}
	defer stop()
	var wg sync.WaitGroup
	for range h.clients {
		base := newBase(0)
		defer base.CloseIdleConnections()
		client := &http.Client{Transport: h.policy.wrap(base, herdDelay)}
		wg.Go(func() { get(ctx, client, url) })
	}
	wg.Wait()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	gate.mu.Lock()
	defer gate.mu.Unlock()
	if len(gate.back) != h.clients {
		return nil, fmt.Errorf("%d of %d clients came back: %w", len(gate.back), h.clients, errHerd)
	}
	return gate.back, nil
}

var errHerd = errors.New("the herd is not complete")

// barrier holds its first requests until all are there, and then answers 503 to them at once.
// It answers 200 to those that come afterwards.
type barrier struct {
	wait       int
	retryAfter int
	open       chan struct{}

	mu     sync.Mutex
	opened time.Time
	back   []time.Duration
}

func (b *barrier) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if b.repeat(time.Now()) {
		return
	}
	select {
	case <-b.open:
	case <-r.Context().Done():
	}
	if b.retryAfter > 0 {
		w.Header().Set("Retry-After", strconv.Itoa(b.retryAfter))
	}
	w.WriteHeader(http.StatusServiceUnavailable)
}

// repeat notes an arrival and reports whether it is a repeat.
func (b *barrier) repeat(now time.Time) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.wait == 0 {
		b.back = append(b.back, now.Sub(b.opened))
		return true
	}
	if b.wait--; b.wait == 0 {
		b.opened = time.Now()
		close(b.open)
	}
	return false
}

// herds runs one after the other.
func herds(ctx context.Context, h herd, times int) (herdResult, error) {
	result := herdResult{policy: h.policy}
	for range times {
		back, err := h.run(ctx)
		if err != nil {
			return result, err
		}
		slices.Sort(back)
		result.back = append(result.back, back)
	}
	return result, nil
}

// herdResult is what came of some herds of one policy.
type herdResult struct {
	policy policy
	back   [][]time.Duration // of each herd, in order
}

// peak is the greatest number of clients that came back within any 10 ms, the median of all
// herds.
func (h *herdResult) peak() int {
	var peaks []int
	for _, back := range h.back {
		peaks = append(peaks, mostWithin(back, 10*time.Millisecond))
	}
	slices.Sort(peaks)
	return peaks[len(peaks)/2]
}

// earliest is when the first client came back.
func (h *herdResult) earliest() time.Duration {
	first := h.back[0][0]
	for _, back := range h.back {
		first = min(first, back[0])
	}
	return first
}

// spread is the time between the first and the last client that came back.
func (h *herdResult) spread() time.Duration {
	last := h.back[len(h.back)-1]
	return last[len(last)-1] - last[0]
}
