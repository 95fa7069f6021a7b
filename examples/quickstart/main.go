// Quickstart shows what retrip does with an origin that misbehaves.
//
// It starts the origin, which is this program once more, in a process of its own. Each
// line of the output is one request of a plain http.Client: its method, what the origin
// did, what came back, how many requests the origin received, and what retrip decided
// after each attempt. The program exits with 1 if a line is not as stated here.
package main

import (
	"context"
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/retrip/retrip"
)

// A scene is one request, and what must come of it.
type scene struct {
	method  string
	key     string        // sent as Idempotency-Key
	timeout time.Duration // of the request's context
	options []retrip.Option
	origin  behaviour
	want    outcome
}

// An outcome is what is seen of a scene, from both sides.
type outcome struct {
	result    string        // what the caller gets
	received  int           // requests that the origin read to their end
	keys      int           // different keys among them
	gap       time.Duration // between the first two of them; wanted: at least
	took      time.Duration // for the caller; wanted: at most
	decisions []retrip.Decision
}

const (
	unknown   = "error, outcome unknown"
	retry     = retrip.DecisionRetry
	returned  = retrip.DecisionReturn
	exhausted = retrip.DecisionAttemptsExhausted
	check     = retrip.DecisionCheckState
	noTime    = retrip.DecisionDeadlineExceeded
)

func decisions(d ...retrip.Decision) []retrip.Decision { return d }

var scenes = []scene{
	// A transient answer to a method that may be repeated: up to three attempts.
	{
		method: "GET", origin: behaviour{Answers: []string{"503"}},
		want: outcome{result: "503", received: 3, decisions: decisions(retry, retry, exhausted)},
	},
	{
		method: "GET", origin: behaviour{Answers: []string{"429 Retry-After: 1"}},
		want: outcome{result: "429", received: 3, gap: time.Second, decisions: decisions(retry, retry, exhausted)},
	},
	{
		method: "DELETE", origin: behaviour{Answers: []string{"503"}},
		want: outcome{result: "503", received: 3, decisions: decisions(retry, retry, exhausted)},
	},
	// The same request can meet the same bug: a 500 is the result.
	{
		method: "GET", origin: behaviour{Answers: []string{"500"}},
		want: outcome{result: "500", received: 1, decisions: decisions(returned)},
	},
	{
		method: "GET", origin: behaviour{Answers: []string{disconnect, "200"}},
		want: outcome{result: "200", received: 2, decisions: decisions(retry, returned)},
	},
	// A POST may have been carried out, even where a proxy says 503 in the end.
	{
		method: "POST", origin: behaviour{Answers: []string{"503"}},
		want: outcome{result: "503", received: 1, decisions: decisions(returned)},
	},
	{
		method: "POST", origin: behaviour{Answers: []string{disconnect, "200"}},
		want: outcome{result: unknown, received: 1, decisions: decisions(check)},
	},
	{
		method: "POST", origin: behaviour{Answers: []string{noAnswer}},
		options: []retrip.Option{retrip.WithAttemptTimeout(300 * time.Millisecond)},
		want:    outcome{result: unknown, received: 1, decisions: decisions(check)},
	},
	// A key lets the origin tell a repeat from a second request.
	{
		method: "POST", key: "order-7731", origin: behaviour{Answers: []string{noAnswer}},
		options: []retrip.Option{retrip.WithAttemptTimeout(300 * time.Millisecond)},
		want:    outcome{result: unknown, received: 3, keys: 1, decisions: decisions(retry, retry, exhausted)},
	},
	// What never left may be sent again, a POST too.
	{
		method: "POST", origin: behaviour{Refuses: true, Answers: []string{"200"}},
		want: outcome{result: "200", received: 1, decisions: decisions(retry, returned)},
	},
	{
		method: "POST", origin: behaviour{DropsHandshake: true, Answers: []string{"200"}},
		want: outcome{result: "200", received: 1, decisions: decisions(retry, returned)},
	},
	// Nothing comes back earlier than asked, and no wait begins that cannot fit.
	{
		method: "GET", origin: behaviour{Answers: []string{"503 Retry-After: 1", "200"}},
		want: outcome{result: "200", received: 2, gap: time.Second, decisions: decisions(retry, returned)},
	},
	{
		method: "GET", timeout: 700 * time.Millisecond, origin: behaviour{Answers: []string{"503"}},
		options: []retrip.Option{retrip.WithBackoff(retrip.BackoffFunc(tenfold))},
		want:    outcome{result: "503", received: 2, took: 600 * time.Millisecond, decisions: decisions(retry, noTime)},
	},
}

// tenfold waits 0.1 s after the first attempt and 1 s after the second.
func tenfold(attempt int) time.Duration {
	return 100 * time.Millisecond * time.Duration(math.Pow10(attempt-1))
}

