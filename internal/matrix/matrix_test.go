package matrix

import (
	"errors"
	"flag"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/httptestx"
)

// row is one fault.
type row struct {
	id, fault string
	protos    []proto
	methods   []method
	setup     func(*scene)
	// want lists the ways the first attempt may end; races choose among them.
	want func(method, proto) []first
	// worse states why retrip may fail where the base succeeds.
	worse func(method) bool
	// bare is what the base alone must give, as measured: the status (0: an
	// error) and the header blocks at the origin, -1 for any. nil: not held.
	bare func(method, proto) (status, heads int)
	// check looks at what the common checks cannot know.
	check func(*testing.T, method, result)
}

// always is the want of a row whose outcome does not depend on the method.
func always(ways ...first) func(method, proto) []first {
	return func(method, proto) []first { return ways }
}

func bareFails(heads int) func(method, proto) (int, int) {
	return func(method, proto) (int, int) { return 0, heads }
}

func bareAnswers(status, heads int) func(method, proto) (int, int) {
	return func(method, proto) (int, int) { return status, heads }
}

// minRuns is how many runs the table must have, so that it cannot shrink
// unnoticed.
const minRuns = 500

// atOnce is how many runs go beside each other: most of them wait for a limit.
const atOnce = "24"

func TestMain(m *testing.M) {
	flag.Parse()
	if err := flag.Set("test.parallel", atOnce); err != nil {
		panic(err)
	}
	os.Exit(m.Run())
}

func TestMatrix(t *testing.T) {
	httptestx.Leaks(t)
	rows := slices.Concat(statusRows(), dialRows(), tlsRows(), proxyRows(), contextRows(), httpOneRows(),
		staleRows(), responseRows(), expectRows(), bodyRows(), streamRows(), goAwayRows(), connectionRows(), rejectRows())
	ids := map[string]bool{}
	var all []*line
	t.Run("fault", func(t *testing.T) {
		for _, r := range rows {
			require.False(t, ids[r.id], "two rows are called %s", r.id)
			ids[r.id] = true
			for _, p := range r.protos {
				for _, m := range r.methods {
					l := &line{row: r, proto: p, method: m}
					all = append(all, l)
					t.Run(r.id+"/"+string(p)+" "+m.name, func(t *testing.T) {
						t.Parallel()
						l.play(t)
					})
				}
			}
		}
	})
	if ranAll(t) {
		assert.GreaterOrEqual(t, len(all), minRuns)
		t.Logf("%d faults, %d runs, each also on the bare base", len(rows), len(all))
		if !t.Failed() {
			writeTable(t, all)
		}
	}
}

// play runs the line's request on the bare base, then through retrip, each
// against an origin of its own.
func (l *line) play(t *testing.T) {
	t.Helper()
	r, p, m := l.row, l.proto, l.method
	bare := newScene(t, p, m)
	r.setup(bare)
	b := bare.runBare()
	if r.bare != nil {
		status, heads := r.bare(m, p)
		assert.Equal(t, status, b.status, "bare: status (error: %v)", b.err)
		if heads >= 0 {
			assert.Equal(t, heads, b.heads, "bare: header blocks (error: %v)", b.err)
		}
	}

	s := newScene(t, p, m)
	r.setup(s)
	got := s.runRetrip()
	r.judge(t, p, m, b, got)
	if r.check != nil {
		r.check(t, m, got)
	}
	l.bare, l.got = b, got
}

func (r row) judge(t *testing.T, p proto, m method, bare, got result) {
	t.Helper()
	events := got.events
	require.NotEmpty(t, events)
	ways := r.want(m, p)
	var misses []string
	for _, way := range ways {
		miss := way.compare(m, got)
		if len(miss) == 0 {
			misses = nil
			break
		}
		misses = append(misses, fmt.Sprintf("%v/%v: %s", way.delivery, way.class, strings.Join(miss, "; ")))
	}
	assert.Empty(t, misses, "no allowed outcome fits: %s", got)

	if !m.repeatable() {
		assert.LessOrEqual(t, got.effects, 1, "an unprotected %s took effect twice", m.name)
		if bare.heads == 1 && bare.effects == 1 && !provenUnprocessed(events) {
			assert.LessOrEqual(t, got.heads, 1, "the base sends once, retrip twice")
		}
	}
	if ok := bare.status != 0 && bare.status < http.StatusBadRequest; ok && (r.worse == nil || !r.worse(m)) {
		assert.Less(t, got.status, http.StatusBadRequest, "the base succeeds, retrip does not: %s", got)
		assert.NotZero(t, got.status, "the base succeeds, retrip does not: %s", got)
	}
	for i, e := range events[:len(events)-1] {
		assert.Equal(t, i+1, e.Attempt)
		assert.Equal(t, retrip.DecisionRetry, e.Decision, "event %d of %d", i+1, len(events))
	}
	for _, e := range events {
		assert.NotEmpty(t, e.Reason)
		assert.NotEmpty(t, e.Delivery)
		assert.Equal(t, e.Decision == retrip.DecisionRetry, e.Permit != retrip.PermitNone, "permit goes with a retry")
	}
	if last := events[len(events)-1]; last.Attempt == 1 {
		assert.LessOrEqual(t, got.heads, max(last.Sends, 0), "Sends is an upper bound of what the origin saw")
	}
}

