package retrip_test

import (
	"context"
	"io"
	"net/http"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/httptestx"
)

// An originLayer lies between two Transports and can be seen through.
type originLayer struct{ http.RoundTripper }

func (l originLayer) Unwrap() http.RoundTripper { return l.RoundTripper }

// An originNest is a chain of Transports over an origin that answers 503.
type originNest struct {
	base *httptestx.Stub

	mu     sync.Mutex
	events map[string][]retrip.Event
}

func (n *originNest) wrap(t *testing.T, name string, base http.RoundTripper, attempts int) *retrip.Transport {
	t.Helper()
	rt, err := retrip.New(base,
		retrip.WithMaxAttempts(attempts),
		retrip.WithBackoff(retrip.Constant(0)),
		retrip.WithHook(func(_ context.Context, e retrip.Event) {
			n.mu.Lock()
			defer n.mu.Unlock()
			if n.events == nil {
				n.events = make(map[string][]retrip.Event)
			}
			n.events[name] = append(n.events[name], e)
		}))
	require.NoError(t, err)
	return rt
}

// get returns the status of the answer.
func (n *originNest) get(ctx context.Context, t *testing.T, rt http.RoundTripper) int {
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://origin.test/", http.NoBody)
	require.NoError(t, err)
	resp, err := httptestx.Checked(t, rt).RoundTrip(req)
	require.NoError(t, err)
	_, err = io.Copy(io.Discard, resp.Body)
	require.NoError(t, err)
	resp.Body.Close()
	return resp.StatusCode
}

func TestNestedTransportsMakeTheOutermostsAttempts(t *testing.T) {
	direct := func(rt http.RoundTripper) http.RoundTripper { return rt }
	wrapped := func(rt http.RoundTripper) http.RoundTripper { return originLayer{rt} }
	twice := func(rt http.RoundTripper) http.RoundTripper { return originLayer{originLayer{rt}} }
	for name, between := range map[string]func(http.RoundTripper) http.RoundTripper{"direct": direct, "a layer": wrapped, "two layers": twice} {
		for _, attempts := range [][2]int{{3, 3}, {2, 5}, {5, 2}, {1, 3}} {
			outer, inner := attempts[0], attempts[1]
			n := &originNest{base: httptestx.Statuses(503)}
			rt := n.wrap(t, "outer", between(n.wrap(t, "inner", n.base, inner)), outer)
			require.Equal(t, 503, n.get(t.Context(), t, rt))
			require.Equal(t, outer, n.base.Calls(), name)
			require.Len(t, n.events["outer"], outer)
			require.Len(t, n.events["inner"], outer)
			for _, e := range n.events["inner"] {
				require.Equal(t, 1, e.Attempt)
				require.Equal(t, retrip.DecisionReturn, e.Decision)
				require.Equal(t, retrip.ReasonNested, e.Reason)
			}
			require.Equal(t, retrip.DecisionAttemptsExhausted, n.events["outer"][outer-1].Decision)
		}
	}
}

func TestThreeNestedTransportsMakeTheOutermostsAttempts(t *testing.T) {
	n := &originNest{base: httptestx.Statuses(503)}
	inner := n.wrap(t, "inner", n.base, 3)
	rt := n.wrap(t, "outer", originLayer{n.wrap(t, "middle", originLayer{inner}, 3)}, 3)
	n.get(t.Context(), t, rt)
	require.Equal(t, 3, n.base.Calls())
}

func TestALayerWithoutUnwrapHidesTheInnerTransportInTheFirstAttemptAlone(t *testing.T) {
	n := &originNest{base: httptestx.Statuses(503)}
	inner := n.wrap(t, "inner", n.base, 3)
	rt := n.wrap(t, "outer", httptestx.RoundTripFunc(inner.RoundTrip), 3)
	n.get(t.Context(), t, rt)
	require.Equal(t, 5, n.base.Calls(), "n + n - 1")
}

func TestAnInnerTransportLeavesOverrideAndRecordToTheOuter(t *testing.T) {
	n := &originNest{base: httptestx.Statuses(503, 503, 200)}
	rt := n.wrap(t, "outer", n.wrap(t, "inner", n.base, 5), 2)
	ctx, recorder := retrip.Record(retrip.Override(t.Context(), retrip.WithMaxAttempts(3)))
	require.Equal(t, 200, n.get(ctx, t, rt))
	require.Equal(t, 3, recorder.Attempts())
	require.Len(t, recorder.Events(), 3)
	require.Equal(t, retrip.ReasonSuccess, n.events["inner"][2].Reason)
}

func TestAnInnerTransportAloneRepeatsAsEver(t *testing.T) {
	n := &originNest{base: httptestx.Statuses(503)}
	inner := n.wrap(t, "inner", n.base, 4)
	n.wrap(t, "outer", inner, 3)
	n.get(t.Context(), t, inner)
	require.Equal(t, 4, n.base.Calls())
}

func TestAnUnwrapThatLeadsBackToItselfDoesNotHoldNew(t *testing.T) {
	loop := &originLoop{}
	n := &originNest{}
	require.Same(t, loop, n.wrap(t, "outer", loop, 3).Unwrap())
}

type originLoop struct{}

func (*originLoop) RoundTrip(*http.Request) (*http.Response, error) { return nil, errOriginGate }
func (l *originLoop) Unwrap() http.RoundTripper                     { return l }
