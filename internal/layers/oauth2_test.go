package layers_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/oauth2"
	"golang.org/x/oauth2/clientcredentials"

	"github.com/retrip/retrip"
	"github.com/retrip/retrip/internal/httptestx"
)

// tokens counts how often a token is asked for; each is valid once.
type tokens struct {
	mu    sync.Mutex
	asked int
	fails int
}

var errNoToken = errors.New("the token endpoint is down")

func (s *tokens) Token() (*oauth2.Token, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked++
	if s.asked <= s.fails {
		return nil, errNoToken
	}
	return &oauth2.Token{AccessToken: fmt.Sprintf("t%d", s.asked)}, nil
}

func wrap(t *testing.T, base http.RoundTripper) http.RoundTripper {
	t.Helper()
	return httptestx.Checked(t, retrip.Must(retrip.New(base, retrip.WithBackoff(retrip.Constant(time.Millisecond)))))
}

func text(t *testing.T, resp *http.Response, err error) string {
	t.Helper()
	require.NoError(t, err)
	all, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return string(all)
}

func authorizations(o *httptestx.Origin) (all []string) {
	for _, seen := range o.Requests() {
		all = append(all, seen.Header["Authorization"]...)
	}
	return all
}

func TestAnOAuth2TransportBelowRetripSetsATokenForEachAttempt(t *testing.T) {
	httptestx.Leaks(t)
	o := httptestx.NewOrigin(t, httptestx.Sequence(
		httptestx.Status(503, "busy"),
		httptestx.Play{httptestx.ReadAll, httptestx.FIN},
		httptestx.OK("done")))
	rt := wrap(t, &oauth2.Transport{Source: &tokens{}, Base: httptestx.NewTransport(t)})
	bodies := httptestx.NewBodies("alpha-42")
	resp, err := rt.RoundTrip(bodies.Request(t.Context(), t, http.MethodPut, o.URL))
	require.Equal(t, "done", text(t, resp, err))
	require.Equal(t, []string{"Bearer t1", "Bearer t2", "Bearer t3"}, authorizations(o))
	for _, seen := range o.Requests() {
		require.Equal(t, "alpha-42", seen.Body)
	}
	bodies.CheckClosedOnce(t)
}

// It closes the body and returns its source's error as it is; nothing proves that the
// request was not sent.
func TestAnOAuth2TransportBelowRetripThatGetsNoToken(t *testing.T) {
	for _, method := range []string{http.MethodPut, http.MethodPost} {
		t.Run(method, func(t *testing.T) {
			httptestx.Leaks(t)
			o := httptestx.NewOrigin(t, httptestx.Sequence(httptestx.OK("done")))
			rt := wrap(t, &oauth2.Transport{Source: &tokens{fails: 1}, Base: httptestx.NewTransport(t)})
			bodies := httptestx.NewBodies("alpha-42")
			resp, err := rt.RoundTrip(bodies.Request(t.Context(), t, method, o.URL))
			bodies.CheckClosedOnce(t)
			if method == http.MethodPut {
				require.Equal(t, "done", text(t, resp, err))
				return
			}
			require.ErrorIs(t, err, errNoToken)
			require.ErrorIs(t, err, retrip.ErrOutcomeUnknown)
			require.Zero(t, o.Heads())
		})
	}
}

func TestAnOAuth2TransportAboveRetripSetsOneTokenForAllAttempts(t *testing.T) {
	httptestx.Leaks(t)
	o := httptestx.NewOrigin(t, httptestx.Sequence(httptestx.Status(503, "busy"), httptestx.OK("done")))
	client := &http.Client{Transport: &oauth2.Transport{Source: &tokens{}, Base: wrap(t, httptestx.NewTransport(t))}}
	bodies := httptestx.NewBodies("alpha-42")
	resp, err := client.Do(bodies.Request(t.Context(), t, http.MethodPut, o.URL))
	require.Equal(t, "done", text(t, resp, err))
	require.Equal(t, []string{"Bearer t1", "Bearer t1"}, authorizations(o))
	bodies.CheckClosedOnce(t)
}

// The token endpoint is a POST without a key: its 503 is not repeated unless the caller
// says that it may be, and each attempt carries the form.
func TestATokenRequestIsRepeatedOnTheCallersWordAlone(t *testing.T) {
	for _, word := range []bool{false, true} {
		t.Run(strconv.FormatBool(word), func(t *testing.T) {
			httptestx.Leaks(t)
			o := httptestx.NewOrigin(t, httptestx.Sequence(
				httptestx.Status(503, "busy"),
				httptestx.OK(`{"access_token":"t1","token_type":"bearer"}`, "Content-Type: application/json")))
			ctx := context.WithValue(t.Context(), oauth2.HTTPClient, &http.Client{Transport: wrap(t, httptestx.NewTransport(t))})
			if word {
				ctx = retrip.Override(ctx, retrip.WithIdempotent(true))
			}
			config := clientcredentials.Config{
				ClientID: "id", ClientSecret: "secret", TokenURL: o.URL + "/token",
				AuthStyle: oauth2.AuthStyleInParams,
			}
			token, err := config.Token(ctx)
			if !word {
				require.Error(t, err)
				require.Equal(t, 1, o.Heads())
				return
			}
			require.NoError(t, err)
			require.Equal(t, "t1", token.AccessToken)
			require.Equal(t, 2, o.Heads())
			for _, seen := range o.Requests() {
				require.Contains(t, seen.Body, "grant_type=client_credentials")
			}
		})
	}
}
