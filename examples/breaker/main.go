// Command breaker shows a circuit breaker and a rate limiter per origin, composed in one
// retrip.Gate. It runs against two origins of its own on the loopback interface, prints what
// each request came to, and exits with 1 where that is not as stated here.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/sony/gobreaker/v2"

	"github.com/retrip/retrip"
)

func main() {
	if err := run(context.Background(), os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "breaker:", err)
		os.Exit(1)
	}
}

const (
	open  = time.Second // how long a breaker stays so
	burst = 10
	limit = 20 // attempts a second, from then on
)

// A step is one request, and what must come of it.
type step struct {
	origin string // how it is
	down   bool
	wait   time.Duration // before the request
	// before and after are the states of the breaker.
	before, after gobreaker.State
	sees          string   // the status, or how the operation ended
	events        []string // one for each attempt
	sent          int      // requests that reach the origin
}

var steps = []step{
	{
		origin: "is well", before: gobreaker.StateClosed, after: gobreaker.StateClosed,
		sees: "200", sent: 1, events: []string{"1: 200 return (success)"},
	},
	{ // Two failures open it: the third attempt is not made, its answer is the second's.
		origin: "answers 503", down: true, before: gobreaker.StateClosed, after: gobreaker.StateOpen,
		sees: "503", sent: 2, events: []string{"1: 503 retry (transient)", "2: 503 return (gate_closed)"},
	},
	{ // Nothing is sent.
		origin: "answers 503", down: true, before: gobreaker.StateOpen, after: gobreaker.StateOpen,
		sees: "return (gate_closed)", events: []string{"0: gate return (gate_closed)"},
	},
	{ // After a time one attempt is let through, and fails.
		origin: "answers 503", down: true, wait: open, before: gobreaker.StateHalfOpen, after: gobreaker.StateOpen,
		sees: "503", sent: 1, events: []string{"1: 503 return (gate_closed)"},
	},
	{ // Meanwhile the origin is well again, which the breaker cannot know.
		origin: "is well", before: gobreaker.StateOpen, after: gobreaker.StateOpen,
		sees: "return (gate_closed)", events: []string{"0: gate return (gate_closed)"},
	},
	{
		origin: "is well", wait: open, before: gobreaker.StateHalfOpen, after: gobreaker.StateClosed,
		sees: "200", sent: 1, events: []string{"1: 200 return (success)"},
	},
}

func run(ctx context.Context, out io.Writer) error {
	one, err := newServer(ctx)
	if err != nil {
		return err
	}
	defer one.stop()
	other, err := newServer(ctx)
	if err != nil {
		return err
	}
	defer other.stop()

	g := newGates(gobreaker.Settings{
		Timeout:     open,
		ReadyToTrip: func(c gobreaker.Counts) bool { return c.ConsecutiveFailures >= 2 },
	}, limit, burst)
	base := &http.Transport{}
	defer base.CloseIdleConnections()
	client := &http.Client{Transport: retrip.Must(retrip.New(base,
		retrip.WithGate(g.gate),
		retrip.WithBackoff(retrip.FullJitter(10*time.Millisecond, 100*time.Millisecond))))}

	fmt.Fprintf(out, "%-12s  %-20s  %-20s  %-4s  %s\n", "the origin", "its breaker", "the caller sees", "sent", "events")
	for i, s := range steps {
		time.Sleep(s.wait + s.wait/5)
		one.down.Store(s.down)
		got := step{origin: s.origin, down: s.down, wait: s.wait, before: g.of(one.url).breaker.State()}
		sent := one.received.Load()
		got.sees, got.events = get(ctx, client, one.url)
		got.sent, got.after = int(one.received.Load()-sent), g.of(one.url).breaker.State()
		line := got.String()
		fmt.Fprintln(out, line)
		if line != s.String() {
			return fmt.Errorf("step %d: want\n%s", i+1, s)
		}
	}

	// The breaker of another origin never heard of this; its limiter lets a burst through.
	refused := 0
	began := time.Now()
	for range 2 * burst {
		if sees, _ := get(ctx, client, other.url); sees != "200" {
			refused++
		}
	}
	most := burst + 1 + int(time.Since(began).Seconds()*limit)
	got := int(other.received.Load())
	fmt.Fprintf(out, "\n%d requests in a burst to another origin: %d sent, %d refused by the limiter\n", 2*burst, got, refused)
	if got < burst || got > most || got+refused != 2*burst {
		return fmt.Errorf("the limiter let %d pass; want %d to %d", got, burst, most)
	}
	return nil
}

func (s step) String() string {
	breaker := s.before.String()
	if s.after != s.before {
		breaker += " -> " + s.after.String()
	}
	return fmt.Sprintf("%-12s  %-20s  %-20s  %4d  %s", s.origin, breaker, s.sees, s.sent, strings.Join(s.events, ", "))
}

// get returns what the caller sees of one request, and its events.
func get(ctx context.Context, client *http.Client, url string) (sees string, events []string) {
	ctx, recorder := retrip.Record(ctx)
	sees = do(ctx, client, url)
	for _, e := range recorder.Events() {
		happened := string(e.Class)
		if e.StatusCode > 0 {
			happened = strconv.Itoa(e.StatusCode)
		}
		events = append(events, fmt.Sprintf("%d: %s %s (%s)", e.Attempt, happened, e.Decision, e.Reason))
	}
	return sees, events
}

func do(ctx context.Context, client *http.Client, url string) string {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, http.NoBody)
	if err != nil {
		return err.Error()
	}
	resp, err := client.Do(req)
	var ended *retrip.Error
	switch {
	case errors.As(err, &ended):
		return fmt.Sprintf("%s (%s)", ended.Decision, ended.Reason)
	case err != nil:
		return err.Error()
	}
	_ = resp.Body.Close()
	return strconv.Itoa(resp.StatusCode)
}

// server is an origin that is well or answers 503.
type server struct {
	url      string
	down     atomic.Bool
	received atomic.Int64
	stop     func()
}

func newServer(ctx context.Context) (*server, error) {
	l, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	s := &server{url: "http://" + l.Addr().String()}
	srv := &http.Server{Handler: s, ReadHeaderTimeout: time.Minute}
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		_ = srv.Serve(l) // http.ErrServerClosed
	}()
	s.stop = func() {
		_ = srv.Close()
		<-stopped
	}
	return s, nil
}

func (s *server) ServeHTTP(w http.ResponseWriter, _ *http.Request) {
	s.received.Add(1)
	if s.down.Load() {
		w.WriteHeader(http.StatusServiceUnavailable)
	}
}
