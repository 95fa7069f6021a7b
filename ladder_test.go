package retrip_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
)

// ladderRuling is what decide says.
type ladderRuling struct {
	decision retrip.Decision
	reason   retrip.Reason
	permit   retrip.Permit
}

func (r ladderRuling) String() string {
	return fmt.Sprintf("%s / %s / %q", r.decision, r.reason, r.permit)
}

func ladderDecide(s *retrip.Situation) ladderRuling {
	d, r, p := retrip.Decide(s)
	return ladderRuling{d, r, p}
}

// ladderReturn is the ruling that ends an operation for a reason.
func ladderReturn(reason retrip.Reason) ladderRuling {
	return ladderRuling{decision: retrip.DecisionReturn, reason: reason}
}

// ladderEnd is the ruling whose decision says it all.
func ladderEnd(d retrip.Decision) ladderRuling {
	return ladderRuling{decision: d, reason: retrip.Reason(d)}
}

func ladderCheck(reason retrip.Reason) ladderRuling {
	return ladderRuling{decision: retrip.DecisionCheckState, reason: reason}
}

func ladderRetry(permit retrip.Permit) ladderRuling {
	return ladderRuling{retrip.DecisionRetry, retrip.ReasonTransient, permit}
}

// A ladderMethod is what a request brings with it.
type ladderMethod struct {
	name      string
	permit    retrip.Permit
	safe      bool
	forbidden bool
}

var ladderMethods = []ladderMethod{
	{name: "GET", permit: retrip.PermitIdempotentMethod, safe: true},
	{name: "PUT", permit: retrip.PermitIdempotentMethod},
	{name: "POST with a key", permit: retrip.PermitIdempotencyKey},
	{name: "POST declared idempotent", permit: retrip.PermitDeclared},
	{name: "POST"},
	{name: "Upgrade GET", safe: true},
	{name: "GET forbidden", safe: true, forbidden: true},
	{name: "POST forbidden", forbidden: true},
}

// A ladderOutcome is a transient outcome and what it proves.
type ladderOutcome struct {
	name     string
	status   int
	delivery retrip.Delivery
	proof    retrip.Permit
}

var ladderOutcomes = []ladderOutcome{
	{name: "503", status: 503, delivery: retrip.DeliveryAnswered},
	{name: "503 of an unprocessed request", status: 503, delivery: retrip.DeliveryAnswered, proof: retrip.PermitUnprocessedStatus},
	{name: "not sent", delivery: retrip.DeliveryNotSent, proof: retrip.PermitNotSent},
	{name: "refused", delivery: retrip.DeliveryRefused, proof: retrip.PermitRefused},
	{name: "unknown", delivery: retrip.DeliveryUnknown},
}

// ladderSituation is a transient outcome that nothing stands against but a lacking permit.
func ladderSituation(m ladderMethod, o ladderOutcome) *retrip.Situation {
	s := &retrip.Situation{
		Answered: o.status != 0, Status: o.status, Transient: true,
		Permit: m.permit, Safe: m.safe, Forbidden: m.forbidden,
		Delivery: o.delivery, Proof: o.proof,
		Replayable: true, Fits: true,
	}
	if m.forbidden && o.proof == retrip.PermitUnprocessedStatus {
		s.Proof = retrip.PermitNone // WithIdempotent(false) leaves only not_sent and refused
	}
	return s
}

// A ladderRung is one reason to stop: what makes it true, and the ruling. Their order is
// that of the ladder from rung 2 on; rung 1 and 5 are about outcomes that are not
// transient, and have tests of their own.
type ladderRung struct {
	name  string
	set   func(s *retrip.Situation)
	want  ladderRuling
	alone bool // it is found out behind all other rungs, so that it meets none of them
}

