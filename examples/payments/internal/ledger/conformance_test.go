package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/examples/payments/internal/ledger"
	"github.com/retrip/retrip/examples/payments/internal/pgtemp"
)

var cluster *pgtemp.Cluster // nil where PostgreSQL is not installed

func TestMain(m *testing.M) {
	os.Exit(run(m))
}

func run(m *testing.M) int {
	var err error
	cluster, err = pgtemp.Start(context.Background())
	switch {
	case errors.Is(err, pgtemp.ErrNotInstalled) && os.Getenv("RETRIP_REQUIRE_POSTGRES") != "1":
		return m.Run()
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	code := m.Run()
	if err := cluster.Stop(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	return code
}

func TestSQLiteConformance(t *testing.T) {
	t.Parallel()
	conformance(t, func(t *testing.T) (open func() ledger.Store) {
		t.Helper()
		path := filepath.Join(t.TempDir(), "a ledger?#.db") // of these characters some mean something in a URL
		return func() ledger.Store {
			store, err := ledger.OpenSQLite(t.Context(), path)
			require.NoError(t, err)
			t.Cleanup(func() { assert.NoError(t, store.Close()) })
			return store
		}
	})
}

func TestPostgresConformance(t *testing.T) {
	t.Parallel()
	if cluster == nil {
		t.Skip(pgtemp.ErrNotInstalled)
	}
	var (
		mu sync.Mutex
		n  int
	)
	conformance(t, func(t *testing.T) (open func() ledger.Store) {
		t.Helper()
		mu.Lock()
		n++
		name := fmt.Sprintf("conformance_%d", n)
		mu.Unlock()
		dsn, err := cluster.Create(t.Context(), name)
		require.NoError(t, err)
		return func() ledger.Store {
			store, err := ledger.OpenPostgres(t.Context(), dsn)
			require.NoError(t, err)
			t.Cleanup(func() { assert.NoError(t, store.Close()) })
			return store
		}
	})
}

const (
	account = "acme"
	key     = "key-0001"
)

// request claims for long; a lease or retention of zero is over at once, by
// every clock, so that no test has to wait for one.
func request(change ...func(*ledger.Request)) ledger.Request {
	req := ledger.Request{
		Account: account, Key: key, Fingerprint: []byte("fingerprint"),
		Lease: time.Minute, Retention: time.Hour,
	}
	for _, f := range change {
		f(&req)
	}
	return req
}

func lapsed(r *ledger.Request)  { r.Lease = 0 }
func expired(r *ledger.Request) { r.Lease, r.Retention = 0, 0 }

func payment(id, reference string) ledger.Payment {
	return ledger.Payment{
		ID: id, Account: account, Reference: reference, Amount: 1250, Currency: "EUR", To: "globex",
		Created: time.UnixMilli(1_800_000_000_123).UTC(),
	}
}

func answer(body string) ledger.Answer {
	return ledger.Answer{Status: http.StatusCreated, Body: []byte(body)}
}

// conformance is what every Store has to do. newDatabase makes an empty database
// and returns how to open it, which a test may do several times.
func conformance(t *testing.T, newDatabase func(t *testing.T) (open func() ledger.Store)) {
	t.Helper()
	tests := []struct {
		name string
		run  func(t *testing.T, open func() ledger.Store)
	}{
		{"a settled key replays its answer", testReplay},
		{"effect and outcome are one transaction", testAtomic},
		{"another body is refused in every state", testAnotherBody},
		{"a held lease is in progress", testInProgress},
		{"a lapsed lease is taken over", testTakeOver},
		{"an expired key is a new operation", testExpired},
		{"a released key is a new operation", testRelease},
		{"a refusal is an outcome without an effect", testRefusal},
		{"a key is scoped by its account", testScope},
		{"a lookup tells the state", testLookup},
		{"a closed attempt is not carried out", testClosedAttempt},
		{"closing and paying exclude each other", testCloseRace},
		{"purging deletes only what has expired", testPurge},
		{"many claims at once have one winner", testManyClaims},
		{"many take-overs at once have one winner", testManyTakeOvers},
		{"a context that has ended writes nothing", testContext},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			test.run(t, newDatabase(t))
		})
	}
}

