package retrip_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"regexp"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/httptestx"
)

// An outcomeRun is one operation: what a row of OUTCOMES.md sets up, and what it says.
type outcomeRun struct {
	t *testing.T

	// The request. A body is given by GetBody too, unless it is edited away.
	method string
	path   string
	header http.Header
	body   string
	edit   func(req *http.Request)
	ctx    context.Context //nolint:containedctx // of the one request

	// The origin: a real one, or in virtual time a handler that is told its turn.
	plays   []httptestx.Play
	tls     bool
	handler func(turn int, w http.ResponseWriter, r *http.Request)

	// The base, and Transports.
	transport func(std *http.Transport)
	base      func(std http.RoundTripper) http.RoundTripper
	opts      []retrip.Option
	before    func(rt http.RoundTripper, url string)
	bare      bool // the bare base is asked too

	// What is expected. An event is written as "attempt delivery/class decision/reason permit".
	events  []string
	err     error  // joined in the last event
	status  int    // of a response
	answer  string // its body
	check   func(resp *http.Response)
	exact   error // the very value that comes back
	asBare  bool  // the error is what the bare base gives, by type and text
	racing  bool  // but for its text: net/http has several for the same
	is      []error
	isNot   []error
	says    string // in the text of an *Error
	timeout bool
	maybe   bool // MaybeApplied, of the Error and the Recorder
	options bool // an *OptionError
	heads   int
	mayStay bool // nothing may have been flushed: heads is the most that may arrive
	after   []func()

	origin *httptestx.Origin
	hits   atomic.Int32
	bodies *httptestx.Bodies
	record *retrip.Recorder
}

// An outcomeRow is one case of a row.
type outcomeRow struct {
	name string
	set  func(x *outcomeRun)
}

var (
	errOutcomeGate    = errors.New("the breaker is open")
	errOutcomeGetBody = errors.New("the file is gone")
	errOutcomeBody    = errors.New("the disk is gone")
	errOutcomeCheck   = errors.New("the database is gone")
	errOutcomeOdd     = errors.New("an odd error")
)

// outcomePorts are what differs between the texts of two runs.
var outcomePorts = regexp.MustCompile(`:[0-9]+`)

func newOutcomeRun(t *testing.T, row outcomeRow) *outcomeRun {
	t.Helper()
	x := &outcomeRun{
		t: t, method: http.MethodGet, path: "/orders", header: http.Header{}, ctx: t.Context(), bare: true,
		opts: []retrip.Option{retrip.WithBackoff(retrip.Constant(time.Millisecond))},
	}
	row.set(x)
	return x
}

// outcomeRows runs rows on real sockets: by the bare base, with a hook and a recorder, and
// with nobody who looks.
func outcomeRows(t *testing.T, rows ...outcomeRow) {
	t.Helper()
	for _, row := range rows {
		t.Run(row.name, func(t *testing.T) {
			var bare *outcomeResult
			t.Run("bare", func(t *testing.T) {
				httptestx.Leaks(t)
				x := newOutcomeRun(t, row)
				if x.bare && x.before == nil {
					bare = x.runBare()
				}
			})
			t.Run("observed", func(t *testing.T) {
				httptestx.Leaks(t)
				newOutcomeRun(t, row).run(true, bare)
			})
			t.Run("unobserved", func(t *testing.T) {
				httptestx.Leaks(t)
				newOutcomeRun(t, row).run(false, bare)
			})
		})
	}
}

// outcomeTimed runs rows in virtual time.
func outcomeTimed(t *testing.T, rows ...outcomeRow) {
	t.Helper()
	for _, row := range rows {
		for name, observed := range map[string]bool{"/observed": true, "/unobserved": false} {
			t.Run(row.name+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { newOutcomeRun(t, row).run(observed, nil) })
			})
		}
	}
}

type outcomeResult struct {
	status int
	answer string
	err    error
	heads  int
}

// std makes the transport and what it reaches.
func (x *outcomeRun) std() (std *http.Transport, url string) {
	switch {
	case x.handler != nil:
		std = httptestx.ServeMemory(x.t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			turn := int(x.hits.Add(1))
			if _, err := io.Copy(io.Discard, r.Body); err != nil {
				return
			}
			x.handler(turn, w, r)
		}))
		url = "http://origin.test"
	case x.tls:
		x.origin = httptestx.NewTLSOrigin(x.t, httptestx.Sequence(x.plays...))
		std, url = httptestx.NewTransport(x.t), x.origin.URL
	default:
		if x.plays == nil {
			x.plays = []httptestx.Play{httptestx.OK("done")}
		}
		x.origin = httptestx.NewOrigin(x.t, httptestx.Sequence(x.plays...))
		std, url = httptestx.NewTransport(x.t), x.origin.URL
	}
	if x.transport != nil {
		x.transport(std)
	}
	return std, url
}

