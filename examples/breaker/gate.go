package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"

	"github.com/sony/gobreaker/v2"
	"golang.org/x/time/rate"
)

// errLimited is the gate's answer where an origin was sent enough for now.
var errLimited = errors.New("breaker: rate limit reached")

// gates is a circuit breaker and a rate limiter for each origin, asked in one retrip.Gate.
type gates struct {
	settings gobreaker.Settings
	limit    rate.Limit // attempts a second
	burst    int

	mu      sync.Mutex
	origins map[string]*origin
}

type origin struct {
	breaker *gobreaker.TwoStepCircuitBreaker[any]
	limiter *rate.Limiter
}

// newGates takes the breakers' settings; their names are those of the origins.
func newGates(settings gobreaker.Settings, limit rate.Limit, burst int) *gates {
	settings.IsExcluded = saysNothing
	return &gates{settings: settings, limit: limit, burst: burst, origins: make(map[string]*origin)}
}

// saysNothing reports whether an outcome says nothing about the origin: the caller left, or the
// attempt was not made.
func saysNothing(err error) bool {
	return errors.Is(err, context.Canceled) || errors.Is(err, errLimited)
}

// of returns what belongs to an origin. A program that calls hosts it does not know
// beforehand has to bound their number here.
func (g *gates) of(name string) *origin {
	g.mu.Lock()
	defer g.mu.Unlock()
	o := g.origins[name]
	if o == nil {
		settings := g.settings
		settings.Name = name
		o = &origin{
			breaker: gobreaker.NewTwoStepCircuitBreaker[any](settings),
			limiter: rate.NewLimiter(g.limit, g.burst),
		}
		g.origins[name] = o
	}
	return o
}

// gate is a retrip.Gate. The breaker comes first, so that attempts which it refuses do not
// use up the limiter's tokens; what it granted for nothing it is told at once.
func (g *gates) gate(req *http.Request) (done func(error), err error) {
	o := g.of(req.URL.Scheme + "://" + req.URL.Host)
	done, err = o.breaker.Allow()
	if err != nil {
		return nil, fmt.Errorf("breaker: %w", err)
	}
	if !o.limiter.Allow() {
		done(errLimited)
		return nil, errLimited
	}
	return done, nil
}
