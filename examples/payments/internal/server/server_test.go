package server_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/examples/payments/internal/contract"
	"github.com/retrip/retrip/examples/payments/internal/ledger"
	"github.com/retrip/retrip/examples/payments/internal/server"
)

const (
	key   = "key-0001"
	order = `{"reference":"inv-1","amount":1250,"currency":"EUR","to":"globex"}`
)

// service is a server with a store of its own, and how to ask it.
type service struct {
	store ledger.Store
	http  *httptest.Server
}

func start(t *testing.T, config server.Config, wrap ...func(ledger.Store) ledger.Store) service {
	t.Helper()
	sqlite, err := ledger.OpenSQLite(t.Context(), filepath.Join(t.TempDir(), "ledger.db"))
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, sqlite.Close()) })
	var store ledger.Store = sqlite
	for _, f := range wrap {
		store = f(store)
	}
	handler, err := server.New(store, config)
	require.NoError(t, err)
	ts := httptest.NewServer(handler)
	t.Cleanup(ts.Close)
	return service{store: sqlite, http: ts}
}

type reply struct {
	status int
	header http.Header
	body   string
}

func (r reply) problem(t *testing.T) contract.Problem {
	t.Helper()
	assert.Equal(t, contract.ProblemMediaType, r.header.Get("Content-Type"))
	var p contract.Problem
	require.NoError(t, json.Unmarshal([]byte(r.body), &p), r.body)
	assert.Equal(t, r.status, p.Status)
	assert.NotEmpty(t, p.Title)
	return p
}

func (s service) do(t *testing.T, method, path, body string, header ...string) (reply, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, s.http.URL+path, strings.NewReader(body))
	require.NoError(t, err)
	req.Header.Set("Authorization", "Bearer acme")
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Del(header[i])
		for v := range strings.SplitSeq(header[i+1], "\n") {
			if v != "" {
				req.Header.Add(header[i], v)
			}
		}
	}
	resp, err := s.http.Client().Do(req)
	if err != nil {
		return reply{}, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	return reply{status: resp.StatusCode, header: resp.Header, body: string(b)}, nil
}

func (s service) must(t *testing.T, method, path, body string, header ...string) reply {
	t.Helper()
	r, err := s.do(t, method, path, body, header...)
	require.NoError(t, err)
	return r
}

func (s service) post(t *testing.T, body string, header ...string) reply {
	t.Helper()
	return s.must(t, http.MethodPost, "/payments", body, header...)
}

func (s service) count(t *testing.T) int {
	t.Helper()
	payments, err := s.store.Payments(t.Context(), "acme")
	require.NoError(t, err)
	return len(payments)
}

func TestPaymentUnderKeyIsMadeOnceAndReplayed(t *testing.T) {
	t.Parallel()
	s := start(t, server.Config{})
	first := s.post(t, order, contract.KeyHeader, key)
	assert.Equal(t, http.StatusCreated, first.status)
	assert.Equal(t, "application/json", first.header.Get("Content-Type"))
	assert.Equal(t, key, first.header.Get(contract.KeyHeader))
	assert.Empty(t, first.header.Values(contract.ReplayedHeader))
	var got contract.Receipt
	require.NoError(t, json.Unmarshal([]byte(first.body), &got))
	payments, err := s.store.Payments(t.Context(), "acme")
	require.NoError(t, err)
	require.Len(t, payments, 1)
	assert.Equal(t, contract.Receipt{
		ID: payments[0].ID, Reference: "inv-1", Amount: 1250, Currency: "EUR", To: "globex", Created: payments[0].Created,
	}, got)

	// The same order in another form is the same request.
	for _, body := range []string{order, "{ \"to\": \"glob\\u0065x\",\n\"currency\":\"EUR\",\"amount\":1250,\"reference\":\"inv-1\"}\n"} {
		again := s.post(t, body, contract.KeyHeader, key)
		assert.Equal(t, http.StatusCreated, again.status)
		assert.Equal(t, first.body, again.body)
		assert.Equal(t, "application/json", again.header.Get("Content-Type"))
		assert.Equal(t, []string{"true"}, again.header.Values(contract.ReplayedHeader))
	}
	assert.Equal(t, 1, s.count(t))
}

