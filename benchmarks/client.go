package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/PuerkitoBio/rehttp"
	"github.com/failsafe-go/failsafe-go/failsafehttp"
	"github.com/go-resty/resty/v2"
	"github.com/gojek/heimdall/v7/httpclient"
	"github.com/hashicorp/go-retryablehttp"

	"github.com/retrip/retrip"
)

// A call is what a program asks its HTTP client for.
type call struct {
	method string
	url    string
	key    string // an Idempotency-Key; "": none
	data   []byte // the body, where source is nil
	source io.Reader
	size   int64 // of source
}

// A result is what came back.
type result struct {
	status   int
	received string // bytes, as the origin counted them
}

// A caller makes the request in its client's own way, sends it and reads the answer.
type caller func(ctx context.Context, c call) (result, error)

// A client is one of those that are compared. With eager it makes up to three attempts on a
// 503 and does not wait between them, so that the cost of repeating is seen and not the
// wait; else it has its own defaults.
type client struct {
	name   string
	module string // "": the standard library
	// settings tells in a few words what differs from its defaults.
	settings string
	// transport is nil for a client that is no http.RoundTripper.
	transport func(base http.RoundTripper, eager bool) http.RoundTripper
	// caller is nil for one that is used as the Transport of an http.Client.
	caller func(base http.RoundTripper, eager bool) caller
}

const (
	bareName   = "bare"
	retripName = "retrip"
)

// clients are all that are compared, the bare base and retrip first.
func clients() []client {
	return []client{
		{name: bareName, settings: "an `http.Client` where a whole call is measured", transport: func(base http.RoundTripper, eager bool) http.RoundTripper {
			if eager {
				return twice{base}
			}
			return base
		}},
		{name: retripName, module: "github.com/retrip/retrip", settings: "defaults", transport: retripTransport},
		{name: "rehttp", module: "github.com/PuerkitoBio/rehttp", settings: "it has none: 3 attempts on temporary errors and 429, 502, 503, 504, 100 ms to 2 s", transport: rehttpTransport},
		{name: "failsafe", module: "github.com/failsafe-go/failsafe-go", settings: "its HTTP retry policy's defaults", transport: failsafeTransport},
		{name: "retryablehttp", module: "github.com/hashicorp/go-retryablehttp", settings: "defaults, but its log is off", caller: retryableCaller},
		{name: "heimdall", module: "github.com/gojek/heimdall/v7", settings: "defaults: no repeats; 3 attempts where a repeat is measured", caller: heimdallCaller},
		{name: "resty", module: "github.com/go-resty/resty/v2", settings: "defaults: no repeats; 3 attempts on 503 where a repeat is measured", caller: restyCaller},
	}
}

func clientNamed(name string) (client, error) {
	for _, c := range clients() {
		if c.name == name {
			return c, nil
		}
	}
	return client{}, fmt.Errorf("benchmarks: no client is named %q", name)
}

// on makes the client for a base.
func (c client) on(base http.RoundTripper, eager bool) caller {
	if c.caller != nil {
		return c.caller(base, eager)
	}
	return standard(&http.Client{Transport: c.transport(base, eager)})
}

// request makes the request of net/http.
func (c call) request(ctx context.Context) (*http.Request, error) {
	req, err := http.NewRequestWithContext(ctx, c.method, c.url, c.body())
	if err != nil {
		return nil, err
	}
	c.describe(req)
	return req, nil
}

func (c call) body() io.Reader {
	switch {
	case c.source != nil:
		return c.source
	case c.data != nil:
		return bytes.NewReader(c.data)
	default:
		return nil
	}
}

func (c call) describe(req *http.Request) {
	if c.source != nil {
		req.ContentLength = c.size
	}
	if c.key != "" {
		req.Header.Set("Idempotency-Key", c.key)
	}
}

func consume(resp *http.Response, err error) (result, error) {
	if err != nil {
		if resp != nil && resp.Body != nil {
			_ = resp.Body.Close()
		}
		return result{}, err
	}
	defer resp.Body.Close()
	_, err = io.Copy(io.Discard, resp.Body)
	return result{resp.StatusCode, resp.Header.Get(receivedHeader)}, err
}

