// Package server is the payments service: the half of the idempotency contract
// that a server keeps.
package server

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"time"

	"github.com/retrip/retrip/examples/payments/internal/contract"
	"github.com/retrip/retrip/examples/payments/internal/ledger"
)

// Config says how the service keeps its contract. The zero value of each field
// means the default that is named with it.
type Config struct {
	// Lease is how long one request may work on an operation. It has to be longer
	// than a payment ever takes: after it, a repeat takes the operation over, and
	// the first owner's work is thrown away. Default 30 s, at least 1 ms.
	Lease time.Duration
	// Retention is how long a key is remembered after its outcome, and a closed
	// attempt after its closing. A client has to stop repeating before that.
	// Default 24 h; not shorter than the lease.
	Retention time.Duration
	// Limit is the highest amount that is paid; a higher one is refused, which is
	// an outcome like any other. Default 1 000 000.
	Limit int64
	// Work is the part of a payment that takes time and has no effect of its own,
	// such as asking for a credit rating. Its context ends with the lease, not
	// with the request. An error means that the payment is not carried out.
	// Default: none.
	Work func(ctx context.Context) error
	// Log receives what a client is not told. Default: nothing is logged. Keys
	// are never logged: whoever knows one can read the answer.
	Log *slog.Logger
}

// Server answers payment requests from a store. It is safe for concurrent use,
// and any number of servers may share a store.
type Server struct {
	store  ledger.Store
	config Config
	mux    *http.ServeMux
}

// New makes a Server. The store stays the caller's to close.
func New(store ledger.Store, config Config) (*Server, error) {
	if config.Lease == 0 {
		config.Lease = 30 * time.Second
	}
	if config.Retention == 0 {
		config.Retention = 24 * time.Hour
	}
	if config.Limit == 0 {
		config.Limit = 1_000_000
	}
	if config.Work == nil {
		config.Work = func(context.Context) error { return nil }
	}
	if config.Log == nil {
		config.Log = slog.New(slog.DiscardHandler)
	}
	switch {
	case config.Lease < time.Millisecond:
		return nil, fmt.Errorf("server: lease %v is shorter than 1 ms", config.Lease)
	case config.Retention < config.Lease:
		return nil, fmt.Errorf("server: retention %v is shorter than the lease %v", config.Retention, config.Lease)
	case config.Limit < 0:
		return nil, fmt.Errorf("server: limit %d is negative", config.Limit)
	}
	s := &Server{store: store, config: config, mux: http.NewServeMux()}
	s.mux.Handle("POST /payments", s.as(s.pay))
	s.mux.Handle("GET /payments/by-key/{key}", s.as(s.byKey))
	s.mux.Handle("PUT /payments/by-reference/{reference}/closed-attempts", s.as(s.closeAttempts))
	return s, nil
}

// ServeHTTP implements [http.Handler].
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// as finds out whose account a request speaks for. Everything that follows is
// scoped by it, so that nobody can meet, read or block another account's keys.
// Here the bearer token simply is the account's name; a real service verifies it.
func (s *Server) as(h func(w http.ResponseWriter, r *http.Request, account string)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		account, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
		if !ok || !isText(account) {
			w.Header().Set("WWW-Authenticate", "Bearer")
			writeProblem(w, contract.ProblemNoAccount, http.StatusUnauthorized, "No account is given", "")
			return
		}
		h(w, r, account)
	})
}

// pay answers POST /payments.
func (s *Server) pay(w http.ResponseWriter, r *http.Request, account string) {
	key, err := keyOf(r)
	if err != nil {
		writeInvalid(w, err)
		return
	}
	attempt, err := attemptOf(r)
	if err != nil {
		writeInvalid(w, err)
		return
	}
	order, err := readOrder(w, r)
	if err != nil {
		writeInvalid(w, err)
		return
	}

	// From here on the request is carried to its end even if the client hangs
	// up: a client that lost its patience will ask again, and an outcome answers
	// it sooner than an operation that was broken off.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), s.config.Lease)
	defer cancel()
	if key == "" {
		s.payOnce(ctx, w, account, order, attempt)
		return
	}
	w.Header().Set(contract.KeyHeader, key)
	s.payUnderKey(ctx, w, account, key, order)
}