func TestAnotherBodyUnderTheKeyHasNoEffect(t *testing.T) {
	t.Parallel()
	s := start(t, server.Config{})
	first := s.post(t, order, contract.KeyHeader, key)
	for old, other := range map[string]string{"1250": "1251", "EUR": "USD", "globex": "initech", "inv-1": "inv-2"} {
		got := s.post(t, strings.Replace(order, old, other, 1), contract.KeyHeader, key)
		assert.Equal(t, http.StatusConflict, got.status, other)
		assert.Equal(t, contract.ProblemAnotherBody, got.problem(t).Type)
		assert.Empty(t, got.header.Values("Retry-After"), "waiting cannot help")
		assert.Empty(t, got.header.Values(contract.ReplayedHeader))
	}
	assert.Equal(t, 1, s.count(t))
	assert.Equal(t, first.body, s.post(t, order, contract.KeyHeader, key).body)
}

func TestKeyIsScopedByItsAccount(t *testing.T) {
	t.Parallel()
	s := start(t, server.Config{})
	s.post(t, order, contract.KeyHeader, key)
	theirs := s.post(t, strings.Replace(order, "1250", "99", 1), contract.KeyHeader, key, "Authorization", "Bearer globex")
	assert.Equal(t, http.StatusCreated, theirs.status)
	assert.Empty(t, theirs.header.Values(contract.ReplayedHeader))
	none := s.must(t, http.MethodGet, "/payments/by-key/"+key, "", "Authorization", "Bearer initech")
	assert.Equal(t, http.StatusNotFound, none.status)
	assert.Equal(t, contract.ProblemUnknownKey, none.problem(t).Type)
}

func TestRunningOperationIsInProgress(t *testing.T) {
	t.Parallel()
	entered, proceed := make(chan struct{}), make(chan struct{})
	s := start(t, server.Config{Work: func(context.Context) error {
		close(entered) // a second call would panic
		<-proceed
		return nil
	}})
	var (
		wg    sync.WaitGroup
		first reply
	)
	wg.Go(func() { first = s.post(t, order, contract.KeyHeader, key) })
	<-entered

	second := s.post(t, order, contract.KeyHeader, key)
	assert.Equal(t, http.StatusConflict, second.status)
	assert.Equal(t, contract.ProblemInProgress, second.problem(t).Type)
	assert.Equal(t, "1", second.header.Get("Retry-After"))
	other := s.post(t, strings.Replace(order, "1250", "99", 1), contract.KeyHeader, key)
	assert.Equal(t, contract.ProblemAnotherBody, other.problem(t).Type)
	running := s.must(t, http.MethodGet, "/payments/by-key/"+key, "")
	assert.JSONEq(t, `{"state":"running"}`, running.body)
	assert.Equal(t, "1", running.header.Get("Retry-After"))
	assert.Zero(t, s.count(t))

	close(proceed)
	wg.Wait()
	assert.Equal(t, http.StatusCreated, first.status)
	assert.Equal(t, first.body, s.post(t, order, contract.KeyHeader, key).body)
	done := s.must(t, http.MethodGet, "/payments/by-key/"+key, "")
	assert.JSONEq(t, `{"state":"done","status":201,"answer":`+first.body+`}`, done.body)
	assert.Equal(t, 1, s.count(t))
}

