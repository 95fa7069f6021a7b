package retrip_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptrace"
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

// stateVerdict is one answer of a state check. Its response has the body, and exists where
// that does.
type stateVerdict struct {
	state retrip.State
	body  *httptestx.Body
	err   error
}

// stateAsker is a state check that answers from a list, the last answer repeating, and
// remembers what it was asked.
type stateAsker struct {
	verdicts []stateVerdict
	asked    []retrip.Attempt
	requests []*http.Request
	contexts []context.Context
}

func askState(verdicts ...stateVerdict) *stateAsker { return &stateAsker{verdicts: verdicts} }

func (a *stateAsker) check(ctx context.Context, req *http.Request, attempt retrip.Attempt) (retrip.State, *http.Response, error) {
	a.asked, a.requests, a.contexts = append(a.asked, attempt), append(a.requests, req), append(a.contexts, ctx)
	v := a.verdicts[min(len(a.asked), len(a.verdicts))-1]
	if v.body == nil {
		return v.state, nil, v.err
	}
	return v.state, &http.Response{StatusCode: http.StatusCreated, Body: v.body, ContentLength: -1}, v.err
}

// stateBody is the body of a check's response.
func stateBody() *httptestx.Body { return httptestx.NewBody(strings.NewReader("payment 42")) }

var errStateCheck = errors.New("the ledger is not to be reached at https://ledger.test/?token=s3cret")

func TestStateCheckAppliedGivesTheResultOfTheOperation(t *testing.T) {
	body := stateBody()
	asker := askState(stateVerdict{state: retrip.StateApplied, body: body})
	b := newKeyBench(t, httptestx.Sequence(keyLost, keyOK), retrip.WithStateCheck(asker.check))
	ctx, rec := retrip.Record(t.Context())
	req := b.request(ctx, http.MethodPost)
	resp, err := b.rt.RoundTrip(req)
	require.NoError(t, err)
	assert.Equal(t, 201, resp.StatusCode)
	assert.Same(t, req, resp.Request)
	assert.Zero(t, body.Closes(), "a used response is the caller's to close")
	text, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	assert.Equal(t, "payment 42", string(text))
	assert.Equal(t, 1, body.Closes())

	assert.Equal(t, 1, b.origin.Heads(), "what was applied is not sent again")
	assert.False(t, rec.MaybeApplied(), "nothing is in doubt any more")
	require.Len(t, b.events, 1)
	e := b.events[0]
	assert.Equal(t, []string{"check_state/success/"}, b.told())
	assert.Equal(t, retrip.DeliveryUnknown, e.Delivery)
	assert.Equal(t, retrip.ClassEOF, e.Class)
	assert.Zero(t, e.StatusCode, "the attempt itself has no answer")
	require.ErrorIs(t, e.Err, io.EOF)
	b.bodies.CheckClosedOnce(t)
}

func TestStateCheckIsShownTheAttempt(t *testing.T) {
	asker := askState(stateVerdict{state: retrip.StateNotApplied})
	b := newKeyBench(t, httptestx.Sequence(httptestx.Play{httptestx.ReadAll, httptestx.RST}), retrip.WithStateCheck(asker.check))
	before := time.Now()
	req := b.request(t.Context(), http.MethodPost)
	err := b.failure(req)
	require.ErrorIs(t, err, syscall.ECONNRESET)
	require.Len(t, asker.asked, 3, "once for each attempt")
	for i, a := range asker.asked {
		assert.Same(t, req, asker.requests[i])
		assert.Same(t, req, a.Request)
		assert.Equal(t, i+1, a.Number)
		assert.Nil(t, a.Response)
		assert.Zero(t, a.StatusCode())
		require.ErrorIs(t, a.Err, syscall.ECONNRESET)
		assert.Equal(t, retrip.ClassReset, a.Class)
		assert.Equal(t, retrip.DeliveryUnknown, a.Delivery)
		assert.Equal(t, 1, a.Sends)
		assert.False(t, a.ConnReused)
		assert.WithinRange(t, a.Start, before, time.Now())
		assert.Positive(t, a.Duration)
	}
}

