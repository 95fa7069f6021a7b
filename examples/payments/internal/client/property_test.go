package client_test

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	crand "crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"math/big"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"

	"github.com/retrip/retrip/examples/payments/internal/client"
	"github.com/retrip/retrip/examples/payments/internal/contract"
)

// outcome is what becomes of one request.
type outcome int

const (
	succeed          outcome = iota
	dropUnexecuted           // read, nothing done, connection broken
	dropExecuted             // done, connection broken
	cutHead                  // done, answer broken off in its head
	cutBody                  // done, answer broken off in its body
	stallExecuted            // done, no answer
	stallThenExecute         // no answer, and done after the client has hung up
	notDone                  // 503 by the service, nothing done
	gatewayDone              // 503 by something in between, done
	gatewayNotDone           // 503 by something in between, nothing done
	failedDone               // 500 by the service, done
	failedNotDone            // 500 by the service, nothing done
	outcomes
)

// operation is the model of what one payment's requests did, and the schedule by
// which they fail.
type operation struct {
	mu       sync.Mutex
	random   *rand.Rand
	received map[int]int // POSTs that reached the handler, by attempt
	effects  map[int]int // payments made, by attempt
	byKey    map[string]contract.Receipt
	keys     map[string]bool
	bodies   map[string]bool
	closed   int
	receipts []contract.Receipt
	conns    []string   // as the server knows them
	handlers int        // that run, those that outlive their clients too
	idle     *sync.Cond // on mu: handlers has become 0
}

func (o *operation) draw() outcome {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.random.IntN(100) < 30 {
		return succeed
	}
	return outcome(o.random.IntN(int(outcomes)))
}

// model is a server that does what the schedules say; accounts are operations.
type model struct {
	mu         sync.Mutex
	operations map[string]*operation
	gone       map[string]chan struct{} // by the client's address; closed when the server is through with the connection
}

func (m *model) goneOf(address string) chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.goneLocked(address)
}

func (m *model) goneLocked(address string) chan struct{} {
	if m.gone[address] == nil {
		m.gone[address] = make(chan struct{})
	}
	return m.gone[address]
}

// connState is the server's hook. A state may be reported twice, and an address
// be used again before anybody has waited for it.
func (m *model) connState(conn net.Conn, state http.ConnState) {
	if state != http.StateClosed && state != http.StateHijacked {
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	gone := m.goneLocked(conn.RemoteAddr().String())
	select {
	case <-gone:
	default:
		close(gone)
	}
}

// settle waits until nothing of the operation is under way: what its client has
// written may reach a handler after the client has given up. closeIdle is called
// more than once, because on HTTP/2 a connection is not idle until the stream of
// an attempt that was given up is cleared away, somewhat after its return.
func (m *model) settle(t *testing.T, op *operation, closeIdle func()) {
	t.Helper()
	op.mu.Lock()
	conns := op.conns
	op.mu.Unlock()
	ticker := time.NewTicker(5 * time.Millisecond)
	defer ticker.Stop()
	patience := time.NewTimer(20 * time.Second)
	defer patience.Stop()
	for _, address := range conns {
		for open := true; open; {
			closeIdle()
			select {
			case <-m.goneOf(address):
				open = false
			case <-ticker.C:
			case <-patience.C:
				assert.Fail(t, "a connection is left open")
				return
			}
		}
		m.mu.Lock()
		delete(m.gone, address)
		m.mu.Unlock()
	}
	op.mu.Lock()
	defer op.mu.Unlock()
	for op.handlers > 0 {
		op.idle.Wait()
	}
}

func (m *model) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	m.mu.Lock()
	op := m.operations[strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")]
	m.mu.Unlock()
	op.begin(r)
	defer op.end()
	body, err := io.ReadAll(r.Body)
	if err != nil {
		panic(http.ErrAbortHandler) // a client that gave up
	}
	execute := op.serve(r, body)

	switch op.draw() {
	case dropUnexecuted:
		drop(w)
	case dropExecuted:
		execute()
		drop(w)
	case cutHead:
		execute()
		cut(w, "HTTP/1.1 201 Cre")
	case cutBody:
		status, answer := execute()
		w.Header().Set("Content-Length", strconv.Itoa(len(answer)))
		w.WriteHeader(status)
		_, _ = w.Write(answer[:len(answer)/2])
		_ = http.NewResponseController(w).Flush()
		panic(http.ErrAbortHandler)
	case stallExecuted:
		execute()
		<-r.Context().Done()
	case stallThenExecute:
		<-r.Context().Done()
		execute()
	case notDone:
		problem(w, http.StatusServiceUnavailable, contract.ProblemNotDone)
	case gatewayDone:
		execute()
		http.Error(w, "bad gateway", http.StatusServiceUnavailable)
	case gatewayNotDone:
		http.Error(w, "bad gateway", http.StatusServiceUnavailable)
	case failedDone:
		execute()
		problem(w, http.StatusInternalServerError, contract.ProblemOutcomeUnknown)
	case failedNotDone:
		problem(w, http.StatusInternalServerError, contract.ProblemOutcomeUnknown)
	default:
		status, answer := execute()
		w.WriteHeader(status)
		_, _ = w.Write(answer)
	}
}

// begin notes the arrival of a request.
func (o *operation) begin(r *http.Request) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.handlers++
	if r.Method == http.MethodPost {
		o.received[attemptOf(r)]++
		o.keys[r.Header.Get(contract.KeyHeader)] = true
	}
}

