package ledger

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

//go:embed postgres.sql
var postgresSchema string

// schemaLock is the advisory lock under which tables are created: CREATE TABLE
// IF NOT EXISTS alone fails where two servers start at the same moment.
const schemaLock = 0x7061796d656e7473

// Postgres is a [Store] on PostgreSQL. Any number of servers may share the
// database; time is the database's clock.
type Postgres struct {
	pool *pgxpool.Pool
}

// OpenPostgres connects to the database that dsn names, as a URL or as
// keyword=value pairs, and creates the tables where they are missing.
func OpenPostgres(ctx context.Context, dsn string) (*Postgres, error) {
	pool, err := pgxpool.New(ctx, dsn)
	if err != nil {
		return nil, fmt.Errorf("ledger: connect: %w", err)
	}
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock($1)`, int64(schemaLock)); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, postgresSchema)
		return err
	})
	if err != nil {
		pool.Close()
		return nil, fmt.Errorf("ledger: create tables: %w", err)
	}
	return &Postgres{pool: pool}, nil
}

// Close implements [Store].
func (p *Postgres) Close() error {
	p.pool.Close()
	return nil
}

// transact runs f in a transaction at the level READ COMMITTED: every statement
// sees what was committed before it, and the rows or advisory locks that f takes
// first put competing transactions in order.
func (p *Postgres) transact(ctx context.Context, f func(tx pgx.Tx) error) error {
	return pgx.BeginTxFunc(ctx, p.pool, pgx.TxOptions{IsoLevel: pgx.ReadCommitted}, f)
}

// Claim implements [Store].
func (p *Postgres) Claim(ctx context.Context, req Request) (Claim, error) {
	for {
		claim, again, err := p.claim(ctx, req)
		if err != nil {
			return Claim{}, fmt.Errorf("ledger: claim key: %w", err)
		}
		if !again {
			return claim, nil
		}
	}
}

// claim is one try; again reports that the record was deleted between the two
// statements that look for it.
func (p *Postgres) claim(ctx context.Context, req Request) (claim Claim, again bool, err error) {
	owner := newOwner()
	err = p.transact(ctx, func(tx pgx.Tx) error {
		// Of several that insert at the same moment one succeeds; the others wait
		// here for its commit and then find the row.
		tag, err := tx.Exec(ctx, `
			INSERT INTO idempotency_keys (account, key, fingerprint, state, owner, lease_until, expires)
			VALUES ($1, $2, $3, 'running', $4,
				clock_timestamp() + $5::bigint * interval '1 millisecond',
				clock_timestamp() + $6::bigint * interval '1 millisecond')
			ON CONFLICT (account, key) DO NOTHING`,
			req.Account, req.Key, req.Fingerprint, owner, req.Lease.Milliseconds(), req.Retention.Milliseconds())
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 1 {
			claim = Claim{Verdict: Claimed, Lease: req.lease(owner)}
			return nil
		}

		// The lock on the row decides between several that would take it over,
		// and between them and the owner's settling.
		var r row
		err = tx.QueryRow(ctx, `
			SELECT state = 'done', fingerprint = $3, expires <= clock_timestamp(), lease_until <= clock_timestamp(),
				status, body
			FROM idempotency_keys WHERE account = $1 AND key = $2 FOR UPDATE`,
			req.Account, req.Key, req.Fingerprint,
		).Scan(&r.done, &r.same, &r.expired, &r.lapsed, &r.answer.Status, &r.answer.Body)
		if errors.Is(err, pgx.ErrNoRows) {
			again = true
			return nil
		}
		if err != nil {
			return err
		}
		if claim = r.claim(req, owner); claim.Verdict != Claimed {
			return nil
		}
		_, err = tx.Exec(ctx, `
			UPDATE idempotency_keys SET fingerprint = $3, state = 'running', owner = $4,
				lease_until = clock_timestamp() + $5::bigint * interval '1 millisecond',
				expires = clock_timestamp() + $6::bigint * interval '1 millisecond',
				status = 0, body = NULL
			WHERE account = $1 AND key = $2`,
			req.Account, req.Key, req.Fingerprint, owner, req.Lease.Milliseconds(), req.Retention.Milliseconds())
		return err
	})
	return claim, again, err
}

// Settle implements [Store].
func (p *Postgres) Settle(ctx context.Context, lease Lease, payment *Payment, answer Answer, retention time.Duration) error {
	err := p.transact(ctx, func(tx pgx.Tx) error {
		tag, err := tx.Exec(ctx, `
			UPDATE idempotency_keys SET state = 'done', status = $4, body = $5,
				expires = clock_timestamp() + $6::bigint * interval '1 millisecond'
			WHERE account = $1 AND key = $2 AND owner = $3 AND state = 'running'`,
			lease.Account, lease.Key, lease.Owner, answer.Status, answer.Body, retention.Milliseconds())
		if err != nil {
			return err
		}
		if tag.RowsAffected() == 0 {
			return ErrLeaseLost
		}
		if payment == nil {
			return nil
		}
		return insertPostgres(ctx, tx, *payment)
	})
	if err != nil {
		return fmt.Errorf("ledger: settle key: %w", err)
	}
	return nil
}

// Release implements [Store].
func (p *Postgres) Release(ctx context.Context, lease Lease) error {
	_, err := p.pool.Exec(ctx, `
		DELETE FROM idempotency_keys WHERE account = $1 AND key = $2 AND owner = $3 AND state = 'running'`,
		lease.Account, lease.Key, lease.Owner)
	if err != nil {
		return fmt.Errorf("ledger: release key: %w", err)
	}
	return nil
}

// Lookup implements [Store].
func (p *Postgres) Lookup(ctx context.Context, account, key string) (Record, error) {
	var rec Record
	err := p.pool.QueryRow(ctx, `
		SELECT state = 'done', status, body
		FROM idempotency_keys
		WHERE account = $1 AND key = $2
			AND (expires > clock_timestamp() OR state = 'running' AND lease_until > clock_timestamp())`,
		account, key,
	).Scan(&rec.Done, &rec.Answer.Status, &rec.Answer.Body)
	if errors.Is(err, pgx.ErrNoRows) {
		return Record{}, ErrUnknownKey
	}
	if err != nil {
		return Record{}, fmt.Errorf("ledger: look up key: %w", err)
	}
	return rec, nil
}

// Pay implements [Store].
func (p *Postgres) Pay(ctx context.Context, payment Payment, attempt int) error {
	err := p.transact(ctx, func(tx pgx.Tx) error {
		if attempt > 0 && payment.Reference != "" {
			if err := lockReference(ctx, tx, payment.Account, payment.Reference); err != nil {
				return err
			}
			var closed bool
			err := tx.QueryRow(ctx, `
				SELECT EXISTS (SELECT 1 FROM closed_attempts WHERE account = $1 AND reference = $2 AND up_to >= $3)`,
				payment.Account, payment.Reference, attempt).Scan(&closed)
			if err != nil {
				return err
			}
			if closed {
				return ErrAttemptClosed
			}
		}
		return insertPostgres(ctx, tx, payment)
	})
	if err != nil {
		return fmt.Errorf("ledger: pay: %w", err)
	}
	return nil
}

// CloseAttempts implements [Store].
func (p *Postgres) CloseAttempts(ctx context.Context, account, reference string, upTo int, retention time.Duration) ([]Payment, error) {
	var payments []Payment
	err := p.transact(ctx, func(tx pgx.Tx) error {
		if err := lockReference(ctx, tx, account, reference); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, `
			INSERT INTO closed_attempts AS c (account, reference, up_to, expires)
			VALUES ($1, $2, $3, clock_timestamp() + $4::bigint * interval '1 millisecond')
			ON CONFLICT (account, reference) DO UPDATE SET
				up_to = greatest(c.up_to, excluded.up_to), expires = greatest(c.expires, excluded.expires)`,
			account, reference, upTo, retention.Milliseconds())
		if err != nil {
			return err
		}
		payments, err = queryPostgres(ctx, tx, `WHERE account = $1 AND reference = $2`, account, reference)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("ledger: close attempts: %w", err)
	}
	return payments, nil
}

// lockReference makes a payment and the closing of its attempt wait for each
// other. A row lock cannot do it, because before the first closing there is no
// row. References that share a hash wait for each other too, which is harmless.
func lockReference(ctx context.Context, tx pgx.Tx, account, reference string) error {
	_, err := tx.Exec(ctx, `SELECT pg_advisory_xact_lock(hashtextextended($1, hashtextextended($2, 0)))`, account, reference)
	return err
}

// Payments implements [Store].
func (p *Postgres) Payments(ctx context.Context, account string) ([]Payment, error) {
	payments, err := queryPostgres(ctx, p.pool, `WHERE account = $1`, account)
	if err != nil {
		return nil, fmt.Errorf("ledger: read payments: %w", err)
	}
	return payments, nil
}

// Purge implements [Store].
func (p *Postgres) Purge(ctx context.Context) (int64, error) {
	var purged int64
	for _, statement := range []string{
		`DELETE FROM idempotency_keys
			WHERE expires <= clock_timestamp() AND (state = 'done' OR lease_until <= clock_timestamp())`,
		`DELETE FROM closed_attempts WHERE expires <= clock_timestamp()`,
	} {
		tag, err := p.pool.Exec(ctx, statement)
		if err != nil {
			return purged, fmt.Errorf("ledger: purge: %w", err)
		}
		purged += tag.RowsAffected()
	}
	return purged, nil
}

func insertPostgres(ctx context.Context, tx pgx.Tx, p Payment) error {
	_, err := tx.Exec(ctx, `
		INSERT INTO payments (id, account, reference, amount, currency, payee, created)
		VALUES ($1, $2, $3, $4, $5, $6, $7)`,
		p.ID, p.Account, p.Reference, p.Amount, p.Currency, p.To, p.Created)
	return err
}

func queryPostgres(ctx context.Context, db interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
}, where string, args ...any,
) ([]Payment, error) {
	rows, err := db.Query(ctx, `
		SELECT id, account, reference, amount, currency, payee, created FROM payments `+where+` ORDER BY created, id`, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (Payment, error) {
		var p Payment
		err := row.Scan(&p.ID, &p.Account, &p.Reference, &p.Amount, &p.Currency, &p.To, &p.Created)
		p.Created = p.Created.UTC()
		return p, err
	})
}