func TestStateCheckSeesTheSameWithoutAnObserver(t *testing.T) {
	httptestx.Leaks(t)
	asker := askState(stateVerdict{state: retrip.StateNotApplied})
	o := httptestx.NewOrigin(t, httptestx.Sequence(keyLost, keyOK))
	rt := httptestx.Checked(t, retrip.Must(retrip.New(httptestx.NewTransport(t),
		retrip.WithStateCheck(asker.check), retrip.WithBackoff(retrip.Constant(0)))))
	resp, err := rt.RoundTrip(httptestx.NewBodies("amount=200").Request(t.Context(), t, http.MethodPost, o.URL))
	require.NoError(t, err)
	resp.Body.Close()
	assert.Equal(t, 2, o.Heads())
	require.Len(t, asker.asked, 1)
	assert.Equal(t, 1, asker.asked[0].Sends)
	assert.False(t, asker.asked[0].Start.IsZero())
	assert.Positive(t, asker.asked[0].Duration)
}

func TestStateCheckNotAppliedPermitsARepeat(t *testing.T) {
	asker := askState(stateVerdict{state: retrip.StateNotApplied})
	b := newKeyBench(t, httptestx.Sequence(keyLost, keyLost, httptestx.Status(409, "exists")), retrip.WithStateCheck(asker.check))
	ctx, rec := retrip.Record(t.Context())
	status, body := b.answer(b.request(ctx, http.MethodPost))
	assert.Equal(t, 409, status)
	assert.Equal(t, "exists", body)
	assert.Len(t, asker.asked, 2, "an answer is not asked about")
	assert.Equal(t, []string{"retry/transient/state_checked", "retry/transient/state_checked", "return/not_transient/"}, b.told())
	for i, seen := range b.origin.Requests() {
		assert.Equal(t, "amount=200", seen.Body, "attempt %d", i+1)
		assert.False(t, b.events[i].EarlierUnknown, "what is settled is not in doubt")
	}
	assert.False(t, rec.MaybeApplied())
	b.bodies.CheckClosedOnce(t)
}

func TestStateCheckNotAppliedOnTheLastAttemptLeavesNoDoubt(t *testing.T) {
	t.Run("the first is the last: the base's own error", func(t *testing.T) {
		asker := askState(stateVerdict{state: retrip.StateNotApplied})
		b := newKeyBench(t, httptestx.Sequence(keyLost), retrip.WithStateCheck(asker.check), retrip.WithMaxAttempts(1))
		ctx, rec := retrip.Record(t.Context())
		err := b.failure(b.request(ctx, http.MethodPost))
		assert.Equal(t, io.EOF, err)
		assert.Len(t, asker.asked, 1)
		assert.Equal(t, []string{"attempts_exhausted/attempts_exhausted/"}, b.told())
		assert.False(t, rec.MaybeApplied())
	})
	t.Run("after others", func(t *testing.T) {
		asker := askState(stateVerdict{state: retrip.StateNotApplied})
		b := newKeyBench(t, httptestx.Sequence(keyLost), retrip.WithStateCheck(asker.check), retrip.WithMaxAttempts(2))
		err := b.failure(b.request(t.Context(), http.MethodPost))
		var e *retrip.Error
		require.ErrorAs(t, err, &e)
		require.ErrorIs(t, err, io.EOF)
		require.NotErrorIs(t, err, retrip.ErrOutcomeUnknown)
		assert.False(t, e.MaybeApplied)
		assert.Equal(t, retrip.DeliveryUnknown, e.Delivery)
		assert.Equal(t, []string{"retry/transient/state_checked", "attempts_exhausted/attempts_exhausted/"}, b.told())
	})
}

func TestStateCheckThatSettlesNothingEndsWithOutcomeUnknown(t *testing.T) {
	for name, test := range map[string]struct {
		verdict stateVerdict
		says    string // in the error's text
	}{
		"unknown":                    {verdict: stateVerdict{}},
		"a state there is not":       {verdict: stateVerdict{state: 7}},
		"an error":                   {verdict: stateVerdict{err: errStateCheck}, says: "the state check failed"},
		"applied, and an error":      {verdict: stateVerdict{state: retrip.StateApplied, err: errStateCheck}, says: "the state check failed"},
		"not applied, and an error":  {verdict: stateVerdict{state: retrip.StateNotApplied, err: errStateCheck}, says: "the state check failed"},
		"applied without a response": {verdict: stateVerdict{state: retrip.StateApplied}, says: "the state check says applied but has no response"},
	} {
		t.Run(name, func(t *testing.T) {
			asker := askState(test.verdict)
			b := newKeyBench(t, httptestx.Sequence(keyLost, keyOK), retrip.WithStateCheck(asker.check))
			ctx, rec := retrip.Record(t.Context())
			err := b.failure(b.request(ctx, http.MethodPost))
			require.ErrorIs(t, err, retrip.ErrOutcomeUnknown)
			require.ErrorIs(t, err, io.EOF, "the attempt's error")
			var e *retrip.Error
			require.ErrorAs(t, err, &e)
			assert.True(t, e.MaybeApplied)
			assert.Equal(t, io.EOF, e.Err)
			assert.Equal(t, retrip.DecisionCheckState, e.Decision)
			assert.Equal(t, retrip.ReasonNotRepeatable, e.Reason)
			assert.Equal(t, 1, e.Attempts)
			assert.True(t, rec.MaybeApplied())
			assert.Equal(t, 1, b.origin.Heads())
			assert.Len(t, asker.asked, 1)
			assert.Equal(t, []string{"check_state/not_repeatable/"}, b.told())
			if test.verdict.err != nil {
				require.ErrorIs(t, err, errStateCheck, "the check's error is joined")
				require.ErrorIs(t, b.events[0].Err, errStateCheck)
				require.ErrorIs(t, b.events[0].Err, io.EOF)
			}
			assert.Contains(t, err.Error(), test.says)
			assert.NotContains(t, err.Error(), "s3cret", "the check's error may quote a query")
			assert.NotContains(t, b.events[0].String(), "s3cret")
			b.bodies.CheckClosedOnce(t)
		})
	}
}

