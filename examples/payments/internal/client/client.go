// Package client is the payer's half of the idempotency contract: a client that
// pays once, and that says so where it does not know whether it paid.
package client

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"io"
	"net/http"

	"github.com/retrip/retrip"

	"github.com/retrip/retrip/examples/payments/internal/contract"
)

// Mode is how a client makes a repeat safe.
type Mode string

const (
	// Keys names each payment by an idempotency key. The service recognizes a
	// repeat, so that the client may repeat whatever happened.
	Keys Mode = "keys"
	// Checked sends no key, for a service that knows none. After an attempt whose
	// fate is unknown it asks the service what became of it and repeats only what
	// was not carried out.
	Checked Mode = "check"
	// Plain has neither. What was or may have been received is not sent again.
	Plain Mode = "plain"
)

// Config describes a [Client].
type Config struct {
	// URL is the service's, such as "http://127.0.0.1:8080", without a slash at
	// its end.
	URL string
	// Account pays.
	Account string
	// Mode is Keys where it is empty.
	Mode Mode
	// Base does the sending; nil is retrip's default.
	Base http.RoundTripper
	// Options are applied after the client's own and so win over them.
	Options []retrip.Option
}

// Client pays. It is safe for concurrent use.
type Client struct {
	config Config
	http   *http.Client
}

// New makes a Client. A bad option is a [retrip.OptionError].
func New(config Config) (*Client, error) {
	var options []retrip.Option
	switch config.Mode {
	case Keys, "":
		config.Mode = Keys
		options = []retrip.Option{retrip.WithGeneratedKeys(nil), retrip.WithRetryIf(waitForTheFirst)}
	case Checked:
		options = []retrip.Option{retrip.WithAttemptHeaders(retrip.AttemptHeaders{Attempt: contract.AttemptHeader})}
	case Plain:
	default:
		return nil, fmt.Errorf("client: unknown mode %q", config.Mode)
	}
	transport, err := retrip.New(config.Base, append(options, config.Options...)...)
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	// No Timeout here: it would replace the error that says what is known of the
	// payment. The deadline is the context's, or retrip.WithTotalTimeout.
	return &Client{config: config, http: &http.Client{Transport: transport}}, nil
}

// waitForTheFirst makes the answer "in progress" worth a repeat, after the wait
// that it asks for. By default a 409 is final, because most are.
func waitForTheFirst(a retrip.Attempt) retrip.Verdict {
	if a.StatusCode() == http.StatusConflict && a.Response.Header.Get("Retry-After") != "" {
		return retrip.VerdictRetry
	}
	return retrip.VerdictDefault
}

// CloseIdleConnections closes the connections that are not in use.
func (c *Client) CloseIdleConnections() { c.http.CloseIdleConnections() }

// Order is a payment to be made.
type Order struct {
	contract.Order

	// Key is sent instead of a generated one, in mode Keys only. A program that
	// may die before it has the answer stores a key first and sends the same one
	// after it has come back.
	Key string
}

// Paid is a payment that was made.
type Paid struct {
	// Receipt is the service's. Its ID is empty where the answer said that the
	// payment was made and then broke off, and it could not be asked for again.
	Receipt contract.Receipt
	// Replayed reports whether the answer was given before, to an attempt or a
	// caller that may not have heard it.
	Replayed bool
	// Key is the key the payment was made under, if any.
	Key string
	// Attempts is how many were made.
	Attempts int
}

// Pay makes one payment. It returns an [*Error] unless the payment was made.
//
// In mode Checked the reference must not have been used before, because it is
// what the service is asked for; an empty one is replaced by a random one.
func (c *Client) Pay(ctx context.Context, order Order) (Paid, error) {
	if c.config.Mode == Checked && order.Reference == "" {
		order.Reference = "ref-" + rand.Text()
	}
	body, err := json.Marshal(order.Order)
	if err != nil { // an order cannot fail
		return Paid{}, fmt.Errorf("client: %w", err)
	}

	opCtx, recorder := retrip.Record(ctx)
	switch {
	case c.config.Mode == Checked:
		opCtx = retrip.Override(opCtx, retrip.WithStateCheck(c.check(order.Reference)))
	case c.config.Mode == Keys && order.Key != "":
		opCtx = retrip.Override(opCtx, retrip.WithIdempotencyKey(order.Key))
	}
	req, err := c.request(opCtx, http.MethodPost, "/payments", body)
	if err != nil {
		return Paid{}, &Error{Delivery: retrip.DeliveryNotSent, Err: err}
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return Paid{}, &Error{
			MaybePaid: mayHavePaid(recorder, recorder.Events()),
			Delivery:  lastDelivery(recorder), Attempts: recorder.Attempts(), Err: err,
		}
	}
	defer func() { _ = resp.Body.Close() }()
	answer, readErr := readAll(resp)

	if resp.StatusCode == http.StatusCreated {
		paid := Paid{
			Replayed: resp.Header.Get(contract.ReplayedHeader) == "true",
			Key:      resp.Header.Get(contract.KeyHeader),
			Attempts: recorder.Attempts(),
		}
		if readErr != nil || json.Unmarshal(answer, &paid.Receipt) != nil {
			// The payment is made; what is missing is the paper.
			paid.Receipt = c.receiptAgain(ctx, order, paid)
		}
		return paid, nil
	}

	var problem contract.Problem
	_ = json.Unmarshal(answer, &problem) // an answer of somebody else, or half of one, has no type
	return Paid{}, &Error{
		MaybePaid: !c.nothingPaid(problem, recorder),
		Delivery:  lastDelivery(recorder), Attempts: recorder.Attempts(), Problem: problem,
		Err: describe(resp, problem, readErr),
	}
}

func (c *Client) request(ctx context.Context, method, path string, body []byte) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, method, c.config.URL+path, bytes.NewReader(body))
	if err != nil {
		return nil, fmt.Errorf("client: %w", err)
	}
	req.Header.Set("Authorization", "Bearer "+c.config.Account)
	if len(body) > 0 {
		req.Header.Set("Content-Type", "application/json")
	}
	return req, nil
}

// doJSON sends a request that may be sent any number of times. The transport
// repeats it while no answer has begun; an answer that breaks off later is out of
// a RoundTripper's hands, so that repeat is made here.
func (c *Client) doJSON(ctx context.Context, method, path string, body []byte, into any) error {
	for try := 1; ; try++ {
		answer, cut, err := c.do(ctx, method, path, body)
		if err == nil {
			return json.Unmarshal(answer, into)
		}
		if !cut || try == 5 || ctx.Err() != nil {
			return err
		}
	}
}

// do returns a 200's body; cut reports that an answer broke off.
func (c *Client) do(ctx context.Context, method, path string, body []byte) (answer []byte, cut bool, err error) {
	req, err := c.request(ctx, method, path, body)
	if err != nil {
		return nil, false, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, false, err
	}
	defer func() { _ = resp.Body.Close() }()
	if answer, err = readAll(resp); err != nil {
		return nil, true, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, false, fmt.Errorf("answered %d", resp.StatusCode)
	}
	return answer, false, nil
}

const maxAnswer = 1 << 20

func readAll(resp *http.Response) ([]byte, error) {
	return io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
}
