package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip/examples/payments/internal/ledger"
	"github.com/retrip/retrip/examples/payments/internal/pgtemp"
)

var (
	binary  string          // the program, built once
	cluster *pgtemp.Cluster // nil where PostgreSQL is not installed

	databases atomic.Int32 // made in it
)

func TestMain(m *testing.M) {
	code, err := setUpAndRun(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func setUpAndRun(m *testing.M) (code int, err error) {
	dir, err := os.MkdirTemp("", "payments-test-")
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	binary = filepath.Join(dir, "payments")
	build := exec.Command("go", "build", "-o", binary, ".")
	if raceEnabled {
		build.Args = []string{"go", "build", "-race", "-o", binary, "."}
	}
	if out, err := build.CombinedOutput(); err != nil {
		return 0, fmt.Errorf("build: %w\n%s", err, out)
	}
	cluster, err = pgtemp.Start(context.Background())
	if errors.Is(err, pgtemp.ErrNotInstalled) && os.Getenv("RETRIP_REQUIRE_POSTGRES") != "1" {
		cluster, err = nil, nil
	}
	if err != nil {
		return 0, err
	}
	if cluster != nil {
		defer func() { err = errors.Join(err, cluster.Stop()) }()
	}
	before := runtime.NumGoroutine()
	code = m.Run()
	return code, awaitGoroutines(before)
}

// awaitGoroutines returns an error where more goroutines are left than there
// were before the tests.
func awaitGoroutines(want int) error {
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for deadline := time.Now().Add(5 * time.Second); ; <-ticker.C {
		if runtime.NumGoroutine() <= want {
			return nil
		}
		if time.Now().After(deadline) {
			var stacks bytes.Buffer
			_ = pprof.Lookup("goroutine").WriteTo(&stacks, 1)
			return fmt.Errorf("%d goroutines are left, not %d\n%s", runtime.NumGoroutine(), want, &stacks)
		}
	}
}

// database is one that server processes and the test share.
type database struct {
	flags []string // of a server
	store ledger.Store
}

func newSQLite(t *testing.T) database {
	t.Helper()
	path := filepath.Join(t.TempDir(), "payments.db")
	store, err := ledger.OpenSQLite(t.Context(), path)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, store.Close()) })
	return database{flags: []string{"-db", path}, store: store}
}

func newPostgres(t *testing.T) database {
	t.Helper()
	if cluster == nil {
		t.Skip(pgtemp.ErrNotInstalled)
	}
	name := fmt.Sprintf("payments_%d", databases.Add(1))
	dsn, err := cluster.Create(t.Context(), name)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, cluster.Drop(context.Background(), name)) })
	store, err := ledger.OpenPostgres(t.Context(), dsn)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, store.Close()) })
	return database{flags: []string{"-dsn", dsn}, store: store}
}

// process is a running server. What it logs is kept.
type process struct {
	url    string
	cmd    *exec.Cmd
	stderr *bytes.Buffer // to be read after the process has ended
}

func startServer(t *testing.T, flags ...string) *process {
	t.Helper()
	p := &process{stderr: new(bytes.Buffer)}
	p.cmd = exec.Command(binary, append([]string{"-serve", "-addr", "127.0.0.1:0"}, flags...)...)
	p.cmd.Stderr = p.stderr
	stdout, err := p.cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, p.cmd.Start())
	line, err := bufio.NewReader(stdout).ReadString('\n')
	if err != nil {
		p.kill()
		require.NoError(t, err, "%s", p.stderr)
	}
	p.url = strings.TrimPrefix(strings.TrimSpace(line), "listening on ")
	return p
}

// kill ends the process by SIGKILL, which it cannot see coming, and returns what
// it had logged.
func (p *process) kill() string {
	_ = p.cmd.Process.Kill()
	_ = p.cmd.Wait() // "signal: killed"
	return p.stderr.String()
}

// interrupt ends the process as an operator does.
func (p *process) interrupt() (log string, err error) {
	if err := p.cmd.Process.Signal(os.Interrupt); err != nil {
		return p.kill(), err
	}
	err = p.cmd.Wait()
	return p.stderr.String(), err
}

// servers is a service whose process is killed and started again.
type servers struct {
	flags []string

	mu      sync.Mutex
	current *process
	log     strings.Builder
	kills   int
}

func (s *servers) start(t *testing.T) (url string) {
	t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.current = startServer(t, s.flags...)
	return s.current.url
}

func (s *servers) kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.log.WriteString(s.current.kill())
	s.kills++
}