func TestStateCheckLosesNoResponse(t *testing.T) {
	for name, state := range map[string]retrip.State{
		"unknown": retrip.StateUnknown, "not applied": retrip.StateNotApplied, "a state there is not": 7,
	} {
		t.Run(name, func(t *testing.T) {
			body := stateBody()
			asker := askState(stateVerdict{state: state, body: body})
			b := newKeyBench(t, httptestx.Sequence(keyLost), retrip.WithStateCheck(asker.check), retrip.WithMaxAttempts(1))
			err := b.failure(b.request(t.Context(), http.MethodPost))
			require.ErrorIs(t, err, io.EOF)
			body.CheckClosedOnce(t)
		})
	}
	t.Run("applied, and an error", func(t *testing.T) {
		body := stateBody()
		asker := askState(stateVerdict{state: retrip.StateApplied, body: body, err: errStateCheck})
		b := newKeyBench(t, httptestx.Sequence(keyLost), retrip.WithStateCheck(asker.check))
		err := b.failure(b.request(t.Context(), http.MethodPost))
		require.ErrorIs(t, err, errStateCheck)
		body.CheckClosedOnce(t)
	})
	t.Run("applied, without a body", func(t *testing.T) {
		b := newKeyBench(t, httptestx.Sequence(keyLost),
			retrip.WithStateCheck(func(context.Context, *http.Request, retrip.Attempt) (retrip.State, *http.Response, error) {
				return retrip.StateApplied, &http.Response{StatusCode: http.StatusNoContent}, nil
			}))
		status, body := b.answer(b.request(t.Context(), http.MethodPost)) // a nil Body would panic
		assert.Equal(t, 204, status)
		assert.Empty(t, body)
	})
}

func TestStateCheckIsNotAskedWhereThereIsNothingToAsk(t *testing.T) {
	key := []string{"Idempotency-Key: Ord 7731"}
	for name, test := range map[string]struct {
		method string
		header []string
		opts   []retrip.Option
		play   httptestx.Play
		told   string // of the last attempt
	}{
		"answered with success":    {method: "POST", play: keyOK, told: "return/success/"},
		"answered 503":             {method: "POST", play: key503, told: "return/not_repeatable/"},
		"answered 500":             {method: "POST", play: httptestx.Status(500, ""), told: "return/not_transient/"},
		"answered, told to repeat": {method: "POST", play: httptestx.Status(500, ""), told: "return/not_repeatable/", opts: []retrip.Option{retrip.WithRetryIf(func(retrip.Attempt) retrip.Verdict { return retrip.VerdictRetry })}},
		"permitted by its method":  {method: "PUT", play: keyLost, told: "attempts_exhausted/attempts_exhausted/"},
		"permitted by its key":     {method: "POST", header: key, play: keyLost, told: "attempts_exhausted/attempts_exhausted/"},
		"permitted by a new key":   {method: "POST", play: keyLost, told: "attempts_exhausted/attempts_exhausted/", opts: []retrip.Option{retrip.WithGeneratedKeys(nil)}},
		"declared":                 {method: "POST", play: keyLost, told: "attempts_exhausted/attempts_exhausted/", opts: []retrip.Option{retrip.WithIdempotent(true)}},
		"safe, but an upgrade":     {method: "GET", header: []string{"Connection: Upgrade", "Upgrade: chat"}, play: keyLost, told: "return/not_repeatable/"},
		"safe, but forbidden":      {method: "GET", play: keyLost, told: "return/forbidden/", opts: []retrip.Option{retrip.WithIdempotent(false)}},
		"told to stop":             {method: "POST", play: keyLost, told: "return/policy/", opts: []retrip.Option{retrip.WithRetryIf(func(retrip.Attempt) retrip.Verdict { return retrip.VerdictStop })}},
		"out of time":              {method: "POST", play: httptestx.Play{httptestx.ReadAll, httptestx.Silence}, told: "deadline_exceeded/deadline_exceeded/", opts: []retrip.Option{retrip.WithTotalTimeout(50 * time.Millisecond)}},
	} {
		t.Run(name, func(t *testing.T) {
			asker := askState(stateVerdict{state: retrip.StateNotApplied})
			b := newKeyBench(t, httptestx.Sequence(test.play), append(test.opts, retrip.WithStateCheck(asker.check))...)
			resp, err := b.rt.RoundTrip(b.request(t.Context(), test.method, test.header...))
			if err == nil {
				resp.Body.Close()
			}
			assert.Empty(t, asker.asked)
			require.NotEmpty(t, b.events)
			assert.Equal(t, test.told, b.told()[len(b.events)-1])
		})
	}
}

