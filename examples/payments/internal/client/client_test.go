package client_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"runtime"
	"runtime/pprof"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"

	"github.com/retrip/retrip/examples/payments/internal/client"
	"github.com/retrip/retrip/examples/payments/internal/contract"
)

func TestMain(m *testing.M) {
	before := runtime.NumGoroutine()
	code := m.Run()
	ticker := time.NewTicker(10 * time.Millisecond)
	for deadline := time.Now().Add(5 * time.Second); runtime.NumGoroutine() > before; <-ticker.C {
		if time.Now().After(deadline) {
			_ = pprof.Lookup("goroutine").WriteTo(os.Stderr, 1)
			fmt.Fprintln(os.Stderr, "goroutines are left")
			code = 1
			break
		}
	}
	os.Exit(code)
}

func order() client.Order {
	return client.Order{Order: contract.Order{Reference: "inv-1", Amount: 1250, Currency: "EUR", To: "globex"}}
}

const receipt = `{"id":"pay_1","reference":"inv-1","amount":1250,"currency":"EUR","to":"globex","created":"2026-11-30T00:00:00Z"}`

// step answers one request. Steps are used up in order, whatever is asked for;
// what goes beyond them fails the test.
type step func(w http.ResponseWriter, r *http.Request)

type script struct {
	client *client.Client

	mu       sync.Mutex // a handler may outlive its client
	requests []string   // what arrived
	keys     []string
	attempts []string
}

func play(t *testing.T, mode client.Mode, options []retrip.Option, steps ...step) *script {
	t.Helper()
	s := &script{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		assert.NoError(t, err)
		assert.Equal(t, "Bearer acme", r.Header.Get("Authorization"))
		s.mu.Lock()
		i := len(s.requests)
		s.requests = append(s.requests, strings.TrimSpace(r.Method+" "+r.URL.EscapedPath()+" "+string(body)))
		s.keys = append(s.keys, r.Header.Get(contract.KeyHeader))
		s.attempts = append(s.attempts, r.Header.Get(contract.AttemptHeader))
		s.mu.Unlock()
		if !assert.Less(t, i, len(steps), "one request too many: %s %s", r.Method, r.URL) {
			return
		}
		steps[i](w, r)
	}))
	t.Cleanup(func() {
		server.Close()
		assert.Len(t, s.requests, len(steps), "requests that did not come")
	})
	base := server.Client().Transport
	c, err := client.New(client.Config{URL: server.URL, Account: "acme", Mode: mode, Base: base, Options: append([]retrip.Option{
		retrip.WithBackoff(retrip.Constant(time.Millisecond)), retrip.WithBudget(nil),
	}, options...)})
	require.NoError(t, err)
	t.Cleanup(c.CloseIdleConnections)
	s.client = c
	return s
}

// seen returns what arrived so far.
func (s *script) seen() (requests, keys, attempts []string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.requests), slices.Clone(s.keys), slices.Clone(s.attempts)
}

func answer(status int, body string, header ...string) step {
	return func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.WriteHeader(status)
		_, _ = io.WriteString(w, body)
	}
}

func problemStep(status int, problemType string, header ...string) step {
	return answer(status, fmt.Sprintf(`{"type":%q,"title":"T","status":%d}`, problemType, status), header...)
}

func lost(w http.ResponseWriter, _ *http.Request) { drop(w) }

// half answers with a receipt that breaks off.
func half(header ...string) step {
	return func(w http.ResponseWriter, _ *http.Request) {
		for i := 0; i < len(header); i += 2 {
			w.Header().Set(header[i], header[i+1])
		}
		w.Header().Set("Content-Length", strconv.Itoa(len(receipt)))
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, receipt[:10])
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	}
}

func failure(t *testing.T, err error) *client.Error {
	t.Helper()
	var e *client.Error
	require.ErrorAs(t, err, &e)
	assert.Equal(t, e.MaybePaid, errors.Is(err, retrip.ErrOutcomeUnknown))
	return e
}

