package matrix

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/httptestx"
)

// TestObservationChangesNothing meets the same faults with and without those who
// look on: what reaches the origin and what comes back must be the same.
func TestObservationChangesNothing(t *testing.T) {
	httptestx.Leaks(t)
	// Faults whose outcome is no race.
	ids := []string{
		"ok", "ok2", "st404", "st503", "st503always", "c05always", "c08", "t02", "t05", "p02", "p05", "x01", "x04", "f06", "f07", "f07always",
		"s02", "s04", "s05", "r01", "r04", "b07", "h01", "h02", "h03", "h05a", "h07", "h09-INTERNAL_ERROR", "h11", "h11once", "v01",
	}
	rows := slices.Concat(statusRows(), dialRows(), tlsRows(), proxyRows(), contextRows(), httpOneRows(),
		staleRows(), responseRows(), bodyRows(), streamRows(), goAwayRows(), rejectRows())
	met := 0
	t.Run("fault", func(t *testing.T) {
		for _, r := range rows {
			if !slices.Contains(ids, r.id) {
				continue
			}
			met++
			for _, p := range r.protos {
				for _, m := range r.methods {
					t.Run(r.id+"/"+string(p)+" "+m.name, func(t *testing.T) {
						t.Parallel()
						r.observe(t, p, m)
					})
				}
			}
		}
	})
	require.Equal(t, len(ids), met)
}

func (r row) observe(t *testing.T, p proto, m method) {
	t.Helper()
	var seen atomic.Int64
	var lines bytes.Buffer
	hook := retrip.WithHook(func(context.Context, retrip.Event) { seen.Add(1) })
	logger := retrip.WithLogger(slog.New(slog.NewJSONHandler(&lines, &slog.HandlerOptions{Level: slog.LevelDebug})))
	watchers := []struct {
		name string
		opts []retrip.Option
		rec  bool
	}{
		{"nobody", nil, false},
		{"recorder", nil, true},
		{"hook", []retrip.Option{hook}, false},
		{"logger", []retrip.Option{logger}, false},
		{"all", []retrip.Option{hook, logger}, true},
	}
	var want string
	for i, w := range watchers {
		s := newScene(t, p, m)
		r.setup(s)
		s.heal, s.unrecorded = nil, !w.rec
		got := s.runRetrip(w.opts...)
		is := fmt.Sprintf("status %d, header blocks %d, effects %d, body fails %t, error %s", got.status, got.heads, got.effects, got.bodyErr != nil, kind(got.err))
		if i == 0 {
			want = is
		}
		assert.Equal(t, want, is, "with %s", w.name)
	}
	assert.NotZero(t, seen.Load())
	assert.NotZero(t, lines.Len())
}

// kind is what a caller can tell of an error. The base's own words differ with
// which side of a connection noticed first.
func kind(err error) string {
	if err == nil {
		return "none"
	}
	if e := (result{err: err}).wrapped(); e != nil {
		return fmt.Sprintf("*Error after %d attempts, %s/%s, %s, MaybeApplied %t", e.Attempts, e.Decision, e.Reason, e.Delivery, e.MaybeApplied)
	}
	return "untouched"
}