func TestStateCheckIsNotAskedAboutWhatWasNotSent(t *testing.T) {
	asker := askState(stateVerdict{})
	b := newKeyBench(t, httptestx.Sequence(keyOK), retrip.WithStateCheck(asker.check))
	b.origin.Refuse()
	err := b.failure(b.request(t.Context(), http.MethodPost))
	require.ErrorIs(t, err, syscall.ECONNREFUSED)
	assert.Empty(t, asker.asked)
	assert.Equal(t, []string{"retry/transient/not_sent", "retry/transient/not_sent", "attempts_exhausted/attempts_exhausted/"}, b.told())
}

func TestStateCheckIsNotAskedAfterTheCallersEnd(t *testing.T) {
	asker := askState(stateVerdict{})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	b := newKeyBench(t, httptestx.Sequence(httptestx.Play{httptestx.ReadAll, httptestx.Call(cancel), httptestx.Silence}), retrip.WithStateCheck(asker.check))
	err := b.failure(b.request(ctx, http.MethodPost))
	require.ErrorIs(t, err, context.Canceled)
	require.ErrorIs(t, err, retrip.ErrOutcomeUnknown)
	assert.Empty(t, asker.asked)
}

func TestStateCheckIsNotAskedAboutAFailedBody(t *testing.T) {
	asker := askState(stateVerdict{})
	b := newKeyBench(t, httptestx.Sequence(keyOK), retrip.WithStateCheck(asker.check))
	body := httptestx.NewBody(httptestx.FailAfter("amount=200", 4, errStateCheck))
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, b.origin.URL, body)
	require.NoError(t, err)
	req.ContentLength = 10
	err = b.failure(req)
	require.ErrorIs(t, err, errStateCheck)
	assert.Empty(t, asker.asked)
	assert.Equal(t, []string{"return/body_failed/"}, b.told())
}

func TestStateCheckIsTheOuterTransportsAffair(t *testing.T) {
	inner, outer := askState(stateVerdict{}), askState(stateVerdict{state: retrip.StateNotApplied})
	httptestx.Leaks(t)
	o := httptestx.NewOrigin(t, httptestx.Sequence(keyLost, keyOK))
	below := retrip.Must(retrip.New(httptestx.NewTransport(t), retrip.WithStateCheck(inner.check)))
	rt := httptestx.Checked(t, retrip.Must(retrip.New(below, retrip.WithStateCheck(outer.check), retrip.WithBackoff(retrip.Constant(0)))))
	resp, err := rt.RoundTrip(httptestx.NewBodies("amount=200").Request(t.Context(), t, http.MethodPost, o.URL))
	require.NoError(t, err)
	resp.Body.Close()
	assert.Empty(t, inner.asked)
	assert.Len(t, outer.asked, 1)
	assert.Equal(t, 2, o.Heads())
}

type stateCallerKey struct{}

