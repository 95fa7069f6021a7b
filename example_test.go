package retrip_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"

	"github.com/retrip/retrip"
)

func Example() {
	requests := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if requests++; requests == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		fmt.Fprint(w, "hello")
	}))
	defer server.Close()

	client := &http.Client{Transport: retrip.Must(retrip.New(nil))}
	defer client.CloseIdleConnections()

	resp, err := client.Get(server.URL)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	fmt.Println(resp.Status, string(text), "after", requests, "requests")
	// Output: 200 OK hello after 2 requests
}

// The settings of one request differ from those of its client.
func ExampleOverride() {
	requests := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		requests++
		w.WriteHeader(http.StatusServiceUnavailable)
	}))
	defer server.Close()
	client := &http.Client{Transport: retrip.Must(retrip.New(server.Client().Transport))}

	// A health check wants to know how it is now.
	ctx := retrip.Override(context.Background(), retrip.WithMaxAttempts(1))
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+"/healthz", http.NoBody)
	resp, err := client.Do(req)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	fmt.Println(resp.StatusCode, "after", requests, "request")
	// Output: 503 after 1 request
}

// A key lets the server tell a repeat from a second order, so that a lost answer is no
// reason to stop.
func ExampleWithIdempotencyKey() {
	var mu sync.Mutex
	orders := map[string]int{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		key := r.Header.Get("Idempotency-Key")
		if orders[key]++; orders[key] == 1 {
			panic(http.ErrAbortHandler) // taken, but the answer is lost
		}
		w.WriteHeader(http.StatusCreated)
	}))
	defer server.Close()
	client := &http.Client{Transport: retrip.Must(retrip.New(server.Client().Transport))}

	ctx := retrip.Override(context.Background(), retrip.WithIdempotencyKey("order-7731"))
	req, _ := http.NewRequestWithContext(ctx, http.MethodPost, server.URL, strings.NewReader("amount=200"))
	resp, err := client.Do(req)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	fmt.Println(resp.StatusCode, orders)
	// Output: 201 map[order-7731:2]
}

// Each POST gets a key of its own, the same on all of its attempts.
func ExampleWithGeneratedKeys() {
	requests, keys := 0, map[string]bool{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		keys[r.Header.Get("Idempotency-Key")] = true
		if requests++; requests == 1 {
			w.WriteHeader(http.StatusBadGateway)
		}
	}))
	defer server.Close()
	client := &http.Client{Transport: retrip.Must(retrip.New(server.Client().Transport, retrip.WithGeneratedKeys(nil)))}

	for range 2 {
		resp, err := client.Post(server.URL, "text/plain", strings.NewReader("amount=200"))
		if err != nil {
			fmt.Println(err)
			return
		}
		resp.Body.Close()
	}
	fmt.Println(requests, "requests,", len(keys), "keys")
	// Output: 3 requests, 2 keys
}

// A POST that got no answer may have been carried out. It is not sent again; what became
// of it is to be found out first.
func ExampleError_unknownOutcome() {
	server := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		panic(http.ErrAbortHandler) // no answer
	}))
	defer server.Close()
	client := &http.Client{Transport: retrip.Must(retrip.New(server.Client().Transport))}

	// A context's deadline, because http.Client.Timeout may hide the error.
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, http.MethodPost, server.URL, strings.NewReader("amount=200"))
	resp, err := client.Do(req)
	if err == nil {
		resp.Body.Close()
		return
	}
	var e *retrip.Error
	if errors.As(err, &e) && errors.Is(err, retrip.ErrOutcomeUnknown) {
		fmt.Println("look it up before it is sent again:", e)
	}
	// Output: look it up before it is sent again: retrip: the outcome is unknown: check_state (not_repeatable) after 1 attempt: EOF
}

