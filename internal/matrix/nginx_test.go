package matrix

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/httptestx"
)

// requireNginx is the environment variable that makes nginx's absence a failure.
const requireNginx = "RETRIP_REQUIRE_NGINX"

// server is a real nginx in front of an origin of ours that counts.
type server struct {
	httptestx.Ledger

	tls, plain string // base URLs
	upstream   *http.Server
}

const nginxConf = `
daemon off;
master_process off;
worker_processes 1;
pid %[1]s/nginx.pid;
error_log stderr crit;
events { worker_connections 1024; }
http {
	access_log off;
	client_body_temp_path %[1]s/body;
	proxy_temp_path %[1]s/proxy;
	fastcgi_temp_path %[1]s/fastcgi;
	uwsgi_temp_path %[1]s/uwsgi;
	scgi_temp_path %[1]s/scgi;
	limit_req_zone $binary_remote_addr zone=slow:1m rate=20r/s;
	upstream origin { server %[4]s; keepalive 16; }
	proxy_http_version 1.1;
	proxy_set_header Connection "";
	proxy_next_upstream off;
	server {
		listen %[2]s ssl http2;
		ssl_certificate %[1]s/cert.pem;
		ssl_certificate_key %[1]s/key.pem;
		keepalive_requests 3;
		location / { proxy_pass http://origin; }
	}
	server {
		listen %[3]s;
		keepalive_timeout 20ms;
		location / { proxy_pass http://origin; }
		location /closed { return 444; }
		location /limited { limit_req zone=slow; limit_req_status 429; proxy_pass http://origin; }
		location /dead { proxy_pass http://%[5]s; }
	}
}
`

func startNginx(t *testing.T) *server {
	t.Helper()
	binary, err := exec.LookPath("nginx")
	if err != nil {
		if os.Getenv(requireNginx) == "1" {
			t.Fatalf("nginx is missing and %s is set: apt-get install nginx-light", requireNginx)
		}
		t.Skip("nginx is missing: apt-get install nginx-light")
	}
	s := &server{}
	ln := httptestx.Listen(t)
	s.upstream = &http.Server{Handler: http.HandlerFunc(s.serve), ReadHeaderTimeout: time.Minute}
	served := make(chan struct{})
	go func() {
		defer close(served)
		_ = s.upstream.Serve(ln) // always http.ErrServerClosed: the clean-up ends it
	}()
	t.Cleanup(func() {
		s.upstream.Close()
		<-served
	})

	secure, plain, dead := freeAddr(t), freeAddr(t), freeAddr(t)
	s.tls, s.plain = "https://"+secure, "http://"+plain
	dir := t.TempDir()
	writePEM(t, dir)
	conf := filepath.Join(dir, "nginx.conf")
	require.NoError(t, os.WriteFile(conf, fmt.Appendf(nil, nginxConf, dir, secure, plain, ln.Addr(), dead), 0o600))
	var stderr bytes.Buffer
	cmd := exec.CommandContext(context.Background(), binary, "-p", dir, "-e", "stderr", "-c", conf)
	cmd.Stderr = &stderr
	require.NoError(t, cmd.Start())
	exited := make(chan struct{})
	go func() {
		defer close(exited)
		_ = cmd.Wait() // it is ended by a signal
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		<-exited
		assert.Empty(t, stderr.String(), "nginx complained")
	})
	require.Eventually(t, func() bool {
		c, err := net.DialTimeout("tcp", plain, time.Second)
		if err != nil {
			return false
		}
		c.Close()
		return true
	}, 10*time.Second, 5*time.Millisecond, "nginx does not listen: %s", &stderr)
	return s
}

// freeAddr is a loopback address that nobody else of this process gets.
func freeAddr(t *testing.T) string {
	t.Helper()
	ln := httptestx.Listen(t)
	defer ln.Close()
	return ln.Addr().String()
}

func writePEM(t *testing.T, dir string) {
	t.Helper()
	pair := httptestx.ServerTLS(httptestx.GoodCert).Certificates[0]
	key, err := x509.MarshalPKCS8PrivateKey(pair.PrivateKey)
	require.NoError(t, err)
	for name, block := range map[string]*pem.Block{
		"cert.pem": {Type: "CERTIFICATE", Bytes: pair.Certificate[0]},
		"key.pem":  {Type: "PRIVATE KEY", Bytes: key},
	} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), pem.EncodeToMemory(block), 0o600))
	}
}