func TestGeneratedKeyIsTheSameForEveryAttemptAndNewForEveryPayment(t *testing.T) {
	t.Parallel()
	s := play(t, client.Keys, nil,
		lost, problemStep(503, contract.ProblemNotDone), answer(201, receipt), // one payment
		answer(201, receipt)) // another
	paid, err := s.client.Pay(t.Context(), order())
	require.NoError(t, err)
	assert.Equal(t, 3, paid.Attempts)
	assert.Equal(t, "pay_1", paid.Receipt.ID)
	_, err = s.client.Pay(t.Context(), order())
	require.NoError(t, err)
	requests, keys, attempts := s.seen()
	assert.GreaterOrEqual(t, len(keys[0]), 16)
	assert.Equal(t, []string{keys[0], keys[0], keys[0]}, keys[:3])
	assert.NotEqual(t, keys[0], keys[3])
	for _, r := range requests {
		assert.Equal(t, `POST /payments {"reference":"inv-1","amount":1250,"currency":"EUR","to":"globex"}`, r)
	}
	assert.Equal(t, []string{"", "", "", ""}, attempts)
}

func TestStoredKeyIsSentInsteadOfAGeneratedOne(t *testing.T) {
	t.Parallel()
	s := play(t, client.Keys, nil, lost, answer(201, receipt, contract.KeyHeader, "key-0001", contract.ReplayedHeader, "true"))
	o := order()
	o.Key = "key-0001"
	paid, err := s.client.Pay(t.Context(), o)
	require.NoError(t, err)
	assert.True(t, paid.Replayed)
	assert.Equal(t, "key-0001", paid.Key)
	_, keys, _ := s.seen()
	assert.Equal(t, []string{"key-0001", "key-0001"}, keys)
}

func TestBadKeyIsNotSent(t *testing.T) {
	t.Parallel()
	s := play(t, client.Keys, nil)
	o := order()
	o.Key = "key\n0001"
	_, err := s.client.Pay(t.Context(), o)
	e := failure(t, err)
	assert.False(t, e.MaybePaid)
	assert.Equal(t, retrip.DeliveryNotSent, e.Delivery)
	assert.Zero(t, e.Attempts)
	var optionErr *retrip.OptionError
	require.ErrorAs(t, err, &optionErr)
}

func TestInProgressIsWaitedFor(t *testing.T) {
	t.Parallel()
	var first time.Time
	s := play(t, client.Keys, nil,
		func(w http.ResponseWriter, r *http.Request) {
			first = time.Now()
			problemStep(409, contract.ProblemInProgress, "Retry-After", "1")(w, r)
		},
		func(w http.ResponseWriter, r *http.Request) {
			assert.GreaterOrEqual(t, time.Since(first), time.Second)
			answer(201, receipt, contract.ReplayedHeader, "true")(w, r)
		})
	paid, err := s.client.Pay(t.Context(), order())
	require.NoError(t, err)
	assert.True(t, paid.Replayed)
}

