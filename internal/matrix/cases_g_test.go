package matrix

import (
	"net/http"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/httptestx"
)

// caseG runs one request through retrip against an HTTP/2 origin that plays once, then
// answers 200.
func caseG(t *testing.T, m method, first ...H2Step) (result, []httptestx.Seen) {
	t.Helper()
	s := newScene(t, h2, m)
	o := s.serveH2(H2Sequence(first, H2OK("fine")))
	return s.runRetrip(), o.Requests()
}

func lastOf(t *testing.T, r result) retrip.Event {
	t.Helper()
	require.NotEmpty(t, r.events)
	return r.events[len(r.events)-1]
}

// G01: a GOAWAY below the stream proves that it was not processed; whether the POST can go
// again depends on its body alone.
func TestG01GoAwayBelowAPOSTIsRepeatedWithItsBody(t *testing.T) {
	httptestx.Leaks(t)
	got, seen := caseG(t, mPOST, H2ReadAll, H2GoAwayBelow(http2.ErrCodeNo))
	require.Equal(t, http.StatusOK, got.status, "%s", got)
	require.Equal(t, 2, got.heads)
	require.Equal(t, 1, got.effects)
	require.Equal(t, retrip.PermitRefused, got.events[0].Permit)
	require.Len(t, seen, 2)
	require.Equal(t, 2, seen[1].Conn)
	require.True(t, seen[1].Complete)
	require.Equal(t, payload, seen[1].Body)

	got, _ = caseG(t, mPOSTnr, H2ReadAll, H2GoAwayBelow(http2.ErrCodeNo))
	require.Error(t, got.err)
	require.Equal(t, 1, got.heads)
	require.False(t, got.unknown)
	last := lastOf(t, got)
	require.Equal(t, retrip.DeliveryRefused, last.Delivery)
	require.Equal(t, retrip.ReasonBodyNotReplayable, last.Reason)
}

// G02: the repeat has the whole body, every time.
func TestG02ARepeatOnHTTP2HasItsWholeBody(t *testing.T) {
	httptestx.Leaks(t)
	for range 100 {
		got, seen := caseG(t, mPOST, H2ReadAll, H2GoAwayBelow(http2.ErrCodeNo))
		require.Equal(t, http.StatusOK, got.status, "%s", got)
		require.Len(t, seen, 2)
		require.True(t, seen[1].Complete)
		require.Equal(t, seen[0].SHA256, seen[1].SHA256)
		require.Equal(t, seen[0].BodyBytes, seen[1].BodyBytes)
		require.Positive(t, seen[1].BodyBytes)
	}
}

// G03: REFUSED_STREAM is the server's word that it did nothing, for every method.
func TestG03ARefusedStreamIsRepeatedForPOST(t *testing.T) {
	httptestx.Leaks(t)
	got, seen := caseG(t, mPOST, H2ReadAll, H2Reset(http2.ErrCodeRefusedStream))
	require.Equal(t, http.StatusOK, got.status, "%s", got)
	require.Equal(t, 2, got.heads)
	require.Equal(t, 1, got.effects)
	require.Equal(t, retrip.DeliveryRefused, got.events[0].Delivery)
	require.Equal(t, retrip.PermitRefused, got.events[0].Permit)
	require.Len(t, seen, 2)
	require.True(t, seen[1].Complete)
	require.Equal(t, payload, seen[1].Body)
}

// G05: any other reset after the request proves nothing, whatever the base would do.
func TestG05OtherResetsLeaveAPOSTUnknown(t *testing.T) {
	httptestx.Leaks(t)
	for _, code := range []http2.ErrCode{http2.ErrCodeCancel, http2.ErrCodeInternal, http2.ErrCodeProtocol} {
		for _, m := range []method{mPOST, mPOSTnr} {
			t.Run(code.String()+" "+m.name, func(t *testing.T) {
				got, _ := caseG(t, m, H2ReadAll, H2Reset(code))
				require.ErrorIs(t, got.err, retrip.ErrOutcomeUnknown)
				require.Equal(t, 1, got.heads)
				require.Equal(t, retrip.DecisionCheckState, lastOf(t, got).Decision)
			})
		}
		t.Run(code.String()+" GET", func(t *testing.T) {
			got, _ := caseG(t, mGET, H2ReadAll, H2Reset(code))
			assert.Equal(t, http.StatusOK, got.status, "%s", got)
			assert.Equal(t, 2, got.heads)
		})
	}
}

// B09, the part on HTTP/2: net/http itself would send the POST again, without limit.
func TestB09TheBasesOwnRepeatOfAPOSTIsStopped(t *testing.T) {
	httptestx.Leaks(t)
	got, _ := caseG(t, mPOST, H2ReadAll, H2Reset(http2.ErrCodeProtocol))
	require.ErrorIs(t, got.err, retrip.ErrOutcomeUnknown)
	require.Equal(t, 1, got.heads)
	require.Equal(t, 1, got.effects)
}