func main() {
	asOrigin := flag.Bool("origin", false, "be the origin, told by standard input what to do")
	flag.Parse()
	if *asOrigin {
		serveOrders(os.Stdin, os.Stdout)
		return
	}
	wrong, err := play(os.Stdout, scenes)
	if err != nil {
		fmt.Fprintln(os.Stderr, "quickstart:", err)
		os.Exit(1)
	}
	if wrong > 0 {
		fmt.Fprintln(os.Stderr, "quickstart: lines that are not as stated:", wrong)
		os.Exit(1)
	}
}

// play runs the scenes against an origin, prints a line for each, and returns how many
// were not as stated.
func play(out *os.File, scenes []scene) (wrong int, err error) {
	// A hung origin must not hang this: its process ends with the context.
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	o, err := startOrigin(ctx)
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, o.stop()) }()

	fmt.Fprintf(out, row, "", "REQUEST", "THE ORIGIN", "CAME BACK", "THE ORIGIN RECEIVED", "DECISIONS")
	for _, s := range scenes {
		got, err := s.run(ctx, o)
		if err != nil {
			return wrong, fmt.Errorf("%s, %s: %w", s.request(), s.origin, err)
		}
		problems := got.problems(s.want)
		if len(problems) > 0 {
			wrong++
		}
		printScene(out, s, &got, problems)
	}
	return wrong, nil
}

// run sends the request of the scene by a client of its own, so that it goes out on a
// fresh connection: on a used one net/http itself sends some requests again.
func (s scene) run(ctx context.Context, o *origin) (outcome, error) {
	place, err := o.begin(s.origin)
	if err != nil {
		return outcome{}, err
	}
	base := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: place.roots, MinVersion: tls.VersionTLS12}}
	defer base.CloseIdleConnections()

	options := s.options
	if s.origin.Refuses {
		// The port opens as soon as the first attempt has met it closed.
		options = append(slices.Clip(options), retrip.WithHook(func(context.Context, retrip.Event) {
			err = errors.Join(err, o.open())
		}))
	}
	client := &http.Client{Transport: retrip.Must(retrip.New(base, options...))}

	timeout := s.timeout
	if timeout == 0 {
		timeout = 10 * time.Second
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	ctx, recorder := retrip.Record(ctx)

	var body io.Reader
	if s.method == http.MethodPost {
		body = strings.NewReader("amount=200")
	}
	req, reqErr := http.NewRequestWithContext(ctx, s.method, place.url, body)
	if reqErr != nil {
		return outcome{}, reqErr
	}
	if s.key != "" {
		req.Header.Set("Idempotency-Key", s.key)
	}
	start := time.Now()
	resp, sendErr := client.Do(req)
	got := outcome{result: result(resp, sendErr), took: time.Since(start)}
	if resp != nil {
		resp.Body.Close()
	}
	for _, event := range recorder.Events() {
		got.decisions = append(got.decisions, event.Decision)
	}
	seen, endErr := o.end()
	got.count(seen)
	return got, errors.Join(err, endErr)
}

// result tells in words what came back.
func result(resp *http.Response, err error) string {
	switch {
	case errors.Is(err, retrip.ErrOutcomeUnknown):
		return unknown
	case err != nil:
		return "error: " + err.Error()
	default:
		return strconv.Itoa(resp.StatusCode)
	}
}

// count adds what the origin saw.
func (got *outcome) count(seen []sighting) {
	got.received = len(seen)
	if len(seen) > 1 {
		got.gap = seen[1].At.Sub(seen[0].At)
	}
	keys := map[string]bool{}
	for _, s := range seen {
		if s.Key != "" {
			keys[s.Key] = true
		}
	}
	got.keys = len(keys)
}

// problems tells where the outcome is not the one wanted.
func (got *outcome) problems(want outcome) (problems []string) {
	complain := func(format string, args ...any) { problems = append(problems, fmt.Sprintf(format, args...)) }
	if got.result != want.result {
		complain("came back %q, stated is %q", got.result, want.result)
	}
	if got.received != want.received {
		complain("the origin received %d, stated is %d", got.received, want.received)
	}
	if got.keys != want.keys {
		complain("%d different keys, stated is %d", got.keys, want.keys)
	}
	if !slices.Equal(got.decisions, want.decisions) {
		complain("decisions %v, stated is %v", got.decisions, want.decisions)
	}
	if want.gap > 0 && got.gap < want.gap {
		complain("the second request came after %v, stated is %v or more", got.gap, want.gap)
	}
	if want.took > 0 && got.took > want.took {
		complain("it took %v, stated is %v or less", got.took, want.took)
	}
	return problems
}