var ladderRungsBeforePermit = []ladderRung{
	{"2 the deadline has passed", func(s *retrip.Situation) { s.End = retrip.DecisionDeadlineExceeded }, ladderEnd(retrip.DecisionDeadlineExceeded), false},
	{"2 the caller went", func(s *retrip.Situation) { s.End = retrip.DecisionCancel }, ladderEnd(retrip.DecisionCancel), false},
	{"3 the body failed", func(s *retrip.Situation) { s.BodyFailed = true }, ladderReturn(retrip.ReasonBodyFailed), false},
	{"3 the next body has another length", func(s *retrip.Situation) { s.BodyWrong = true }, ladderReturn(retrip.ReasonBodyFailed), true},
	{"4 nested", func(s *retrip.Situation) { s.Nested = true }, ladderReturn(retrip.ReasonNested), false},
	{"4 stopped", func(s *retrip.Situation) { s.Stopped = true }, ladderReturn(retrip.ReasonPolicy), false},
}

var ladderRungsAfterPermit = []ladderRung{
	{"7 the body cannot be replayed", func(s *retrip.Situation) { s.Replayable = false }, ladderReturn(retrip.ReasonBodyNotReplayable), false},
	{"12 making the next body fails", func(s *retrip.Situation) { s.BodyLost = true }, ladderReturn(retrip.ReasonBodyNotReplayable), true},
	{"8 attempts used up", func(s *retrip.Situation) { s.Last = true }, ladderEnd(retrip.DecisionAttemptsExhausted), false},
	{"9 the server asks for too long a wait", func(s *retrip.Situation) { s.TooLong = true }, ladderReturn(retrip.ReasonRetryAfterTooLong), false},
	{"10 the wait does not fit", func(s *retrip.Situation) { s.Fits = false }, ladderEnd(retrip.DecisionDeadlineExceeded), false},
	{"11 the budget is empty", func(s *retrip.Situation) { s.BudgetEmpty = true }, ladderEnd(retrip.DecisionBudgetExhausted), false},
	{"12 the next gate refuses", func(s *retrip.Situation) { s.GateClosed = true }, ladderReturn(retrip.ReasonGateClosed), false},
}

// ladderPermit is rung 6 and 13 in OUTCOMES.md's words: which permit, or which refusal.
func ladderPermit(m ladderMethod, o ladderOutcome) ladderRuling {
	switch {
	case o.proof == retrip.PermitNotSent, o.proof == retrip.PermitRefused:
		return ladderRetry(o.proof)
	case m.forbidden && o.delivery == retrip.DeliveryUnknown && !m.safe:
		return ladderCheck(retrip.ReasonForbidden)
	case m.forbidden:
		return ladderReturn(retrip.ReasonForbidden)
	case o.proof != retrip.PermitNone:
		return ladderRetry(o.proof)
	case m.permit != retrip.PermitNone:
		return ladderRetry(m.permit)
	case o.delivery == retrip.DeliveryUnknown && !m.safe:
		return ladderCheck(retrip.ReasonNotRepeatable)
	default:
		return ladderReturn(retrip.ReasonNotRepeatable)
	}
}

// Every rung, for every kind of request and every delivery.
func TestLadderRungByMethodAndDelivery(t *testing.T) {
	t.Parallel()
	for _, m := range ladderMethods {
		for _, o := range ladderOutcomes {
			name := m.name + ", " + o.name + ", "
			permitted := ladderPermit(m, o)
			require.Equal(t, permitted, ladderDecide(ladderSituation(m, o)), name+"nothing against it")

			for _, r := range ladderRungsBeforePermit {
				s := ladderSituation(m, o)
				r.set(s)
				require.Equal(t, r.want, ladderDecide(s), name+r.name)
			}
			for _, r := range ladderRungsAfterPermit {
				s := ladderSituation(m, o)
				r.set(s)
				want := r.want
				if permitted.decision != retrip.DecisionRetry {
					want = permitted // safety comes before cost
				}
				require.Equal(t, want, ladderDecide(s), name+r.name)
			}

			s := ladderSituation(m, o)
			s.Policy = true
			want := permitted
			if want.decision == retrip.DecisionRetry {
				want.reason = retrip.ReasonPolicy
			}
			require.Equal(t, want, ladderDecide(s), name+"made transient by WithRetryIf")

			// An error that a repeat does not mend; an answer of that kind is rung 1.
			s = ladderSituation(m, o)
			s.Transient = false
			require.Equal(t, ladderReturn(retrip.ReasonNotTransient), ladderDecide(s), name+"not transient")
		}
	}
}

