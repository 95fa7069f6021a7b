package matrix

import (
	"net/http"
	"slices"

	"github.com/retrip/retrip"
)

// The oracle says what the design document and its table of outcomes demand. It
// knows nothing of the code: a row states what its fault is and what the first
// attempt can prove, and the rest follows from the rules in their order.

// first is one way in which the first attempt may end.
type first struct {
	status    int            // an answer, or 0
	class     []retrip.Class // any of these
	delivery  retrip.Delivery
	permanent bool // the outcome is not transient although it is a failure
	bodyRead  bool // something of the request body was read
	ended     retrip.Decision
	heads     []int // header blocks at the origin by the whole operation; nil: by the rules
	sends     []int // connections taken in the first attempt; nil: not looked at
	bodyErr   bool  // the answer's body fails
	always    bool  // the later attempts fail as well
	never     bool  // the operation ends before an attempt
	noBody    bool  // no further body can be made
	last      bool  // the attempt is the only one allowed
	ours      bool  // retrip ended the attempt: its error names the option
	settled   []int // status of the answer that ends the operation after a repeat; nil: 200
}

func answered(status int) first { return first{status: status, delivery: retrip.DeliveryAnswered} }

func notSent(class ...retrip.Class) first {
	return first{class: class, delivery: retrip.DeliveryNotSent}
}

func unknown(class ...retrip.Class) first {
	return first{class: class, delivery: retrip.DeliveryUnknown, bodyRead: true}
}

func refused() first {
	return first{class: []retrip.Class{retrip.ClassProtocol}, delivery: retrip.DeliveryRefused, bodyRead: true}
}

func (f first) permanently() first                 { f.permanent = true; return f }
func (f first) everTime() first                    { f.always = true; return f }
func (f first) callerEnds(d retrip.Decision) first { f.ended = d; return f }
func (f first) atOrigin(heads ...int) first        { f.heads = heads; return f }
func (f first) taking(sends ...int) first          { f.sends = sends; return f }

// broken are the classes of a connection that is lost; which of them is met
// depends on which side of the connection notices first.
var broken = []retrip.Class{retrip.ClassReset, retrip.ClassEOF, retrip.ClassWrite}

// verdict is what the rules make of a first attempt.
type verdict struct {
	decision retrip.Decision // of the first event
	reason   retrip.Reason
	permit   retrip.Permit
	attempts int
	last     retrip.Decision // of the last event
	status   []int           // of the answer that comes back; nil: an error does
	unknown  bool            // MaybeApplied
	heads    []int           // allowed counts at the origin; nil: any
	maxHeads int
}

var retryStatus = []int{
	http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout,
}

func (f first) judge(m method) verdict {
	v := verdict{attempts: 1, heads: f.heads, maxHeads: 7}
	v.unknown = f.delivery == retrip.DeliveryUnknown && !m.safe()
	if f.status != 0 {
		v.status = []int{f.status}
	}
	end := func(d retrip.Decision, r retrip.Reason) verdict {
		v.decision, v.reason, v.last = d, r, d
		if f.never {
			v.attempts = 0
		}
		if v.heads == nil {
			v.heads = f.reached(1)
		}
		return v
	}
	transient := slices.Contains(retryStatus, f.status) || f.status == 0 && !f.permanent
	switch {
	case f.status != 0 && !transient && f.status < http.StatusBadRequest:
		return end(retrip.DecisionReturn, retrip.ReasonSuccess)
	case f.status != 0 && !transient:
		return end(retrip.DecisionReturn, retrip.ReasonNotTransient)
	case f.ended != "":
		return end(f.ended, retrip.Reason(f.ended))
	case slices.Contains(f.class, retrip.ClassBody):
		return end(retrip.DecisionReturn, retrip.ReasonBodyFailed)
	case !transient:
		return end(retrip.DecisionReturn, retrip.ReasonNotTransient)
	}

	v.permit = f.permit(m)
	if v.permit == retrip.PermitNone {
		if f.delivery == retrip.DeliveryUnknown && !m.safe() {
			return end(retrip.DecisionCheckState, retrip.ReasonNotRepeatable)
		}
		return end(retrip.DecisionReturn, retrip.ReasonNotRepeatable)
	}
	if f.noBody || !m.replayable() && (f.bodyRead || f.status != 0) {
		v.permit = retrip.PermitNone
		return end(retrip.DecisionReturn, retrip.ReasonBodyNotReplayable)
	}
	if f.last {
		v.permit = retrip.PermitNone
		return end(retrip.DecisionAttemptsExhausted, retrip.ReasonAttemptsExhausted)
	}
	v.decision, v.reason = retrip.DecisionRetry, retrip.ReasonTransient
	if f.always {
		v.attempts, v.last = 3, retrip.DecisionAttemptsExhausted
		if v.heads == nil {
			v.heads = f.reached(3)
		}
		return v
	}
	v.attempts, v.last, v.status = 2, retrip.DecisionReturn, []int{http.StatusOK}
	if f.settled != nil {
		v.status = f.settled
	}
	if v.heads == nil {
		v.heads = f.reached(1)
		for i := range v.heads {
			v.heads[i]++
		}
	}
	return v
}

// permit is the outcome's permit before the request's.
func (f first) permit(m method) retrip.Permit {
	switch {
	case f.delivery == retrip.DeliveryNotSent:
		return retrip.PermitNotSent
	case f.delivery == retrip.DeliveryRefused:
		return retrip.PermitRefused
	case m.key:
		return retrip.PermitIdempotencyKey
	case m.repeatable():
		return retrip.PermitIdempotentMethod
	}
	return retrip.PermitNone
}

// reached is what n such attempts may leave at the origin.
func (f first) reached(n int) []int {
	switch f.delivery {
	case retrip.DeliveryNotSent:
		return []int{0}
	case retrip.DeliveryUnknown:
		all := make([]int, n+1)
		for i := range all {
			all[i] = i
		}
		return all
	}
	return []int{n}
}