// provenUnprocessed: each attempt but the last is known not to have been
// processed.
func provenUnprocessed(events []retrip.Event) bool {
	for _, e := range events[:len(events)-1] {
		if e.Delivery != retrip.DeliveryNotSent && e.Delivery != retrip.DeliveryRefused {
			return false
		}
	}
	return len(events) > 1
}

// compare lists what differs between an allowed way and a run.
func (f first) compare(m method, got result) []string {
	var miss []string
	differ := func(what string, want, is any) {
		miss = append(miss, fmt.Sprintf("%s: want %v, got %v", what, want, is))
	}
	v := f.judge(m)
	e := got.events[0]
	last := got.events[len(got.events)-1]
	if f.status != e.StatusCode {
		differ("first status", f.status, e.StatusCode)
	}
	if f.status == 0 && len(f.class) > 0 && !slices.Contains(f.class, e.Class) {
		differ("class", f.class, e.Class)
	}
	if f.delivery != e.Delivery {
		differ("delivery", f.delivery, e.Delivery)
	}
	if v.decision != e.Decision || v.reason != e.Reason {
		differ("decision", fmt.Sprint(v.decision, "/", v.reason), fmt.Sprint(e.Decision, "/", e.Reason))
	}
	if v.permit != e.Permit {
		differ("permit", v.permit, e.Permit)
	}
	if v.attempts != last.Attempt {
		differ("attempts", v.attempts, last.Attempt)
	}
	if v.last != last.Decision {
		differ("last decision", v.last, last.Decision)
	}
	if (v.status == nil) != (got.err != nil) || v.status != nil && !slices.Contains(v.status, got.status) {
		differ("comes back", v.status, fmt.Sprintf("%d, %v", got.status, got.err))
	}
	if v.unknown != got.unknown {
		differ("MaybeApplied", v.unknown, got.unknown)
	}
	if v.heads != nil && !slices.Contains(v.heads, got.heads) || got.heads > v.maxHeads {
		differ("header blocks", v.heads, got.heads)
	}
	if f.sends != nil && !slices.Contains(f.sends, e.Sends) {
		differ("sends", f.sends, e.Sends)
	}
	if f.bodyErr != (got.bodyErr != nil) {
		differ("body error", f.bodyErr, got.bodyErr)
	}
	return append(miss, f.compareError(m, v, got)...)
}

// compareError holds the error to section 4: untouched after one attempt that
// retrip did not end and that leaves nothing unknown, else an *Error.
func (f first) compareError(m method, v verdict, got result) []string {
	if got.err == nil {
		return nil
	}
	var miss []string
	e := got.wrapped()
	untouched := v.attempts == 1 && !v.unknown && !f.ours && v.last != retrip.DecisionCheckState
	switch {
	case untouched && e != nil:
		miss = append(miss, fmt.Sprintf("the base's error was wrapped: %v", got.err))
	case !untouched && e == nil:
		miss = append(miss, fmt.Sprintf("want an *Error, got %T %v", got.err, got.err))
	case e != nil:
		if e.Attempts != v.attempts || e.Decision != v.last || e.MaybeApplied != v.unknown {
			miss = append(miss, fmt.Sprintf("the *Error says %d attempts, %s, MaybeApplied %t", e.Attempts, e.Decision, e.MaybeApplied))
		}
		if strings.Contains(e.Error(), "secret") {
			miss = append(miss, "the *Error's text shows the query")
		}
	}
	if errors.Is(got.err, retrip.ErrOutcomeUnknown) != v.unknown {
		miss = append(miss, fmt.Sprintf("ErrOutcomeUnknown: want %t for %s", v.unknown, m.name))
	}
	return miss
}

func (r result) String() string {
	var b strings.Builder
	for _, e := range r.events {
		fmt.Fprintf(&b, "[%d %d %s %s sends=%d %s/%s %s %v] ", e.Attempt, e.StatusCode, e.Class, e.Delivery, e.Sends, e.Decision, e.Reason, e.Permit, e.Err)
	}
	fmt.Fprintf(&b, "-> %d, %v, heads %d, effects %d, unknown %t, %v", r.status, r.err, r.heads, r.effects, r.unknown, r.took)
	return b.String()
}
