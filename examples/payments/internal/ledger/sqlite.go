package ledger

import (
	"bytes"
	"context"
	"database/sql"
	_ "embed"
	"errors"
	"fmt"
	"net/url"
	"time"

	_ "modernc.org/sqlite" // the "sqlite" driver of database/sql, in pure Go
)

//go:embed sqlite.sql
var sqliteSchema string

// SQLite is a [Store] in one file. Several processes on one machine may share
// it; time is the machine's clock.
type SQLite struct {
	db *sql.DB
}

// OpenSQLite opens the file, and creates it and its tables where they are
// missing.
func OpenSQLite(ctx context.Context, path string) (*SQLite, error) {
	params := url.Values{
		// A transaction that reads first and writes later would find out too
		// late that another one was faster; immediate takes the write lock at
		// its begin.
		"_txlock": {"immediate"},
		"_pragma": {"busy_timeout(10000)", "journal_mode(wal)", "synchronous(full)"},
	}
	db, err := sql.Open("sqlite", "file:"+(&url.URL{Path: path}).EscapedPath()+"?"+params.Encode())
	if err != nil {
		return nil, fmt.Errorf("ledger: open %s: %w", path, err)
	}
	// SQLite has one writer at a time. Within a process, waiting for the one
	// connection is fair and wakes at once; waiting for the file lock is a poll.
	db.SetMaxOpenConns(1)
	if _, err := db.ExecContext(ctx, sqliteSchema); err != nil {
		_ = db.Close()
		return nil, fmt.Errorf("ledger: create tables in %s: %w", path, err)
	}
	return &SQLite{db: db}, nil
}

// Close implements [Store].
func (s *SQLite) Close() error { return s.db.Close() }

// transact runs f in a transaction that holds the write lock.
func (s *SQLite) transact(ctx context.Context, f func(tx *sql.Tx, now time.Time) error) error {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("ledger: begin: %w", err)
	}
	defer func() { _ = tx.Rollback() }() // of no effect after a commit
	// The clock is read under the lock, so that no transaction acts on a time
	// that is older than what the one before it wrote.
	if err := f(tx, time.Now()); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("ledger: commit: %w", err)
	}
	return nil
}

// Claim implements [Store].
func (s *SQLite) Claim(ctx context.Context, req Request) (Claim, error) {
	var claim Claim
	err := s.transact(ctx, func(tx *sql.Tx, now time.Time) error {
		var (
			r                   row
			fingerprint         []byte
			leaseUntil, expires int64
		)
		// A key without a record is like one that expired in 1970.
		err := tx.QueryRowContext(ctx, `
			SELECT state = 'done', fingerprint, lease_until, expires, status, body
			FROM idempotency_keys WHERE account = ? AND key = ?`, req.Account, req.Key,
		).Scan(&r.done, &fingerprint, &leaseUntil, &expires, &r.answer.Status, &r.answer.Body)
		if err != nil && !errors.Is(err, sql.ErrNoRows) {
			return fmt.Errorf("ledger: read key: %w", err)
		}
		r.same = bytes.Equal(fingerprint, req.Fingerprint)
		r.expired = expires <= now.UnixMilli()
		r.lapsed = leaseUntil <= now.UnixMilli()

		owner := newOwner()
		claim = r.claim(req, owner)
		if claim.Verdict != Claimed {
			return nil
		}
		_, err = tx.ExecContext(ctx, `
			INSERT INTO idempotency_keys (account, key, fingerprint, state, owner, lease_until, expires)
			VALUES (?, ?, ?, 'running', ?, ?, ?)
			ON CONFLICT (account, key) DO UPDATE SET
				fingerprint = excluded.fingerprint, state = 'running', owner = excluded.owner,
				lease_until = excluded.lease_until, expires = excluded.expires, status = 0, body = NULL`,
			req.Account, req.Key, req.Fingerprint, owner,
			now.Add(req.Lease).UnixMilli(), now.Add(req.Retention).UnixMilli())
		if err != nil {
			return fmt.Errorf("ledger: claim key: %w", err)
		}
		return nil
	})
	if err != nil {
		return Claim{}, err
	}
	return claim, nil
}

// Settle implements [Store].
func (s *SQLite) Settle(ctx context.Context, lease Lease, p *Payment, answer Answer, retention time.Duration) error {
	return s.transact(ctx, func(tx *sql.Tx, now time.Time) error {
		result, err := tx.ExecContext(ctx, `
			UPDATE idempotency_keys SET state = 'done', status = ?, body = ?, expires = ?
			WHERE account = ? AND key = ? AND owner = ? AND state = 'running'`,
			answer.Status, answer.Body, now.Add(retention).UnixMilli(), lease.Account, lease.Key, lease.Owner)
		if err != nil {
			return fmt.Errorf("ledger: settle key: %w", err)
		}
		if n, err := result.RowsAffected(); err != nil {
			return fmt.Errorf("ledger: settle key: %w", err)
		} else if n == 0 {
			return ErrLeaseLost
		}
		if p == nil {
			return nil
		}
		return insertSQLite(ctx, tx, *p)
	})
}