func TestStateCheckContextHasTheCallersValuesAndNothingOfOurs(t *testing.T) {
	trace := &httptrace.ClientTrace{}
	asker := askState(stateVerdict{state: retrip.StateNotApplied})
	b := newKeyBench(t, httptestx.Sequence(keyLost, keyLost, keyOK), retrip.WithStateCheck(asker.check), retrip.WithMinAttemptTime(time.Millisecond))
	ctx := context.WithValue(t.Context(), stateCallerKey{}, "the caller's")
	ctx = httptrace.WithClientTrace(ctx, trace)
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	ctx, rec := retrip.Record(retrip.Override(ctx, retrip.WithRetryStatus()))
	b.answer(b.request(ctx, http.MethodPost))
	want, _ := ctx.Deadline()
	require.Len(t, asker.contexts, 2)
	for i, got := range asker.contexts {
		deadline, ok := got.Deadline()
		assert.True(t, ok)
		assert.Equal(t, want, deadline)
		assert.Equal(t, "the caller's", got.Value(stateCallerKey{}))
		assert.Same(t, trace, httptrace.ContextClientTrace(got), "the caller's own trace, without our hooks")
		assert.Zero(t, retrip.AttemptNumber(got), "check %d", i+1)
	}
	assert.Equal(t, 3, rec.Attempts())
	cancel()
	assert.ErrorIs(t, asker.contexts[0].Err(), context.Canceled, "the caller's end is the check's")
}

func TestStateCheckUsesTheSameClientAsAnyCaller(t *testing.T) {
	httptestx.Leaks(t)
	var rt http.RoundTripper
	o := httptestx.NewOrigin(t, httptestx.Sequence(
		key503, // POST, not sent again under the override below
		keyLost,
		key503, httptestx.OK("payment 42"), // the check's GET, repeated by the Transport's own settings
	))
	var checks []retrip.Event
	check := func(ctx context.Context, _ *http.Request, _ retrip.Attempt) (retrip.State, *http.Response, error) {
		ctx = retrip.Override(ctx, retrip.WithHook(func(_ context.Context, e retrip.Event) { checks = append(checks, e) }))
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, o.URL+"/by-order/7731", http.NoBody)
		if err != nil {
			return retrip.StateUnknown, nil, err
		}
		resp, err := rt.RoundTrip(req)
		return retrip.StateApplied, resp, err
	}
	rt = retrip.Must(retrip.New(httptestx.NewTransport(t), retrip.WithStateCheck(check),
		retrip.WithBackoff(retrip.Constant(0)), retrip.WithBudget(nil)))
	ctx, rec := retrip.Record(retrip.Override(t.Context(), retrip.WithIdempotencyKey("k"), retrip.WithIdempotent(false)))

	for _, want := range []string{"busy", "payment 42"} {
		req := httptestx.NewBodies("amount=200").Request(ctx, t, http.MethodPost, o.URL)
		resp, err := httptestx.Checked(t, rt).RoundTrip(req)
		require.NoError(t, err)
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		resp.Body.Close()
		assert.Equal(t, want, string(text))
		assert.Same(t, req, resp.Request)
	}
	assert.Equal(t, 4, o.Heads())
	assert.Equal(t, 2, rec.Attempts(), "the check's own attempts are not of the recorded operations")
	require.Len(t, checks, 2)
	assert.Equal(t, retrip.DecisionRetry, checks[0].Decision)
	assert.Equal(t, 1, checks[0].Attempt, "an operation of its own, not a nested one")
}

func TestStateCheckComesBeforeTheEvent(t *testing.T) {
	var order []string
	b := newKeyBench(t, httptestx.Sequence(keyLost, keyOK),
		retrip.WithStateCheck(func(context.Context, *http.Request, retrip.Attempt) (retrip.State, *http.Response, error) {
			order = append(order, "check")
			return retrip.StateNotApplied, nil, nil
		}),
		retrip.WithHook(func(_ context.Context, e retrip.Event) { order = append(order, string(e.Decision)) }),
		retrip.WithBackoff(retrip.BackoffFunc(func(int) time.Duration {
			order = append(order, "delay")
			return 0
		})))
	b.answer(b.request(t.Context(), http.MethodPost))
	assert.Equal(t, []string{"check", "delay", "retry", "return"}, order)
}

