package retrip

import (
	"fmt"
	"hash/maphash"
	"math"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/retrip/retrip/internal/backoff"
	"github.com/retrip/retrip/internal/budget"
)

// A Budget limits how much repeating an origin has to bear, by two sources of tokens:
//
//   - a reserve that time fills, with which a quiet client can always repeat an isolated
//     failure. It is closed while the operation to that origin that ended last ended with
//     a transient outcome: without that a fleet of quiet clients triples the load of an
//     outage.
//   - what traffic earns, with which a busy client survives a blip; it decays with a time
//     constant of 4 s, so that an outage costs little more than the ratio, however long
//     the good times before it.
//
// A repeat costs one token, two after a time-out, from what was earned first. It is taken
// when the repeat is decided and given back if the attempt is not made. An origin is a
// scheme, host and port; a Budget tells 4096 of them apart, beyond which newcomers share
// one. It is safe for concurrent use, and may be shared by Transports. Time that goes back
// fills nothing: for a testing/synctest bubble, make one there.
type Budget struct {
	tokens  *budget.Budget
	problem string
}

// NewBudget makes a Budget that earns ratio tokens for each operation that begins, and
// whose reserve is filled by perSecond tokens a second up to burst, and full at the start.
// 0 turns a source off. Negative values and NaN are an [OptionError] where the Budget is
// used: from [New], or from RoundTrip under [Override].
func NewBudget(ratio, perSecond float64, burst int) *Budget {
	switch {
	case !(ratio >= 0) || math.IsInf(ratio, 0): // NaN fails every comparison
		return &Budget{problem: fmt.Sprintf("ratio %v; allowed are finite numbers from 0", ratio)}
	case !(perSecond >= 0) || math.IsInf(perSecond, 0):
		return &Budget{problem: fmt.Sprintf("%v per second; allowed are finite numbers from 0", perSecond)}
	case burst < 0:
		return &Budget{problem: fmt.Sprintf("burst %d; allowed are numbers from 0", burst)}
	}
	return &Budget{tokens: budget.New(ratio, perSecond, burst)}
}

// A Gate lets attempts through or not: a breaker, a limiter, a bulkhead. An error is a
// refusal; it ends the operation, and is in the event and in the [*Error].
//
// It is asked before every attempt. That of the first comes before anything is sent. That
// of a further one comes before its wait, so that an answer in hand can still be returned.
// done, if it is not nil, is called exactly once for each grant: when the attempt's headers
// or error are there, or where the attempt is not made, with the error; it is nil for an
// answer below 500. It is called concurrently.
type Gate func(req *http.Request) (done func(err error), err error)

// origin is what is remembered of one scheme, host and port.
type origin struct {
	key     string
	proto   atomic.Int32 // ProtoMajor of the last answer; 0: not known yet
	account atomic.Pointer[budget.Entry]
	pause   atomic.Pointer[pause]
	gone    atomic.Bool
}

// learn notes the protocol that an answer came by.
func (o *origin) learn(protoMajor int) {
	if major := int32(protoMajor); o.proto.Load() != major { //nolint:gosec // 1, 2 or 3
		o.proto.Store(major)
	}
}

// A pause is an origin's word that nobody is to come before a time.
type pause struct {
	until   time.Time
	spread  time.Duration // how far those that wait are spread
	tooLong bool          // longer than WithMaxRetryAfter: met, it ends an operation at once
}

// paused returns the pause in force, or nil.
func (o *origin) paused(now time.Time) *pause {
	p := o.pause.Load()
	if p == nil || !now.Before(p.until) {
		return nil
	}
	return p
}

// hold pauses the origin, unless a pause in force lasts longer.
func (o *origin) hold(hint, most time.Duration, now time.Time) {
	next := &pause{until: now.Add(min(hint, most)), spread: backoff.Spread(hint), tooLong: hint > most}
	for {
		old := o.pause.Load()
		if old != nil && old.until.After(next.until) || o.pause.CompareAndSwap(old, next) {
			return
		}
	}
}

// A pauseError is why an operation to a paused origin was not begun.
type pauseError struct{ left time.Duration }

func (e *pauseError) Error() string {
	return fmt.Sprintf("retrip: the origin asked to be left alone for another %v", e.left.Round(time.Millisecond))
}

// maxOrigins bounds what is remembered, since hosts may come from the outside.
const maxOrigins = budget.MaxOrigins

// originTable finds an origin's record without a lock: chains of slots that are replaced,
// never changed. Several spellings of an origin lead to one record.
type originTable struct {
	recent [64]atomic.Pointer[slot] // those found last: nearly every look-up ends here
	chains [256]atomic.Pointer[slot]

	mu    sync.Mutex // guards the changes, and the fields below
	known map[string]*origin
	slots int
}

type slot struct {
	scheme, host string // as written in URLs
	http, https  bool
	origin       *origin
	next         *slot
}

var hashSeed = maphash.MakeSeed()

func (s *slot) is(scheme, host string) bool {
	return s.host == host && s.has(scheme) && !s.origin.gone.Load()
}