// TestClientThatHangsUpFindsTheOutcome is the time-out after the write as seen
// from the server: the client is gone, the payment is made all the same.
func TestClientThatHangsUpFindsTheOutcome(t *testing.T) {
	t.Parallel()
	entered, proceed := make(chan struct{}), make(chan struct{})
	s := start(t, server.Config{Work: func(ctx context.Context) error {
		close(entered)
		<-proceed
		return ctx.Err()
	}})
	ctx, cancel := context.WithCancel(t.Context())
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.http.URL+"/payments", strings.NewReader(order))
	require.NoError(t, err)
	req.Header = http.Header{
		"Authorization": {"Bearer acme"}, "Content-Type": {"application/json"}, contract.KeyHeader: {key},
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		resp, err := s.http.Client().Do(req)
		if err == nil {
			resp.Body.Close()
		}
		assert.ErrorIs(t, err, context.Canceled)
	})
	<-entered
	cancel()
	wg.Wait()
	close(proceed)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		got := s.must(t, http.MethodGet, "/payments/by-key/"+key, "")
		assert.Contains(c, got.body, `"done"`)
	}, 10*time.Second, 5*time.Millisecond)
	assert.Equal(t, "true", s.post(t, order, contract.KeyHeader, key).header.Get(contract.ReplayedHeader))
	assert.Equal(t, 1, s.count(t))
}

// dyingStore loses its process, so to speak, around Settle.
type dyingStore struct {
	ledger.Store
	before, after atomic.Bool
}

func (d *dyingStore) Settle(ctx context.Context, l ledger.Lease, p *ledger.Payment, a ledger.Answer, r time.Duration) error {
	if d.before.Swap(false) {
		panic(http.ErrAbortHandler)
	}
	err := d.Store.Settle(ctx, l, p, a, r)
	if d.after.Swap(false) {
		panic(http.ErrAbortHandler)
	}
	return err
}

func TestDeathBetweenCommitAndAnswerLeavesTheAnswer(t *testing.T) {
	t.Parallel()
	var dying *dyingStore
	s := start(t, server.Config{}, func(store ledger.Store) ledger.Store {
		dying = &dyingStore{Store: store}
		return dying
	})
	dying.after.Store(true)
	_, err := s.do(t, http.MethodPost, "/payments", order, contract.KeyHeader, key)
	require.ErrorIs(t, err, io.EOF)
	require.Equal(t, 1, s.count(t))

	again := s.post(t, order, contract.KeyHeader, key)
	assert.Equal(t, http.StatusCreated, again.status)
	assert.Equal(t, "true", again.header.Get(contract.ReplayedHeader))
	assert.Equal(t, 1, s.count(t))
}

func TestDeathWhileRunningIsTakenOverAfterTheLease(t *testing.T) {
	t.Parallel()
	var dying *dyingStore
	s := start(t, server.Config{Lease: time.Second}, func(store ledger.Store) ledger.Store {
		dying = &dyingStore{Store: store}
		return dying
	})
	dying.before.Store(true)
	_, err := s.do(t, http.MethodPost, "/payments", order, contract.KeyHeader, key)
	require.ErrorIs(t, err, io.EOF)
	require.Zero(t, s.count(t))

	first := s.post(t, order, contract.KeyHeader, key)
	assert.Equal(t, contract.ProblemInProgress, first.problem(t).Type, "the owner may still be alive")
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		got := s.post(t, order, contract.KeyHeader, key)
		assert.Equal(c, http.StatusCreated, got.status)
	}, 10*time.Second, 20*time.Millisecond)
	assert.Equal(t, 1, s.count(t))
}

func TestLateOwnerHasNoEffect(t *testing.T) {
	t.Parallel()
	// The first owner works past its lease and does not look at its context,
	// like a process that was stopped and continued.
	entered, proceed := make(chan struct{}, 2), make(chan struct{})
	var calls atomic.Int32
	s := start(t, server.Config{Lease: 50 * time.Millisecond, Retention: time.Hour, Work: func(context.Context) error {
		entered <- struct{}{}
		if calls.Add(1) == 1 {
			<-proceed
		}
		return nil
	}}, func(store ledger.Store) ledger.Store { return deafStore{store} })
	var (
		wg   sync.WaitGroup
		late reply
	)
	wg.Go(func() { late = s.post(t, order, contract.KeyHeader, key) })
	<-entered
	var second reply
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		second = s.post(t, order, contract.KeyHeader, key)
		assert.Equal(c, http.StatusCreated, second.status)
	}, 10*time.Second, 10*time.Millisecond)
	close(proceed)
	wg.Wait()
	assert.Equal(t, http.StatusConflict, late.status)
	assert.Equal(t, contract.ProblemInProgress, late.problem(t).Type)
	assert.Equal(t, "1", late.header.Get("Retry-After"))
	assert.Equal(t, 1, s.count(t))
	assert.Equal(t, second.body, s.post(t, order, contract.KeyHeader, key).body)
}

