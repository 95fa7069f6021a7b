package retrip_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/httptestx"
)

// errorFrom sends a request by a new Transport over base and returns its error.
func errorFrom(ctx context.Context, t *testing.T, base http.RoundTripper, method string, opts ...retrip.Option) error {
	t.Helper()
	rt := httptestx.Checked(t, retrip.Must(retrip.New(base, append([]retrip.Option{optionNow}, opts...)...)))
	resp, err := rt.RoundTrip(optionRequest(ctx, t, method))
	if resp != nil {
		resp.Body.Close()
	}
	require.Error(t, err)
	return err
}

// errorOf is the *Error that is returned itself, not wrapped.
func errorOf(t *testing.T, err error) *retrip.Error {
	t.Helper()
	e, ok := err.(*retrip.Error) //nolint:errorlint // net/url asks that very value for Timeout
	require.True(t, ok, "got %T %v", err, err)
	return e
}

type ownError struct{ timeout, temporary bool }

func (ownError) Error() string     { return "a base's own error" }
func (e ownError) Timeout() bool   { return e.timeout }
func (e ownError) Temporary() bool { return e.temporary }

func TestErrorForwardsTimeoutAndTemporaryOfTheLastAttempt(t *testing.T) {
	t.Parallel()
	for _, own := range []ownError{{}, {timeout: true}, {temporary: true}, {timeout: true, temporary: true}} {
		e := errorOf(t, errorFrom(t.Context(), t, outcomeFails(io.EOF, own), "GET"))
		assert.Equal(t, own.timeout, e.Timeout())
		assert.Equal(t, own.temporary, e.Temporary())
		// net/url asks its direct inner error only.
		outer := &url.Error{Op: "Get", URL: "http://origin.test/", Err: e}
		assert.Equal(t, own.timeout, outer.Timeout())
		assert.Equal(t, own.temporary, outer.Temporary())
	}
}

// C08: the kind of the error is not lost behind the wrapping.
func TestC08TimeoutIsTrueThroughAClient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := httptestx.ServeMemory(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
		for method, attempts := range map[string]int{"GET": 3, "POST": 1} {
			// A Transport each: an operation that ended transient closes the reserve.
			client := &http.Client{Transport: retrip.Must(retrip.New(base, optionNow, retrip.WithAttemptTimeout(time.Second)))}
			resp, err := client.Do(optionRequest(t.Context(), t, method))
			if resp != nil {
				resp.Body.Close()
			}
			var outer *url.Error
			require.ErrorAs(t, err, &outer)
			require.True(t, outer.Timeout())
			var e *retrip.Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, attempts, e.Attempts)
			require.NotErrorIs(t, err, context.DeadlineExceeded, "an attempt's end is not the caller's")
			require.Equal(t, method == "POST", errors.Is(err, retrip.ErrOutcomeUnknown))
		}
	})
}

func TestErrorIsDeadlineExceededWhereItWouldBe(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	err := errorFrom(ctx, t, outcomeFails(io.EOF), "GET", retrip.WithBackoff(retrip.Constant(2*time.Hour)))
	e := errorOf(t, err)
	assert.Equal(t, retrip.DecisionDeadlineExceeded, e.Decision)
	require.ErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorIs(t, err, io.EOF, "the attempt's error is not lost")
	assert.True(t, e.Timeout())
	require.NoError(t, ctx.Err(), "the context lives")
}

func TestErrorIsWhatItsFieldsSay(t *testing.T) {
	t.Parallel()
	decisions := []retrip.Decision{
		retrip.DecisionReturn, retrip.DecisionCheckState, retrip.DecisionAttemptsExhausted,
		retrip.DecisionDeadlineExceeded, retrip.DecisionBudgetExhausted, retrip.DecisionCancel,
	}
	for _, d := range decisions {
		for _, maybe := range []bool{false, true} {
			e := &retrip.Error{Decision: d, Reason: retrip.Reason(d), MaybeApplied: maybe}
			assert.Equal(t, maybe, errors.Is(e, retrip.ErrOutcomeUnknown))
			assert.Equal(t, d == retrip.DecisionDeadlineExceeded, errors.Is(e, context.DeadlineExceeded))
			assert.Equal(t, d == retrip.DecisionDeadlineExceeded, e.Timeout())
			require.NotErrorIs(t, e, context.Canceled)
			assert.False(t, e.Temporary())
			assert.Empty(t, e.Unwrap(), "no nil among what is unwrapped")
			assert.Contains(t, e.Error(), string(d))
			assert.Equal(t, maybe, strings.Contains(e.Error(), "unknown"))
		}
	}
	assert.NotEmpty(t, (&retrip.Error{}).Error())
	assert.NotErrorIs(t, &retrip.OptionError{}, retrip.ErrOutcomeUnknown)
}

