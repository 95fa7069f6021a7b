package main

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/retrip/retrip"
)

// wrap puts retrip over base, with short fixed delays and no budget, so that every repeat
// that is wanted is made.
func wrap(base http.RoundTripper, opts ...retrip.Option) (http.RoundTripper, error) {
	return retrip.New(base, append([]retrip.Option{
		retrip.WithBackoff(retrip.Constant(time.Millisecond)), retrip.WithBudget(nil),
	}, opts...)...)
}

// get sends one GET and reads the answer to its end.
func get(ctx context.Context, rt http.RoundTripper, url string) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	_, err = finish(rt.RoundTrip(req))
	return err
}

func finish(resp *http.Response, err error) (int, error) {
	if err != nil {
		return 0, err
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return resp.StatusCode, errors.Join(err, resp.Body.Close())
}

// measureConnections lets eight callers at a time meet an origin that is down.
func measureConnections(s settings) ([]result, error) {
	busy := strings.Repeat("x", 2<<10)
	measure := func(bare bool) (conns int64, clean bool, err error) {
		o, err := serve(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusServiceUnavailable)
			_, _ = io.WriteString(w, busy)
		}))
		if err != nil {
			return 0, false, err
		}
		defer o.close()
		base := &http.Transport{MaxIdleConnsPerHost: 16}
		var rt http.RoundTripper = base
		sends := 3
		if !bare {
			sends = 1
			if rt, err = wrap(base); err != nil {
				return 0, false, err
			}
		}
		before := held()
		var left atomic.Int64
		left.Store(int64(s.ops * sends))
		var callers sync.WaitGroup
		errs := make([]error, 8)
		for i := range errs {
			callers.Go(func() {
				for left.Add(-1) >= 0 && errs[i] == nil {
					errs[i] = get(context.Background(), rt, o.url)
				}
			})
		}
		callers.Wait()
		base.CloseIdleConnections()
		return o.conns.Load(), before.back(), errors.Join(errs...)
	}
	bare, _, err := measure(true)
	if err != nil {
		return nil, err
	}
	conns, clean, err := measure(false)
	if err != nil {
		return nil, err
	}
	return []result{{
		what:   fmt.Sprintf("%d operations × 3 attempts, 503 with 2 KiB, 8 at a time, MaxIdleConnsPerHost 16", s.ops),
		bound:  "connections ≤ 16; goroutines and open files back to the start",
		bare:   fmt.Sprintf("%d connections", bare),
		retrip: fmt.Sprintf("%d connections; all back: %t", conns, clean),
		ok:     conns <= 16 && clean,
	}}, nil
}

// measureDrains counts the connections of operations that are sent again.
func measureDrains(settings) ([]result, error) {
	var results []result
	for _, size := range []int{2, 16, 64} {
		busy := strings.Repeat("x", size<<10)
		measure := func(bare bool) (int64, error) {
			var n atomic.Int64
			o, err := serve(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if n.Add(1)%2 == 1 {
					w.WriteHeader(http.StatusServiceUnavailable)
					_, _ = io.WriteString(w, busy)
				}
			}))
			if err != nil {
				return 0, err
			}
			defer o.close()
			base := &http.Transport{}
			defer base.CloseIdleConnections()
			var rt http.RoundTripper = base
			sends := 200
			if !bare {
				sends = 100
				if rt, err = wrap(base); err != nil {
					return 0, err
				}
			}
			for range sends {
				if err := get(context.Background(), rt, o.url); err != nil {
					return 0, err
				}
			}
			return o.conns.Load(), nil
		}
		bare, err := measure(true)
		if err != nil {
			return nil, err
		}
		conns, err := measure(false)
		if err != nil {
			return nil, err
		}
		results = append(results, result{
			what: fmt.Sprintf("100 retried operations, discarded body of %d KiB", size), bound: "1 connection",
			bare: fmt.Sprintf("%d, each body read to its end", bare), retrip: strconv.FormatInt(conns, 10), ok: conns == 1,
		})
	}
	return results, nil
}

// measureEarly answers 503 in the middle of an upload, and looks at the second body.
func measureEarly(settings) ([]result, error) {
	const size, times = 8 << 20, 200
	content := make([]byte, size)
	for i := range content {
		content[i] = byte(i % 251)
	}
	want := sha256.Sum256(content)
	var results []result
	for _, proto := range []string{"h1", "h2"} {
		measure := func(bare bool) (outcome string, ok bool, err error) {
			var n, right, wrong atomic.Int64
			o, err := serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if bare || n.Add(1)%2 == 1 {
					_, _ = io.CopyN(io.Discard, r.Body, 1<<20)
					w.WriteHeader(http.StatusServiceUnavailable)
					_, _ = io.WriteString(w, "early")
					return
				}
				h := sha256.New()
				switch _, err := io.Copy(h, r.Body); {
				case err != nil:
				case digest(h.Sum(nil)) == want:
					right.Add(1)
				default:
					wrong.Add(1)
				}
			}))
			if err != nil {
				return "", false, err
			}
			defer o.close()
			base := &http.Transport{}
			if proto == "h2" {
				base.Protocols = new(http.Protocols)
				base.Protocols.SetUnencryptedHTTP2(true)
			}
			var rt http.RoundTripper = base
			if !bare {
				if rt, err = wrap(base, retrip.WithMaxAttempts(4)); err != nil {
					return "", false, err
				}
			}
			before := held()
			var open, closed atomic.Int64
			fresh := func() (io.ReadCloser, error) {
				open.Add(1)
				return &counted{Reader: &cursor{content: content}, closes: &closed}, nil
			}
			codes := map[int]int{}
			failed := 0
			for range times {
				body, _ := fresh()
				req, err := http.NewRequestWithContext(context.Background(), http.MethodPut, o.url, body)
				if err != nil {
					return "", false, err
				}
				req.ContentLength, req.GetBody = -1, fresh
				code, err := finish(rt.RoundTrip(req))
				if err != nil {
					failed++
				}
				codes[code]++
			}
			base.CloseIdleConnections()
			clean := before.back()
			shut := settles(func() bool { return closed.Load() == open.Load() })
			if bare {
				return fmt.Sprintf("%d × 503, %d errors", codes[503], failed), true, nil
			}
			outcome = fmt.Sprintf("%d × 200, %d intact, %d wrong, %d errors; all back: %t, every body closed once: %t",
				codes[200], right.Load(), wrong.Load(), failed, clean, shut)
			return outcome, codes[200] == times && right.Load() == times && wrong.Load() == 0 && clean && shut, nil
		}
		bare, _, err := measure(true)
		if err != nil {
			return nil, err
		}
		through, ok, err := measure(false)
		if err != nil {
			return nil, err
		}
		results = append(results, result{
			what:  fmt.Sprintf("early 503 in the middle of an 8 MiB chunked upload, %d times, %s", times, proto),
			bound: "every second body intact; no race; no leak", bare: bare, retrip: through, ok: ok,
		})
	}
	return results, nil
}

