//go:build unix

// Package pgtemp starts throw-away PostgreSQL clusters: in a temporary folder,
// on a free port of the loopback interface, without unix sockets, and as an
// unprivileged user where the caller is root. Nothing of an installed cluster is
// touched.
package pgtemp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"
)

// ErrNotInstalled says that the machine has no PostgreSQL server. On Debian,
// `apt-get install postgresql` brings it.
var ErrNotInstalled = errors.New("pgtemp: PostgreSQL is not installed (Debian: apt-get install postgresql)")

// Cluster is a running PostgreSQL server. Stop ends it.
type Cluster struct {
	dir    string
	port   int
	server *exec.Cmd
	exited chan struct{} // closed when the server process is gone
	log    *bytes.Buffer // to be read after exited only
}

// Start makes a cluster and waits until it accepts connections. It does not
// survive a crash of the machine: nothing is synced to the disk.
func Start(ctx context.Context) (*Cluster, error) {
	bin, err := binaries()
	if err != nil {
		return nil, err
	}
	attr, err := unprivileged()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "pgtemp-")
	if err != nil {
		return nil, fmt.Errorf("pgtemp: %w", err)
	}
	c := &Cluster{dir: dir}
	if err := c.start(ctx, bin, attr); err != nil {
		return nil, errors.Join(err, c.Stop())
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context, bin string, attr *syscall.SysProcAttr) error {
	if attr.Credential != nil {
		if err := os.Chown(c.dir, int(attr.Credential.Uid), int(attr.Credential.Gid)); err != nil {
			return fmt.Errorf("pgtemp: %w", err)
		}
	}
	data := filepath.Join(c.dir, "data")
	initdb := exec.CommandContext(ctx, filepath.Join(bin, "initdb"), //nolint:gosec // the path is one of this machine's
		"-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--no-sync")
	initdb.SysProcAttr, initdb.Dir = attr, c.dir
	if out, err := initdb.CombinedOutput(); err != nil {
		return fmt.Errorf("pgtemp: initdb: %w\n%s", err, out)
	}

	// Another program may take the free port before the server does; then the
	// server ends at once, and the next port is tried.
	var err error
	for range 5 {
		if c.port, err = freePort(); err != nil {
			return fmt.Errorf("pgtemp: %w", err)
		}
		c.log = new(bytes.Buffer)
		c.server = exec.Command(filepath.Join(bin, "postgres"), "-D", data, //nolint:gosec,noctx // as above; it outlives ctx and is ended by Stop
			"-p", strconv.Itoa(c.port), "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=",
			"-c", "fsync=off", "-c", "max_connections=200")
		c.server.SysProcAttr, c.server.Dir = attr, c.dir
		c.server.Stdout, c.server.Stderr = c.log, c.log
		if err := c.server.Start(); err != nil {
			c.server = nil
			return fmt.Errorf("pgtemp: %w", err)
		}
		c.exited = make(chan struct{})
		go func(server *exec.Cmd, exited chan struct{}) {
			_ = server.Wait() // what it said is in the log
			close(exited)
		}(c.server, c.exited)
		if err = c.awaitReady(ctx); err == nil {
			return nil
		}
		c.kill()
	}
	return fmt.Errorf("pgtemp: server did not start: %w\n%s", err, c.log)
}

// awaitReady returns when the server answers, and an error when it is gone or
// ctx is over.
func (c *Cluster) awaitReady(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := pgx.Connect(ctx, c.DSN("postgres"))
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-c.exited:
			return errors.New("server process ended")
		case <-ctx.Done():
			return err
		case <-tick.C:
		}
	}
}

// DSN returns the connection string of a database in the cluster.
func (c *Cluster) DSN(database string) string {
	return fmt.Sprintf("postgres://postgres@127.0.0.1:%d/%s?sslmode=disable", c.port, database)
}

// Create makes an empty database and returns its connection string.
func (c *Cluster) Create(ctx context.Context, database string) (string, error) {
	return c.DSN(database), c.exec(ctx, "CREATE DATABASE "+pgx.Identifier{database}.Sanitize())
}

// Drop deletes a database and ends the connections to it.
func (c *Cluster) Drop(ctx context.Context, database string) error {
	return c.exec(ctx, "DROP DATABASE "+pgx.Identifier{database}.Sanitize()+" WITH (FORCE)")
}

func (c *Cluster) exec(ctx context.Context, sql string) error {
	conn, err := pgx.Connect(ctx, c.DSN("postgres"))
	if err != nil {
		return fmt.Errorf("pgtemp: %w", err)
	}
	defer func() { _ = conn.Close(ctx) }()
	if _, err := conn.Exec(ctx, sql); err != nil {
		return fmt.Errorf("pgtemp: %w", err)
	}
	return nil
}

// Stop ends the server, with all its connections, and deletes the cluster.
func (c *Cluster) Stop() error {
	c.kill()
	if err := os.RemoveAll(c.dir); err != nil {
		return fmt.Errorf("pgtemp: %w", err)
	}
	return nil
}

func (c *Cluster) kill() {
	if c.server == nil {
		return
	}
	// SIGINT is PostgreSQL's fast shutdown: it does not wait for clients.
	_ = c.server.Process.Signal(syscall.SIGINT)
	select {
	case <-c.exited:
	case <-time.After(10 * time.Second):
		_ = c.server.Process.Kill()
		<-c.exited
	}
	c.server = nil
}

// binaries finds the folder of the newest installed server; Debian keeps it out
// of PATH.
func binaries() (string, error) {
	if path, err := exec.LookPath("postgres"); err == nil {
		// A link in PATH need not have initdb beside it.
		if path, err = filepath.EvalSymlinks(path); err == nil {
			return filepath.Dir(path), nil
		}
	}
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	if err != nil || len(found) == 0 {
		return "", ErrNotInstalled
	}
	version := func(path string) int {
		n, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(path)))) // 0 for what is no version
		return n
	}
	return filepath.Dir(slices.MaxFunc(found, func(a, b string) int { return version(a) - version(b) })), nil
}

// unprivileged says as whom the server runs: PostgreSQL refuses to run as root.
func unprivileged() (*syscall.SysProcAttr, error) {
	attr := &syscall.SysProcAttr{Setpgid: true} // an interrupt at the terminal is for the caller, who calls Stop
	if os.Getuid() != 0 {
		return attr, nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err := errors.Join(err1, err2); err != nil {
			return nil, fmt.Errorf("pgtemp: user %s: %w", name, err)
		}
		attr.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		return attr, nil
	}
	return nil, errors.New("pgtemp: no unprivileged user to run PostgreSQL as")
}

func freePort() (int, error) {
	ln, err := net.Listen("tcp4", "127.0.0.1:0") //nolint:noctx // loopback, closed at once
	if err != nil {
		return 0, err
	}
	defer func() { _ = ln.Close() }()
	return ln.Addr().(*net.TCPAddr).Port, nil
}
