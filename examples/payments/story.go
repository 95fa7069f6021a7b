package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/retrip/retrip"

	"github.com/retrip/retrip/examples/payments/internal/client"
	"github.com/retrip/retrip/examples/payments/internal/contract"
	"github.com/retrip/retrip/examples/payments/internal/ledger"
	"github.com/retrip/retrip/examples/payments/internal/server"
)

const payer = "acme"

// teller tells the story and keeps what its scenes share.
type teller struct {
	out   io.Writer
	url   string
	store ledger.Store
	loss  *loss

	mu sync.Mutex // hooks write too
}

// story plays the scenes of the contract and returns an error where the client
// was told something else than what the database holds.
func story(ctx context.Context, out io.Writer) error {
	return storyOn(ctx, out, func(store ledger.Store) ledger.Store { return store })
}

// storyOn lets a test put a faulty store below the service.
func storyOn(ctx context.Context, out io.Writer, wrap func(ledger.Store) ledger.Store) (err error) {
	dir, err := os.MkdirTemp("", "payments-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	store, err := ledger.OpenSQLite(ctx, filepath.Join(dir, "payments.db"))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	service, err := server.New(wrap(store), server.Config{})
	if err != nil {
		return err
	}
	t := &teller{out: out, store: store, loss: &loss{next: service}}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	httpServer := &http.Server{Handler: t.loss, ReadHeaderTimeout: 5 * time.Second}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = httpServer.Serve(listener) // http.ErrServerClosed, or the scenes fail
	}()
	defer func() {
		err = errors.Join(err, httpServer.Close())
		<-served
	}()
	t.url = "http://" + listener.Addr().String()
	return t.scenes(ctx)
}

func (t *teller) scenes(ctx context.Context) error {
	// The first payment's key is one that the client stored before it sent
	// anything; the others are generated.
	first := newOrder("inv-1", 1250)
	first.Key = "stored-key-of-inv-1"
	changed := first
	changed.Amount = 9900

	scenes := []struct {
		title string
		mode  client.Mode
		order client.Order
		lost  bool // the answer to the first attempt is
		made  int  // payments that the scene adds
		check func(paid client.Paid, err error) bool
	}{
		{
			"1. First success", client.Keys, first, false, 1,
			func(paid client.Paid, err error) bool { return err == nil && !paid.Replayed && paid.Attempts == 1 },
		},
		{
			"2. Time-out after the write: the payment is made, the answer does not arrive", client.Keys, newOrder("inv-2", 700), true, 1,
			func(paid client.Paid, err error) bool { return err == nil && paid.Replayed && paid.Attempts == 2 },
		},
		{
			"3. Repeat with the same body: the first payment again, by a client that was started anew", client.Keys, first, false, 0,
			func(paid client.Paid, err error) bool { return err == nil && paid.Replayed },
		},
		{
			"4. Repeat with another body: the same key, another amount", client.Keys, changed, false, 0,
			func(_ client.Paid, err error) bool {
				var e *client.Error
				return errors.As(err, &e) && !e.MaybePaid && e.Problem.Type == contract.ProblemAnotherBody
			},
		},
		{
			"And without keys: the answer is lost as in 2, and the client can only say so", client.Plain, newOrder("inv-5", 300), true, 1,
			func(_ client.Paid, err error) bool { return errors.Is(err, retrip.ErrOutcomeUnknown) },
		},
		{
			"Without keys, with a state check: the client closes the attempt and learns what it did", client.Checked, newOrder("inv-6", 400), true, 1,
			func(paid client.Paid, err error) bool { return err == nil && paid.Attempts == 1 },
		},
	}
	held := 0
	for _, scene := range scenes {
		t.printf("%s\n", scene.title)
		t.loss.once.Store(scene.lost)
		paid, err := t.pay(ctx, scene.mode, scene.order)
		held += scene.made
		if dbErr := t.database(ctx, scene.order, paid.Key, held); dbErr != nil {
			return fmt.Errorf("scene %q: %w", scene.title, dbErr)
		}
		if !scene.check(paid, err) {
			return fmt.Errorf("scene %q: the client was not told the truth: %+v, %w", scene.title, paid, err)
		}
	}
	t.printf("%d orders, %d payments: none is missing, none is doubled.\n", held, held)
	return nil
}

