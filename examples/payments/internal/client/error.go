package client

import (
	"fmt"
	"net/http"
	"slices"

	"github.com/retrip/retrip"

	"github.com/retrip/retrip/examples/payments/internal/contract"
)

// Error is a payment that was not made, or of which that is not known.
type Error struct {
	// MaybePaid reports whether this call may have paid or may yet pay. Where it
	// is true, errors.Is finds [retrip.ErrOutcomeUnknown]. False is a proof that
	// it did not and will not.
	MaybePaid bool
	// Delivery is what is known about the arrival of the last attempt.
	Delivery retrip.Delivery
	// Attempts is how many were made.
	Attempts int
	// Problem is what the service answered; zero where it did not.
	Problem contract.Problem
	// Err is the error of the attempts; nil where Problem says it all.
	Err error
}

// Error implements error.
func (e *Error) Error() string {
	known := "not paid"
	if e.MaybePaid {
		known = "may have been paid"
	}
	what := e.Problem.Title
	if e.Err != nil {
		what = e.Err.Error()
	}
	return fmt.Sprintf("client: %s (%d attempts, the last one %s): %s", known, e.Attempts, e.Delivery, what)
}

// Unwrap returns the error of the attempts and, where the payment may have been
// made, [retrip.ErrOutcomeUnknown].
func (e *Error) Unwrap() []error {
	var errs []error
	if e.Err != nil {
		errs = append(errs, e.Err)
	}
	if e.MaybePaid {
		errs = append(errs, retrip.ErrOutcomeUnknown)
	}
	return errs
}

// nothingPaid reports whether an answer proves that nothing was or will be paid.
func (c *Client) nothingPaid(problem contract.Problem, recorder *retrip.Recorder) bool {
	events := recorder.Events()
	earlier := events[:max(0, len(events)-1)]
	switch problem.Type {
	case contract.ProblemOverLimit:
		// Under a key, this answers the operation, not only its last attempt.
		return c.config.Mode == Keys || !mayHavePaid(recorder, earlier)
	case contract.ProblemAnotherBody, contract.ProblemAttemptClosed, contract.ProblemInvalid,
		contract.ProblemNoAccount, contract.ProblemNotDone:
		// The last attempt did nothing. An earlier one may have, or may still be
		// on its way.
		return !mayHavePaid(recorder, earlier)
	default:
		// In progress, a failure on the service's side, or the answer of
		// something in between: conservatively, no proof.
		return false
	}
}

// mayHavePaid reports whether one of the attempts may have paid, none of whose
// answers is at hand. retrip knows of the attempts whose fate is unknown and was
// not settled by a check. One that was answered is not among them, but its answer
// was given up for a repeat, and "in progress" or a gateway's 503 may stand for a
// payment.
func mayHavePaid(recorder *retrip.Recorder, events []retrip.Event) bool {
	answered := func(e retrip.Event) bool { return e.Delivery == retrip.DeliveryAnswered }
	return recorder.MaybeApplied() || slices.ContainsFunc(events, answered)
}

// describe is the error of an answer that does not explain itself.
func describe(resp *http.Response, problem contract.Problem, readErr error) error {
	switch {
	case readErr != nil:
		return fmt.Errorf("answered %d, and the answer was cut: %w", resp.StatusCode, readErr)
	case problem.Type == "":
		return fmt.Errorf("answered %d without a problem type", resp.StatusCode)
	default:
		return nil
	}
}

// lastDelivery is that of the last attempt; not sent where there was none.
func lastDelivery(recorder *retrip.Recorder) retrip.Delivery {
	events := recorder.Events()
	if len(events) == 0 {
		return retrip.DeliveryNotSent
	}
	return events[len(events)-1].Delivery
}