func (s *server) serve(w http.ResponseWriter, r *http.Request) {
	e := s.Head(httptestx.Seen{Method: r.Method, Target: r.RequestURI, Header: r.Header.Clone(), ContentLength: r.ContentLength})
	body, err := io.ReadAll(r.Body)
	e.Data(body)
	if err == nil {
		e.Done(nil)
	}
	_, _ = io.WriteString(w, "done")
}

// effects counts how often each operation was executed.
func (s *server) effects() map[string]int {
	n := map[string]int{}
	for _, seen := range s.Requests() {
		if seen.Complete {
			n[seen.Header.Get("X-Op")]++
		}
	}
	return n
}

// told is what a client was told of one operation.
type told struct {
	op      string
	status  int
	err     error
	bodyErr error
	maybe   bool
	last    retrip.Event
	sends   int
}

// post sends n requests, at most width at a time. Their names begin with the
// prefix; those whose prefix begins with "key-" carry it as idempotency key.
func (s *server) post(t *testing.T, rt http.RoundTripper, n, width int, url, body, prefix string) []told {
	t.Helper()
	all := make([]told, n)
	slots := make(chan struct{}, width)
	var running sync.WaitGroup
	for i := range n {
		slots <- struct{}{}
		running.Go(func() {
			defer func() { <-slots }()
			op := fmt.Sprintf("%s%d", prefix, i)
			ctx, cancel := context.WithTimeout(t.Context(), runLimit)
			defer cancel()
			ctx, rec := retrip.Record(ctx)
			req := mPOST.request(ctx, t, url, 0)
			text := body + op
			req.Body, req.ContentLength = io.NopCloser(strings.NewReader(text)), int64(len(text))
			req.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(strings.NewReader(text)), nil }
			req.Header.Set("X-Op", op)
			if strings.HasPrefix(prefix, "key-") {
				req.Header.Set("Idempotency-Key", op)
			}
			resp, err := rt.RoundTrip(req)
			got := told{op: op, err: err, maybe: rec.MaybeApplied()}
			if err == nil {
				got.status = resp.StatusCode
				_, got.bodyErr = io.Copy(io.Discard, resp.Body)
				resp.Body.Close()
			}
			for _, e := range rec.Events() {
				got.last = e
				got.sends += e.Sends
			}
			all[i] = got
		})
	}
	running.Wait()
	return all
}

// judge holds what was told against what was executed, and returns the counts.
func (s *server) judge(t *testing.T, all []told, protected bool) string {
	t.Helper()
	effects := s.effects()
	ok, unknown, clean, sends := 0, 0, 0, 0
	for _, got := range all {
		n := effects[got.op]
		require.NoError(t, got.bodyErr)
		sends += got.sends
		switch {
		case got.err == nil && got.status == http.StatusOK:
			ok++
			if protected {
				assert.GreaterOrEqual(t, n, 1, "%s was answered and never arrived", got.op)
			} else {
				assert.Equal(t, 1, n, "%s was answered once", got.op)
			}
		case got.maybe:
			unknown++
			assert.LessOrEqual(t, n, 1, "%s", got.op)
			assert.NotEmpty(t, got.last.Delivery)
		default:
			clean++
			assert.Zero(t, n, "%s failed with nothing unknown, and was executed: %+v", got.op, got.last)
		}
	}
	if protected {
		assert.Equal(t, len(all), ok, "with a key all succeed: %+v", firstFailure(all))
	}
	return fmt.Sprintf("%d sent: %d answered, %d unknown, %d known not to be executed; %d sends, %d executions",
		len(all), ok, unknown, clean, sends, s.Effects())
}

func firstFailure(all []told) told {
	for _, got := range all {
		if got.status != http.StatusOK {
			return got
		}
	}
	return told{}
}

func nginxTransport(t *testing.T, opts ...retrip.Option) http.RoundTripper {
	t.Helper()
	base := httptestx.NewTransport(t)
	base.ForceAttemptHTTP2 = true
	opts = append([]retrip.Option{retrip.WithBudget(nil), retrip.WithBackoff(retrip.FullJitter(2*time.Millisecond, 20*time.Millisecond))}, opts...)
	return httptestx.Checked(t, retrip.Must(retrip.New(base, opts...)))
}