// standard calls by an http.Client.
func standard(hc *http.Client) caller {
	return func(ctx context.Context, c call) (result, error) {
		req, err := c.request(ctx)
		if err != nil {
			return result{}, err
		}
		return consume(hc.Do(req))
	}
}

// twice is the bare base doing the work of an operation that repeats its request: two
// exchanges, with the first answer thrown away.
type twice struct{ base http.RoundTripper }

func (t twice) RoundTrip(req *http.Request) (*http.Response, error) {
	if _, err := consume(t.base.RoundTrip(req)); err != nil {
		return nil, err
	}
	if req.GetBody != nil {
		body, err := req.GetBody()
		if err != nil {
			return nil, err
		}
		again := *req
		again.Body = body
		req = &again
	}
	return t.base.RoundTrip(req)
}

func retripTransport(base http.RoundTripper, eager bool) http.RoundTripper {
	if !eager {
		return retrip.Must(retrip.New(base))
	}
	// The budget would end a load of which every other exchange fails, as it is meant to.
	return retrip.Must(retrip.New(base, retrip.WithBackoff(retrip.Constant(0)), retrip.WithBudget(nil)))
}

// rehttp has no defaults: these are retrip's.
func rehttpTransport(base http.RoundTripper, eager bool) http.RoundTripper {
	delay := rehttp.ExpJitterDelay(100*time.Millisecond, 2*time.Second)
	if eager {
		delay = rehttp.ConstDelay(0)
	}
	return rehttp.NewTransport(base, rehttp.RetryAll(
		rehttp.RetryMaxRetries(2),
		rehttp.RetryAny(
			rehttp.RetryTemporaryErr(),
			rehttp.RetryStatuses(http.StatusTooManyRequests, http.StatusBadGateway,
				http.StatusServiceUnavailable, http.StatusGatewayTimeout)),
	), delay)
}

// failsafe does not wait unless it is told to.
func failsafeTransport(base http.RoundTripper, _ bool) http.RoundTripper {
	return failsafehttp.NewRoundTripper(base, failsafehttp.NewRetryPolicyBuilder().Build()) //nolint:bodyclose // builds a policy, makes no response
}

func retryableCaller(base http.RoundTripper, eager bool) caller {
	rc := retryablehttp.NewClient()
	rc.HTTPClient = &http.Client{Transport: base}
	// By default it writes a line on each request to stderr, which would be all that is
	// measured.
	rc.Logger = nil
	if eager {
		rc.RetryMax, rc.RetryWaitMin, rc.RetryWaitMax = 2, 0, 0
	}
	return func(ctx context.Context, c call) (result, error) {
		var body any // a typed nil would be a body
		if r := c.body(); r != nil {
			body = r
		}
		req, err := retryablehttp.NewRequestWithContext(ctx, c.method, c.url, body)
		if err != nil {
			return result{}, err
		}
		c.describe(req.Request)
		return consume(rc.Do(req))
	}
}

// heimdall and resty do not repeat unless they are told to.
func heimdallCaller(base http.RoundTripper, eager bool) caller {
	opts := []httpclient.Option{httpclient.WithHTTPClient(&http.Client{Transport: base})}
	if eager {
		opts = append(opts, httpclient.WithRetryCount(2))
	}
	hc := httpclient.NewClient(opts...)
	return func(ctx context.Context, c call) (result, error) {
		req, err := c.request(ctx)
		if err != nil {
			return result{}, err
		}
		return consume(hc.Do(req))
	}
}

func restyCaller(base http.RoundTripper, eager bool) caller {
	rc := resty.NewWithClient(&http.Client{Transport: base})
	if eager {
		rc.SetRetryCount(2).SetRetryWaitTime(0).SetRetryMaxWaitTime(0).AddRetryCondition(
			func(resp *resty.Response, err error) bool {
				return err != nil || resp.StatusCode() == http.StatusServiceUnavailable
			})
	}
	return func(ctx context.Context, c call) (result, error) {
		req := rc.R().SetContext(ctx)
		switch {
		case c.source != nil:
			req.SetBody(c.source)
		case c.data != nil:
			req.SetBody(c.data)
		}
		if c.key != "" {
			req.SetHeader("Idempotency-Key", c.key)
		}
		resp, err := req.Execute(c.method, c.url)
		if err != nil {
			return result{}, err
		}
		return result{resp.StatusCode(), resp.Header().Get(receivedHeader)}, nil
	}
}
