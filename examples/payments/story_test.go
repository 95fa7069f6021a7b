package main

import (
	"bytes"
	"context"
	"io"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/examples/payments/internal/ledger"
)

func TestStory(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	require.NoError(t, run(t.Context(), nil, &out, io.Discard))
	for _, want := range []string{
		"1. First success", "2. Time-out after the write", "3. Repeat with the same body", "4. Repeat with another body",
		"timeout, unknown; retry (transient)",
		"as was answered before",
		"The key was used for another request",
		"may have been paid",
		"PUT /payments/by-reference/inv-6/closed-attempts: 200",
		"4 orders, 4 payments: none is missing, none is doubled.",
	} {
		assert.Contains(t, out.String(), want)
	}
}

// doubling forgets every key.
type doubling struct{ ledger.Store }

func (d doubling) Claim(ctx context.Context, req ledger.Request) (ledger.Claim, error) {
	req.Lease, req.Retention = 0, 0
	return d.Store.Claim(ctx, req)
}

func (d doubling) Settle(ctx context.Context, l ledger.Lease, p *ledger.Payment, a ledger.Answer, _ time.Duration) error {
	return d.Store.Settle(ctx, l, p, a, 0)
}

// losing says that it pays.
type losing struct{ ledger.Store }

func (l losing) Settle(ctx context.Context, lease ledger.Lease, _ *ledger.Payment, a ledger.Answer, r time.Duration) error {
	return l.Store.Settle(ctx, lease, nil, a, r)
}

// careless pays under a key that was used for another payment.
type careless struct{ ledger.Store }

func (c careless) Claim(ctx context.Context, req ledger.Request) (ledger.Claim, error) {
	claim, err := c.Store.Claim(ctx, req)
	if claim.Verdict == ledger.AnotherBody {
		claim.Verdict = ledger.InProgress
	}
	return claim, err
}

func TestStoryFindsAMissingOrDoubledEffect(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name string
		wrap func(ledger.Store) ledger.Store
	}{
		{"doubled", func(s ledger.Store) ledger.Store { return doubling{s} }},
		{"missing", func(s ledger.Store) ledger.Store { return losing{s} }},
		{"another truth", func(s ledger.Store) ledger.Store { return careless{s} }},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			require.ErrorContains(t, storyOn(t.Context(), io.Discard, test.wrap), "scene ")
		})
	}
}

func TestServeAndClientApart(t *testing.T) {
	t.Parallel()
	db := newSQLite(t)
	server := startServer(t, db.flags...)
	pay := func(flags ...string) (string, error) {
		var out bytes.Buffer
		err := run(t.Context(), append([]string{"-client", "-url", server.url, "-reference", "inv-1"}, flags...), &out, io.Discard)
		return out.String(), err
	}
	first, err := pay("-amount", "1250", "-key", "key-0001")
	require.NoError(t, err)
	assert.Regexp(t, `^paid: pay_\w+, 12\.50 EUR to globex \(attempts 1, key "key-0001"\)\n$`, first)
	again, err := pay("-amount", "1250", "-key", "key-0001")
	require.NoError(t, err)
	assert.Equal(t, "had been "+first, again)
	_, err = pay("-amount", "9900", "-key", "key-0001")
	require.ErrorContains(t, err, "not paid")
	generated, err := pay("-amount", "5")
	require.NoError(t, err)
	assert.Regexp(t, `0\.05 EUR to globex \(attempts 1, key ".{16,}"\)`, generated)
	checked, err := pay("-amount", "1", "-mode", "check")
	require.NoError(t, err)
	assert.Contains(t, checked, `key ""`)

	payments, err := db.store.Payments(t.Context(), payer)
	require.NoError(t, err)
	assert.Len(t, payments, 3)

	log, err := server.interrupt()
	require.NoError(t, err, "the server ends in order: %s", log)
	assert.NotContains(t, log, "key-0001")
}

func TestBadFlagsAreErrors(t *testing.T) {
	t.Parallel()
	for _, flags := range []string{
		"-serve -client", "extra", "-client -mode none", "-serve -lease 1us", "-serve -addr nowhere:-1", "-serve -dsn nothing://",
		"-serve -db /nonexistent/folder/x.db", "-client -amount 1 -url http://127.0.0.1:1 -timeout 200ms",
	} {
		args := append([]string{"-db", filepath.Join(t.TempDir(), "x.db")}, strings.Fields(flags)...)
		require.Error(t, run(t.Context(), args, io.Discard, io.Discard), flags)
	}
}