// Release implements [Store].
func (s *SQLite) Release(ctx context.Context, lease Lease) error {
	_, err := s.db.ExecContext(ctx, `
		DELETE FROM idempotency_keys WHERE account = ? AND key = ? AND owner = ? AND state = 'running'`,
		lease.Account, lease.Key, lease.Owner)
	if err != nil {
		return fmt.Errorf("ledger: release key: %w", err)
	}
	return nil
}

// Lookup implements [Store].
func (s *SQLite) Lookup(ctx context.Context, account, key string) (Record, error) {
	var rec Record
	err := s.db.QueryRowContext(ctx, `
		SELECT state = 'done', status, body FROM idempotency_keys
		WHERE account = ?1 AND key = ?2 AND (expires > ?3 OR state = 'running' AND lease_until > ?3)`,
		account, key, time.Now().UnixMilli(),
	).Scan(&rec.Done, &rec.Answer.Status, &rec.Answer.Body)
	if errors.Is(err, sql.ErrNoRows) {
		return Record{}, ErrUnknownKey
	}
	if err != nil {
		return Record{}, fmt.Errorf("ledger: look up key: %w", err)
	}
	return rec, nil
}

// Pay implements [Store].
func (s *SQLite) Pay(ctx context.Context, p Payment, attempt int) error {
	return s.transact(ctx, func(tx *sql.Tx, _ time.Time) error {
		if attempt > 0 && p.Reference != "" {
			var closed bool
			err := tx.QueryRowContext(ctx, `
				SELECT EXISTS (SELECT 1 FROM closed_attempts WHERE account = ? AND reference = ? AND up_to >= ?)`,
				p.Account, p.Reference, attempt).Scan(&closed)
			if err != nil {
				return fmt.Errorf("ledger: read closed attempts: %w", err)
			}
			if closed {
				return ErrAttemptClosed
			}
		}
		return insertSQLite(ctx, tx, p)
	})
}

// CloseAttempts implements [Store].
func (s *SQLite) CloseAttempts(ctx context.Context, account, reference string, upTo int, retention time.Duration) ([]Payment, error) {
	var payments []Payment
	err := s.transact(ctx, func(tx *sql.Tx, now time.Time) error {
		_, err := tx.ExecContext(ctx, `
			INSERT INTO closed_attempts (account, reference, up_to, expires) VALUES (?, ?, ?, ?)
			ON CONFLICT (account, reference) DO UPDATE SET
				up_to = max(up_to, excluded.up_to), expires = max(expires, excluded.expires)`,
			account, reference, upTo, now.Add(retention).UnixMilli())
		if err != nil {
			return fmt.Errorf("ledger: close attempts: %w", err)
		}
		rows, err := tx.QueryContext(ctx, sqlitePayments+` WHERE account = ? AND reference = ? ORDER BY created, id`, account, reference)
		if err != nil {
			return fmt.Errorf("ledger: read payments: %w", err)
		}
		payments, err = scanSQLite(rows)
		return err
	})
	if err != nil {
		return nil, err
	}
	return payments, nil
}

// Payments implements [Store].
func (s *SQLite) Payments(ctx context.Context, account string) ([]Payment, error) {
	rows, err := s.db.QueryContext(ctx, sqlitePayments+` WHERE account = ? ORDER BY created, id`, account)
	if err != nil {
		return nil, fmt.Errorf("ledger: read payments: %w", err)
	}
	return scanSQLite(rows)
}

// Purge implements [Store].
func (s *SQLite) Purge(ctx context.Context) (int64, error) {
	var purged int64
	err := s.transact(ctx, func(tx *sql.Tx, now time.Time) error {
		for _, statement := range []string{
			`DELETE FROM idempotency_keys WHERE expires <= ?1 AND (state = 'done' OR lease_until <= ?1)`,
			`DELETE FROM closed_attempts WHERE expires <= ?1`,
		} {
			result, err := tx.ExecContext(ctx, statement, now.UnixMilli())
			if err != nil {
				return fmt.Errorf("ledger: purge: %w", err)
			}
			n, err := result.RowsAffected()
			if err != nil {
				return fmt.Errorf("ledger: purge: %w", err)
			}
			purged += n
		}
		return nil
	})
	return purged, err
}

const sqlitePayments = `SELECT id, account, reference, amount, currency, payee, created FROM payments`

func insertSQLite(ctx context.Context, tx *sql.Tx, p Payment) error {
	_, err := tx.ExecContext(ctx, `
		INSERT INTO payments (id, account, reference, amount, currency, payee, created) VALUES (?, ?, ?, ?, ?, ?, ?)`,
		p.ID, p.Account, p.Reference, p.Amount, p.Currency, p.To, p.Created.UnixMilli())
	if err != nil {
		return fmt.Errorf("ledger: write payment: %w", err)
	}
	return nil
}

func scanSQLite(rows *sql.Rows) ([]Payment, error) {
	defer func() { _ = rows.Close() }()
	var payments []Payment
	for rows.Next() {
		var (
			p       Payment
			created int64
		)
		if err := rows.Scan(&p.ID, &p.Account, &p.Reference, &p.Amount, &p.Currency, &p.To, &created); err != nil {
			return nil, fmt.Errorf("ledger: read payment: %w", err)
		}
		p.Created = time.UnixMilli(created).UTC()
		payments = append(payments, p)
	}
	if err := rows.Err(); err != nil {
		return nil, fmt.Errorf("ledger: read payments: %w", err)
	}
	return payments, nil
}
