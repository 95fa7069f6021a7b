package server

import (
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"strconv"
	"unicode/utf8"

	"github.com/retrip/retrip/examples/payments/internal/contract"
)

const (
	maxBody    = 64 << 10
	minKey     = 8 // a shorter name cannot be unique
	maxKey     = 255
	maxText    = 64
	maxAttempt = 1 << 20
)

// invalidError is a request that cannot be understood, and the status that says
// so. Such an answer is not stored under the key: the same request meets the
// same error again, and a corrected one may use the key.
type invalidError struct {
	status int
	detail string
}

func (e *invalidError) Error() string { return "server: " + e.detail }

func invalid(status int, format string, args ...any) error {
	return &invalidError{status: status, detail: fmt.Sprintf(format, args...)}
}

// keyOf returns the request's key, "" where it has none. A present but unusable
// key is an error: to treat it as none would take away the client's protection
// without telling it.
func keyOf(r *http.Request) (string, error) {
	values := r.Header.Values(contract.KeyHeader)
	if len(values) == 0 {
		return "", nil
	}
	if len(values) > 1 {
		return "", invalid(http.StatusBadRequest, "%s is given %d times", contract.KeyHeader, len(values))
	}
	return values[0], checkKey(values[0])
}

func checkKey(key string) error {
	if len(key) < minKey || len(key) > maxKey {
		return invalid(http.StatusBadRequest, "the key has %d bytes, not %d to %d", len(key), minKey, maxKey)
	}
	for i := range len(key) {
		if key[i] <= ' ' || key[i] > '~' {
			return invalid(http.StatusBadRequest, "the key has a byte that is not visible ASCII")
		}
	}
	return nil
}

// attemptOf returns the attempt's number, 0 where it has none.
func attemptOf(r *http.Request) (int, error) {
	value := r.Header.Get(contract.AttemptHeader)
	if value == "" {
		return 0, nil
	}
	n, err := strconv.Atoi(value)
	if err != nil || n < 1 || n > maxAttempt {
		return 0, invalid(http.StatusBadRequest, "%s is not a number from 1 to %d", contract.AttemptHeader, maxAttempt)
	}
	return n, nil
}

func readOrder(w http.ResponseWriter, r *http.Request) (contract.Order, error) {
	var order contract.Order
	if err := readJSON(w, r, &order); err != nil {
		return contract.Order{}, err
	}
	unprocessable := func(detail string) (contract.Order, error) {
		return contract.Order{}, invalid(http.StatusUnprocessableEntity, "%s", detail)
	}
	switch {
	case order.Amount <= 0:
		return unprocessable("amount is not above zero")
	case !isCurrency(order.Currency):
		return unprocessable("currency is not three capital letters")
	case !isText(order.To):
		return unprocessable("to is not a text of 1 to 64 bytes")
	case order.Reference != "" && !isText(order.Reference):
		return unprocessable("reference is not a text of at most 64 bytes")
	}
	return order, nil
}

func readJSON(w http.ResponseWriter, r *http.Request, into any) error {
	if mediaType, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || mediaType != "application/json" {
		return invalid(http.StatusUnsupportedMediaType, "the body is not application/json")
	}
	decoder := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	// A field that is not understood is not part of the fingerprint; to ignore
	// it would call two different requests the same.
	decoder.DisallowUnknownFields()
	err := decoder.Decode(into)
	if err == nil {
		if _, err = decoder.Token(); errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = errors.New("there is more than one value")
		}
	}
	if tooLarge := (*http.MaxBytesError)(nil); errors.As(err, &tooLarge) {
		return invalid(http.StatusRequestEntityTooLarge, "the body is larger than %d bytes", tooLarge.Limit)
	}
	return invalid(http.StatusBadRequest, "the body is not what is asked for: %v", err)
}

// fingerprint stands for what a payment does. It is taken of the order as it was
// understood and not of its bytes, so that a client that writes the same order
// in another form (another order of fields, another library) is recognized. Of
// one path and one method there is nothing else to tell apart; a service with
// more of them adds both.
func fingerprint(order contract.Order) []byte {
	sum := sha256.Sum256(encode(order))
	return sum[:]
}

func isCurrency(s string) bool {
	if len(s) != 3 {
		return false
	}
	for i := range len(s) {
		if s[i] < 'A' || s[i] > 'Z' {
			return false
		}
	}
	return true
}

// isText reports whether s is 1 to 64 bytes of valid UTF-8 without control
// characters, which PostgreSQL could not store or a log would be broken by.
func isText(s string) bool {
	if s == "" || len(s) > maxText || !utf8.ValidString(s) {
		return false
	}
	for _, r := range s {
		if r < ' ' || r == 0x7f {
			return false
		}
	}
	return true
}
