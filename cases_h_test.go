package retrip_test

import (
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/httptestx"
)

// Theme H: redirects, authentication, signing.

func TestH01TemporaryRedirectKeepsBodyAndKeyThroughRepeats(t *testing.T) {
	for _, status := range []int{307, 308} {
		t.Run(strconv.Itoa(status), func(t *testing.T) {
			httptestx.Leaks(t)
			o := httptestx.NewOrigin(t, httptestx.Sequence(
				httptestx.Status(status, "", "Location: /b"),
				httptestx.Status(503, "busy"),
				httptestx.OK("done")))
			client := &http.Client{Transport: caseNew(t, httptestx.NewTransport(t))}
			resp, err := client.Do(caseRequest(t, http.MethodPost, o.URL+"/a", strings.NewReader("z"), caseKey))
			require.NoError(t, err)
			require.NoError(t, resp.Body.Close())
			require.Equal(t, http.StatusOK, resp.StatusCode)
			var targets []string
			for i, seen := range o.Requests() {
				targets = append(targets, seen.Target)
				require.Equal(t, "z", seen.Body, "request %d", i+1)
				require.Equal(t, []string{"ord-7731"}, seen.Header["Idempotency-Key"], "request %d", i+1)
			}
			require.Equal(t, []string{"/a", "/b", "/b"}, targets)
		})
	}
}

func TestH02RedirectIsAResult(t *testing.T) {
	moved := httptestx.Sequence(httptestx.Status(302, "moved", "Location: /again"))
	t.Run("for the round tripper", func(t *testing.T) {
		httptestx.Leaks(t)
		call, o := caseBoth(t, moved, func(url string) *http.Request {
			return caseRequest(t, http.MethodGet, url, nil)
		})
		call.answered(t, http.StatusFound)
		require.Equal(t, "moved", call.body)
		call.ended(t, 1, retrip.DecisionReturn, retrip.ReasonSuccess)
		require.Equal(t, 1, o.Heads())
	})
	t.Run("a loop is the client's affair", func(t *testing.T) {
		httptestx.Leaks(t)
		o := httptestx.NewOrigin(t, moved)
		client := &http.Client{Transport: caseNew(t, httptestx.NewTransport(t))}
		resp, err := client.Do(caseRequest(t, http.MethodGet, o.URL, nil))
		require.ErrorContains(t, err, "stopped after 10 redirects")
		require.NoError(t, resp.Body.Close())
		require.Equal(t, 10, o.Heads())
	})
}

func TestH04SignerBelowSignsEveryAttemptAnew(t *testing.T) {
	httptestx.Leaks(t)
	busy := httptestx.Status(503, "busy")
	o := httptestx.NewOrigin(t, httptestx.Sequence(busy, busy, httptestx.OK("done")))
	base := httptestx.NewTransport(t)
	var signed atomic.Int32
	signer := httptestx.RoundTripFunc(func(req *http.Request) (*http.Response, error) {
		req = req.Clone(req.Context())
		n := signed.Add(1)
		req.Header.Set("X-Sig", strconv.Itoa(int(n)))
		req.Header.Add("X-Signed-By", fmt.Sprintf("key %d", n))
		return base.RoundTrip(req)
	})
	call := caseSend(t, caseNew(t, signer), caseRequest(t, http.MethodPut, o.URL, strings.NewReader("x"), "X-Kept: yes"))
	call.answered(t, http.StatusOK)
	require.Equal(t, 3, o.Heads())
	for i, seen := range o.Requests() {
		require.Equal(t, []string{strconv.Itoa(i + 1)}, seen.Header["X-Sig"])
		require.Equal(t, []string{fmt.Sprintf("key %d", i+1)}, seen.Header["X-Signed-By"])
		require.Equal(t, []string{"yes"}, seen.Header["X-Kept"])
	}
}

func TestH06PredicateRepeatsA401Once(t *testing.T) {
	refresh := retrip.WithRetryIf(func(a retrip.Attempt) retrip.Verdict {
		if a.StatusCode() == http.StatusUnauthorized && a.Number == 1 {
			return retrip.VerdictRetry
		}
		return retrip.VerdictDefault
	})
	denied := httptestx.Status(401, "who are you")
	tests := []struct {
		name   string
		script httptestx.Script
		opts   []retrip.Option
		heads  int
		status int
	}{
		{"then 200", httptestx.Sequence(denied, httptestx.OK("done")), []retrip.Option{refresh}, 2, 200},
		{"then 401", httptestx.Sequence(denied), []retrip.Option{refresh}, 2, 401},
		{"never by default", httptestx.Sequence(denied, httptestx.OK("done")), nil, 1, 401},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			httptestx.Leaks(t)
			call, o := caseBoth(t, tt.script, func(url string) *http.Request {
				return caseRequest(t, http.MethodPost, url, strings.NewReader("amount=200"), caseKey)
			}, tt.opts...)
			call.answered(t, tt.status)
			require.Equal(t, tt.heads, o.Heads())
			for _, seen := range o.Requests() {
				require.Equal(t, "amount=200", seen.Body)
			}
			if tt.heads == 2 {
				require.Equal(t, retrip.ReasonPolicy, call.events[0].Reason)
				require.Equal(t, retrip.PermitIdempotencyKey, call.events[0].Permit)
			}
		})
	}
}

func TestH07TokenEndpointFollowsTheRulesForPOST(t *testing.T) {
	tests := []struct {
		name   string
		status int
		opts   []retrip.Option
		heads  int
	}{
		{"502", 502, nil, 1},
		{"502, declared idempotent", 502, []retrip.Option{retrip.WithIdempotent(true)}, 2},
		{"400", 400, nil, 1},
		{"400, declared idempotent", 400, []retrip.Option{retrip.WithIdempotent(true)}, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			httptestx.Leaks(t)
			script := httptestx.Sequence(httptestx.Status(tt.status, "no token"), httptestx.OK("token"))
			call, o := caseBoth(t, script, func(url string) *http.Request {
				req := caseRequest(t, http.MethodPost, url+"/token", strings.NewReader("grant_type=client_credentials"),
					"Content-Type: application/x-www-form-urlencoded")
				return req.WithContext(retrip.Override(req.Context(), tt.opts...))
			})
			require.NoError(t, call.err)
			require.Equal(t, tt.heads, o.Heads())
			if tt.heads == 1 {
				call.answered(t, tt.status)
				return
			}
			call.answered(t, http.StatusOK)
			require.Equal(t, retrip.PermitDeclared, call.events[0].Permit)
			require.Equal(t, "grant_type=client_credentials", o.Requests()[1].Body)
		})
	}
}
