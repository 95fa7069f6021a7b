package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/retrip/retrip"

	"github.com/retrip/retrip/examples/payments/internal/contract"
)

// check asks what became of an attempt by closing it. A look for the payment
// would not do: a request that timed out here may still reach the service, and
// would pay after the look had found nothing.
func (c *Client) check(reference string) retrip.StateCheck {
	return func(ctx context.Context, req *http.Request, a retrip.Attempt) (retrip.State, *http.Response, error) {
		payments, err := c.closeAttempts(ctx, reference, a.Number)
		if err != nil {
			return retrip.StateUnknown, nil, err
		}
		switch len(payments) {
		case 0:
			return retrip.StateNotApplied, nil, nil
		case 1:
			body, err := json.Marshal(payments[0])
			if err != nil { // a receipt cannot fail
				return retrip.StateUnknown, nil, err
			}
			return retrip.StateApplied, &http.Response{
				Status: "201 Created", StatusCode: http.StatusCreated, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
				Header:        http.Header{"Content-Type": {"application/json"}, contract.ReplayedHeader: {"true"}},
				ContentLength: int64(len(body)), Body: io.NopCloser(bytes.NewReader(body)), Request: req,
			}, nil
		default:
			return retrip.StateUnknown, nil, fmt.Errorf("client: %d payments have the same reference", len(payments))
		}
	}
}

// closeAttempts goes through the same transport. PUT is idempotent, so that it
// is repeated where that helps; it has no unknown outcome that matters.
func (c *Client) closeAttempts(ctx context.Context, reference string, upTo int) ([]contract.Receipt, error) {
	body, err := json.Marshal(contract.Closing{UpTo: upTo})
	if err != nil { // a number cannot fail
		return nil, err
	}
	var closed contract.Closed
	path := "/payments/by-reference/" + url.PathEscape(reference) + "/closed-attempts"
	if err := c.doJSON(ctx, http.MethodPut, path, body, &closed); err != nil {
		return nil, fmt.Errorf("client: close attempts: %w", err)
	}
	if closed.Payments == nil {
		// "{}" or "null" is not the answer that proves something.
		return nil, errors.New("client: close attempts: the answer has no list of payments")
	}
	return closed.Payments, nil
}

// receiptAgain asks for a receipt that was cut off, or returns one without an ID.
func (c *Client) receiptAgain(ctx context.Context, order Order, paid Paid) contract.Receipt {
	switch {
	case paid.Key != "":
		var (
			state   contract.KeyState
			receipt contract.Receipt
		)
		err := c.doJSON(ctx, http.MethodGet, "/payments/by-key/"+url.PathEscape(paid.Key), nil, &state)
		if err == nil && state.Status == http.StatusCreated && json.Unmarshal(state.Answer, &receipt) == nil {
			return receipt
		}
	case c.config.Mode == Checked:
		if payments, err := c.closeAttempts(ctx, order.Reference, max(1, paid.Attempts)); err == nil && len(payments) == 1 {
			return payments[0]
		}
	}
	return contract.Receipt{Reference: order.Reference, Amount: order.Amount, Currency: order.Currency, To: order.To}
}
