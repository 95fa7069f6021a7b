package httptestx

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
)

// RoundTripFunc lets a function be a round tripper.
type RoundTripFunc func(*http.Request) (*http.Response, error)

// RoundTrip implements http.RoundTripper.
func (f RoundTripFunc) RoundTrip(req *http.Request) (*http.Response, error) { return f(req) }

// Canned makes a response to the request. Headers are lines such as
// "Retry-After: 1".
func Canned(req *http.Request, code int, body string, header ...string) *http.Response {
	resp := &http.Response{
		Status:        fmt.Sprintf("%d %s", code, http.StatusText(code)),
		StatusCode:    code,
		Proto:         "HTTP/1.1",
		ProtoMajor:    1,
		ProtoMinor:    1,
		Header:        http.Header{},
		Body:          NewBody(strings.NewReader(body)),
		ContentLength: int64(len(body)),
		Request:       req,
	}
	for _, line := range header {
		name, value, _ := strings.Cut(line, ":")
		resp.Header.Add(name, strings.TrimSpace(value))
	}
	return resp
}

// Stub is a base without a network that answers from a list. It reads and
// closes request bodies as a transport does, fires no trace, and is safe for
// concurrent use.
type Stub struct {
	answers []func(*http.Request) (*http.Response, error)

	mu     sync.Mutex
	calls  int
	bodies []*Body
}

// NewStub answers call n with answers[n-1]; the last one repeats.
func NewStub(answers ...func(*http.Request) (*http.Response, error)) *Stub {
	return &Stub{answers: answers}
}

// Statuses answers with these codes, one per call, the last one repeating; each
// body is the code's text.
func Statuses(codes ...int) *Stub {
	s := &Stub{}
	for _, code := range codes {
		s.answers = append(s.answers, func(req *http.Request) (*http.Response, error) { //nolint:bodyclose // who asks closes it
			return Canned(req, code, http.StatusText(code)), nil
		})
	}
	return s
}

// Fails is an answer that is the error.
func Fails(err error) func(*http.Request) (*http.Response, error) {
	return func(*http.Request) (*http.Response, error) { return nil, err }
}

// RoundTrip implements http.RoundTripper.
func (s *Stub) RoundTrip(req *http.Request) (*http.Response, error) {
	s.mu.Lock()
	s.calls++
	answer := s.answers[min(s.calls, len(s.answers))-1]
	s.mu.Unlock()
	if req.Body != nil {
		var readErr error
		for buf := make([]byte, 4096); readErr == nil; {
			_, readErr = req.Body.Read(buf)
		}
		req.Body.Close()
		if !errors.Is(readErr, io.EOF) {
			return nil, readErr
		}
	}
	resp, err := answer(req)
	if resp != nil {
		if b, ok := resp.Body.(*Body); ok {
			s.mu.Lock()
			s.bodies = append(s.bodies, b)
			s.mu.Unlock()
		}
	}
	return resp, err
}

// Calls returns how often RoundTrip was called.
func (s *Stub) Calls() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

// Bodies returns the response bodies handed out, in order.
func (s *Stub) Bodies() []*Body {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]*Body(nil), s.bodies...)
}
