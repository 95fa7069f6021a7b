package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"sync/atomic"
)

const (
	// The program, and its test binary too, starts itself again for the parts that need a
	// process of their own; this tells which part.
	roleVariable = "RETRIP_BENCH_ROLE"
	roleOrigin   = "origin"
	roleUpload   = "upload"

	receivedHeader = "Received"
	flakyPath      = "/flaky" // answers every other exchange by 503
)

// playRole does what the process was started for; it reports false in the one that a
// person has started.
func playRole() (played bool, err error) {
	switch role := os.Getenv(roleVariable); role {
	case "":
		return false, nil
	case roleOrigin:
		return true, serveOrigin(os.Stdin, os.Stdout)
	case roleUpload:
		return true, upload(os.Stdin, os.Stdout)
	default:
		return true, fmt.Errorf("benchmarks: %s: unknown role %q", roleVariable, role)
	}
}

// startRole starts this program again.
func startRole(ctx context.Context, role string) (*exec.Cmd, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), roleVariable+"="+role)
	cmd.Stderr = os.Stderr
	return cmd, nil
}

// An origin is a server in a process of its own, so that its work is not the client's.
type origin struct {
	Plain, Secure string // URLs without a slash at the end: HTTP/1.1, and HTTP/2 over TLS
	Certificate   string // PEM

	cmd  *exec.Cmd
	stop io.Closer
}

func startOrigin(ctx context.Context) (*origin, error) {
	cmd, err := startRole(ctx, roleOrigin)
	if err != nil {
		return nil, err
	}
	o := &origin{cmd: cmd}
	if o.stop, err = cmd.StdinPipe(); err != nil {
		return nil, err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	line, err := bufio.NewReader(out).ReadBytes('\n')
	if err == nil {
		err = json.Unmarshal(line, o)
	}
	if err != nil {
		return nil, errors.Join(fmt.Errorf("benchmarks: the origin did not start: %w", err), o.close())
	}
	return o, nil
}

// close ends the origin, which would also end with this process: it reads our end of a pipe.
func (o *origin) close() error {
	_ = o.stop.Close()
	return o.cmd.Wait()
}

// transport makes a base with connections of its own.
func (o *origin) transport() (*http.Transport, error) {
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM([]byte(o.Certificate)) {
		return nil, errors.New("benchmarks: the origin's certificate cannot be read")
	}
	return &http.Transport{
		TLSClientConfig:     &tls.Config{RootCAs: pool, MinVersion: tls.VersionTLS12},
		ForceAttemptHTTP2:   true,
		MaxIdleConnsPerHost: 8,
	}, nil
}

// serveOrigin serves on loopback until in ends.
func serveOrigin(in io.Reader, out io.Writer) error {
	var exchanges atomic.Int64
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		answer(w, r, http.StatusOK)
	})
	mux.HandleFunc(flakyPath, func(w http.ResponseWriter, r *http.Request) {
		status := http.StatusOK
		if exchanges.Add(1)%2 == 1 {
			status = http.StatusServiceUnavailable
		}
		answer(w, r, status)
	})
	plain := httptest.NewServer(mux)
	defer plain.Close()
	secure := httptest.NewUnstartedServer(mux)
	secure.EnableHTTP2 = true
	secure.StartTLS()
	defer secure.Close()

	certificate := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw})
	err := json.NewEncoder(out).Encode(&origin{Plain: plain.URL, Secure: secure.URL, Certificate: string(certificate)})
	if err != nil {
		return err
	}
	_, err = io.Copy(io.Discard, in)
	return err
}

func answer(w http.ResponseWriter, r *http.Request, status int) {
	n, err := io.Copy(io.Discard, r.Body)
	if err != nil {
		return // the client has gone, or sent less than it promised
	}
	w.Header().Set(receivedHeader, strconv.FormatInt(n, 10))
	w.WriteHeader(status)
	_, _ = io.WriteString(w, "an answer of a size that is usual where a program talks to another\n")
}
