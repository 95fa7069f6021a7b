package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"sync"
	"time"
)

const (
	clients = 4
	offered = 100 // requests a second, by all clients
	timeout = 400 * time.Millisecond
	delay   = 100 * time.Millisecond // the naive loop's, and what retrip's grow from

	// An origin has recovered where so many of the requests begun in this time succeed.
	recoveryShare  = 0.95
	recoveryWindow = 500 * time.Millisecond
)

// outage is one experiment, and what came of it.
type outage struct {
	fault              fault
	warm, length, tail time.Duration
	policy             policy

	arrivals []time.Duration // since the outage began
	visits   []visit         // in the order of their beginning
}

// visit is one operation of a client.
type visit struct {
	at time.Duration // since the outage began
	ok bool
}

// together runs all outages at the same time. The first error ends all of them.
func together(ctx context.Context, all []outage) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	for i := range all {
		wg.Go(func() {
			if err := all[i].run(ctx); err != nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

func (o *outage) run(ctx context.Context) error {
	ctx, end := context.WithCancel(ctx)
	defer end()
	start := time.Now().Add(100 * time.Millisecond)
	origin := &queueOrigin{fault: o.fault, down: start.Add(o.warm), up: start.Add(o.warm + o.length)}
	url, stop, err := serve(ctx, origin)
	if err != nil {
		return err
	}
	defer stop()

	var wg sync.WaitGroup
	var mu sync.Mutex
	const every = clients * time.Second / offered
	for i := range clients {
		base := newBase(timeout)
		defer base.CloseIdleConnections()
		client := &http.Client{Transport: o.policy.wrap(base, delay)}
		wg.Go(func() {
			// The next request does not wait for this one: users do not either.
			next := start.Add(every * time.Duration(i) / clients)
			for ; next.Before(origin.up.Add(o.tail)); next = next.Add(every) {
				if pause(ctx, time.Until(next)) != nil {
					return
				}
				wg.Go(func() {
					v := visit{at: time.Since(origin.down)}
					v.ok = get(ctx, client, url)
					mu.Lock()
					defer mu.Unlock()
					o.visits = append(o.visits, v)
				})
			}
		})
	}
	// Where the machine is too busy there is no use in going on.
	busy := pause(ctx, time.Until(origin.down))
	if busy == nil {
		mu.Lock()
		busy = o.normal()
		mu.Unlock()
	}
	if busy != nil {
		end()
	}
	wg.Wait()
	if busy != nil {
		return busy
	}
	slices.SortFunc(o.visits, func(a, b visit) int { return cmp.Compare(a.at, b.at) })
	origin.mu.Lock()
	defer origin.mu.Unlock()
	for _, at := range origin.arrivals {
		o.arrivals = append(o.arrivals, at.Sub(origin.down))
	}
	return ctx.Err()
}

// normal returns an error unless the origin served everybody before its outage.
func (o *outage) normal() error {
	failed, of := 0, 0
	for _, v := range o.visits {
		if v.at < -timeout {
			of++
			if !v.ok {
				failed++
			}
		}
	}
	if failed > of/100 {
		return fmt.Errorf("%w: %d of %d requests failed before the outage", errBusy, failed, of)
	}
	return nil
}

// get reports whether the request succeeded.
func get(ctx context.Context, client *http.Client, url string) bool {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return false
	}
	resp, err := client.Do(req)
	if err != nil {
		return false
	}
	defer func() { _ = resp.Body.Close() }()
	_, err = io.Copy(io.Discard, resp.Body)
	return err == nil && resp.StatusCode == http.StatusOK
}

// pause waits, and returns an error where the program was told to end.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// amplification is how many requests reached the origin in the outage for each operation that
// began in it.
func (o *outage) amplification() float64 {
	in := func(at time.Duration) bool { return at >= 0 && at < o.length }
	arrived, begun := 0, 0
	for _, at := range o.arrivals {
		if in(at) {
			arrived++
		}
	}
	for _, v := range o.visits {
		if in(v.at) {
			begun++
		}
	}
	return float64(arrived) / float64(begun)
}

// failed counts the operations that failed, of those begun since the outage did.
func (o *outage) failed() (failed, of int) {
	for _, v := range o.visits {
		if v.at < 0 {
			continue
		}
		of++
		if !v.ok {
			failed++
		}
	}
	return failed, of
}

// recovery is the time from the end of the outage until requests succeed again.
func (o *outage) recovery() (d time.Duration, ok bool) {
	for i, first := range o.visits {
		if first.at < o.length {
			continue
		}
		if first.at+recoveryWindow > o.length+o.tail {
			break
		}
		good, n := 0, 0
		for _, v := range o.visits[i:] {
			if v.at >= first.at+recoveryWindow {
				break
			}
			n++
			if v.ok {
				good++
			}
		}
		if float64(good) >= recoveryShare*float64(n) {
			return first.at - o.length, true
		}
	}
	return 0, false
}

// peak is the greatest number of arrivals in any 10 ms since the outage began.
func (o *outage) peak() int {
	since := slices.DeleteFunc(slices.Clone(o.arrivals), func(at time.Duration) bool { return at < 0 })
	return mostWithin(since, 10*time.Millisecond)
}

// mostWithin returns the greatest number of times within a window of some length.
func mostWithin(times []time.Duration, window time.Duration) (most int) {
	slices.Sort(times)
	first := 0
	for i, at := range times {
		for at-times[first] >= window {
			first++
		}
		most = max(most, i-first+1)
	}
	return most
}