func TestStateCheckUnderForbiddenRepeats(t *testing.T) {
	for name, test := range map[string]struct {
		verdict stateVerdict
		told    string
		doubt   bool
	}{
		"unknown":     {told: "check_state/forbidden/", doubt: true},
		"not applied": {verdict: stateVerdict{state: retrip.StateNotApplied}, told: "return/forbidden/"},
		"applied":     {verdict: stateVerdict{state: retrip.StateApplied, body: stateBody()}, told: "check_state/success/"},
	} {
		t.Run(name, func(t *testing.T) {
			asker := askState(test.verdict)
			b := newKeyBench(t, httptestx.Sequence(keyLost, keyOK), retrip.WithStateCheck(asker.check), retrip.WithIdempotent(false))
			ctx, rec := retrip.Record(t.Context())
			resp, err := b.rt.RoundTrip(b.request(ctx, http.MethodPut))
			switch {
			case test.verdict.body != nil:
				require.NoError(t, err)
				resp.Body.Close()
			case test.doubt:
				require.ErrorIs(t, err, retrip.ErrOutcomeUnknown)
			default:
				assert.Equal(t, io.EOF, err, "nothing is in doubt: the base's own error")
			}
			assert.Len(t, asker.asked, 1)
			assert.Equal(t, 1, b.origin.Heads())
			assert.Equal(t, []string{test.told}, b.told())
			assert.Equal(t, test.doubt, rec.MaybeApplied())
		})
	}
}

func TestStateCheckNotAppliedIsStillHeldToTheRestOfTheLadder(t *testing.T) {
	notApplied := stateVerdict{state: retrip.StateNotApplied}
	t.Run("a body that is gone", func(t *testing.T) {
		asker := askState(notApplied)
		b := newKeyBench(t, httptestx.Sequence(keyLost, keyOK), retrip.WithStateCheck(asker.check))
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, b.origin.URL,
			httptestx.NewBody(httptestx.OneShot(strings.NewReader("amount=200"))))
		require.NoError(t, err)
		err = b.failure(req)
		assert.Equal(t, io.EOF, err)
		assert.Equal(t, []string{"return/body_not_replayable/"}, b.told())
	})
	t.Run("no time", func(t *testing.T) {
		asker := askState(notApplied)
		b := newKeyBench(t, httptestx.Sequence(keyLost, keyOK), retrip.WithStateCheck(asker.check),
			retrip.WithTotalTimeout(time.Minute), retrip.WithBackoff(retrip.Constant(time.Hour)))
		err := b.failure(b.request(t.Context(), http.MethodPost))
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.ErrorIs(t, err, io.EOF)
		require.NotErrorIs(t, err, retrip.ErrOutcomeUnknown)
		assert.Equal(t, []string{"deadline_exceeded/deadline_exceeded/"}, b.told())
	})
	t.Run("no budget", func(t *testing.T) {
		asker := askState(notApplied)
		b := newKeyBench(t, httptestx.Sequence(keyLost, keyOK), retrip.WithStateCheck(asker.check), retrip.WithBudget(retrip.NewBudget(0, 0, 0)))
		err := b.failure(b.request(t.Context(), http.MethodPost))
		require.ErrorIs(t, err, io.EOF)
		require.NotErrorIs(t, err, retrip.ErrOutcomeUnknown)
		assert.Equal(t, []string{"budget_exhausted/budget_exhausted/"}, b.told())
	})
	t.Run("a second attempt without an answer to the check", func(t *testing.T) {
		asker := askState(notApplied, stateVerdict{err: errStateCheck})
		b := newKeyBench(t, httptestx.Sequence(keyLost), retrip.WithStateCheck(asker.check))
		err := b.failure(b.request(t.Context(), http.MethodPost))
		require.ErrorIs(t, err, retrip.ErrOutcomeUnknown)
		require.ErrorIs(t, err, errStateCheck)
		assert.Equal(t, []string{"retry/transient/state_checked", "check_state/not_repeatable/"}, b.told())
		assert.Equal(t, 2, b.origin.Heads())
	})
}

func TestStateCheckIsAskedAfterAnAttemptsTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		base := httptestx.ServeMemory(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			_, _ = io.Copy(io.Discard, r.Body) // the server sees the end of the connection only after the body's
			<-r.Context().Done()
		}))
		asker := askState(stateVerdict{state: retrip.StateApplied, body: stateBody()})
		rt := httptestx.Checked(t, retrip.Must(retrip.New(base, retrip.WithStateCheck(asker.check), retrip.WithAttemptTimeout(3*time.Second))))
		resp, err := rt.RoundTrip(httptestx.NewBodies("amount=200").Request(t.Context(), t, http.MethodPost, "http://origin.test/"))
		require.NoError(t, err)
		resp.Body.Close()
		assert.Equal(t, 201, resp.StatusCode)
		assert.Equal(t, 3*time.Second, time.Since(start))
		require.Len(t, asker.asked, 1)
		assert.Equal(t, retrip.ClassTimeout, asker.asked[0].Class)
		require.NoError(t, asker.contexts[0].Err(), "the attempt's end is not the check's")
	})
}