func TestErrorsTextSaysHowItEnded(t *testing.T) {
	t.Parallel()
	tests := []struct {
		base   http.RoundTripper
		method string
		opts   []retrip.Option
		want   string
	}{
		{
			outcomeFails(io.EOF), "GET", nil,
			"retrip: attempts_exhausted after 3 attempts: EOF",
		},
		{
			outcomeFails(io.EOF), "POST", nil,
			"retrip: the outcome is unknown: check_state (not_repeatable) after 1 attempt: EOF",
		},
		{
			outcomeFails(errOutcomeOdd), "POST", nil,
			"retrip: the outcome is unknown: check_state (not_repeatable) after 1 attempt: other",
		},
		{
			outcomeFails(io.EOF), "GET",
			[]retrip.Option{retrip.WithBudget(retrip.NewBudget(0, 0, 0))},
			"retrip: budget_exhausted after 1 attempt: EOF",
		},
	}
	for _, tt := range tests {
		require.EqualError(t, errorFrom(t.Context(), t, tt.base, tt.method, tt.opts...), tt.want)
	}
	// Of a refusal before the first attempt.
	e := errorOf(t, errorFrom(t.Context(), t, httptestx.Statuses(200), "GET",
		retrip.WithGate(func(*http.Request) (func(error), error) { return nil, errOutcomeGate })))
	assert.Zero(t, e.Attempts)
	assert.Equal(t, retrip.DeliveryNotSent, e.Delivery)
	assert.Contains(t, e.Error(), "after 0 attempts")
	assert.NotEmpty(t, e.OperationID)
	assert.Equal(t, errOutcomeGate, e.Err)
}

func TestErrorUnwrapsToAllThatEndedIt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		cause := errors.New("the user left")
		inner := &net.OpError{Op: "read", Err: syscall.ECONNRESET}

		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Minute, func() { cancel(cause) })
		err := errorFrom(ctx, t, outcomeFails(inner), "GET", retrip.WithBackoff(retrip.Constant(time.Hour)))
		e := errorOf(t, err)
		require.Equal(t, error(inner), e.Err, "the last attempt's error comes first")
		require.Equal(t, error(inner), e.Unwrap()[0])
		for _, target := range []error{syscall.ECONNRESET, context.Canceled, cause} {
			require.ErrorIs(t, err, target)
		}
		var op *net.OpError
		require.ErrorAs(t, err, &op)
		require.Same(t, inner, op)
		require.NotContains(t, e.Error(), cause.Error(), "a cause is the caller's words")
		require.Contains(t, e.Error(), "1 attempt")

		// C07: the same where the deadline came in a wait.
		ctx, stop := context.WithDeadlineCause(errorHidden{t.Context()}, time.Now().Add(time.Minute), cause)
		defer stop()
		err = errorFrom(errorHidden{ctx}, t, outcomeFails(inner), "GET", retrip.WithBackoff(retrip.Constant(time.Hour)))
		e = errorOf(t, err)
		require.Equal(t, retrip.DecisionDeadlineExceeded, e.Decision)
		for _, target := range []error{syscall.ECONNRESET, context.DeadlineExceeded, cause} {
			require.ErrorIs(t, err, target)
		}
		require.True(t, e.Timeout())
	})
}

// errorHidden hides the deadline of a context, which is not known beforehand then.
type errorHidden struct{ context.Context } //nolint:containedctx // a context of our own

func (errorHidden) Deadline() (time.Time, bool) { return time.Time{}, false }

