// Package ledger keeps payments and, beside them, what became of each
// idempotency key. Both live in one database, because a payment and the outcome
// of its key have to become true in one transaction.
package ledger

import (
	"context"
	"crypto/rand"
	"errors"
	"time"
)

// Store is the database. Its methods are safe for concurrent use, by several
// processes on one database too. An error other than the ones named here means
// that the database failed; whether a transaction that was being committed took
// effect is then unknown.
type Store interface {
	// Claim decides in one transaction what a request with a key is: a new
	// operation, one to be taken over, a repeat, or a misuse of the key.
	Claim(ctx context.Context, req Request) (Claim, error)

	// Settle ends a claimed operation: in one transaction it writes the payment
	// (none where p is nil, for an operation that was refused) and the answer
	// under the key, kept for the retention. It returns [ErrLeaseLost], and has
	// written nothing, where another owner has taken the operation over.
	Settle(ctx context.Context, lease Lease, p *Payment, answer Answer, retention time.Duration) error

	// Release gives a claimed operation back without an outcome, so that a
	// repeat need not wait for the lease to lapse. A lost lease is no error.
	Release(ctx context.Context, lease Lease) error

	// Lookup returns what is on record for a key, or [ErrUnknownKey].
	Lookup(ctx context.Context, account, key string) (Record, error)

	// Pay writes a payment without a key. Where attempt is above zero and the
	// payment has a reference, it returns [ErrAttemptClosed], and has written
	// nothing, if CloseAttempts was called for that attempt or a later one.
	Pay(ctx context.Context, p Payment, attempt int) error

	// CloseAttempts makes sure that no attempt of the reference with a number up
	// to upTo is carried out from now on, remembers that for the retention, and
	// returns the payments that were made under the reference.
	CloseAttempts(ctx context.Context, account, reference string, upTo int, retention time.Duration) ([]Payment, error)

	// Payments returns an account's payments, oldest first.
	Payments(ctx context.Context, account string) ([]Payment, error)

	// Purge deletes what has expired and returns how many records that were.
	Purge(ctx context.Context) (int64, error)

	// Close frees the connections.
	Close() error
}

var (
	// ErrLeaseLost says that another owner has taken an operation over.
	ErrLeaseLost = errors.New("ledger: lease lost to another owner")
	// ErrUnknownKey says that a key has no record, or none that is still valid.
	ErrUnknownKey = errors.New("ledger: unknown key")
	// ErrAttemptClosed says that an attempt was closed before it arrived.
	ErrAttemptClosed = errors.New("ledger: attempt closed")
)

// Payment is an effect: money that moved.
type Payment struct {
	ID        string
	Account   string // who pays
	Reference string // the payer's number; may be empty, need not be unique
	Amount    int64  // in the currency's minor unit
	Currency  string
	To        string
	Created   time.Time // kept to the millisecond
}

// Answer is what a client was told, and what it is told again.
type Answer struct {
	Status int
	Body   []byte
}

// Request is a request that carries a key.
type Request struct {
	// Account scopes the key: the same key of two accounts is two operations.
	Account string
	Key     string
	// Fingerprint stands for everything that decides what the request does.
	Fingerprint []byte
	// Lease is how long the operation stays its claimer's. One that is running
	// for longer may be taken over by a repeat.
	Lease time.Duration
	// Retention is how long the key is remembered, counted anew when the
	// operation is settled. It is not shorter than the lease.
	Retention time.Duration
}

// Claim is the answer to a [Request].
type Claim struct {
	Verdict Verdict
	// Lease is the right to settle the operation, where Verdict is Claimed.
	Lease Lease
	// TakenOver reports whether an earlier owner had claimed the operation and
	// left it.
	TakenOver bool
	// Answer is the stored answer, where Verdict is Replay.
	Answer Answer
}

// Verdict is what a request with a key turned out to be.
type Verdict int

const (
	// Claimed means that the operation is the caller's to carry out.
	Claimed Verdict = iota + 1
	// Replay means that it was carried out; the stored answer is the answer.
	Replay
	// AnotherBody means that the key belongs to a request with another fingerprint.
	AnotherBody
	// InProgress means that another owner holds the lease.
	InProgress
)

// Lease is the right to settle one operation. It names its owner by a random
// text, not by a process or a counter, so that no later owner can be mistaken
// for it.
type Lease struct {
	Account, Key, Owner string
}

// Record is what is known of a key.
type Record struct {
	Done bool // false: running, or left by its owner
	// Answer is the stored answer of an operation that is done.
	Answer Answer
}

// row is a key's record as a claim finds it, with the questions of time already
// answered by the database's clock: with several servers on one database that
// clock is the only one that they share.
type row struct {
	done    bool
	same    bool //  the fingerprints are equal
	expired bool //  the key's time is over
	lapsed  bool // the lease's time is over
	answer  Answer
}

// verdict decides what a request is that meets this record. The order matters:
// another body is told before anything else, because waiting cannot help it.
func (r row) verdict() Verdict {
	switch {
	case r.expired && (r.done || r.lapsed):
		return Claimed // the name is free again
	case !r.same:
		return AnotherBody
	case r.done:
		return Replay
	case r.lapsed:
		// The owner is gone, or so late that it has to be treated as gone. It
		// has had no effect: the effect commits together with the outcome, and
		// from now on its lease is void.
		return Claimed
	default:
		return InProgress
	}
}

// claim turns the record into the answer for req; owner is used where the
// operation becomes the caller's.
func (r row) claim(req Request, owner string) Claim {
	switch v := r.verdict(); v {
	case Claimed:
		return Claim{Verdict: v, Lease: req.lease(owner), TakenOver: !r.done && !r.expired}
	case Replay:
		return Claim{Verdict: v, Answer: r.answer}
	default:
		return Claim{Verdict: v}
	}
}

func (req Request) lease(owner string) Lease {
	return Lease{Account: req.Account, Key: req.Key, Owner: owner}
}

func newOwner() string { return rand.Text() }