func newOrder(reference string, amount int64) client.Order {
	return client.Order{Order: contract.Order{Reference: reference, Amount: amount, Currency: "EUR", To: "globex"}}
}

// pay makes a payment by a client of its own and prints what that client saw.
func (t *teller) pay(ctx context.Context, mode client.Mode, order client.Order) (client.Paid, error) {
	base := http.DefaultTransport.(*http.Transport).Clone()
	c, err := client.New(client.Config{
		URL: t.url, Account: payer, Mode: mode, Base: base,
		Options: []retrip.Option{
			retrip.WithTotalTimeout(10 * time.Second),
			retrip.WithAttemptTimeout(300 * time.Millisecond),
			retrip.WithHook(t.attempt),
		},
	})
	if err != nil {
		return client.Paid{}, err
	}
	defer c.CloseIdleConnections()
	paid, err := c.Pay(ctx, order)
	if err != nil {
		t.printf("   client    %v\n", err)
		return paid, err
	}
	replayed := ""
	if paid.Replayed {
		replayed = ", as was answered before"
	}
	t.printf("   client    paid: %s, %s%s\n", paid.Receipt.ID, money(paid.Receipt.Amount, paid.Receipt.Currency), replayed)
	return paid, nil
}

// attempt is the clients' hook.
func (t *teller) attempt(_ context.Context, e retrip.Event) {
	outcome := strconv.Itoa(e.StatusCode)
	if e.StatusCode == 0 {
		outcome = string(e.Class)
	}
	t.printf("   attempt %d %s %s: %s, %s; %s (%s)\n", e.Attempt, e.Method, path(e.Endpoint), outcome, e.Delivery, e.Decision, e.Reason)
}

func path(endpoint string) string {
	if u, err := url.Parse(endpoint); err == nil {
		return u.Path
	}
	return endpoint
}

// database prints what the database holds for the order. It returns an error
// where that is not exactly one payment, or where it holds another number in all.
func (t *teller) database(ctx context.Context, order client.Order, key string, want int) error {
	payments, err := t.store.Payments(ctx, payer)
	if err != nil {
		return err
	}
	ofOrder := 0
	for _, p := range payments {
		if p.Reference == order.Reference {
			ofOrder++
			t.printf("   database  payment %s: %s, %s to %s\n", p.Reference, p.ID, money(p.Amount, p.Currency), p.To)
		}
	}
	if key == "" {
		key = order.Key
	}
	if key != "" {
		record, err := t.store.Lookup(ctx, payer, key)
		if err != nil {
			return err
		}
		t.printf("   database  its key: done %t, answer %d\n", record.Done, record.Answer.Status)
	}
	t.printf("   database  %d payments in all\n\n", len(payments))
	if ofOrder != 1 || len(payments) != want {
		return fmt.Errorf("the database holds %d payments of the order and %d in all, not 1 and %d", ofOrder, len(payments), want)
	}
	return nil
}

func (t *teller) printf(format string, args ...any) {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, _ = fmt.Fprintf(t.out, format, args...) // a story that nobody reads is no failure
}

// loss carries out a payment and then keeps the answer to itself, once, until
// the client has hung up.
type loss struct {
	next http.Handler
	once atomic.Bool
}

func (l *loss) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !l.once.Swap(false) {
		l.next.ServeHTTP(w, r)
		return
	}
	l.next.ServeHTTP(&deaf{header: http.Header{}}, r)
	<-r.Context().Done()
	panic(http.ErrAbortHandler)
}

// deaf is a ResponseWriter that nobody listens to.
type deaf struct{ header http.Header }

func (d *deaf) Header() http.Header         { return d.header }
func (d *deaf) WriteHeader(int)             {}
func (d *deaf) Write(p []byte) (int, error) { return len(p), nil }