// A cursor reads the content without the methods by which net/http knows memory.
type cursor struct {
	content []byte
	at      int
}

func (c *cursor) Read(p []byte) (int, error) {
	if c.at == len(c.content) {
		return 0, io.EOF
	}
	n := copy(p, c.content[c.at:])
	c.at += n
	return n, nil
}

// A counted body counts every Close, a second one too.
type counted struct {
	io.Reader

	closes *atomic.Int64
}

func (c *counted) Close() error {
	c.closes.Add(1)
	return nil
}

// measureTrickle answers 503 with a body that does not end for three seconds.
func measureTrickle(settings) ([]result, error) {
	const delay, pieces = 50 * time.Millisecond, 30
	var mu sync.Mutex
	var arrived []time.Time
	o, err := serve(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		arrived = append(arrived, time.Now())
		first := len(arrived)%2 == 1
		mu.Unlock()
		if !first {
			return
		}
		w.WriteHeader(http.StatusServiceUnavailable)
		w.(http.Flusher).Flush()
		tick := time.NewTicker(100 * time.Millisecond)
		defer tick.Stop()
		for range pieces {
			select {
			case <-tick.C:
				_, _ = io.WriteString(w, "x")
				w.(http.Flusher).Flush()
			case <-r.Context().Done():
				return
			}
		}
	}))
	if err != nil {
		return nil, err
	}
	defer o.close()
	base := &http.Transport{}
	defer base.CloseIdleConnections()
	rt, err := wrap(base, retrip.WithBackoff(retrip.Constant(delay)))
	if err != nil {
		return nil, err
	}
	var worst time.Duration
	for range 20 {
		if err := get(context.Background(), rt, o.url); err != nil {
			return nil, err
		}
		mu.Lock()
		worst = max(worst, arrived[len(arrived)-1].Sub(arrived[len(arrived)-2]))
		mu.Unlock()
	}
	start := time.Now()
	if err := get(context.Background(), base, o.url); err != nil {
		return nil, err
	}
	return []result{{
		what: "503 that trickles 1 byte per 100 ms, delay 50 ms, 20 times", bound: "retry within 100 ms + delay",
		bare:   fmt.Sprintf("%d ms to read the answer", time.Since(start).Milliseconds()),
		retrip: fmt.Sprintf("%d ms at worst", worst.Milliseconds()), ok: worst <= delay+100*time.Millisecond,
	}}, nil
}

// measureCancel ends operations in a wait of an hour.
func measureCancel(s settings) ([]result, error) {
	o, err := serve(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, "busy")
	}))
	if err != nil {
		return nil, err
	}
	defer o.close()
	base := &http.Transport{MaxIdleConnsPerHost: 16, MaxConnsPerHost: 16}
	// The first operation leaves what stays for good: connections, the origin's record.
	waits := make(chan struct{}, s.ops+1)
	rt, err := wrap(base, retrip.WithBackoff(retrip.BackoffFunc(func(int) time.Duration {
		waits <- struct{}{}
		return time.Hour
	})))
	if err != nil {
		return nil, err
	}
	before := held()
	heapBefore := heap()
	ctx, cancel := context.WithCancel(context.Background())
	var callers sync.WaitGroup
	var canceled atomic.Int64
	for range s.ops {
		callers.Go(func() {
			if err := get(ctx, rt, o.url); errors.Is(err, context.Canceled) {
				canceled.Add(1)
			}
		})
	}
	for range s.ops {
		<-waits
	}
	during := runtime.NumGoroutine()
	start := time.Now()
	cancel()
	callers.Wait()
	took := time.Since(start)
	base.CloseIdleConnections()
	clean := before.back()
	growth := max(0, heap()-heapBefore) >> 10
	return []result{{
		what:  fmt.Sprintf("%d operations canceled during a 1 h wait", s.ops),
		bound: "goroutines back to the start; no timer left (heap growth < 1 MiB)", bare: "does not wait",
		retrip: fmt.Sprintf("%d canceled in %d ms; %d goroutines during, all back: %t; heap + %d KiB",
			canceled.Load(), took.Milliseconds(), during, clean, growth),
		ok: canceled.Load() == int64(s.ops) && clean && growth < 1024,
	}}, nil
}

func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc) //nolint:gosec // far below the limit
}