// An earlier rung hides every later one.
func TestLadderRungsHaveAnOrder(t *testing.T) {
	t.Parallel()
	get := ladderMethods[0]
	rungs := append(append([]ladderRung(nil), ladderRungsBeforePermit...), ladderRungsAfterPermit...)
	for i, first := range rungs {
		for _, second := range rungs[i+1:] {
			if first.alone || second.alone {
				continue
			}
			s := ladderSituation(get, ladderOutcomes[4])
			second.set(s)
			first.set(s)
			require.Equal(t, first.want, ladderDecide(s), first.name+" and "+second.name)
		}
	}
}

// Rung 1: an answer that is not transient is the result, whatever else happened.
func TestLadderAnswerThatIsNotTransientComesFirst(t *testing.T) {
	t.Parallel()
	for status, reason := range map[int]retrip.Reason{
		101: retrip.ReasonSuccess, 200: retrip.ReasonSuccess, 304: retrip.ReasonSuccess, 399: retrip.ReasonSuccess,
		400: retrip.ReasonNotTransient, 404: retrip.ReasonNotTransient, 500: retrip.ReasonNotTransient,
	} {
		for _, m := range ladderMethods {
			s := ladderSituation(m, ladderOutcome{status: status, delivery: retrip.DeliveryAnswered})
			s.Transient = false
			require.Equal(t, ladderReturn(reason), ladderDecide(s), "%d to %s", status, m.name)
			for _, r := range append(append([]ladderRung(nil), ladderRungsBeforePermit...), ladderRungsAfterPermit...) {
				s := ladderSituation(m, ladderOutcome{status: status, delivery: retrip.DeliveryAnswered})
				s.Transient = false
				r.set(s)
				require.Equal(t, ladderReturn(reason), ladderDecide(s), "%d to %s, %s", status, m.name, r.name)
			}
		}
	}
}

// Rung 5 comes after the operation's end, the body and the outer Transport.
func TestLadderErrorThatIsNotTransientComesAfterRungFour(t *testing.T) {
	t.Parallel()
	for _, r := range ladderRungsBeforePermit {
		s := ladderSituation(ladderMethods[0], ladderOutcomes[4])
		s.Transient = false
		r.set(s)
		require.Equal(t, r.want, ladderDecide(s), r.name)
	}
	for _, r := range ladderRungsAfterPermit {
		s := ladderSituation(ladderMethods[0], ladderOutcomes[4])
		s.Transient = false
		r.set(s)
		require.Equal(t, ladderReturn(retrip.ReasonNotTransient), ladderDecide(s), r.name)
	}
}