func TestErrorOfOneAttemptIsUntouchedUnlessThereIsMoreToSay(t *testing.T) {
	t.Parallel()
	stop := retrip.WithRetryIf(func(retrip.Attempt) retrip.Verdict { return retrip.VerdictStop })
	once := retrip.WithMaxAttempts(1)
	tests := []struct {
		name      string
		method    string
		opts      []retrip.Option
		untouched bool
	}{
		{"stopped", "GET", []retrip.Option{stop}, true},
		{"forbidden", "GET", []retrip.Option{retrip.WithIdempotent(false)}, true},
		{"one attempt", "GET", []retrip.Option{once}, true},
		{"three attempts", "GET", nil, false},
		{"budget", "GET", []retrip.Option{retrip.WithBudget(retrip.NewBudget(0, 0, 0))}, false},
		{"not safe", "PUT", []retrip.Option{once}, false},
		{"not safe, stopped", "POST", []retrip.Option{stop}, false},
		{"not repeatable", "POST", nil, false},
	}
	for _, tt := range tests {
		err := errorFrom(t.Context(), t, outcomeFails(errOutcomeOdd), tt.method, tt.opts...)
		if tt.untouched {
			assert.True(t, err == errOutcomeOdd, "%s: got %T", tt.name, err) //nolint:errorlint,testifylint // the very value
			continue
		}
		e := errorOf(t, err)
		assert.Equal(t, errOutcomeOdd, e.Err, tt.name)
	}
}

// http.Client looks at the type of the error of a plain server behind an https URL.
func TestSchemeMismatchIsStillFoundByTheClient(t *testing.T) {
	for _, method := range []string{"GET", "POST"} {
		t.Run(method, func(t *testing.T) {
			httptestx.Leaks(t)
			origin := httptestx.NewOrigin(t, httptestx.Sequence(
				httptestx.Play{httptestx.ReadHello, httptestx.WriteRaw("HTTP/1.1 400 Bad Request\r\n\r\n"), httptestx.FIN}))
			client := &http.Client{Transport: retrip.Must(retrip.New(httptestx.NewTransport(t), optionNow))}
			req, err := http.NewRequestWithContext(t.Context(), method, strings.Replace(origin.URL, "http:", "https:", 1), http.NoBody)
			require.NoError(t, err)
			resp, err := client.Do(req)
			if resp != nil {
				resp.Body.Close()
			}
			require.ErrorIs(t, err, http.ErrSchemeMismatch)
			assert.Equal(t, 1, origin.Conns())
		})
	}
}

func TestOutcomeUnknownIsFoundThroughAClientWithADeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := httptestx.ServeMemory(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }))
		client := &http.Client{Transport: retrip.Must(retrip.New(base))}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		resp, err := client.Do(optionRequest(ctx, t, "POST"))
		if resp != nil {
			resp.Body.Close()
		}
		require.ErrorIs(t, err, retrip.ErrOutcomeUnknown)
		require.ErrorIs(t, err, context.DeadlineExceeded)

		// net/http may replace any error by a text under its own time-out; the recorder knows.
		client.Timeout = time.Second
		for range 20 {
			ctx, record := retrip.Record(t.Context())
			resp, err := client.Do(optionRequest(ctx, t, "POST"))
			if resp != nil {
				resp.Body.Close()
			}
			require.Error(t, err)
			require.True(t, record.MaybeApplied())
			require.Equal(t, 1, record.Attempts())
			e := record.Events()[0]
			require.Equal(t, "1 unknown/deadline deadline_exceeded/deadline_exceeded", outcomeLine(&e))
			require.ErrorIs(t, err, context.DeadlineExceeded)
		}
	})
}

func TestErrorOfATransportBelowIsQuotedWithoutSecrets(t *testing.T) {
	t.Parallel()
	inner := retrip.Must(retrip.New(outcomeFails(&url.Error{Op: "Post", URL: "?sig=S3CR", Err: io.EOF})))
	err := errorFrom(t.Context(), t, inner, "POST")
	e := errorOf(t, err)
	assert.True(t, e.MaybeApplied)
	require.ErrorIs(t, err, io.EOF)
	var below *retrip.Error
	require.ErrorAs(t, e.Err, &below)
	assert.Equal(t, retrip.ReasonNested, below.Reason)
	assert.NotContains(t, err.Error(), "S3CR")
	assert.Contains(t, err.Error(), "EOF")
}
