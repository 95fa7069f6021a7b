package main

import (
	"image/color"
	"net/http"
	"strconv"
	"time"

	"github.com/retrip/retrip"
)

// policy is a way to repeat.
type policy struct {
	name  string
	color color.RGBA
	wrap  func(base http.RoundTripper, delay time.Duration) http.RoundTripper
}

// policies are compared; the last one's bounds are checked.
var policies = []policy{
	{"no repeats", color.RGBA{120, 120, 120, 255}, func(base http.RoundTripper, _ time.Duration) http.RoundTripper {
		return base
	}},
	{"naive loop", color.RGBA{213, 94, 0, 255}, func(base http.RoundTripper, delay time.Duration) http.RoundTripper {
		return naive{base, delay}
	}},
	{"retrip, no budget", color.RGBA{230, 159, 0, 255}, func(base http.RoundTripper, delay time.Duration) http.RoundTripper {
		return retrip.Must(retrip.New(base, retrip.WithBudget(nil), backoff(delay)))
	}},
	{"retrip", color.RGBA{0, 114, 178, 255}, func(base http.RoundTripper, delay time.Duration) http.RoundTripper {
		return retrip.Must(retrip.New(base, backoff(delay)))
	}},
}

// ours is the index of the policy whose bounds are checked.
const ours = 3

func backoff(base time.Duration) retrip.Option {
	return retrip.WithBackoff(retrip.FullJitter(base, 2*time.Second))
}

// naive sends a request without a body up to three times, with a fixed delay, or exactly
// that which the server asks for.
type naive struct {
	base  http.RoundTripper
	delay time.Duration
}

func (n naive) RoundTrip(req *http.Request) (*http.Response, error) {
	for attempt := 1; ; attempt++ {
		resp, err := n.base.RoundTrip(req)
		failed := err != nil || resp.StatusCode == http.StatusServiceUnavailable
		if attempt == 3 || !failed {
			return resp, err
		}
		delay := n.delay
		if err == nil {
			if seconds, err := strconv.Atoi(resp.Header.Get("Retry-After")); err == nil {
				delay = time.Duration(seconds) * time.Second
			}
			_ = resp.Body.Close()
		}
		if err := pause(req.Context(), delay); err != nil {
			return nil, err
		}
	}
}

// newBase is the transport below every policy. Its limit for the headers is what ends
// attempts on an origin that stalls, for those without retrip as well.
func newBase(headerTimeout time.Duration) *http.Transport {
	return &http.Transport{MaxIdleConnsPerHost: 100, ResponseHeaderTimeout: headerTimeout}
}
