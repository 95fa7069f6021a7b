package httptestx

import (
	"context"
	"maps"
	"net/http"
	"net/url"
	"reflect"
	"slices"
)

// Checked wraps a round tripper and fails the test where a call breaks the
// contract of http.RoundTripper: exactly one of response and error, a response
// with a body and with the caller's request, the request as it was, and a
// request body of type [*Body] closed exactly once by the end of the test.
func Checked(tb TB, rt http.RoundTripper) http.RoundTripper {
	tb.Helper()
	return &checked{tb, rt}
}

type checked struct {
	tb TB
	rt http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (c *checked) RoundTrip(req *http.Request) (*http.Response, error) {
	c.tb.Helper()
	before := photograph(req)
	resp, err := c.rt.RoundTrip(req)
	before.compare(c.tb, req)
	switch {
	case resp == nil && err == nil:
		c.tb.Errorf("httptestx: neither response nor error")
	case resp != nil && err != nil:
		c.tb.Errorf("httptestx: response %d and error %v", resp.StatusCode, err)
	case resp != nil && resp.Body == nil:
		c.tb.Errorf("httptestx: a response without a body")
	case resp != nil && resp.Request != req:
		c.tb.Errorf("httptestx: the response's request is not the caller's")
	}
	if body, ok := req.Body.(*Body); ok {
		c.tb.Cleanup(func() { body.CheckClosedOnce(c.tb) })
	}
	return resp, err
}

// Unwrap returns the round tripper that is checked.
func (c *checked) Unwrap() http.RoundTripper { return c.rt }

// CloseIdleConnections is forwarded where the wrapped one has it.
func (c *checked) CloseIdleConnections() {
	if ci, ok := c.rt.(interface{ CloseIdleConnections() }); ok {
		ci.CloseIdleConnections()
	}
}

// photo is what a round tripper must leave as it found it.
type photo struct {
	flat     http.Request    // the fields themselves
	ctx      context.Context //nolint:containedctx // compared, never used
	url      url.URL
	user     url.Userinfo
	header   http.Header
	trailer  http.Header
	encoding []string
	form     url.Values
}

func photograph(req *http.Request) *photo {
	p := &photo{
		ctx:      req.Context(),
		header:   req.Header.Clone(),
		trailer:  req.Trailer.Clone(),
		encoding: slices.Clone(req.TransferEncoding),
		form:     maps.Clone(req.Form),
	}
	from, to := reflect.ValueOf(req).Elem(), reflect.ValueOf(&p.flat).Elem()
	for i := range from.NumField() {
		if to.Field(i).CanSet() {
			to.Field(i).Set(from.Field(i))
		}
	}
	if req.URL != nil {
		p.url = *req.URL
		if req.URL.User != nil {
			p.user = *req.URL.User
		}
	}
	return p
}

func (p *photo) compare(tb TB, req *http.Request) {
	tb.Helper()
	changed := func(field string) {
		tb.Helper()
		tb.Errorf("httptestx: the caller's request was changed: %s", field)
	}
	was, is := reflect.ValueOf(&p.flat).Elem(), reflect.ValueOf(req).Elem()
	for i := range was.NumField() {
		if f := was.Type().Field(i); f.IsExported() && !same(was.Field(i), is.Field(i)) {
			changed(f.Name)
		}
	}
	if req.Context() != p.ctx {
		changed("context")
	}
	if req.URL != nil && (!reflect.DeepEqual(*req.URL, p.url) || req.URL.User != nil && *req.URL.User != p.user) {
		changed("URL's content")
	}
	if !reflect.DeepEqual(req.Header, p.header) {
		changed("Header's content")
	}
	if !reflect.DeepEqual(req.Trailer, p.trailer) {
		changed("Trailer's content")
	}
	if !slices.Equal(req.TransferEncoding, p.encoding) {
		changed("TransferEncoding's content")
	}
	if !reflect.DeepEqual(req.Form, p.form) {
		changed("Form's content")
	}
}

// same compares what a field holds by identity where it is a reference.
func same(a, b reflect.Value) bool {
	switch a.Kind() {
	case reflect.Func, reflect.Map, reflect.Chan, reflect.Pointer:
		return a.Pointer() == b.Pointer()
	case reflect.Slice:
		return a.Len() == b.Len() && (a.Len() == 0 || a.Pointer() == b.Pointer())
	case reflect.Interface:
		if a.IsNil() || b.IsNil() {
			return a.IsNil() == b.IsNil()
		}
		return a.Elem().Type() == b.Elem().Type() &&
			(!a.Elem().Comparable() || a.Elem().Equal(b.Elem()))
	default:
		return a.Equal(b)
	}
}