// deafStore settles although the lease's context is over.
type deafStore struct{ ledger.Store }

func (d deafStore) Settle(ctx context.Context, l ledger.Lease, p *ledger.Payment, a ledger.Answer, r time.Duration) error {
	return d.Store.Settle(context.WithoutCancel(ctx), l, p, a, r)
}

func TestExpiredKeyIsANewOperation(t *testing.T) {
	t.Parallel()
	s := start(t, server.Config{Lease: time.Millisecond, Retention: time.Millisecond}, func(store ledger.Store) ledger.Store { return deafStore{store} })
	// With a lease this short a claim may have lapsed before it is settled; what
	// counts is that the second one is an operation of its own.
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		first := s.post(t, order, contract.KeyHeader, key)
		assert.Equal(c, http.StatusCreated, first.status)
	}, 10*time.Second, 5*time.Millisecond)
	before := s.count(t)
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		got := s.post(t, strings.Replace(order, "1250", "99", 1), contract.KeyHeader, key)
		assert.Equal(c, http.StatusCreated, got.status)
		assert.Empty(c, got.header.Values(contract.ReplayedHeader))
	}, 10*time.Second, 5*time.Millisecond)
	assert.Greater(t, s.count(t), before)
}

func TestRefusalIsAnOutcome(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	s := start(t, server.Config{Limit: 1000, Work: func(context.Context) error { calls.Add(1); return nil }})
	first := s.post(t, order, contract.KeyHeader, key)
	assert.Equal(t, http.StatusUnprocessableEntity, first.status)
	assert.Equal(t, contract.ProblemOverLimit, first.problem(t).Type)
	again := s.post(t, order, contract.KeyHeader, key)
	assert.Equal(t, first.body, again.body)
	assert.Equal(t, contract.ProblemMediaType, again.header.Get("Content-Type"))
	assert.Equal(t, "true", again.header.Get(contract.ReplayedHeader))
	assert.EqualValues(t, 1, calls.Load())
	assert.Equal(t, contract.ProblemOverLimit, s.post(t, order).problem(t).Type, "without a key")
	assert.Zero(t, s.count(t))
}

func TestFailedWorkGivesTheKeyBack(t *testing.T) {
	t.Parallel()
	var calls atomic.Int32
	s := start(t, server.Config{Work: func(context.Context) error {
		if calls.Add(1) <= 2 {
			return errors.New("not today")
		}
		return nil
	}})
	for _, header := range [][]string{{contract.KeyHeader, key}, nil} {
		got := s.post(t, order, header...)
		assert.Equal(t, http.StatusServiceUnavailable, got.status)
		assert.Equal(t, contract.ProblemNotDone, got.problem(t).Type)
		assert.NotContains(t, got.body, "not today")
		assert.Equal(t, "1", got.header.Get("Retry-After"))
	}
	again := s.post(t, order, contract.KeyHeader, key)
	assert.Equal(t, http.StatusCreated, again.status)
	assert.Empty(t, again.header.Values(contract.ReplayedHeader))
	assert.Equal(t, 1, s.count(t))
}

// brokenStore fails everywhere; its commits may have taken effect, for all that
// the server knows.
type brokenStore struct{ ledger.Store }

var errBroken = errors.New("password=secret")

func (brokenStore) Claim(context.Context, ledger.Request) (ledger.Claim, error) {
	return ledger.Claim{}, errBroken
}

func (brokenStore) Lookup(context.Context, string, string) (ledger.Record, error) {
	return ledger.Record{}, errBroken
}
func (brokenStore) Pay(context.Context, ledger.Payment, int) error { return errBroken }
func (brokenStore) CloseAttempts(context.Context, string, string, int, time.Duration) ([]ledger.Payment, error) {
	return nil, errBroken
}

type unsettledStore struct{ ledger.Store }