func claim(t *testing.T, store ledger.Store, req ledger.Request) ledger.Claim {
	t.Helper()
	got, err := store.Claim(t.Context(), req)
	require.NoError(t, err)
	return got
}

func payments(t *testing.T, store ledger.Store) []ledger.Payment {
	t.Helper()
	got, err := store.Payments(t.Context(), account)
	require.NoError(t, err)
	return got
}

func testReplay(t *testing.T, open func() ledger.Store) {
	t.Helper()
	store := open()
	first := claim(t, store, request())
	require.Equal(t, ledger.Claimed, first.Verdict)
	assert.False(t, first.TakenOver)
	p := payment("pay_1", "inv-1")
	require.NoError(t, store.Settle(t.Context(), first.Lease, &p, answer("one"), time.Hour))

	// A second connection stands for a server that was started again.
	for _, store := range []ledger.Store{store, open()} {
		again := claim(t, store, request())
		assert.Equal(t, ledger.Claim{Verdict: ledger.Replay, Answer: answer("one")}, again)
		assert.Equal(t, []ledger.Payment{p}, payments(t, store))
	}
	require.ErrorIs(t, store.Settle(t.Context(), first.Lease, &p, answer("two"), time.Hour), ledger.ErrLeaseLost,
		"a lease settles once")
}

func testAtomic(t *testing.T, open func() ledger.Store) {
	t.Helper()
	store := open()
	first := claim(t, store, request())
	p := payment("pay_1", "")
	require.NoError(t, store.Settle(t.Context(), first.Lease, &p, answer("one"), time.Hour))

	// The payment's ID is taken, so that the second half of the transaction
	// fails after its first half has succeeded.
	other := request(func(r *ledger.Request) { r.Key = "key-0002" })
	second := claim(t, store, other)
	require.Error(t, store.Settle(t.Context(), second.Lease, &p, answer("two"), time.Hour))
	rec, err := store.Lookup(t.Context(), account, other.Key)
	require.NoError(t, err)
	assert.False(t, rec.Done, "an outcome without its effect")
	assert.Len(t, payments(t, store), 1)

	p.ID = "pay_2"
	require.NoError(t, store.Settle(t.Context(), second.Lease, &p, answer("two"), time.Hour), "the lease still holds")
	assert.Len(t, payments(t, store), 2)
}

func testAnotherBody(t *testing.T, open func() ledger.Store) {
	t.Helper()
	store := open()
	other := func(r *ledger.Request) { r.Fingerprint = []byte("another") }

	first := claim(t, store, request(lapsed))
	assert.Equal(t, ledger.AnotherBody, claim(t, store, request(other)).Verdict, "lapsed")
	second := claim(t, store, request())
	require.True(t, second.TakenOver)
	assert.NotEqual(t, first.Lease.Owner, second.Lease.Owner)
	assert.Equal(t, ledger.AnotherBody, claim(t, store, request(other)).Verdict, "running")
	require.NoError(t, store.Settle(t.Context(), second.Lease, nil, answer("one"), time.Hour))
	assert.Equal(t, ledger.AnotherBody, claim(t, store, request(other)).Verdict, "done")
	assert.Equal(t, ledger.Replay, claim(t, store, request()).Verdict, "a misuse changes nothing")
}

func testInProgress(t *testing.T, open func() ledger.Store) {
	t.Helper()
	store := open()
	require.Equal(t, ledger.Claimed, claim(t, store, request()).Verdict)
	second := claim(t, open(), request())
	assert.Equal(t, ledger.Claim{Verdict: ledger.InProgress}, second)
}

func testTakeOver(t *testing.T, open func() ledger.Store) {
	t.Helper()
	store := open()
	first := claim(t, store, request(lapsed))
	second := claim(t, store, request())
	require.Equal(t, ledger.Claimed, second.Verdict)
	assert.True(t, second.TakenOver)

	// The first owner was not dead, only late.
	p := payment("pay_late", "")
	require.ErrorIs(t, store.Settle(t.Context(), first.Lease, &p, answer("late"), time.Hour), ledger.ErrLeaseLost)
	require.NoError(t, store.Release(t.Context(), first.Lease))
	assert.Empty(t, payments(t, store))
	assert.Equal(t, ledger.InProgress, claim(t, store, request()).Verdict, "a lost lease releases nothing")

	p = payment("pay_1", "")
	require.NoError(t, store.Settle(t.Context(), second.Lease, &p, answer("one"), time.Hour))
	require.ErrorIs(t, store.Settle(t.Context(), first.Lease, &p, answer("late"), time.Hour), ledger.ErrLeaseLost)
	assert.Equal(t, answer("one"), claim(t, store, request()).Answer)
	assert.Len(t, payments(t, store), 1)
}