// Rung 6: what a state check found.
func TestLadderStateCheckSettlesWhatIsUnknown(t *testing.T) {
	t.Parallel()
	post, forbidden := ladderMethods[4], ladderMethods[7]
	unknown := ladderOutcomes[4]
	tests := []struct {
		name  string
		m     ladderMethod
		state retrip.State
		set   func(*retrip.Situation)
		want  ladderRuling
	}{
		{"unknown", post, retrip.StateUnknown, nil, ladderCheck(retrip.ReasonNotRepeatable)},
		{"applied", post, retrip.StateApplied, nil, ladderCheck(retrip.ReasonSuccess)},
		{"not applied", post, retrip.StateNotApplied, nil, ladderRetry(retrip.PermitStateChecked)},
		{
			"not applied, on the last attempt", post, retrip.StateNotApplied,
			func(s *retrip.Situation) { s.Last = true }, ladderEnd(retrip.DecisionAttemptsExhausted),
		},
		{
			"not applied, no body for another attempt", post, retrip.StateNotApplied,
			func(s *retrip.Situation) { s.Replayable = false }, ladderReturn(retrip.ReasonBodyNotReplayable),
		},
		{"unknown, forbidden", forbidden, retrip.StateUnknown, nil, ladderCheck(retrip.ReasonForbidden)},
		{"applied, forbidden", forbidden, retrip.StateApplied, nil, ladderCheck(retrip.ReasonSuccess)},
		{"not applied, forbidden", forbidden, retrip.StateNotApplied, nil, ladderReturn(retrip.ReasonForbidden)},
	}
	for _, tt := range tests {
		s := ladderSituation(tt.m, unknown)
		s.Checked = tt.state
		if tt.set != nil {
			tt.set(s)
		}
		require.Equal(t, tt.want, ladderDecide(s), tt.name)
	}
}

// ladderEnumerate calls f with every situation that an operation can be in. After the
// operation's end the later rungs are all clear or all set.
func ladderEnumerate(f func(s *retrip.Situation)) {
	outcomes := append([]ladderOutcome{
		{status: 200, delivery: retrip.DeliveryAnswered},
		{status: 404, delivery: retrip.DeliveryAnswered},
	}, ladderOutcomes...)
	for _, m := range ladderMethods {
		for _, o := range outcomes {
			for _, state := range []retrip.State{retrip.StateUnknown, retrip.StateApplied, retrip.StateNotApplied} {
				if state != retrip.StateUnknown && (o.delivery != retrip.DeliveryUnknown || m.safe || m.permit != retrip.PermitNone) {
					continue // nobody asks about what is known, harmless or permitted
				}
				s := ladderSituation(m, o)
				s.Checked = state
				ladderEnumerateFlags(s, f)
			}
		}
	}
}

func ladderEnumerateFlags(s *retrip.Situation, f func(s *retrip.Situation)) {
	type verdict struct{ transient, policy, stopped bool }
	verdicts := []verdict{{}, {transient: true}, {transient: true, policy: true}, {transient: true, stopped: true}}
	const before, after = 3, 7
	for _, v := range verdicts {
		s.Transient, s.Policy, s.Stopped = v.transient, v.policy, v.stopped
		for bits := range 1 << before {
			s.BodyFailed, s.BodyWrong, s.Nested = bits&1 != 0, bits&2 != 0, bits&4 != 0
			for _, end := range []retrip.Decision{"", retrip.DecisionCancel, retrip.DecisionDeadlineExceeded} {
				s.End = end
				step := 1
				if end != "" {
					step = 1<<after - 1
				}
				for bits := 0; bits < 1<<after; bits += step {
					s.Replayable, s.Last, s.TooLong, s.Fits = bits&1 == 0, bits&2 != 0, bits&4 != 0, bits&8 == 0
					s.BudgetEmpty, s.GateClosed, s.BodyLost = bits&16 != 0, bits&32 != 0, bits&64 != 0
					f(s)
				}
			}
		}
	}
}