func TestAnswersAreTakenForWhatTheyProve(t *testing.T) {
	t.Parallel()
	no := func(steps ...step) []step { return steps }
	tests := []struct {
		name  string
		mode  client.Mode
		steps []step
		maybe bool
	}{
		{"another body", client.Keys, no(problemStep(409, contract.ProblemAnotherBody)), false},
		{"another body after a lost answer", client.Keys, no(lost, problemStep(409, contract.ProblemAnotherBody)), true},
		{"over the limit", client.Keys, no(problemStep(422, contract.ProblemOverLimit)), false},
		{"over the limit after a lost answer", client.Keys, no(lost, problemStep(422, contract.ProblemOverLimit)), false},
		{"still in progress", client.Keys, no(problemStep(409, contract.ProblemInProgress)), true},
		{"not done", client.Plain, no(problemStep(503, contract.ProblemNotDone)), false},
		{"not done after a lost answer", client.Keys, no(lost, problemStep(503, contract.ProblemNotDone)), true},
		{"not done after a gateway's 503", client.Keys, no(answer(503, "<html>"), problemStep(503, contract.ProblemNotDone)), true},
		{"not done after a checked attempt", client.Checked, no(lost, answer(200, `{"payments":[]}`), problemStep(503, contract.ProblemNotDone)), false},
		{"outcome unknown", client.Plain, no(problemStep(500, contract.ProblemOutcomeUnknown)), true},
		{"a gateway's 502", client.Plain, no(answer(502, "<html>")), true},
		{"a gateway's 200", client.Plain, no(answer(200, "{}")), true},
		{"invalid", client.Plain, no(problemStep(422, contract.ProblemInvalid)), false},
		{"no account", client.Plain, no(problemStep(401, contract.ProblemNoAccount)), false},
		{"closed", client.Plain, no(problemStep(409, contract.ProblemAttemptClosed)), false},
		{"a lost answer", client.Plain, no(lost), true},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := play(t, test.mode, []retrip.Option{retrip.WithMaxAttempts(2), retrip.WithMaxRetryAfter(0)}, test.steps...)
			_, err := s.client.Pay(t.Context(), order())
			e := failure(t, err)
			assert.Equal(t, test.maybe, e.MaybePaid, "%v", err)
			if test.maybe {
				assert.Contains(t, err.Error(), "may have been paid")
			} else {
				assert.Contains(t, err.Error(), "not paid")
			}
		})
	}
}

func TestCheckedAttemptIsClosed(t *testing.T) {
	t.Parallel()
	const closeOne = `PUT /payments/by-reference/inv-1/closed-attempts {"up_to":1}`

	t.Run("not carried out", func(t *testing.T) {
		t.Parallel()
		s := play(t, client.Checked, nil, lost, answer(200, `{"payments":[]}`), answer(201, receipt))
		paid, err := s.client.Pay(t.Context(), order())
		require.NoError(t, err)
		assert.Equal(t, 2, paid.Attempts)
		requests, keys, attempts := s.seen()
		assert.Equal(t, closeOne, requests[1])
		assert.Equal(t, []string{"", "", ""}, keys)
		assert.Equal(t, "1", attempts[0])
		assert.Equal(t, "2", attempts[2])
	})
	t.Run("carried out", func(t *testing.T) {
		t.Parallel()
		s := play(t, client.Checked, nil, lost, answer(200, `{"payments":[`+receipt+`]}`))
		paid, err := s.client.Pay(t.Context(), order())
		require.NoError(t, err)
		assert.Equal(t, "pay_1", paid.Receipt.ID)
		assert.True(t, paid.Replayed)
		assert.Equal(t, 1, paid.Attempts)
	})
	t.Run("closing is repeated, an answer that breaks off too", func(t *testing.T) {
		t.Parallel()
		s := play(t, client.Checked, nil, lost, lost, half(), answer(200, `{"payments":[]}`), answer(201, receipt))
		_, err := s.client.Pay(t.Context(), order())
		require.NoError(t, err)
		requests, _, _ := s.seen()
		assert.Equal(t, []string{closeOne, closeOne, closeOne}, requests[1:4])
	})
	for name, closing := range map[string]step{
		"refused":       problemStep(422, contract.ProblemInvalid),
		"no list":       answer(200, `{}`),
		"no JSON":       answer(200, `<html>`),
		"two payments":  answer(200, `{"payments":[`+receipt+`,`+receipt+`]}`),
		"not this time": answer(500, ``),
	} {
		t.Run("closing fails: "+name, func(t *testing.T) {
			t.Parallel()
			s := play(t, client.Checked, nil, lost, closing)
			_, err := s.client.Pay(t.Context(), order())
			e := failure(t, err)
			assert.True(t, e.MaybePaid)
			assert.Equal(t, retrip.DeliveryUnknown, e.Delivery)
			assert.Equal(t, 1, e.Attempts)
		})
	}
	t.Run("a missing reference is made up", func(t *testing.T) {
		t.Parallel()
		s := play(t, client.Checked, nil, lost, answer(200, `{"payments":[]}`), answer(201, receipt))
		o := order()
		o.Reference = ""
		_, err := s.client.Pay(t.Context(), o)
		require.NoError(t, err)
		requests, _, _ := s.seen()
		assert.Regexp(t, `^PUT /payments/by-reference/ref-\w{26}/closed-attempts`, requests[1])
		assert.Equal(t, requests[0], requests[2])
	})
	t.Run("a reference is one path segment", func(t *testing.T) {
		t.Parallel()
		s := play(t, client.Checked, nil, lost, answer(200, `{"payments":[]}`), answer(201, receipt))
		o := order()
		o.Reference = "2026/11 no. 7"
		_, err := s.client.Pay(t.Context(), o)
		require.NoError(t, err)
		requests, _, _ := s.seen()
		assert.Contains(t, requests[1], "/by-reference/2026%2F11%20no.%207/closed")
	})
}