func (unsettledStore) Settle(context.Context, ledger.Lease, *ledger.Payment, ledger.Answer, time.Duration) error {
	return errBroken
}

func TestBrokenStoreIsNotCalledAnOutcome(t *testing.T) {
	t.Parallel()
	broken := start(t, server.Config{}, func(store ledger.Store) ledger.Store { return brokenStore{store} })
	unsettled := start(t, server.Config{}, func(store ledger.Store) ledger.Store { return unsettledStore{store} })
	tests := []struct {
		name   string
		got    reply
		status int
		want   string
		retry  string
	}{
		{"claim", broken.post(t, order, contract.KeyHeader, key), 503, contract.ProblemNotDone, "1"},
		{"settle", unsettled.post(t, order, contract.KeyHeader, key), 503, contract.ProblemOutcomeUnknown, "1"},
		{"pay", broken.post(t, order), 500, contract.ProblemOutcomeUnknown, ""},
		{"look up", broken.must(t, http.MethodGet, "/payments/by-key/"+key, ""), 500, contract.ProblemOutcomeUnknown, ""},
		{
			"close", broken.must(t, http.MethodPut, "/payments/by-reference/inv-1/closed-attempts", `{"up_to":1}`), 503,
			contract.ProblemOutcomeUnknown, "1",
		},
	}
	for _, test := range tests {
		assert.Equal(t, test.status, test.got.status, test.name)
		assert.Equal(t, test.want, test.got.problem(t).Type, test.name)
		assert.Equal(t, test.retry, test.got.header.Get("Retry-After"), test.name)
		assert.NotContains(t, test.got.body, "secret", test.name)
	}
}

func TestClosedAttemptIsNotCarriedOut(t *testing.T) {
	t.Parallel()
	s := start(t, server.Config{})
	const path = "/payments/by-reference/inv-1/closed-attempts"
	none := s.must(t, http.MethodPut, path, `{"up_to":1}`)
	assert.Equal(t, http.StatusOK, none.status)
	assert.JSONEq(t, `{"payments":[]}`, none.body)

	late := s.post(t, order, contract.AttemptHeader, "1")
	assert.Equal(t, http.StatusConflict, late.status)
	assert.Equal(t, contract.ProblemAttemptClosed, late.problem(t).Type)
	assert.Zero(t, s.count(t))

	paid := s.post(t, order, contract.AttemptHeader, "2")
	assert.Equal(t, http.StatusCreated, paid.status)
	assert.Empty(t, paid.header.Values(contract.KeyHeader))
	closed := s.must(t, http.MethodPut, path, `{"up_to":2}`)
	assert.JSONEq(t, `{"payments":[`+paid.body+`]}`, closed.body)

	assert.Equal(t, http.StatusCreated, s.post(t, order).status, "a reference is no key")
	assert.Equal(t, 2, s.count(t))
}

func TestReferenceIsOnePathSegment(t *testing.T) {
	t.Parallel()
	s := start(t, server.Config{})
	const reference = "2026/11 no. 7"
	paid := s.post(t, strings.Replace(order, "inv-1", reference, 1), contract.AttemptHeader, "1")
	closed := s.must(t, http.MethodPut, "/payments/by-reference/"+url.PathEscape(reference)+"/closed-attempts", `{"up_to":1}`)
	assert.JSONEq(t, `{"payments":[`+paid.body+`]}`, closed.body)
}