func ExampleWithHook() {
	answers := []int{http.StatusTooManyRequests, http.StatusBadGateway, http.StatusOK}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(answers[0])
		answers = answers[1:]
	}))
	defer server.Close()

	show := func(_ context.Context, e retrip.Event) {
		fmt.Println(e.Attempt, e.Method, e.StatusCode, e.Decision, e.Reason, e.Permit)
	}
	client := &http.Client{Transport: retrip.Must(retrip.New(server.Client().Transport, retrip.WithHook(show)))}
	resp, err := client.Get(server.URL)
	if err != nil {
		fmt.Println(err)
		return
	}
	resp.Body.Close()
	// Output:
	// 1 GET 429 retry transient idempotent_method
	// 2 GET 502 retry transient idempotent_method
	// 3 GET 200 return success
}

// A Recorder tells what was done for one call of the client, all hops of a redirect
// together.
func ExampleRecord() {
	requests := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch requests++; {
		case requests == 1:
			w.WriteHeader(http.StatusServiceUnavailable)
		case r.URL.Path == "/old":
			http.Redirect(w, r, "/new", http.StatusFound)
		}
	}))
	defer server.Close()
	client := &http.Client{Transport: retrip.Must(retrip.New(server.Client().Transport))}

	ctx, recorder := retrip.Record(context.Background())
	req, _ := http.NewRequestWithContext(ctx, http.MethodGet, server.URL+"/old", http.NoBody)
	resp, err := client.Do(req)
	if err != nil {
		fmt.Println(err)
		return
	}
	resp.Body.Close()
	fmt.Println(recorder.Attempts(), "attempts, maybe applied:", recorder.MaybeApplied())
	for _, e := range recorder.Events() {
		fmt.Println(strings.TrimPrefix(e.Endpoint, server.URL), e.StatusCode, e.Decision)
	}
	// Output:
	// 3 attempts, maybe applied: false
	// /old 503 retry
	// /old 302 return
	// /new 200 return
}

// Without a key only the server knows what became of a POST that got no answer. The check
// asks by the same client.
func ExampleWithStateCheck() {
	var mu sync.Mutex
	payments := map[string]string{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		order := r.URL.Query().Get("order")
		if r.Method == http.MethodPost {
			payments[order] = "paid"
			panic(http.ErrAbortHandler) // the answer is lost
		}
		if payments[order] == "" {
			http.NotFound(w, r)
			return
		}
		fmt.Fprint(w, payments[order])
	}))
	defer server.Close()

	var client *http.Client
	lookUp := func(ctx context.Context, req *http.Request, _ retrip.Attempt) (retrip.State, *http.Response, error) {
		get, err := http.NewRequestWithContext(ctx, http.MethodGet, req.URL.String(), http.NoBody)
		if err != nil {
			return retrip.StateUnknown, nil, err
		}
		resp, err := client.Do(get)
		switch {
		case err != nil:
			return retrip.StateUnknown, nil, err
		case resp.StatusCode == http.StatusOK:
			return retrip.StateApplied, resp, nil
		default:
			// A 404 here is not enough for StateNotApplied: the request may still be on
			// its way. An API that promises more may be believed.
			return retrip.StateUnknown, resp, nil
		}
	}
	client = &http.Client{Transport: retrip.Must(retrip.New(server.Client().Transport, retrip.WithStateCheck(lookUp)))}

	resp, err := client.Post(server.URL+"/payments?order=7731", "text/plain", strings.NewReader("amount=200"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	text, _ := io.ReadAll(resp.Body)
	fmt.Println(resp.StatusCode, string(text))
	// Output: 200 paid
}

// A 404 after a lost answer: the first attempt may have deleted what the second does not
// find any more.
func ExampleEvent_deleteNotFound() {
	var mu sync.Mutex
	files := map[string]string{"/report": "draft"}
	lost := false
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		if files[r.URL.Path] == "" {
			http.NotFound(w, r)
			return
		}
		delete(files, r.URL.Path)
		if !lost {
			lost = true
			panic(http.ErrAbortHandler)
		}
	}))
	defer server.Close()

	echo := false
	client := &http.Client{Transport: retrip.Must(retrip.New(server.Client().Transport,
		retrip.WithHook(func(_ context.Context, e retrip.Event) { echo = e.EarlierUnknown })))}
	req, _ := http.NewRequest(http.MethodDelete, server.URL+"/report", http.NoBody)
	resp, err := client.Do(req)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	fmt.Println(resp.StatusCode, "may be the echo of an earlier attempt:", echo)
	// Output: 404 may be the echo of an earlier attempt: true
}

