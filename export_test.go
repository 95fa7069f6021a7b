package retrip

// Situation is all that a ruling depends on, with the fields in reach of the ladder's
// table test, which is a black box otherwise.
type Situation struct {
	Answered   bool
	Status     int
	Transient  bool
	Policy     bool
	Stopped    bool
	End        Decision
	BodyFailed bool
	Nested     bool
	Proof      Permit
	Permit     Permit
	Forbidden  bool
	Safe       bool
	Delivery   Delivery
	Checked    State
	Replayable bool
	Last       bool
	TooLong    bool
	Fits       bool

	BudgetEmpty bool
	GateClosed  bool
	BodyLost    bool
	BodyWrong   bool
}

// Decide climbs the ladder.
func Decide(s *Situation) (Decision, Reason, Permit) {
	r := decide(&situation{
		answered: s.Answered, status: s.Status,
		transient: s.Transient, policy: s.Policy, stopped: s.Stopped,
		end: s.End, bodyFailed: s.BodyFailed, nested: s.Nested,
		proof: s.Proof, permit: s.Permit, forbidden: s.Forbidden, safe: s.Safe,
		delivery: s.Delivery, checked: s.Checked,
		replayable: s.Replayable, last: s.Last, tooLong: s.TooLong, fits: s.Fits,
		budgetEmpty: s.BudgetEmpty, gateClosed: s.GateClosed,
		bodyLost: s.BodyLost, bodyWrong: s.BodyWrong,
	})
	return r.Decision, r.Reason, r.Permit
}
