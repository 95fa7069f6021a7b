// Package retrip sends an HTTP request again only when that is safe.
//
// A [Transport] is a drop-in [http.RoundTripper]:
//
//	client := &http.Client{Transport: retrip.Must(retrip.New(nil))}
//
// One RoundTrip of the caller is an operation, one RoundTrip on the wrapped transport, the
// base, is an attempt. After each attempt retrip asks three things: was the outcome
// transient, is a repeat safe, and can it fit the deadline and the origin's budget. Only
// then does it send the request again, with a fresh body.
//
// # When a repeat is safe
//
// A request may be repeated if its method is idempotent (GET, HEAD, OPTIONS, TRACE, PUT,
// DELETE, PROPFIND, REPORT, SEARCH, QUERY), if it has an Idempotency-Key header, or if
// [WithIdempotent] says so. Any other request is repeated only with a proof that the server
// did not act on it: it was never sent, as after a refused dial, or the server refused it,
// as with HTTP/2's REFUSED_STREAM; or on the word of [WithUnprocessedStatus] or a
// [StateCheck]. A time-out is no proof. Where it cannot tell, retrip returns an [*Error]
// that is [ErrOutcomeUnknown] instead of guessing.
//
// # What comes back
//
// A response, whenever the last attempt has one, whatever its status, with its body open;
// else an error. A single attempt's error comes back as the base made it, unless there is
// more to say. A [http.Client] with a Timeout may replace any error by a text of its own:
// use a context's deadline or [WithTotalTimeout], or [Record].
//
// # Layers
//
// What must run for each attempt goes below retrip: authentication, signing, tracing.
// Layers below must not modify the request they are given. Caches and metrics of whole
// operations go above.
//
// An http.RoundTripper should not interpret responses; retrip looks at the status and at
// Retry-After alone, unless it is told otherwise.
package retrip

import (
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/hashicorp/go-cleanhttp"

	"github.com/retrip/retrip/internal/budget"
)

// A Transport sends requests by its base and repeats them where that is safe. It is made
// by [New]; the zero value works like New(nil). It is safe for concurrent use, and must not
// be copied after its first use.
type Transport struct {
	base http.RoundTripper // nil: the shared one
	cfg  *config           // nil: the defaults
	// foreign tells that the base is no *http.Transport.
	foreign bool
	// Where a Transport is found below the base its attempts are marked from the first
	// one on, so that attempts do not multiply.
	nests bool

	origins    originTable
	own        atomic.Pointer[Budget] // of the default settings
	distrusted atomic.Bool            // the base's hooks prove nothing
}

// New wraps base, or one pooled transport that all share where base is nil. A bad option is
// an [*OptionError].
func New(base http.RoundTripper, opts ...Option) (*Transport, error) {
	cfg, err := defaults.with(false, opts...)
	if err != nil {
		return nil, err
	}
	_, std := base.(*http.Transport)
	return &Transport{base: base, cfg: cfg, foreign: base != nil && !std, nests: nests(base)}, nil
}

// Must returns t, and panics if err is not nil. It wraps a call of [New] whose options are
// known to be good.
func Must(t *Transport, err error) *Transport {
	if err != nil {
		panic(err)
	}
	return t
}

// nests reports whether a Transport is to be found below rt.
func nests(rt http.RoundTripper) bool {
	for range 100 { // an Unwrap may lead back to itself
		if _, ok := rt.(*Transport); ok {
			return true
		}
		wrapper, ok := rt.(interface{ Unwrap() http.RoundTripper })
		if !ok {
			return false
		}
		rt = wrapper.Unwrap()
	}
	return false
}

var sharedBase = sync.OnceValue(func() http.RoundTripper { return cleanhttp.DefaultPooledTransport() })

// Unwrap returns the base. Transports find each other by it and by the Unwrap methods of
// what lies between: of several only the outermost repeats.
func (t *Transport) Unwrap() http.RoundTripper {
	if t.base == nil {
		return sharedBase()
	}
	return t.base
}

// CloseIdleConnections is forwarded to the base, where it has that method;
// [http.Client.CloseIdleConnections] asks for it.
func (t *Transport) CloseIdleConnections() {
	if base, ok := t.Unwrap().(interface{ CloseIdleConnections() }); ok {
		base.CloseIdleConnections()
	}
}

func (t *Transport) settings() *config {
	if t.cfg == nil {
		return &defaults
	}
	return t.cfg
}

// budget is the one of the Transport's settings, nil for none.
func (t *Transport) budget() *Budget {
	c := t.settings()
	if !c.ownBudget {
		return c.budget
	}
	if b := t.own.Load(); b != nil {
		return b
	}
	t.own.CompareAndSwap(nil, NewBudget(0.1, 1, 10))
	return t.own.Load()
}

// RoundTrip sends req, again where that is safe, and returns a response or an error, never
// both and never neither; see [Error] for which error. req is not written to, and its body
// is closed once on every path.
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	p := t.direct(req)
	if p.origin == nil {
		return t.watch(req, p)
	}
	// Nearly every request can go down as it is, and nearly every answer is final: then there
	// is nothing to decide, and no operation is begun.
	account := t.count(p.cfg, p.origin)
	resp, err := t.Unwrap().RoundTrip(req)
	if first := (made{resp: resp, err: err}); !p.cfg.final(first) {
		return t.resume(req, p, account, first)
	}
	p.origin.learn(resp.ProtoMajor)
	answers(resp, req)
	account.End(false)
	return resp, nil
}

// resume begins the operation of a direct request whose first attempt was not its end.
func (t *Transport) resume(req *http.Request, p passage, account *budget.Entry, first made) (*http.Response, error) {
	s := terms{
		t: t, cfg: p.cfg, req: req, ctx: p.ctx, origin: p.origin, account: account,
		nested: p.nested, safe: true, permitted: true,
	}
	return s.operate(&first)
}