// A 412 after a lost answer: the first attempt may have made the version that the second
// does not match any more. Whoever holds what he sent can compare.
func ExampleRecorder_MaybeApplied() {
	var mu sync.Mutex
	version, text := `"v7"`, "draft"
	lost := false
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		switch {
		case r.Method == http.MethodGet:
			fmt.Fprint(w, text)
		case r.Header.Get("If-Match") != version:
			w.WriteHeader(http.StatusPreconditionFailed)
		default:
			sent, _ := io.ReadAll(r.Body)
			version, text = `"v8"`, string(sent)
			if !lost {
				lost = true
				panic(http.ErrAbortHandler)
			}
		}
	}))
	defer server.Close()
	client := &http.Client{Transport: retrip.Must(retrip.New(server.Client().Transport))}

	ctx, recorder := retrip.Record(context.Background())
	req, _ := http.NewRequestWithContext(ctx, http.MethodPut, server.URL+"/report", strings.NewReader("final"))
	req.Header.Set("If-Match", `"v7"`)
	resp, err := client.Do(req)
	if err != nil {
		fmt.Println(err)
		return
	}
	resp.Body.Close()
	fmt.Println(resp.StatusCode, "maybe applied:", recorder.MaybeApplied())

	if resp.StatusCode == http.StatusPreconditionFailed && recorder.MaybeApplied() {
		if now, err := client.Get(server.URL + "/report"); err == nil {
			stored, _ := io.ReadAll(now.Body)
			now.Body.Close()
			fmt.Println("stored as sent:", string(stored) == "final")
		}
	}
	// Output:
	// 412 maybe applied: true
	// stored as sent: true
}

// A 409 after a lost answer: the first attempt may have created what the second finds
// there already.
func ExampleRecorder_MaybeApplied_create() {
	var mu sync.Mutex
	users := map[string]bool{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		name := r.URL.Query().Get("name")
		if users[name] {
			w.WriteHeader(http.StatusConflict)
			return
		}
		users[name] = true
		panic(http.ErrAbortHandler)
	}))
	defer server.Close()
	client := &http.Client{Transport: retrip.Must(retrip.New(server.Client().Transport))}

	create := func(name string) {
		// The names are unique, so that a repeat creates nothing twice.
		ctx, recorder := retrip.Record(retrip.Override(context.Background(), retrip.WithIdempotent(true)))
		req, _ := http.NewRequestWithContext(ctx, http.MethodPost, server.URL+"/users?name="+name, http.NoBody)
		resp, err := client.Do(req)
		if err != nil {
			fmt.Println(err)
			return
		}
		resp.Body.Close()
		fmt.Println(name, resp.StatusCode, "maybe applied:", recorder.MaybeApplied())
	}
	create("ada")
	create("ada")
	// Output:
	// ada 409 maybe applied: true
	// ada 409 maybe applied: false
}

// A server that is still at work on the same key says 409 and when to ask again. Without
// WithRetryIf that answer is final.
func ExampleWithRetryIf() {
	requests := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		if requests++; requests == 1 {
			w.Header().Set("Retry-After", "1")
			w.WriteHeader(http.StatusConflict)
			return
		}
		w.WriteHeader(http.StatusCreated)
	}))
	defer server.Close()

	inProgress := func(a retrip.Attempt) retrip.Verdict {
		if a.StatusCode() == http.StatusConflict && a.Response.Header.Get("Retry-After") != "" {
			return retrip.VerdictRetry
		}
		return retrip.VerdictDefault
	}
	client := &http.Client{Transport: retrip.Must(retrip.New(server.Client().Transport,
		retrip.WithGeneratedKeys(nil), retrip.WithRetryIf(inProgress)))}

	start := time.Now()
	resp, err := client.Post(server.URL, "text/plain", strings.NewReader("amount=200"))
	if err != nil {
		fmt.Println(err)
		return
	}
	resp.Body.Close()
	fmt.Println(resp.StatusCode, "waited as asked:", time.Since(start) >= time.Second)
	// Output: 201 waited as asked: true
}