// nginx ends each HTTP/2 connection after three requests with GOAWAY, again and
// again, under 200 POSTs with bodies at a time: of all that share a connection
// three are served and the rest refused, so that three attempts are not enough
// for most.
func TestNginxKeepaliveRequests(t *testing.T) {
	httptestx.Leaks(t)
	body := strings.Repeat("0123456789", 400)
	for key, attempts := range map[string]int{"": 3, "key-": 100} {
		s := startNginx(t)
		all := s.post(t, nginxTransport(t, retrip.WithMaxAttempts(attempts)), 200, 200, s.tls+"/orders", body, key)
		counts := s.judge(t, all, key != "")
		t.Logf("HTTP/2, keepalive_requests 3, key %q: %s", key, counts)
		for _, seen := range s.Requests() {
			if seen.Complete {
				assert.Equal(t, body+seen.Header.Get("X-Op"), seen.Body)
			}
		}
	}
}

// return 444 closes without an answer: unknown for a POST, which is sent once.
func TestNginxClosesWithoutAnAnswer(t *testing.T) {
	httptestx.Leaks(t)
	s := startNginx(t)
	for key, sends := range map[string]int{"": 1, "key-": 3} {
		all := s.post(t, nginxTransport(t), 20, 4, s.plain+"/closed", "a", key)
		for _, got := range all {
			require.ErrorIs(t, got.err, retrip.ErrOutcomeUnknown)
			assert.Contains(t, broken, got.last.Class)
			assert.Equal(t, sends, got.sends)
			assert.Equal(t, retrip.DeliveryUnknown, got.last.Delivery)
		}
	}
}

// limit_req answers 429: a POST without a key is told so, one with a key gets
// through.
func TestNginxLimitsTheRate(t *testing.T) {
	httptestx.Leaks(t)
	s := startNginx(t)
	all := s.post(t, nginxTransport(t), 10, 10, s.plain+"/limited", "a", "")
	limited := 0
	for _, got := range all {
		require.NoError(t, got.err)
		assert.Equal(t, 1, got.sends)
		if got.status == http.StatusTooManyRequests {
			limited++
		}
	}
	assert.NotZero(t, limited)
	patient := nginxTransport(t, retrip.WithMaxAttempts(200), retrip.WithBackoff(retrip.FullJitter(50*time.Millisecond, 200*time.Millisecond)))
	counts := s.judge(t, s.post(t, patient, 10, 10, s.plain+"/limited", "a", "key-"), true)
	t.Logf("limit_req: %d of %d POSTs without a key were told 429; with a key: %s", limited, len(all), counts)
}

// An upstream that is not there is nginx's 502, an upstream that dies in the
// request too: a POST is not repeated on either.
func TestNginxUpstreamDies(t *testing.T) {
	httptestx.Leaks(t)
	s := startNginx(t)
	for _, got := range s.post(t, nginxTransport(t), 10, 4, s.plain+"/dead", "a", "") {
		require.NoError(t, got.err)
		assert.Equal(t, http.StatusBadGateway, got.status)
		assert.Equal(t, 1, got.sends)
	}
	require.NoError(t, s.upstream.Close())
	before := s.Effects()
	for key, sends := range map[string]int{"": 1, "key-": 3} {
		for _, got := range s.post(t, nginxTransport(t), 10, 4, s.plain+"/orders", "a", key) {
			require.NoError(t, got.err)
			assert.Equal(t, http.StatusBadGateway, got.status)
			assert.Equal(t, sends, got.last.Attempt)
		}
	}
	assert.Equal(t, before, s.Effects())
}

// nginx closes idle connections after 20 ms, and requests come at about that
// pace: some meet a connection that is just being closed.
func TestNginxShortKeepalive(t *testing.T) {
	httptestx.Leaks(t)
	for _, key := range []string{"", "key-"} {
		s := startNginx(t)
		rt := nginxTransport(t)
		var all []told
		for i := range 60 {
			<-time.After(18*time.Millisecond + time.Duration(i%8)*time.Millisecond)
			got := s.post(t, rt, 4, 4, s.plain+"/orders", "a", fmt.Sprintf("%s%d-", key, i))
			all = append(all, got...)
		}
		t.Logf("keepalive_timeout 20ms, key %q: %s", key, s.judge(t, all, key != ""))
	}
}
