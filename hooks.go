package retrip

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"
)

// A Decision is what is done about an attempt's outcome.
type Decision string

// The decisions. All but DecisionRetry end the operation.
const (
	DecisionRetry             Decision = "retry"
	DecisionReturn            Decision = "return"
	DecisionCheckState        Decision = "check_state" // what became of the request must be found out before it is sent again; with ReasonSuccess, a StateCheck found out
	DecisionAttemptsExhausted Decision = "attempts_exhausted"
	DecisionDeadlineExceeded  Decision = "deadline_exceeded" // is, or would be, exceeded
	DecisionBudgetExhausted   Decision = "budget_exhausted"
	DecisionCancel            Decision = "cancel"
)

// A Reason is why a [Decision] was taken. It is never empty.
type Reason string

// The reasons. Where the Decision says it all the Reason is the same word.
const (
	ReasonSuccess           Reason = "success"       // a status below 400, or a StateCheck's response
	ReasonNotTransient      Reason = "not_transient" // the same request would fare the same
	ReasonNotRepeatable     Reason = "not_repeatable"
	ReasonForbidden         Reason = "forbidden" // by WithIdempotent(false)
	ReasonBodyNotReplayable Reason = "body_not_replayable"
	ReasonBodyFailed        Reason = "body_failed"
	ReasonRetryAfterTooLong Reason = "retry_after_too_long"
	ReasonGateClosed        Reason = "gate_closed"
	ReasonPolicy            Reason = "policy" // by WithRetryIf
	ReasonNested            Reason = "nested" // an outer Transport repeats
	ReasonTransient         Reason = "transient"
	ReasonCheckState        Reason = "check_state"
	ReasonAttemptsExhausted Reason = "attempts_exhausted"
	ReasonDeadlineExceeded  Reason = "deadline_exceeded"
	ReasonBudgetExhausted   Reason = "budget_exhausted"
	ReasonCancel            Reason = "cancel"
)

// A Delivery is what is known about a request's arrival.
type Delivery string

// The deliveries. Only the first two prove that the server did not act.
const (
	DeliveryNotSent  Delivery = "not_sent" // no byte of the request left
	DeliveryRefused  Delivery = "refused"  // the server said that it did not process it (RFC 9113 §8.7)
	DeliveryAnswered Delivery = "answered"
	DeliveryUnknown  Delivery = "unknown"
)

// A Permit is why a repeat is safe. It is set where the [Decision] is [DecisionRetry].
type Permit string

// The permits; those of an outcome hold for any method.
const (
	PermitNone              Permit = ""
	PermitIdempotentMethod  Permit = "idempotent_method" // RFC 9110 §9.2.2
	PermitIdempotencyKey    Permit = "idempotency_key"
	PermitDeclared          Permit = "declared" // by WithIdempotent(true)
	PermitNotSent           Permit = "not_sent"
	PermitRefused           Permit = "refused"
	PermitUnprocessedStatus Permit = "unprocessed_status"
	PermitStateChecked      Permit = "state_checked"
)

// A Class is the kind of an attempt's error.
type Class string

// The classes. ClassNone goes with a response.
const (
	ClassNone     Class = ""
	ClassDNS      Class = "dns"
	ClassDial     Class = "dial"
	ClassProxy    Class = "proxy"
	ClassTLS      Class = "tls"
	ClassWrite    Class = "write"
	ClassTimeout  Class = "timeout"
	ClassReset    Class = "reset"
	ClassEOF      Class = "eof"
	ClassProtocol Class = "protocol"
	ClassBody     Class = "body" // the request's own body failed
	ClassGate     Class = "gate"
	ClassCanceled Class = "canceled"
	ClassDeadline Class = "deadline"
	ClassOther    Class = "other"
)

// An Attempt is one round trip on the base, as [WithRetryIf] and [StateCheck]
// functions see it.
type Attempt struct {
	Number     int            // counted from 1
	Request    *http.Request  // the caller's; not to be modified, its body not to be read
	Response   *http.Response // nil with an error
	Err        error          // nil with a response
	Class      Class
	Delivery   Delivery
	Sends      int  // connections that the base took for it: an upper bound of what the origin saw
	ConnReused bool // the last of them had served requests before
	Start      time.Time
	Duration   time.Duration // up to the response's headers or the error
}