func (x *outcomeRun) request(url string, counted bool) *http.Request {
	var req *http.Request
	switch {
	case x.body == "":
		var err error
		req, err = http.NewRequestWithContext(x.ctx, x.method, url+x.path, http.NoBody)
		require.NoError(x.t, err)
	case counted:
		x.bodies = httptestx.NewBodies(x.body)
		req = x.bodies.Request(x.ctx, x.t, x.method, url+x.path)
	default:
		var err error
		req, err = http.NewRequestWithContext(x.ctx, x.method, url+x.path, strings.NewReader(x.body))
		require.NoError(x.t, err)
	}
	req.Header = x.header.Clone()
	if x.edit != nil {
		x.edit(req)
	}
	return req
}

func (x *outcomeRun) send(rt http.RoundTripper, req *http.Request) *outcomeResult {
	resp, err := rt.RoundTrip(req)
	r := &outcomeResult{err: err}
	if resp != nil {
		r.status = resp.StatusCode
		if x.check != nil {
			x.check(resp)
		}
		if resp.StatusCode != http.StatusSwitchingProtocols {
			text, err := io.ReadAll(resp.Body)
			require.NoError(x.t, err, "the body of the answer")
			r.answer = string(text)
		}
		require.NoError(x.t, resp.Body.Close())
	}
	return r
}

func (x *outcomeRun) arrived() int {
	if x.origin == nil {
		return int(x.hits.Load())
	}
	return x.origin.Heads()
}

func (x *outcomeRun) runBare() *outcomeResult {
	std, url := x.std()
	var base http.RoundTripper = std
	if x.base != nil {
		base = x.base(std)
	}
	x.check = nil
	r := x.send(base, x.request(url, false))
	r.heads = x.arrived()
	return r
}

func (x *outcomeRun) run(observed bool, bare *outcomeResult) {
	t := x.t
	std, url := x.std()
	var base http.RoundTripper = std
	if x.base != nil {
		base = x.base(std)
	}
	var events []retrip.Event
	opts := x.opts
	if observed {
		opts = append(opts, retrip.WithHook(func(_ context.Context, e retrip.Event) { events = append(events, e) }))
		x.ctx, x.record = retrip.Record(x.ctx)
	}
	rt := httptestx.Checked(t, retrip.Must(retrip.New(base, opts...)))
	if x.before != nil {
		x.before(rt, url)
		events = nil
	}
	req := x.request(url, observed)
	got := x.send(rt, req)

	if arrived := x.arrived(); x.heads != arrived && (!x.mayStay || arrived > x.heads) {
		t.Errorf("%d requests arrived, want %d", x.arrived(), x.heads)
	}
	if bare != nil {
		if bare.err == nil && bare.status < http.StatusBadRequest {
			assert.Equal(t, bare.status, got.status, "a success of the bare base became %v", got.err)
		}
		if len(x.events) == 1 && !x.mayStay {
			assert.LessOrEqual(t, x.arrived(), bare.heads, "the only attempt was sent more often than by the bare base")
		}
	}
	if x.bodies != nil {
		x.bodies.CheckClosedOnce(t)
	}
	x.checkResult(got, bare)
	if observed {
		x.checkEvents(events, got)
	}
	for _, check := range x.after {
		check()
	}
}

func (x *outcomeRun) checkResult(got, bare *outcomeResult) {
	t := x.t
	if x.status != 0 {
		require.NoError(t, got.err)
		assert.Equal(t, x.status, got.status)
		if x.answer != "" {
			assert.Equal(t, x.answer, got.answer)
		}
		return
	}
	require.Error(t, got.err)
	for _, target := range x.is {
		require.ErrorIs(t, got.err, target)
	}
	for _, target := range x.isNot {
		require.NotErrorIs(t, got.err, target)
	}
	assert.Equal(t, x.maybe, errors.Is(got.err, retrip.ErrOutcomeUnknown), "ErrOutcomeUnknown")
	var timeout net.Error
	assert.Equal(t, x.timeout, errors.As(got.err, &timeout) && timeout.Timeout(), "Timeout of %v", got.err)
	if x.options {
		refused, ok := got.err.(*retrip.OptionError) //nolint:errorlint // that very error
		require.True(t, ok, "got %T", got.err)
		assert.Equal(t, x.says, refused.Option)
		return
	}
	if x.exact != nil {
		require.True(t, got.err == x.exact, "the base's own value comes back; got %T %v", got.err, got.err) //nolint:errorlint,testifylint // the very value
		return
	}
	if x.asBare {
		if bare != nil && !x.racing {
			assert.Equal(t, fmt.Sprintf("%T", bare.err), fmt.Sprintf("%T", got.err))
			assert.Equal(t, outcomePorts.ReplaceAllString(bare.err.Error(), ""), outcomePorts.ReplaceAllString(got.err.Error(), ""))
		}
		var wrapped *retrip.Error
		require.NotErrorAs(t, got.err, &wrapped)
		return
	}
	e, ok := got.err.(*retrip.Error) //nolint:errorlint // the very type that net/url asks for Timeout
	require.True(t, ok, "an *Error comes back; got %T %v", got.err, got.err)
	assert.Equal(t, x.maybe, e.MaybeApplied, "MaybeApplied")
	assert.True(t, strings.HasPrefix(e.Error(), "retrip: "), e.Error())
	assert.Contains(t, e.Error(), x.says)
	if len(x.events) > 0 {
		var attempt int
		var rest string
		_, err := fmt.Sscanf(x.events[len(x.events)-1], "%d %s", &attempt, &rest)
		require.NoError(t, err)
		assert.Equal(t, attempt, e.Attempts, "Attempts")
		assert.Contains(t, x.events[len(x.events)-1], string(e.Decision)+"/"+string(e.Reason))
		delivery, _, _ := strings.Cut(rest, "/")
		assert.Equal(t, delivery, string(e.Delivery), "Delivery is the last attempt's")
	}
	if e.Err != nil {
		assert.Equal(t, e.Err, e.Unwrap()[0], "Err is the first of Unwrap")
	}
}

