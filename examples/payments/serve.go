package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"time"

	"github.com/retrip/retrip/examples/payments/internal/ledger"
	"github.com/retrip/retrip/examples/payments/internal/server"
)

type serveConfig struct {
	addr, db, dsn string
	work          time.Duration
	server        server.Config
}

// serve runs the service until ctx ends and then lets the running requests
// finish.
func serve(ctx context.Context, config serveConfig, stdout io.Writer) (err error) {
	store, err := open(ctx, config.db, config.dsn)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Close()) }()
	config.server.Work = func(ctx context.Context) error { return wait(ctx, config.work) }
	handler, err := server.New(store, config.server)
	if err != nil {
		return err
	}
	listener, err := new(net.ListenConfig).Listen(ctx, "tcp", config.addr)
	if err != nil {
		return err
	}
	httpServer := &http.Server{
		Handler:           handler,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       10 * time.Second,
		IdleTimeout:       2 * time.Minute,
		ErrorLog:          slog.NewLogLogger(config.server.Log.Handler(), slog.LevelWarn),
	}
	if _, err := fmt.Fprintf(stdout, "listening on http://%s\n", listener.Addr()); err != nil {
		return errors.Join(err, listener.Close())
	}

	background, cancel := context.WithCancel(ctx)
	purged := make(chan struct{})
	go func() {
		defer close(purged)
		purge(background, store, config.server.Retention, config.server.Log)
	}()
	served := make(chan error, 1)
	go func() { served <- httpServer.Serve(listener) }()
	select {
	case err = <-served:
	case <-ctx.Done():
		// No longer than a lease: what takes longer is a repeat's to take over.
		shutdownCtx, done := context.WithTimeout(context.WithoutCancel(ctx), config.server.Lease)
		err = httpServer.Shutdown(shutdownCtx)
		done()
		if serveErr := <-served; !errors.Is(serveErr, http.ErrServerClosed) {
			err = errors.Join(err, serveErr)
		}
	}
	cancel()
	<-purged
	return err
}

func open(ctx context.Context, db, dsn string) (ledger.Store, error) {
	if dsn != "" {
		return ledger.OpenPostgres(ctx, dsn)
	}
	return ledger.OpenSQLite(ctx, db)
}

// purge deletes expired records from time to time. Nothing depends on when it
// does: an expired record is not found even before.
func purge(ctx context.Context, store ledger.Store, retention time.Duration, log *slog.Logger) {
	ticker := time.NewTicker(max(time.Second, retention/24))
	defer ticker.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
		if n, err := store.Purge(ctx); err != nil {
			log.ErrorContext(ctx, "cannot purge", "error", err)
		} else if n > 0 {
			log.InfoContext(ctx, "purged", "records", n)
		}
	}
}

func wait(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-timer.C:
		return nil
	}
}