// watch sends what is not direct: what is seen of its attempts counts, or its settings ask for
// more.
func (t *Transport) watch(req *http.Request, p passage) (*http.Response, error) {
	s := terms{t: t, cfg: t.settings(), req: req, ctx: p.ctx}
	begun := false
	defer func() {
		if !begun {
			s.body.finish()
		}
	}()
	if err := s.settle(); err != nil {
		return nil, err
	}
	if !s.simple() {
		begun = true
		return s.operate(nil)
	}
	first := s.start()
	if s.cfg.final(first) {
		s.accept(first)
		return first.resp, nil
	}
	begun = true
	return s.operate(&first)
}

// operate makes attempts until nothing is left to decide; first is the one made already, nil
// where there is none.
func (s *terms) operate(first *made) (*http.Response, error) {
	op := operation{terms: *s}
	defer op.finish()
	op.begin(first)
	switch {
	case first != nil:
		op.take(first)
	case op.admit():
		op.send()
	default:
		return op.result()
	}
	for {
		op.rule()
		op.report()
		if op.ruling.Decision != DecisionRetry || !op.wait() {
			return op.result()
		}
		op.send()
	}
}

// A ruling is what is decided about an attempt.
type ruling struct {
	Decision Decision
	Reason   Reason
	Permit   Permit
}

// A situation is all that a ruling depends on.
type situation struct {
	answered   bool
	status     int
	transient  bool     // worth repeating, by the outcome or by WithRetryIf
	policy     bool     // by WithRetryIf alone
	stopped    bool     // by WithRetryIf
	end        Decision // how the operation was ended, if it was
	bodyFailed bool
	nested     bool
	proof      Permit // of the outcome
	permit     Permit // of the request
	forbidden  bool   // by the caller's word
	safe       bool   // the method
	delivery   Delivery
	checked    State // what a state check found
	replayable bool
	last       bool // no attempt is left
	tooLong    bool // the server asks to wait longer than allowed
	fits       bool // the wait and an attempt fit the deadline

	// What came of taking what the next attempt needs.
	budgetEmpty bool
	gateClosed  bool
	bodyLost    bool
	bodyWrong   bool
}

// decide is the ladder: each rung stops the repeat for a reason of its own, and only what
// passes all of them is sent again. It has no I/O. The order is the rule: what the outcome
// says comes before what the caller wants, safety before cost.
func decide(s *situation) ruling {
	// An answer that a repeat would not mend is the result, whatever else happened.
	if s.answered && !s.transient {
		return answered(s.status)
	}
	// Nobody waits any more. The error cannot tell: an attempt's own time-out, a dialer's
	// and a header time-out look like the caller's deadline (WIRE.md C14).
	if s.end != "" {
		return ruling{s.end, Reason(s.end), PermitNone}
	}
	// The same reader would fail again, and nobody knows what it would deliver.
	if s.bodyFailed || s.bodyWrong {
		return ruling{DecisionReturn, ReasonBodyFailed, PermitNone}
	}
	// The outer Transport repeats: n attempts, never n².
	if s.nested {
		return ruling{DecisionReturn, ReasonNested, PermitNone}
	}
	if s.stopped {
		return ruling{DecisionReturn, ReasonPolicy, PermitNone}
	}
	if !s.transient {
		return ruling{DecisionReturn, ReasonNotTransient, PermitNone}
	}
	// A repeat may do the work twice unless there is a permit: RFC 9110 §9.2.2.
	permit := s.proof
	if permit == PermitNone {
		permit = s.permit
	}
	if permit == PermitNone && s.checked == StateNotApplied && !s.forbidden {
		permit = PermitStateChecked
	}
	if permit == PermitNone {
		reason := ReasonNotRepeatable
		if s.forbidden {
			reason = ReasonForbidden
		}
		switch {
		case s.checked == StateApplied:
			return ruling{DecisionCheckState, ReasonSuccess, PermitNone}
		case s.checked == StateNotApplied:
			return ruling{DecisionReturn, reason, PermitNone}
		case s.delivery == DeliveryUnknown && !s.safe:
			return ruling{DecisionCheckState, reason, PermitNone}
		default:
			return ruling{DecisionReturn, reason, PermitNone}
		}
	}
	// A guess at a body would be another request.
	if !s.replayable || s.bodyLost {
		return ruling{DecisionReturn, ReasonBodyNotReplayable, PermitNone}
	}
	if s.last {
		return ruling{DecisionAttemptsExhausted, ReasonAttemptsExhausted, PermitNone}
	}
	// RFC 9110 §10.2.3: nothing comes back earlier than asked.
	if s.tooLong {
		return ruling{DecisionReturn, ReasonRetryAfterTooLong, PermitNone}
	}
	// Waiting for what cannot be done costs the caller time and its answer.
	if !s.fits {
		return ruling{DecisionDeadlineExceeded, ReasonDeadlineExceeded, PermitNone}
	}
	// Repeats are what keeps an origin down.
	if s.budgetEmpty {
		return ruling{DecisionBudgetExhausted, ReasonBudgetExhausted, PermitNone}
	}
	if s.gateClosed {
		return ruling{DecisionReturn, ReasonGateClosed, PermitNone}
	}
	if s.policy {
		return ruling{DecisionRetry, ReasonPolicy, permit}
	}
	return ruling{DecisionRetry, ReasonTransient, permit}
}

// answered is the ladder's first rung.
func answered(status int) ruling {
	if status < http.StatusBadRequest {
		return ruling{DecisionReturn, ReasonSuccess, PermitNone}
	}
	return ruling{DecisionReturn, ReasonNotTransient, PermitNone}
}