func (x *outcomeRun) checkEvents(events []retrip.Event, got *outcomeResult) {
	t := x.t
	var lines []string
	for _, e := range events {
		lines = append(lines, outcomeLine(&e))
	}
	assert.Equal(t, x.events, lines, "events")
	recorded := x.record.Events()
	require.GreaterOrEqual(t, len(recorded), len(events))
	recorded = recorded[len(recorded)-len(events):]
	for i, e := range events {
		assert.Equal(t, e, recorded[i], "the recorder sees what the hook sees")
		assert.Equal(t, events[0].OperationID, e.OperationID)
	}
	assert.Equal(t, x.maybe, x.record.MaybeApplied(), "Recorder.MaybeApplied")
	if len(events) == 0 {
		return
	}
	last := events[len(events)-1]
	if x.err != nil {
		require.ErrorIs(t, last.Err, x.err)
	}
	if e, ok := errors.AsType[*retrip.Error](got.err); ok {
		assert.Equal(t, last.OperationID, e.OperationID)
	}
	if last.Decision != retrip.DecisionCheckState && last.Decision != retrip.DecisionCancel && last.Decision != retrip.DecisionDeadlineExceeded {
		assert.Equal(t, got.status, last.StatusCode)
	}
}

// outcomeLine writes an event as OUTCOMES.md does.
func outcomeLine(e *retrip.Event) string {
	class := string(e.Class)
	if class == "" {
		class = "-"
	}
	line := fmt.Sprintf("%d %s/%s %s/%s", e.Attempt, e.Delivery, class, e.Decision, e.Reason)
	if e.Permit != retrip.PermitNone {
		line += " " + string(e.Permit)
	}
	if e.EarlierUnknown {
		line += " earlier_unknown"
	}
	return line
}

// Shorthand for what many rows need.

func (x *outcomeRun) then(check func()) { x.after = append(x.after, check) }

func (x *outcomeRun) want(events ...string) { x.events = events }

func (x *outcomeRun) with(opts ...retrip.Option) { x.opts = append(x.opts, opts...) }

func (x *outcomeRun) key() { x.header["Idempotency-Key"] = []string{"ord-7731"} }

func (x *outcomeRun) upgrade() {
	x.header["Connection"] = []string{"keep-alive, Upgrade"}
	x.header["Upgrade"] = []string{"echo"}
}

// gives says that a response comes back.
func (x *outcomeRun) gives(status, heads int) { x.status, x.heads = status, heads }

// as sets the method by a name that may end in "+key".
func (x *outcomeRun) as(method string) {
	name, keyed := strings.CutSuffix(method, "+key")
	x.method = name
	if keyed {
		x.key()
	}
	switch name {
	case http.MethodPost, http.MethodPut, http.MethodPatch:
		x.body = "amount=200"
	}
}

// permit is what OUTCOMES.md calls "by method or key".
func (x *outcomeRun) permit() string {
	if len(x.header["Idempotency-Key"]) > 0 {
		return "idempotency_key"
	}
	return "idempotent_method"
}

func (x *outcomeRun) safe() bool {
	return x.method == http.MethodGet || x.method == http.MethodHead || x.method == http.MethodOptions
}

// failingDials makes the first n dials fail with err.
func (x *outcomeRun) failingDials(n int, err error) {
	x.transport = func(std *http.Transport) {
		dial, dials := std.DialContext, atomic.Int32{}
		if dial == nil {
			dial = (&net.Dialer{}).DialContext
		}
		std.DialContext = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if int(dials.Add(1)) <= n {
				return nil, err
			}
			return dial(ctx, network, addr)
		}
	}
}

// outcomeFails is a base that gives one error after the other, the last one repeating.
func outcomeFails(errs ...error) *httptestx.Stub {
	var turn atomic.Int32
	return httptestx.NewStub(func(*http.Request) (*http.Response, error) {
		return nil, errs[min(int(turn.Add(1)), len(errs))-1]
	})
}

func outcomeDialError() error {
	return &net.OpError{Op: "dial", Net: "tcp", Err: syscall.ECONNREFUSED}
}

func outcomeDNSError(notFound bool) error {
	return &net.OpError{Op: "dial", Net: "tcp", Err: &net.DNSError{
		Err: "the name server's words", Name: "origin.test", IsNotFound: notFound, IsTemporary: !notFound,
	}}
}