func (o *operation) end() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.handlers--; o.handlers == 0 {
		o.idle.Broadcast()
	}
}

func attemptOf(r *http.Request) int {
	n, _ := strconv.Atoi(r.Header.Get(contract.AttemptHeader))
	return n
}

// serve returns what carrying a request out means.
func (o *operation) serve(r *http.Request, body []byte) (execute func() (status int, answer []byte)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	switch attempt, key := attemptOf(r), r.Header.Get(contract.KeyHeader); r.Method {
	case http.MethodPost:
		o.bodies[string(body)] = true
		return func() (int, []byte) { return o.pay(attempt, key) }
	case http.MethodPut:
		var closing contract.Closing
		_ = json.Unmarshal(body, &closing)
		return func() (int, []byte) { return o.close(closing.UpTo) }
	default:
		return func() (int, []byte) { return o.lookUp(strings.TrimPrefix(r.URL.Path, "/payments/by-key/")) }
	}
}

func (o *operation) pay(attempt int, key string) (int, []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if attempt <= o.closed {
		return http.StatusConflict, encode(contract.Problem{Type: contract.ProblemAttemptClosed})
	}
	if receipt, ok := o.byKey[key]; ok && key != "" {
		return http.StatusCreated, encode(receipt)
	}
	receipt := contract.Receipt{ID: fmt.Sprintf("pay_%d_%d", attempt, len(o.receipts))}
	o.effects[attempt]++
	o.receipts = append(o.receipts, receipt)
	o.byKey[key] = receipt
	return http.StatusCreated, encode(receipt)
}

func (o *operation) close(upTo int) (int, []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = max(o.closed, upTo)
	return http.StatusOK, encode(contract.Closed{Payments: append([]contract.Receipt{}, o.receipts...)})
}

func (o *operation) lookUp(key string) (int, []byte) {
	o.mu.Lock()
	defer o.mu.Unlock()
	receipt, ok := o.byKey[key]
	if !ok {
		return http.StatusNotFound, encode(contract.Problem{Type: contract.ProblemUnknownKey})
	}
	return http.StatusOK, encode(contract.KeyState{State: "done", Status: http.StatusCreated, Answer: encode(receipt)})
}

func encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}

func problem(w http.ResponseWriter, status int, problemType string) {
	w.Header().Set("Content-Type", contract.ProblemMediaType)
	w.WriteHeader(status)
	_, _ = w.Write(encode(contract.Problem{Type: problemType, Title: "as scheduled", Status: status}))
}

// drop breaks the connection by a reset, or on HTTP/2 the stream.
func drop(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		_ = tcp.SetLinger(0)
	}
	_ = conn.Close()
}

func cut(w http.ResponseWriter, head string) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	_, _ = io.WriteString(conn, head)
	_ = conn.Close()
}

// deadConn is a connection whose server is gone before the first byte.
type deadConn struct{ net.Conn }

