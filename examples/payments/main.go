// Command payments shows the idempotency contract end to end: a payments service
// with a database, and a client that pays once.
//
//	go run .                      the contract as a story, in one process
//	go run . -serve               the service, on SQLite
//	go run . -serve -dsn URL      the service, on PostgreSQL
//	go run . -client -amount 1250 one payment
//
// See README.md for what is promised, and how.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/retrip/retrip"

	"github.com/retrip/retrip/examples/payments/internal/client"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	switch {
	case errors.Is(err, flag.ErrHelp):
	case err != nil:
		fmt.Fprintln(os.Stderr, "payments:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("payments", flag.ContinueOnError)
	flags.SetOutput(stderr)
	var (
		serveMode  = flags.Bool("serve", false, "run the service")
		clientMode = flags.Bool("client", false, "make one payment")

		s serveConfig
		p payConfig
	)
	flags.StringVar(&s.addr, "addr", "127.0.0.1:8080", "serve: listen `address`")
	flags.StringVar(&s.db, "db", "payments.db", "serve: SQLite `file`")
	flags.StringVar(&s.dsn, "dsn", "", "serve: PostgreSQL connection `string`, instead of SQLite")
	flags.DurationVar(&s.server.Lease, "lease", 30*time.Second, "serve: how long a request may work on an operation")
	flags.DurationVar(&s.server.Retention, "retention", 24*time.Hour, "serve: how long a key is remembered")
	flags.DurationVar(&s.work, "work", 0, "serve: how long a payment pretends to take")

	flags.StringVar(&p.url, "url", "http://127.0.0.1:8080", "client: the service's `URL`")
	flags.StringVar(&p.account, "account", "acme", "client: who pays")
	flags.StringVar(&p.mode, "mode", string(client.Keys), "client: keys, check or plain")
	flags.StringVar(&p.order.Key, "key", "", "client: idempotency `key`; empty: a generated one")
	flags.StringVar(&p.order.Reference, "reference", "", "client: your number for the payment")
	flags.Int64Var(&p.order.Amount, "amount", 0, "client: in the minor unit (cents)")
	flags.StringVar(&p.order.Currency, "currency", "EUR", "client: ISO 4217 `code`")
	flags.StringVar(&p.order.To, "to", "globex", "client: who is paid")
	flags.DurationVar(&p.timeout, "timeout", 30*time.Second, "client: for everything")
	flags.DurationVar(&p.attemptTimeout, "attempt-timeout", 5*time.Second, "client: for one attempt")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q", flags.Arg(0))
	}

	switch {
	case *serveMode && *clientMode:
		return errors.New("-serve and -client exclude each other")
	case *serveMode:
		s.server.Log = slog.New(slog.NewTextHandler(stderr, nil))
		return serve(ctx, s, stdout)
	case *clientMode:
		return pay(ctx, p, stdout, stderr)
	default:
		return story(ctx, stdout)
	}
}

type payConfig struct {
	url, account, mode      string
	order                   client.Order
	timeout, attemptTimeout time.Duration
}

// pay makes one payment and says what is known of it.
func pay(ctx context.Context, config payConfig, stdout, stderr io.Writer) error {
	c, err := client.New(client.Config{
		URL: config.url, Account: config.account, Mode: client.Mode(config.mode),
		Options: []retrip.Option{
			retrip.WithMaxAttempts(10),
			retrip.WithTotalTimeout(config.timeout),
			retrip.WithAttemptTimeout(config.attemptTimeout),
			retrip.WithLogger(slog.New(slog.NewTextHandler(stderr, nil))),
		},
	})
	if err != nil {
		return err
	}
	defer c.CloseIdleConnections()
	paid, err := c.Pay(ctx, config.order)
	if err != nil {
		return err
	}
	how := "paid"
	if paid.Replayed {
		how = "had been paid"
	}
	_, err = fmt.Fprintf(stdout, "%s: %s, %s to %s (attempts %d, key %q)\n", how, paid.Receipt.ID,
		money(paid.Receipt.Amount, paid.Receipt.Currency), paid.Receipt.To, paid.Attempts, paid.Key)
	return err
}

func money(amount int64, currency string) string {
	return fmt.Sprintf("%d.%02d %s", amount/100, amount%100, currency)
}