// stateLost is a base whose every attempt is lost after one second.
func stateLost(t *testing.T) http.RoundTripper {
	t.Helper()
	return httptestx.ServeMemory(t, http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		<-time.After(time.Second)
		panic(http.ErrAbortHandler)
	}))
}

func TestStateCheckEndsWithTheOperation(t *testing.T) {
	for name, test := range map[string]struct {
		opt    retrip.Option
		ctx    func(context.Context) (context.Context, context.CancelFunc)
		reason error
	}{
		"TotalTimeout": {
			opt: retrip.WithTotalTimeout(5 * time.Second),
			ctx: func(ctx context.Context) (context.Context, context.CancelFunc) {
				return context.WithTimeout(ctx, time.Hour)
			},
			reason: context.DeadlineExceeded,
		},
		"the caller's deadline": {
			opt: retrip.WithTotalTimeout(time.Hour),
			ctx: func(ctx context.Context) (context.Context, context.CancelFunc) {
				return context.WithTimeout(ctx, 5*time.Second)
			},
			reason: context.DeadlineExceeded,
		},
		"the caller's cancel": {
			opt: retrip.WithTotalTimeout(0),
			ctx: func(ctx context.Context) (context.Context, context.CancelFunc) {
				ctx, cancel := context.WithCancel(ctx)
				time.AfterFunc(5*time.Second, cancel)
				return ctx, cancel
			},
			reason: context.Canceled,
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				start := time.Now()
				var deadline time.Time
				check := func(ctx context.Context, _ *http.Request, _ retrip.Attempt) (retrip.State, *http.Response, error) {
					deadline, _ = ctx.Deadline()
					<-ctx.Done()
					return retrip.StateUnknown, nil, context.Cause(ctx)
				}
				rt := httptestx.Checked(t, retrip.Must(retrip.New(stateLost(t), retrip.WithStateCheck(check), test.opt)))
				ctx, cancel := test.ctx(t.Context())
				defer cancel()
				err := keyFailure(t, rt, httptestx.NewBodies("amount=200").Request(ctx, t, http.MethodPost, "http://origin.test/"))
				require.ErrorIs(t, err, retrip.ErrOutcomeUnknown)
				require.ErrorIs(t, err, io.EOF)
				require.ErrorIs(t, err, test.reason)
				assert.Equal(t, 5*time.Second, time.Since(start))
				if test.reason == context.DeadlineExceeded { //nolint:errorlint // the table's own value
					assert.Equal(t, start.Add(5*time.Second), deadline)
				}
			})
		})
	}
}

func TestStateCheckResponseIsNotCutByTheTotalTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var rt http.RoundTripper
		asker := &stateAsker{}
		base := httptestx.ServeMemory(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost {
				panic(http.ErrAbortHandler)
			}
			w.WriteHeader(http.StatusOK)
			assert.NoError(t, http.NewResponseController(w).Flush())
			<-time.After(time.Minute) // long after the time-out
			_, _ = io.WriteString(w, "payment 42")
		}))
		check := func(ctx context.Context, _ *http.Request, _ retrip.Attempt) (retrip.State, *http.Response, error) {
			asker.contexts = append(asker.contexts, ctx)
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://origin.test/by-order/7731", http.NoBody)
			if err != nil {
				return retrip.StateUnknown, nil, err
			}
			resp, err := rt.RoundTrip(req)
			return retrip.StateApplied, resp, err
		}
		rt = retrip.Must(retrip.New(base, retrip.WithStateCheck(check), retrip.WithTotalTimeout(5*time.Second)))
		resp, err := httptestx.Checked(t, rt).RoundTrip(httptestx.NewBodies("z").Request(t.Context(), t, http.MethodPost, "http://origin.test/"))
		require.NoError(t, err)
		text, err := io.ReadAll(resp.Body)
		require.NoError(t, err)
		assert.Equal(t, "payment 42", string(text))
		require.NoError(t, resp.Body.Close())
		require.Error(t, asker.contexts[0].Err(), "what the context held is released with the body")
	})
}