func (deadConn) Write([]byte) (int, error) {
	return 0, &net.OpError{Op: "write", Net: "tcp", Err: syscall.ECONNRESET}
}

// dial fails as the operation's schedule says.
func (o *operation) dial(ctx context.Context, network, address string) (net.Conn, error) {
	o.mu.Lock()
	n := o.random.IntN(100)
	o.mu.Unlock()
	if n < 20 {
		return nil, &net.OpError{Op: "dial", Net: network, Err: syscall.ECONNREFUSED}
	}
	conn, err := new(net.Dialer).DialContext(ctx, network, address)
	if err != nil {
		return nil, err
	}
	o.mu.Lock()
	o.conns = append(o.conns, conn.LocalAddr().String())
	o.mu.Unlock()
	if n < 30 {
		return deadConn{conn}, nil
	}
	return conn, nil
}

var modes = []client.Mode{client.Keys, client.Checked, client.Plain}

// TestClientNeverPaysTwiceAndNeverLies pays under random schedules of failures
// and compares what the client says with what the model did.
func TestClientNeverPaysTwiceAndNeverLies(t *testing.T) {
	t.Parallel()
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2.0"} {
		t.Run(protocol, func(t *testing.T) {
			t.Parallel()
			for _, mode := range modes {
				t.Run(string(mode), func(t *testing.T) { property(t, protocol, mode) })
			}
		})
	}
}

func property(t *testing.T, protocol string, mode client.Mode) {
	t.Helper()
	schedules, limit := 300, time.Duration(0)
	if value := os.Getenv("PAYMENTS_SOAK"); value != "" {
		var err error
		limit, err = time.ParseDuration(value)
		require.NoError(t, err, "PAYMENTS_SOAK")
		limit /= time.Duration(len(modes))
	}
	m := &model{operations: map[string]*operation{}, gone: map[string]chan struct{}{}}
	server := httptest.NewUnstartedServer(m)
	server.Config.ErrorLog = log.New(io.Discard, "", 0) // it would tell of each failure
	server.Config.ConnState = m.connState
	if protocol == "HTTP/2.0" {
		server.EnableHTTP2 = true
		server.TLS = &tls.Config{Certificates: []tls.Certificate{certificate(t)}}
		server.StartTLS()
	} else {
		server.Start()
	}
	defer server.Close()

	var (
		seed  = uint64(time.Now().UnixNano())
		end   = time.Now().Add(limit)
		mu    sync.Mutex
		tally = map[string]int{}
		next  = make(chan uint64)
		wg    sync.WaitGroup
	)
	for range 4 {
		wg.Go(func() {
			for s := range next {
				what := schedule(t, m, server, mode, s)
				mu.Lock()
				for _, w := range what {
					tally[w]++
				}
				mu.Unlock()
			}
		})
	}
	for i := 0; (i < schedules || time.Now().Before(end)) && !t.Failed(); i++ {
		next <- seed + uint64(i)
	}
	close(next)
	wg.Wait()
	t.Logf("%s, %s, from seed %d: %v", protocol, mode, seed, tally)
}