// payUnderKey carries out an operation that has a name: at most once, and with
// the same answer to everybody who asks for it.
func (s *Server) payUnderKey(ctx context.Context, w http.ResponseWriter, account, key string, order contract.Order) {
	claim, err := s.store.Claim(ctx, ledger.Request{
		Account: account, Key: key, Fingerprint: fingerprint(order),
		Lease: s.config.Lease, Retention: s.config.Retention,
	})
	if err != nil {
		s.notDone(ctx, w, "cannot claim a key", err)
		return
	}
	switch claim.Verdict {
	case ledger.Replay:
		w.Header().Set(contract.ReplayedHeader, "true")
		writeAnswer(w, claim.Answer)
		return
	case ledger.AnotherBody:
		writeProblem(w, contract.ProblemAnotherBody, http.StatusConflict, "The key was used for another request",
			"Nothing was done. A new payment needs a new key.")
		return
	case ledger.InProgress:
		writeInProgress(w)
		return
	case ledger.Claimed:
		if claim.TakenOver {
			s.config.Log.WarnContext(ctx, "took over an operation that its owner left", "account", account)
		}
	}

	if err := s.config.Work(ctx); err != nil {
		s.release(context.WithoutCancel(ctx), claim.Lease)
		s.notDone(ctx, w, "payment failed", err)
		return
	}

	payment, answer := s.outcome(account, order)
	switch err := s.store.Settle(ctx, claim.Lease, payment, answer, s.config.Retention); {
	case errors.Is(err, ledger.ErrLeaseLost):
		// Too late, and nothing was written: whoever took the operation over
		// gives it its outcome.
		writeInProgress(w)
	case err != nil:
		// The commit may have taken effect. The record knows, and a repeat reads
		// it: done, or a lease that lapses.
		s.config.Log.ErrorContext(ctx, "cannot settle a key", "error", err)
		w.Header().Set("Retry-After", comeBack)
		writeProblem(w, contract.ProblemOutcomeUnknown, http.StatusServiceUnavailable, "The outcome is not known yet",
			"Repeat the request with the same key.")
	default:
		writeAnswer(w, answer)
	}
}

// release lets a repeat begin at once instead of when the lease lapses, which is
// also all that is lost where it fails.
func (s *Server) release(ctx context.Context, lease ledger.Lease) {
	ctx, cancel := context.WithTimeout(ctx, s.config.Lease)
	defer cancel()
	if err := s.store.Release(ctx, lease); err != nil {
		s.config.Log.ErrorContext(ctx, "cannot release a key", "error", err)
	}
}

// payOnce carries out an operation that has no name. Nothing here can recognize
// a repeat: that it is sent once is the client's task, and closing attempts is
// its means.
func (s *Server) payOnce(ctx context.Context, w http.ResponseWriter, account string, order contract.Order, attempt int) {
	if err := s.config.Work(ctx); err != nil {
		s.notDone(ctx, w, "payment failed", err)
		return
	}
	payment, answer := s.outcome(account, order)
	if payment == nil {
		writeAnswer(w, answer)
		return
	}
	switch err := s.store.Pay(ctx, *payment, attempt); {
	case errors.Is(err, ledger.ErrAttemptClosed):
		writeProblem(w, contract.ProblemAttemptClosed, http.StatusConflict, "This attempt was closed",
			"Nothing was done. The payer closed the attempt before it arrived.")
	case err != nil:
		s.config.Log.ErrorContext(ctx, "cannot write a payment", "error", err)
		writeProblem(w, contract.ProblemOutcomeUnknown, http.StatusInternalServerError, "The outcome is not known", "")
	default:
		writeAnswer(w, answer)
	}
}