func testExpired(t *testing.T, open func() ledger.Store) {
	t.Helper()
	store := open()
	other := func(r *ledger.Request) { r.Fingerprint = []byte("another") }

	first := claim(t, store, request())
	p := payment("pay_1", "")
	require.NoError(t, store.Settle(t.Context(), first.Lease, &p, answer("one"), 0))
	_, err := store.Lookup(t.Context(), account, key)
	require.ErrorIs(t, err, ledger.ErrUnknownKey)

	second := claim(t, store, request(other))
	require.Equal(t, ledger.Claimed, second.Verdict, "another body too, since it is another operation")
	assert.False(t, second.TakenOver)
	p = payment("pay_2", "")
	require.NoError(t, store.Settle(t.Context(), second.Lease, &p, answer("two"), time.Hour))
	assert.Len(t, payments(t, store), 2)
	assert.Equal(t, answer("two"), claim(t, store, request(other)).Answer)

	// The time of a running operation does not end before its lease.
	running := func(r *ledger.Request) { r.Key, r.Retention = "key-0002", 0 }
	require.Equal(t, ledger.Claimed, claim(t, store, request(running)).Verdict)
	assert.Equal(t, ledger.InProgress, claim(t, store, request(running)).Verdict)
}

func testRelease(t *testing.T, open func() ledger.Store) {
	t.Helper()
	store := open()
	first := claim(t, store, request())
	require.NoError(t, store.Release(t.Context(), first.Lease))
	second := claim(t, store, request())
	assert.Equal(t, ledger.Claimed, second.Verdict)
	assert.False(t, second.TakenOver)
	require.ErrorIs(t, store.Settle(t.Context(), first.Lease, nil, answer("late"), time.Hour), ledger.ErrLeaseLost)

	require.NoError(t, store.Settle(t.Context(), second.Lease, nil, answer("one"), time.Hour))
	require.NoError(t, store.Release(t.Context(), second.Lease))
	assert.Equal(t, ledger.Replay, claim(t, store, request()).Verdict, "an outcome is not given back")
}

func testRefusal(t *testing.T, open func() ledger.Store) {
	t.Helper()
	store := open()
	first := claim(t, store, request())
	refusal := ledger.Answer{Status: http.StatusUnprocessableEntity, Body: []byte("no")}
	require.NoError(t, store.Settle(t.Context(), first.Lease, nil, refusal, time.Hour))
	assert.Equal(t, ledger.Claim{Verdict: ledger.Replay, Answer: refusal}, claim(t, store, request()))
	assert.Empty(t, payments(t, store))
}

func testScope(t *testing.T, open func() ledger.Store) {
	t.Helper()
	store := open()
	mine := claim(t, store, request())
	others := []string{"a", "ACME", "globex"} // before and after it in every order
	for _, other := range others {
		theirs := claim(t, store, request(func(r *ledger.Request) { r.Account = other }))
		require.Equal(t, ledger.Claimed, theirs.Verdict, other)
	}
	p := payment("pay_1", "")
	require.NoError(t, store.Settle(t.Context(), mine.Lease, &p, answer("mine"), time.Hour))
	for _, other := range others {
		theirs := claim(t, store, request(func(r *ledger.Request) { r.Account = other }))
		assert.Equal(t, ledger.InProgress, theirs.Verdict, other)
	}
	_, err := store.Lookup(t.Context(), "initech", key)
	require.ErrorIs(t, err, ledger.ErrUnknownKey)

	payments, err := store.Payments(t.Context(), "globex")
	require.NoError(t, err)
	assert.Empty(t, payments)
}