func TestReceiptThatWasCutIsAskedForAgain(t *testing.T) {
	t.Parallel()
	state := `{"state":"done","status":201,"answer":` + receipt + `}`
	tests := []struct {
		name  string
		mode  client.Mode
		steps []step
		want  string
	}{
		{"by its key", client.Keys, []step{half(contract.KeyHeader, "key/0001"), answer(200, state)}, "pay_1"},
		{"by its key, in vain", client.Keys, []step{half(contract.KeyHeader, "key/0001"), answer(404, "")}, ""},
		{"by its reference", client.Checked, []step{half(), answer(200, `{"payments":[`+receipt+`]}`)}, "pay_1"},
		{"by its reference, in vain", client.Checked, []step{half(), answer(404, "")}, ""},
		{"not at all", client.Plain, []step{half()}, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			s := play(t, test.mode, nil, test.steps...)
			paid, err := s.client.Pay(t.Context(), order())
			require.NoError(t, err, "the payment is made all the same")
			assert.Equal(t, test.want, paid.Receipt.ID)
			assert.EqualValues(t, 1250, paid.Receipt.Amount)
			if test.mode == client.Keys {
				requests, _, _ := s.seen()
				assert.Equal(t, "GET /payments/by-key/key%2F0001", requests[1])
			}
		})
	}
}

func TestDeadContextIsNotSent(t *testing.T) {
	t.Parallel()
	for _, mode := range []client.Mode{client.Keys, client.Checked, client.Plain} {
		s := play(t, mode, nil)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		_, err := s.client.Pay(ctx, order())
		e := failure(t, err)
		assert.False(t, e.MaybePaid)
		assert.Equal(t, retrip.DeliveryNotSent, e.Delivery)
		require.ErrorIs(t, err, context.Canceled)
	}
}

// TestAnswerGivenUpForAWaitIsNoProof: the caller goes away while the client waits
// for an operation that is in progress.
func TestAnswerGivenUpForAWaitIsNoProof(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	giveUp := retrip.WithHook(func(_ context.Context, e retrip.Event) {
		if e.Decision == retrip.DecisionRetry {
			cancel()
		}
	})
	s := play(t, client.Keys, []retrip.Option{giveUp}, problemStep(409, contract.ProblemInProgress, "Retry-After", "1"))
	_, err := s.client.Pay(ctx, order())
	e := failure(t, err)
	assert.True(t, e.MaybePaid)
	assert.Equal(t, retrip.DeliveryAnswered, e.Delivery)
	require.ErrorIs(t, err, context.Canceled)
}

func TestBadConfig(t *testing.T) {
	t.Parallel()
	_, err := client.New(client.Config{Mode: "none"})
	require.EqualError(t, err, `client: unknown mode "none"`)
	_, err = client.New(client.Config{Options: []retrip.Option{retrip.WithMaxAttempts(0)}})
	var optionErr *retrip.OptionError
	require.ErrorAs(t, err, &optionErr)
	c, err := client.New(client.Config{URL: "://"})
	require.NoError(t, err)
	_, err = c.Pay(t.Context(), order())
	assert.False(t, failure(t, err).MaybePaid)
}