// outcome decides what becomes of an order: a payment and its receipt, or a
// refusal and no payment.
func (s *Server) outcome(account string, order contract.Order) (*ledger.Payment, ledger.Answer) {
	if order.Amount > s.config.Limit {
		return nil, problemAnswer(contract.ProblemOverLimit, http.StatusUnprocessableEntity, "The amount is over the limit",
			fmt.Sprintf("At most %d is paid at once.", s.config.Limit))
	}
	payment := ledger.Payment{
		ID: "pay_" + strings.ToLower(rand.Text()), Account: account, Reference: order.Reference,
		Amount: order.Amount, Currency: order.Currency, To: order.To,
		Created: time.Now().UTC().Truncate(time.Millisecond),
	}
	return &payment, ledger.Answer{Status: http.StatusCreated, Body: encode(receipt(payment))}
}

// notDone answers a request that failed before it could have an effect.
func (s *Server) notDone(ctx context.Context, w http.ResponseWriter, what string, err error) {
	s.config.Log.ErrorContext(ctx, what, "error", err)
	w.Header().Set("Retry-After", comeBack)
	writeProblem(w, contract.ProblemNotDone, http.StatusServiceUnavailable, "The payment was not carried out", "")
}

// byKey answers GET /payments/by-key/{key}.
func (s *Server) byKey(w http.ResponseWriter, r *http.Request, account string) {
	key := r.PathValue("key")
	if err := checkKey(key); err != nil {
		writeInvalid(w, err)
		return
	}
	record, err := s.store.Lookup(r.Context(), account, key)
	switch {
	case errors.Is(err, ledger.ErrUnknownKey):
		// No proof that nothing will happen: the request may still be on its way.
		writeProblem(w, contract.ProblemUnknownKey, http.StatusNotFound, "No operation with this key is on record", "")
	case err != nil:
		s.config.Log.ErrorContext(r.Context(), "cannot look up a key", "error", err)
		writeProblem(w, contract.ProblemOutcomeUnknown, http.StatusInternalServerError, "The record cannot be read", "")
	case !record.Done:
		w.Header().Set("Retry-After", comeBack)
		writeJSON(w, http.StatusOK, contract.KeyState{State: "running"})
	default:
		writeJSON(w, http.StatusOK, contract.KeyState{State: "done", Status: record.Answer.Status, Answer: record.Answer.Body})
	}
}

// closeAttempts answers PUT /payments/by-reference/{reference}/closed-attempts.
// It is what makes "not carried out" a fact for a payment without a key. A look
// alone could not: what is not there now may arrive a moment later.
func (s *Server) closeAttempts(w http.ResponseWriter, r *http.Request, account string) {
	reference := r.PathValue("reference")
	var closing contract.Closing
	if err := readJSON(w, r, &closing); err != nil {
		writeInvalid(w, err)
		return
	}
	if !isText(reference) || closing.UpTo < 1 || closing.UpTo > maxAttempt {
		writeInvalid(w, invalid(http.StatusUnprocessableEntity, "a reference of at most 64 bytes and an attempt from 1 to %d are needed", maxAttempt))
		return
	}
	payments, err := s.store.CloseAttempts(r.Context(), account, reference, closing.UpTo, s.config.Retention)
	if err != nil {
		s.config.Log.ErrorContext(r.Context(), "cannot close attempts", "error", err)
		w.Header().Set("Retry-After", comeBack)
		writeProblem(w, contract.ProblemOutcomeUnknown, http.StatusServiceUnavailable, "The attempts could not be closed", "Repeat the request.")
		return
	}
	closed := contract.Closed{Payments: make([]contract.Receipt, 0, len(payments))}
	for _, p := range payments {
		closed.Payments = append(closed.Payments, receipt(p))
	}
	writeJSON(w, http.StatusOK, closed)
}

func receipt(p ledger.Payment) contract.Receipt {
	return contract.Receipt{
		ID: p.ID, Reference: p.Reference, Amount: p.Amount, Currency: p.Currency, To: p.To, Created: p.Created,
	}
}