// certificate makes one with a small key: with the RSA key of httptest, the
// handshakes of a -race build take longer than the attempts' patience.
func certificate(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), crand.Reader)
	require.NoError(t, err)
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(24 * time.Hour), IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)},
		BasicConstraintsValid: true, IsCA: true,
	}
	der, err := x509.CreateCertificate(crand.Reader, template, template, key.Public(), key)
	require.NoError(t, err)
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// schedule plays one payment and returns what happened, to be counted.
func schedule(t *testing.T, m *model, server *httptest.Server, mode client.Mode, seed uint64) (what []string) {
	t.Helper()
	random := rand.New(rand.NewPCG(seed, 1))
	account := fmt.Sprintf("op-%d", seed)
	op := &operation{
		random: rand.New(rand.NewPCG(seed, 2)), received: map[int]int{}, effects: map[int]int{},
		byKey: map[string]contract.Receipt{}, keys: map[string]bool{}, bodies: map[string]bool{},
	}
	op.idle = sync.NewCond(&op.mu)
	m.mu.Lock()
	m.operations[account] = op
	m.mu.Unlock()

	base := server.Client().Transport.(*http.Transport).Clone()
	base.DialContext = op.dial
	var (
		mu     sync.Mutex
		events []retrip.Event
	)
	maxAttempts := 1 + random.IntN(5)
	options := []retrip.Option{
		retrip.WithMaxAttempts(maxAttempts),
		retrip.WithBackoff(retrip.Constant(time.Duration(random.IntN(3)) * time.Millisecond)),
		retrip.WithAttemptTimeout(time.Duration(30+random.IntN(60)) * time.Millisecond),
		retrip.WithAttemptHeaders(retrip.AttemptHeaders{Attempt: contract.AttemptHeader}),
		retrip.WithHook(func(_ context.Context, e retrip.Event) {
			mu.Lock()
			defer mu.Unlock()
			if e.Method == http.MethodPost {
				events = append(events, e)
			}
		}),
	}
	if random.IntN(4) > 0 {
		options = append(options, retrip.WithBudget(nil))
	}
	if random.IntN(4) == 0 {
		options = append(options, retrip.WithTotalTimeout(time.Duration(1+random.IntN(500))*time.Millisecond))
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if random.IntN(6) == 0 {
		timer := time.AfterFunc(time.Duration(random.IntN(100_000))*time.Microsecond, cancel)
		defer timer.Stop()
	}
	c, err := client.New(client.Config{URL: server.URL, Account: account, Mode: mode, Base: base, Options: options})
	if err != nil {
		assert.Fail(t, err.Error())
		return nil
	}
	paid, err := c.Pay(ctx, order())
	m.settle(t, op, c.CloseIdleConnections)

	op.mu.Lock()
	defer op.mu.Unlock()
	mu.Lock()
	defer mu.Unlock()
	story := fmt.Sprintf("seed %d: paid %+v, error %v\nreceived %v, effects %v, closed %d\nevents %v", seed, paid, err, op.received, op.effects, op.closed, events)
	effects, received := 0, 0
	for _, n := range op.effects {
		effects += n
	}
	for _, n := range op.received {
		received += n
	}

	assert.LessOrEqual(t, effects, 1, "paid twice\n%s", story)
	assert.LessOrEqual(t, len(op.bodies), 1, "bodies differ\n%s", story)
	assert.LessOrEqual(t, len(op.keys), 1, "keys differ\n%s", story)
	assert.LessOrEqual(t, len(events), maxAttempts+1, story) // one more where a wait was ended
	if received > 0 {
		assert.Equal(t, mode != client.Keys, op.keys[""], "a key where none is wanted, or none\n%s", story)
	}
	if mode == client.Plain {
		assert.LessOrEqual(t, received, 1, "sent again without a permit\n%s", story)
	}
	for _, e := range events {
		if e.Delivery == retrip.DeliveryNotSent || e.Delivery == retrip.DeliveryRefused {
			assert.Zero(t, op.received[e.Attempt], "attempt %d was received\n%s", e.Attempt, story)
		}
	}

	if err == nil {
		assert.Equal(t, 1, effects, "paid, says the client\n%s", story)
		if effects == 1 && paid.Receipt.ID != "" {
			assert.Equal(t, op.receipts[0].ID, paid.Receipt.ID, story)
		}
		what = append(what, "paid")
	} else {
		var e *client.Error
		if !errors.As(err, &e) {
			assert.Fail(t, "another type of error", story)
			return nil
		}
		assert.Equal(t, e.MaybePaid, errors.Is(err, retrip.ErrOutcomeUnknown), story)
		if !e.MaybePaid {
			assert.Zero(t, effects, "not paid, says the client\n%s", story)
		}
		if len(events) > 0 {
			assert.Equal(t, events[len(events)-1].Delivery, e.Delivery, story)
		}
		what = append(what, fmt.Sprintf("failed, %s, maybe paid %t, paid %d", e.Delivery, e.MaybePaid, effects))
	}
	for _, e := range events {
		if e.Attempt > 0 {
			what = append(what, "attempts", strings.TrimSpace(fmt.Sprintf("attempts %s %s", e.Delivery, e.Class)))
		}
	}
	return what
}