func testLookup(t *testing.T, open func() ledger.Store) {
	t.Helper()
	store := open()
	_, err := store.Lookup(t.Context(), account, key)
	require.ErrorIs(t, err, ledger.ErrUnknownKey)

	claim(t, store, request(lapsed))
	rec, err := store.Lookup(t.Context(), account, key)
	require.NoError(t, err)
	assert.Equal(t, ledger.Record{}, rec)

	lease := claim(t, store, request()).Lease
	rec, err = store.Lookup(t.Context(), account, key)
	require.NoError(t, err)
	assert.Equal(t, ledger.Record{}, rec)

	require.NoError(t, store.Settle(t.Context(), lease, nil, answer("one"), time.Hour))
	rec, err = store.Lookup(t.Context(), account, key)
	require.NoError(t, err)
	assert.Equal(t, ledger.Record{Done: true, Answer: answer("one")}, rec)
}

func testClosedAttempt(t *testing.T, open func() ledger.Store) {
	t.Helper()
	store := open()
	ctx := t.Context()
	require.NoError(t, store.Pay(ctx, payment("pay_1", "inv-1"), 1))
	require.NoError(t, store.Pay(ctx, payment("pay_2", "inv-1"), 1), "a reference is no key")

	closed, err := store.CloseAttempts(ctx, account, "inv-2", 2, time.Hour)
	require.NoError(t, err)
	assert.Empty(t, closed)
	require.ErrorIs(t, store.Pay(ctx, payment("pay_3", "inv-2"), 1), ledger.ErrAttemptClosed)
	require.ErrorIs(t, store.Pay(ctx, payment("pay_3", "inv-2"), 2), ledger.ErrAttemptClosed)
	require.NoError(t, store.Pay(ctx, payment("pay_3", "inv-2"), 3))

	_, err = store.CloseAttempts(ctx, account, "inv-2", 1, time.Hour)
	require.NoError(t, err)
	require.ErrorIs(t, store.Pay(ctx, payment("pay_4", "inv-2"), 2), ledger.ErrAttemptClosed, "closing again opens nothing")

	closed, err = store.CloseAttempts(ctx, account, "inv-2", 3, time.Hour)
	require.NoError(t, err)
	assert.Equal(t, []ledger.Payment{payment("pay_3", "inv-2")}, closed)

	require.NoError(t, store.Pay(ctx, payment("pay_5", "inv-2"), 0), "an attempt without a number cannot be closed")
	theirs := payment("pay_6", "inv-2")
	theirs.Account = "globex"
	require.NoError(t, store.Pay(ctx, theirs, 1), "a reference is scoped by its account")
	require.NoError(t, store.Pay(ctx, payment("pay_7", ""), 1))
}

// testCloseRace lets payments and the closing of their attempt meet: what a
// closing does not list is not paid afterwards.
func testCloseRace(t *testing.T, open func() ledger.Store) {
	t.Helper()
	one, two := open(), open()
	const payers, closers = 4, 3
	paid, refused := 0, 0
	for i := range 25 {
		reference := fmt.Sprintf("inv-%d", i)
		var (
			payErrs   [payers]error
			closeErrs [closers]error
			found     [closers][]ledger.Payment
			start     = make(chan struct{})
			wg        sync.WaitGroup
		)
		for c := range closers {
			wg.Go(func() {
				<-start
				found[c], closeErrs[c] = two.CloseAttempts(t.Context(), account, reference, 1, time.Hour)
			})
		}
		for p := range payers {
			wg.Go(func() {
				<-start
				payErrs[p] = one.Pay(t.Context(), payment(fmt.Sprintf("pay_%d_%d", i, p), reference), 1)
			})
		}
		close(start)
		wg.Wait()
		require.NoError(t, errors.Join(closeErrs[:]...))
		for p, err := range payErrs {
			if err != nil {
				require.ErrorIs(t, err, ledger.ErrAttemptClosed)
				refused++
				continue
			}
			paid++
			for _, list := range found {
				require.Contains(t, list, payment(fmt.Sprintf("pay_%d_%d", i, p), reference), "a closing missed a payment")
			}
		}
	}
	t.Logf("%d paid before the closing, %d refused after it", paid, refused)
	assert.Len(t, payments(t, one), paid)
}