// The response of a check that ends as the operation's time does is the result only where its
// context has not ended, so that its body can be read.
func TestStateCheckThatAnswersAtTheDeadline(t *testing.T) {
	for name, wait := range map[string]func(context.Context, time.Duration){
		"a moment before":    func(_ context.Context, left time.Duration) { time.Sleep(left - 1) },
		"at that instant":    func(_ context.Context, left time.Duration) { time.Sleep(left) },
		"when it is told so": func(ctx context.Context, _ time.Duration) { <-ctx.Done() },
	} {
		t.Run(name, func(t *testing.T) {
			for range 20 {
				synctest.Test(t, func(t *testing.T) {
					var asked context.Context
					check := func(ctx context.Context, req *http.Request, _ retrip.Attempt) (retrip.State, *http.Response, error) {
						asked = ctx //nolint:fatcontext // looked at afterwards
						end, _ := ctx.Deadline()
						wait(ctx, time.Until(end))
						return retrip.StateApplied, httptestx.Canned(req, http.StatusOK, "payment 42"), nil
					}
					rt := httptestx.Checked(t, retrip.Must(retrip.New(stateLost(t), retrip.WithStateCheck(check), retrip.WithTotalTimeout(5*time.Second))))
					resp, err := rt.RoundTrip(httptestx.NewBodies("amount=200").Request(t.Context(), t, http.MethodPost, "http://origin.test/"))
					if err != nil {
						require.NotEqual(t, "a moment before", name, err)
						require.ErrorIs(t, err, retrip.ErrOutcomeUnknown)
						require.ErrorIs(t, err, context.DeadlineExceeded)
						require.Error(t, asked.Err())
						return
					}
					require.NotEqual(t, "when it is told so", name)
					synctest.Wait()
					require.NoError(t, asked.Err(), "the time-out would cut the body")
					text, err := io.ReadAll(resp.Body)
					require.NoError(t, err)
					require.Equal(t, "payment 42", string(text))
					require.NoError(t, resp.Body.Close())
				})
			}
		})
	}
}

func TestStateCheckThatPanicsLeavesNothingOpen(t *testing.T) {
	for name, opt := range map[string]retrip.Option{
		"with a time-out": retrip.WithTotalTimeout(time.Minute), "without": retrip.WithTotalTimeout(0),
	} {
		t.Run(name, func(t *testing.T) {
			granted, done := 0, 0
			asker := &stateAsker{}
			b := newKeyBench(t, httptestx.Sequence(keyLost), opt,
				retrip.WithGate(func(*http.Request) (func(error), error) {
					granted++
					return func(error) { done++ }, nil
				}),
				retrip.WithStateCheck(func(ctx context.Context, _ *http.Request, _ retrip.Attempt) (retrip.State, *http.Response, error) {
					asker.contexts = append(asker.contexts, ctx)
					panic("a bug in the check")
				}))
			assert.PanicsWithValue(t, "a bug in the check", func() {
				resp, err := b.rt.RoundTrip(b.request(t.Context(), http.MethodPost))
				if err == nil {
					resp.Body.Close()
				}
			})
			b.bodies.CheckClosedOnce(t)
			assert.Equal(t, 1, granted)
			assert.Equal(t, 1, done)
			if name == "with a time-out" {
				require.Error(t, asker.contexts[0].Err(), "its timer must not run on")
			}
		})
	}
}

func TestStateCheckIsOffWithNil(t *testing.T) {
	asker := askState(stateVerdict{state: retrip.StateNotApplied})
	b := newKeyBench(t, httptestx.Sequence(keyLost), retrip.WithStateCheck(asker.check))
	err := b.failure(b.request(retrip.Override(t.Context(), retrip.WithStateCheck(nil)), http.MethodPost))
	require.ErrorIs(t, err, retrip.ErrOutcomeUnknown)
	assert.Empty(t, asker.asked)
	assert.Equal(t, 1, b.origin.Heads())
}

func TestStateCheckOfOneRequestComesByOverride(t *testing.T) {
	asker := askState(stateVerdict{state: retrip.StateNotApplied})
	b := newKeyBench(t, httptestx.Sequence(keyLost, keyOK))
	status, _ := b.answer(b.request(retrip.Override(t.Context(), retrip.WithStateCheck(asker.check)), http.MethodPost))
	assert.Equal(t, 200, status)
	assert.Len(t, asker.asked, 1)
}

func TestWithoutAStateCheckALostPOSTIsSentOnceAsByTheBareBase(t *testing.T) {
	b := newKeyBench(t, httptestx.Sequence(keyLost))
	err := b.failure(b.request(t.Context(), http.MethodPost))
	require.ErrorIs(t, err, retrip.ErrOutcomeUnknown)
	bare := keyFailure(t, httptestx.NewTransport(t), b.request(t.Context(), http.MethodPost))
	require.Equal(t, io.EOF, bare)
	var e *retrip.Error
	require.ErrorAs(t, err, &e)
	assert.Equal(t, bare, e.Err)
	assert.Equal(t, 2, b.origin.Heads(), "one send each")
}