// has compares with a constant where it can: that is no call.
func (s *slot) has(scheme string) bool {
	return s.https && scheme == "https" || s.http && scheme == "http" || s.scheme == scheme
}

// of finds an origin. A hash that no host name can aim at costs more than the rest of it,
// so that three letters tell where to look first.
func (t *originTable) of(scheme, host string) *origin {
	place := uint(len(host))
	if place > 0 {
		place += uint(host[0]) + uint(host[len(host)/2])<<1 + uint(host[len(host)-1])<<2
	}
	recent := &t.recent[place%uint(len(t.recent))]
	if s := recent.Load(); s != nil && s.is(scheme, host) {
		return s.origin
	}
	return t.find(recent, scheme, host)
}

func (t *originTable) find(recent *atomic.Pointer[slot], scheme, host string) *origin {
	chain := &t.chains[maphash.String(hashSeed, host)%uint64(len(t.chains))]
	for s := chain.Load(); s != nil; s = s.next {
		if s.is(scheme, host) {
			recent.Store(s)
			return s.origin
		}
	}
	return t.add(chain, scheme, host)
}

func (t *originTable) add(chain *atomic.Pointer[slot], scheme, host string) *origin {
	t.mu.Lock()
	defer t.mu.Unlock()
	key := originKey(scheme, host)
	o := t.known[key]
	if o == nil {
		o = &origin{key: key}
		if len(t.known) >= maxOrigins && !t.evict() {
			return o // not remembered
		}
		if t.known == nil {
			t.known = make(map[string]*origin)
		}
		t.known[key] = o
	}
	if t.slots >= 2*maxOrigins { // many spellings: begin anew
		t.slots = 0
		for i := range t.chains {
			t.chains[i].Store(nil)
		}
	}
	t.slots++
	chain.Store(&slot{
		scheme: strings.Clone(scheme), host: strings.Clone(host), http: scheme == "http", https: scheme == "https",
		origin: o, next: chain.Load(),
	})
	return o
}

// evict makes room. A pause in force is not forgotten; the protocol is learned again and
// the budget keeps its own record.
func (t *originTable) evict() bool {
	now, looked := time.Now(), 0
	for key, o := range t.known { // from a random place
		if o.paused(now) == nil {
			o.gone.Store(true)
			delete(t.known, key)
			return true
		}
		if looked++; looked == 8 {
			return false
		}
	}
	return false
}

// originKey is the normal form of an origin: lower case, with the port.
func originKey(scheme, host string) string {
	scheme = strings.ToLower(scheme)
	u := url.URL{Host: strings.ToLower(host)}
	port := u.Port()
	if port == "" {
		switch scheme {
		case "http":
			port = "80"
		case "https":
			port = "443"
		}
	}
	return scheme + "://" + net.JoinHostPort(u.Hostname(), port)
}

// count counts an operation to o, and returns the budget's entry in which that is done; nil
// without a budget.
func (t *Transport) count(cfg *config, o *origin) *budget.Entry {
	e := o.account.Load()
	if e == nil || cfg != t.cfg || e.Gone() {
		e = t.account(cfg, o)
	}
	if e != nil {
		e.Begin(uptime())
	}
	return e
}

// account finds an origin in the budget of the settings; nil without a budget.
func (t *Transport) account(cfg *config, o *origin) *budget.Entry {
	b := t.budget()
	if !cfg.ownBudget && cfg.budget != b {
		// Another one by Override; the record keeps the entry of the Transport's own.
		if b = cfg.budget; b == nil {
			return nil
		}
		return b.tokens.Entry(o.key)
	}
	if b == nil {
		return nil
	}
	e := o.account.Load()
	if e == nil || e.Gone() {
		e = b.tokens.Entry(o.key)
		o.account.Store(e)
	}
	return e
}

// epoch is the whole second in which the process began. The clock of testing/synctest
// begins in 2000, at a whole second, and has no monotonic part: a century keeps what it gives
// above zero, and budgets count its ticks at the same moments in every run.
var epoch = func() time.Time {
	now := time.Now()
	return now.Add(-time.Duration(now.Nanosecond()))
}()

const century = 100 * 365 * 24 * time.Hour

// uptime is the clock of budgets. It is read for every request, and costs half of
// time.Now, which reads the wall clock too.
func uptime() time.Duration { return century + time.Since(epoch) }

// askGate asks for one attempt.
func (op *operation) askGate() error {
	if op.cfg.gate == nil {
		return nil
	}
	done, err := op.cfg.gate(op.req)
	if err == nil {
		op.gateDone = done
	}
	return err
}

// tellGate tells the gate how its attempt went, once.
func (op *operation) tellGate(err error) {
	if done := op.gateDone; done != nil {
		op.gateDone = nil
		done(err)
	}
}

// A statusError is what a gate is told of an answer from 500.
type statusError int

func (e statusError) Error() string {
	return fmt.Sprintf("retrip: answered %d %s", int(e), http.StatusText(int(e)))
}