// ladderBroken names the first rule that a ruling breaks, "" for none.
func ladderBroken(s *retrip.Situation, r ladderRuling) string {
	retry := r.decision == retrip.DecisionRetry
	outcome := s.Proof == retrip.PermitNotSent || s.Proof == retrip.PermitRefused
	switch {
	case r.decision == "" || r.reason == "":
		return "decision and reason are never empty"
	case retry != (r.permit != retrip.PermitNone):
		return "a permit is set where the decision is retry, and only there"
	case retry && !s.Transient:
		return "only what is transient is repeated"
	case retry && (s.Stopped || s.Nested || s.End != "" || s.BodyFailed || s.BodyWrong || s.BodyLost):
		return "an end, a failed body, an outer Transport and VerdictStop end the operation"
	case retry && (s.Last || s.TooLong || !s.Fits || s.BudgetEmpty || s.GateClosed || !s.Replayable):
		return "attempts, cap, deadline, budget, gate and body bound the repeats"
	case retry && s.Forbidden && !outcome:
		return "WithIdempotent(false) leaves only not_sent and refused"
	case retry && s.Proof != retrip.PermitNone && r.permit != s.Proof:
		return "the outcome's permit comes before the request's"
	case retry && s.Proof == retrip.PermitNone && s.Permit != retrip.PermitNone && r.permit != s.Permit:
		return "the request's permit comes before a state check's"
	case retry && r.permit == retrip.PermitStateChecked && s.Checked != retrip.StateNotApplied:
		return "state_checked needs a check that says not applied"
	case retry && (r.reason == retrip.ReasonPolicy) != s.Policy:
		return "a retry's reason is policy where WithRetryIf made it one"
	case retry && !s.Policy && r.reason != retrip.ReasonTransient:
		return "a retry's reason is transient otherwise"
	case r.decision == retrip.DecisionCheckState && (s.Delivery != retrip.DeliveryUnknown || s.Safe || s.Permit != retrip.PermitNone):
		return "check_state is for unknown attempts of unsafe methods without a permit"
	case r.decision == retrip.DecisionReturn && r.reason == retrip.ReasonTransient:
		return "nothing that is transient is returned for that reason"
	case s.Answered && !s.Transient && r.decision != retrip.DecisionReturn:
		return "an answer that is not transient is the result"
	case s.End != "" && (!s.Answered || s.Transient) && (r.decision != s.End || r.reason != retrip.Reason(s.End)):
		return "nobody waits after the operation's end"
	default:
		return ""
	}
}

func TestLadderInvariantsHoldForEverySituation(t *testing.T) {
	t.Parallel()
	seen := map[ladderRuling]bool{}
	var last ladderRuling
	n := 0
	ladderEnumerate(func(s *retrip.Situation) {
		n++
		r := ladderDecide(s)
		if r != last {
			seen[r], last = true, r
		}
		if broken := ladderBroken(s, r); broken != "" {
			t.Fatalf("%s: %+v gives %v", broken, *s, r)
		}
	})
	require.Greater(t, n, 200_000)

	// The enumeration reaches every ruling there is, or the rules above prove little.
	want := map[ladderRuling]bool{}
	for _, d := range []retrip.Decision{
		retrip.DecisionAttemptsExhausted, retrip.DecisionDeadlineExceeded, retrip.DecisionBudgetExhausted, retrip.DecisionCancel,
	} {
		want[ladderEnd(d)] = true
	}
	for _, r := range []retrip.Reason{
		retrip.ReasonSuccess, retrip.ReasonNotTransient, retrip.ReasonNotRepeatable, retrip.ReasonForbidden,
		retrip.ReasonBodyNotReplayable, retrip.ReasonBodyFailed, retrip.ReasonRetryAfterTooLong, retrip.ReasonGateClosed,
		retrip.ReasonPolicy, retrip.ReasonNested,
	} {
		want[ladderReturn(r)] = true
	}
	for _, r := range []retrip.Reason{retrip.ReasonSuccess, retrip.ReasonNotRepeatable, retrip.ReasonForbidden} {
		want[ladderCheck(r)] = true
	}
	for _, p := range []retrip.Permit{
		retrip.PermitIdempotentMethod, retrip.PermitIdempotencyKey, retrip.PermitDeclared, retrip.PermitNotSent,
		retrip.PermitRefused, retrip.PermitUnprocessedStatus, retrip.PermitStateChecked,
	} {
		want[ladderRetry(p)] = true
		want[ladderRuling{retrip.DecisionRetry, retrip.ReasonPolicy, p}] = true
	}
	for r := range want {
		require.True(t, seen[r], "%v is never the ruling", r)
	}
	for r := range seen {
		require.True(t, want[r], "%v is no ruling of the ladder", r)
	}
}