// StatusCode returns the response's status code, 0 without a response.
func (a Attempt) StatusCode() int {
	if a.Response == nil {
		return 0
	}
	return a.Response.StatusCode
}

// An Event tells of one attempt what happened, what is done about it and why.
//
// StatusCode or Class says what happened, Decision what is done about it, Reason why.
// Where the context ends during a wait, one more Event follows with the same Attempt.
// An operation that ends before its first attempt has one Event with Attempt 0.
type Event struct {
	OperationID    string // random, the same for all attempts of the operation
	RequestID      string // OperationID and the attempt's number
	Attempt        int    // counted from 1; 0: the operation ended before the first
	Method         string
	Endpoint       string // scheme://host/path, without userinfo, query and fragment
	StatusCode     int    // 0 without a response
	Class          Class
	Delivery       Delivery
	Permit         Permit
	Sends          int // connections that the base took for the attempt, see Attempt.Sends
	ConnReused     bool
	Start          time.Time
	Duration       time.Duration // up to the response's headers or the error
	Remaining      time.Duration // until the operation's deadline; -1 without one
	Delay          time.Duration // the wait that follows a retry
	Decision       Decision
	Reason         Reason
	EarlierUnknown bool  // an attempt before this one may have been carried out: a 404, 409 or 412 may be its echo
	Err            error `json:"-"` // may quote what the server sent: LogValue, String and JSON leave that out
}

// LogValue returns the fields that are safe to log: no query, userinfo, header, key or
// body. An error's text is given for the classes whose words are the network's.
func (e Event) LogValue() slog.Value {
	return slog.GroupValue(attrs(make([]slog.Attr, 0, mostAttrs), &e)...)
}

// String returns the fields of LogValue as text.
func (e Event) String() string { return e.LogValue().String() }

// mostAttrs is how many fields an Event may have.
const mostAttrs = 18

// attrs appends the fields of e to those of list.
func attrs(list []slog.Attr, e *Event) []slog.Attr {
	list = append(list,
		slog.String("operation_id", e.OperationID),
		slog.String("request_id", e.RequestID),
		slog.Int("attempt", e.Attempt),
		slog.String("method", e.Method),
		slog.String("endpoint", e.Endpoint))
	if e.StatusCode != 0 {
		list = append(list, slog.Int("status_code", e.StatusCode))
	}
	if e.Class != ClassNone {
		list = append(list, slog.String("class", string(e.Class)))
	}
	list = append(list, slog.String("delivery", string(e.Delivery)))
	if e.Permit != PermitNone {
		list = append(list, slog.String("permit", string(e.Permit)))
	}
	list = append(list,
		slog.Int("sends", e.Sends),
		slog.Bool("conn_reused", e.ConnReused),
		slog.Duration("duration", e.Duration))
	if e.Remaining >= 0 {
		list = append(list, slog.Duration("remaining", e.Remaining))
	}
	if e.Decision == DecisionRetry {
		list = append(list, slog.Duration("delay", e.Delay))
	}
	list = append(list,
		slog.String("decision", string(e.Decision)),
		slog.String("reason", string(e.Reason)))
	if e.EarlierUnknown {
		list = append(list, slog.Bool("earlier_unknown", true))
	}
	if e.Err != nil {
		if text := quote(e.Class, e.Err); text != "" {
			list = append(list, slog.String("error", text))
		}
	}
	return list
}

func level(e *Event) slog.Level {
	switch {
	case e.Decision == DecisionRetry:
		return slog.LevelInfo
	case e.Decision == DecisionReturn && (e.Reason == ReasonSuccess || e.Reason == ReasonNotTransient):
		return slog.LevelDebug
	default:
		return slog.LevelWarn
	}
}

// emit shows e to everybody who looks. again marks the second event of an attempt,
// that of a wait which ended early.
func (op *operation) emit(e *Event, again bool) {
	for r := op.recorder; r != nil; r = r.outer {
		r.add(*e, again, op.maybeApplied)
	}
	if l := op.cfg.logger; l != nil {
		if level := level(e); l.Enabled(op.ctx, level) {
			// Without a program counter, which would lead to this line and costs more than
			// all the rest.
			record := slog.NewRecord(time.Now(), level, "http attempt", 0)
			var room [mostAttrs]slog.Attr
			record.AddAttrs(attrs(room[:0], e)...)
			_ = l.Handler().Handle(op.ctx, record) // as a Logger does
		}
	}
	for _, h := range op.cfg.hooks {
		h(op.ctx, *e)
	}
}