func testPurge(t *testing.T, open func() ledger.Store) {
	t.Helper()
	store := open()
	ctx := t.Context()
	for name, retention := range map[string]time.Duration{"done-valid": time.Hour, "done-expired": 0} {
		c := claim(t, store, request(func(r *ledger.Request) { r.Key = name }))
		require.NoError(t, store.Settle(ctx, c.Lease, nil, answer("one"), retention))
	}
	claim(t, store, request(expired, func(r *ledger.Request) { r.Key = "left-expired" }))
	claim(t, store, request(lapsed, func(r *ledger.Request) { r.Key = "left-valid" }))
	claim(t, store, request(func(r *ledger.Request) { r.Key, r.Retention = "running-expired", 0 }))
	_, err := store.CloseAttempts(ctx, account, "inv-expired", 1, 0)
	require.NoError(t, err)
	_, err = store.CloseAttempts(ctx, account, "inv-valid", 1, time.Hour)
	require.NoError(t, err)

	n, err := store.Purge(ctx)
	require.NoError(t, err)
	assert.EqualValues(t, 3, n)
	for name, want := range map[string]error{
		"done-valid": nil, "left-valid": nil, "running-expired": nil,
		"done-expired": ledger.ErrUnknownKey, "left-expired": ledger.ErrUnknownKey,
	} {
		_, err := store.Lookup(ctx, account, name)
		require.ErrorIs(t, err, want, name)
	}
	require.NoError(t, store.Pay(ctx, payment("pay_1", "inv-expired"), 1))
	require.ErrorIs(t, store.Pay(ctx, payment("pay_2", "inv-valid"), 1), ledger.ErrAttemptClosed)
	n, err = store.Purge(ctx)
	require.NoError(t, err)
	assert.Zero(t, n)
}

func testManyClaims(t *testing.T, open func() ledger.Store) {
	t.Helper()
	manyClaims(t, open, false)
}

func testManyTakeOvers(t *testing.T, open func() ledger.Store) {
	t.Helper()
	manyClaims(t, open, true)
}

func manyClaims(t *testing.T, open func() ledger.Store, takeOver bool) {
	t.Helper()
	stores := []ledger.Store{open(), open()}
	for round := range 20 { // the first ones are apart, while connections are made
		named := func(r *ledger.Request) { r.Key = fmt.Sprintf("key-%04d", round) }
		if takeOver {
			claim(t, stores[0], request(named, lapsed))
		}
		const claimers = 8
		var (
			start  = make(chan struct{})
			wg     sync.WaitGroup
			claims [claimers]ledger.Claim
			errs   [claimers]error
		)
		for i := range claimers {
			wg.Go(func() {
				<-start
				claims[i], errs[i] = stores[i%len(stores)].Claim(t.Context(), request(named))
			})
		}
		close(start)
		wg.Wait()
		require.NoError(t, errors.Join(errs[:]...))

		claimed := 0
		for _, c := range claims {
			if c.Verdict == ledger.Claimed {
				claimed++
				assert.Equal(t, takeOver, c.TakenOver)
			} else {
				assert.Equal(t, ledger.InProgress, c.Verdict)
			}
		}
		require.Equal(t, 1, claimed)
	}
}

func testContext(t *testing.T, open func() ledger.Store) {
	t.Helper()
	store := open()
	lease := claim(t, store, request()).Lease
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	p := payment("pay_1", "inv-1")
	_, err := store.Claim(ended, request(func(r *ledger.Request) { r.Key = "key-0002" }))
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, store.Settle(ended, lease, &p, answer("one"), time.Hour), context.Canceled)
	require.ErrorIs(t, store.Pay(ended, p, 1), context.Canceled)
	_, err = store.CloseAttempts(ended, account, "inv-1", 1, time.Hour)
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, store.Release(ended, lease), context.Canceled)
	_, err = store.Lookup(ended, account, key)
	require.ErrorIs(t, err, context.Canceled)
	require.NotErrorIs(t, err, ledger.ErrUnknownKey)
	_, err = store.Payments(ended, account)
	require.ErrorIs(t, err, context.Canceled)
	_, err = store.Purge(ended)
	require.ErrorIs(t, err, context.Canceled)

	assert.Empty(t, payments(t, store))
	assert.Equal(t, ledger.Claimed, claim(t, store, request(func(r *ledger.Request) { r.Key = "key-0002" })).Verdict)
	require.NoError(t, store.Pay(t.Context(), p, 1), "the attempt was not closed")
	require.NoError(t, store.Settle(t.Context(), lease, nil, answer("one"), time.Hour), "the lease was not touched")
}