func TestInvalidRequestIsNotStored(t *testing.T) {
	t.Parallel()
	s := start(t, server.Config{})
	tests := []struct {
		name, body string
		header     []string
		want       int
	}{
		{"no account", order, []string{"Authorization", ""}, 401},
		{"other scheme", order, []string{"Authorization", "Basic acme"}, 401},
		{"empty account", order, []string{"Authorization", "Bearer "}, 401},
		{"short key", order, []string{contract.KeyHeader, "1234567"}, 400},
		{"long key", order, []string{contract.KeyHeader, strings.Repeat("k", 256)}, 400},
		{"key with a space", order, []string{contract.KeyHeader, "key 0001"}, 400},
		{"two keys", order, []string{contract.KeyHeader, "key-0001\nkey-0002"}, 400},
		{"attempt zero", order, []string{contract.AttemptHeader, "0"}, 400},
		{"attempt no number", order, []string{contract.AttemptHeader, "one"}, 400},
		{"no media type", order, []string{"Content-Type", ""}, 415},
		{"form", order, []string{"Content-Type", "application/x-www-form-urlencoded"}, 415},
		{"no JSON", `{"amount":`, nil, 400},
		{"two values", order + order, nil, 400},
		{"trailing text", order + "x", nil, 400},
		{"unknown field", strings.Replace(order, "{", `{"memo":"x",`, 1), nil, 400},
		{"wrong type", strings.Replace(order, "1250", `"1250"`, 1), nil, 400},
		{"fraction", strings.Replace(order, "1250", "12.5", 1), nil, 400},
		{"large", order + strings.Repeat(" ", 64<<10), nil, 413},
		{"zero amount", strings.Replace(order, "1250", "0", 1), nil, 422},
		{"negative amount", strings.Replace(order, "1250", "-1", 1), nil, 422},
		{"currency", strings.Replace(order, "EUR", "eur", 1), nil, 422},
		{"long currency", strings.Replace(order, "EUR", "EURO", 1), nil, 422},
		{"nobody", strings.Replace(order, "globex", "", 1), nil, 422},
		{"long name", strings.Replace(order, "globex", strings.Repeat("x", 65), 1), nil, 422},
		{"control character", strings.Replace(order, "globex", `a\u0000b`, 1), nil, 422},
		{"reference", strings.Replace(order, "inv-1", `a\u0000b`, 1), nil, 422},
	}
	for _, test := range tests {
		header := append([]string{contract.KeyHeader, "key-inva"}, test.header...)
		got := s.post(t, test.body, header...)
		assert.Equal(t, test.want, got.status, test.name)
		got.problem(t)
	}
	for path, body := range map[string]string{
		"/payments/by-reference/inv-1/closed-attempts":                           `{"up_to":0}`,
		"/payments/by-reference/" + strings.Repeat("x", 65) + "/closed-attempts": `{"up_to":1}`,
	} {
		got := s.must(t, http.MethodPut, path, body)
		assert.Equal(t, http.StatusUnprocessableEntity, got.status)
		assert.Equal(t, contract.ProblemInvalid, got.problem(t).Type)
	}
	assert.Equal(t, http.StatusBadRequest, s.must(t, http.MethodPut, "/payments/by-reference/inv-1/closed-attempts", "[]").status)
	assert.Equal(t, http.StatusBadRequest, s.must(t, http.MethodGet, "/payments/by-key/short", "").status)
	assert.Zero(t, s.count(t))
	assert.Equal(t, http.StatusCreated, s.post(t, order, contract.KeyHeader, "key-inva").status, "the key is still free")
}

func TestKeysAreNotLogged(t *testing.T) {
	t.Parallel()
	var log safeBuffer
	s := start(t, server.Config{Lease: time.Millisecond, Retention: time.Hour, Log: log.logger()},
		func(store ledger.Store) ledger.Store { return unsettledStore{store} })
	const secret = "key-5ecret"
	require.EventuallyWithT(t, func(c *assert.CollectT) {
		s.post(t, order, contract.KeyHeader, secret)
		assert.Contains(c, log.String(), "took over")
	}, 10*time.Second, 5*time.Millisecond)
	assert.NotContains(t, log.String(), secret)
}

func TestBadConfigIsAnError(t *testing.T) {
	t.Parallel()
	for _, config := range []server.Config{
		{Lease: time.Microsecond}, {Lease: -1}, {Lease: time.Hour, Retention: time.Minute}, {Retention: time.Second}, {Limit: -1},
	} {
		_, err := server.New(nil, config)
		require.ErrorContains(t, err, "server: ")
	}
}

type safeBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *safeBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *safeBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

func (s *safeBuffer) logger() *slog.Logger { return slog.New(slog.NewJSONHandler(s, nil)) }