// report shows the attempt's event.
func (op *operation) report() { op.emitLast(false) }

func (op *operation) emitLast(again bool) {
	if op.recorder == nil && op.cfg.logger == nil && len(op.cfg.hooks) == 0 {
		return
	}
	e := op.event()
	op.emit(&e, again)
}

func (op *operation) event() Event {
	a := &op.last
	e := Event{
		OperationID: op.operationID(), Attempt: op.attempt,
		Method: op.req.Method, Endpoint: endpoint(op.req),
		StatusCode: a.StatusCode(), Class: a.Class, Delivery: a.Delivery, Permit: op.ruling.Permit,
		Sends: a.Sends, ConnReused: a.ConnReused, Start: a.Start, Duration: a.Duration, Remaining: -1,
		Decision: op.ruling.Decision, Reason: op.ruling.Reason,
		EarlierUnknown: op.earlierUnknown, Err: a.Err,
	}
	if e.RequestID = op.first; e.Attempt != 1 {
		e.RequestID = requestID(e.OperationID, e.Attempt)
	}
	if e.Method == "" {
		e.Method = http.MethodGet
	}
	if !op.deadline.IsZero() {
		e.Remaining = max(0, time.Until(op.deadline))
	}
	if e.Decision == DecisionRetry {
		e.Delay = op.delay
	}
	if a.extra != nil {
		e.Err = errors.Join(a.Err, a.extra)
		if a.Err == nil {
			e.Err = a.extra
		}
	}
	return e
}

func (op *operation) operationID() string {
	if op.id == "" {
		op.first = newID()
		op.id = strings.TrimSuffix(op.first, "-1")
	}
	return op.id
}

// newID makes the ID of an operation's first request, which begins with the operation's. It
// identifies and guards nothing, so that the fast generator will do.
func newID() string {
	var b [16]byte
	text := [34]byte{32: '-', 33: '1'}
	binary.NativeEndian.PutUint64(b[:8], rand.Uint64())
	binary.NativeEndian.PutUint64(b[8:], rand.Uint64())
	hex.Encode(text[:], b[:])
	return string(text[:])
}

func requestID(operationID string, attempt int) string {
	return operationID + "-" + strconv.Itoa(attempt)
}

func endpoint(req *http.Request) string {
	if req.URL == nil {
		return ""
	}
	return req.URL.Scheme + "://" + req.URL.Host + req.URL.EscapedPath()
}

// A Recorder collects the events of a context's operations, for callers that get no
// typed error: http.Client.Timeout may replace any error by a text. It is safe for
// concurrent use.
type Recorder struct {
	outer        *Recorder
	mu           sync.Mutex
	events       []Event
	attempts     int
	maybeApplied bool
}

// Record returns a context whose operations are collected by the Recorder returned
// with it, one for each redirect hop. Recorders of outer contexts collect them too.
func Record(ctx context.Context) (context.Context, *Recorder) {
	c := carry(ctx)
	c.recorder = &Recorder{outer: c.recorder}
	return c, c.recorder
}

// Events returns a copy of what was collected, in order.
func (r *Recorder) Events() []Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]Event(nil), r.events...)
}

// Attempts returns how many attempts were made.
func (r *Recorder) Attempts() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.attempts
}

// MaybeApplied reports whether a request whose method is not safe may have been
// carried out by an attempt of unknown delivery that no state check settled. A later
// answer does not clear it: that answer may be the echo of the first attempt, as the
// 404 of a DELETE that was repeated. What net/http sent again by itself within an attempt
// that was then answered is told by the event's Sends alone.
func (r *Recorder) MaybeApplied() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.maybeApplied
}

func (r *Recorder) add(e Event, again, maybeApplied bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, e)
	if e.Attempt > 0 && !again {
		r.attempts++
	}
	r.maybeApplied = r.maybeApplied || maybeApplied
}
