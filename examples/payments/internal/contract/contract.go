// Package contract holds what the payments service and its clients agree on:
// the JSON bodies, the header names and the problem types.
package contract

import (
	"encoding/json"
	"time"
)

const (
	// KeyHeader names one operation. The service carries out at most one
	// operation for each key and account.
	KeyHeader = "Idempotency-Key"

	// ReplayedHeader is "true" on an answer that was stored earlier and stands
	// for no new effect.
	ReplayedHeader = "Idempotent-Replayed"

	// AttemptHeader numbers the attempts of a payment that has a reference and
	// no key, from 1. An attempt without it cannot be closed; see [Closing].
	AttemptHeader = "Payment-Attempt"

	// ProblemMediaType is the media type of every answer that is a [Problem].
	ProblemMediaType = "application/problem+json"
)

// Order asks for one payment.
type Order struct {
	// Reference is the payer's own number for the payment, at most 64 bytes. It
	// may be empty, and it is not a key: the service does not refuse a second
	// payment with the same reference.
	Reference string `json:"reference,omitempty"`
	// Amount is in the currency's minor unit (cents) and above zero.
	Amount int64 `json:"amount"`
	// Currency is an ISO 4217 code such as "EUR".
	Currency string `json:"currency"`
	// To is the account that is paid, 1 to 64 bytes.
	To string `json:"to"`
}

// Receipt is the answer to a payment that was carried out.
type Receipt struct {
	ID        string    `json:"id"`
	Reference string    `json:"reference,omitempty"`
	Amount    int64     `json:"amount"`
	Currency  string    `json:"currency"`
	To        string    `json:"to"`
	Created   time.Time `json:"created"`
}

// KeyState is the answer of GET /payments/by-key/{key}.
type KeyState struct {
	// State is "running" or "done".
	State string `json:"state"`
	// Status and Answer are what the operation was answered with; both are empty
	// while it is running.
	Status int             `json:"status,omitempty"`
	Answer json.RawMessage `json:"answer,omitempty"`
}

// Closing is the request of PUT /payments/by-reference/{reference}/closed-attempts.
// From its answer on, no attempt of that reference with a number up to UpTo is
// carried out, however late it arrives.
type Closing struct {
	UpTo int `json:"up_to"`
}

// Closed answers a [Closing] with the payments of that reference. An empty list
// is a proof: nothing was paid, and none of the closed attempts will pay.
type Closed struct {
	Payments []Receipt `json:"payments"`
}

// Problem types, compared as whole strings (RFC 9457, section 3.1.1).
const (
	// ProblemAnotherBody: the key was used for another request (409). Nothing
	// was done; repeating cannot help.
	ProblemAnotherBody = "https://payments.example/problems/key-used-for-another-request"
	// ProblemInProgress: an operation with this key is running (409). Nothing
	// was done by this request; the answer has a Retry-After.
	ProblemInProgress = "https://payments.example/problems/operation-in-progress"
	// ProblemAttemptClosed: the payer closed this attempt before it arrived
	// (409). Nothing was done.
	ProblemAttemptClosed = "https://payments.example/problems/attempt-closed"
	// ProblemInvalid: the request cannot be understood (400, 413, 415 or 422).
	// Nothing was done, and nothing is stored under the key.
	ProblemInvalid = "https://payments.example/problems/invalid-request"
	// ProblemNoAccount: the request does not say whose account pays (401).
	ProblemNoAccount = "https://payments.example/problems/no-account"
	// ProblemOverLimit: the payment was refused by a business rule (422). This
	// is an outcome: it is stored under the key and replayed.
	ProblemOverLimit = "https://payments.example/problems/over-limit"
	// ProblemUnknownKey: no operation with this key is on record (404).
	ProblemUnknownKey = "https://payments.example/problems/unknown-key"
	// ProblemNotDone: the payment could not be carried out and was not (503).
	ProblemNotDone = "https://payments.example/problems/not-carried-out"
	// ProblemOutcomeUnknown: the service cannot say whether the payment was
	// carried out (500, or 503 with Retry-After where a repeat under the same
	// key will find out).
	ProblemOutcomeUnknown = "https://payments.example/problems/outcome-unknown"
)

// Problem is an RFC 9457 problem detail.
type Problem struct {
	Type   string `json:"type"`
	Title  string `json:"title"`
	Status int    `json:"status"`
	Detail string `json:"detail,omitempty"`
}
