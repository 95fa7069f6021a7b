// Package retryafter reads the Retry-After header of an answer.
package retryafter

import (
	"math"
	"net/http"
	"strings"
	"time"
)

// maxSeconds is the longest wait in whole seconds that a time.Duration holds.
const maxSeconds = math.MaxInt64 / int64(time.Second)

// Parse returns the wait that an answer asks for. retryAfter holds all values
// of its Retry-After header, date all values of its Date header, and now is
// the time at which it arrived.
//
// Retry-After is either a number of seconds or an HTTP-date in one of the three
// forms of RFC 9110. A date is measured against the answer's own Date, so that
// a clock that differs from the server's does no harm, and against now only
// where Date is absent, doubled or malformed.
//
// The wait is positive and in whole seconds, rounded up, because coming back
// early is what the server asked not to do. One that is too long to hold is
// math.MaxInt64. ok is false for everything that asks for no wait: no header,
// more than one (equal values too), an empty or malformed one, zero seconds, a
// date that is not in the future.
//
// Parse does not allocate for a number of seconds, and it is safe for
// concurrent use.
func Parse(retryAfter, date []string, now time.Time) (wait time.Duration, ok bool) {
	if len(retryAfter) != 1 {
		return 0, false
	}
	value := trim(retryAfter[0])
	if wait, ok = seconds(value); ok {
		return wait, wait > 0
	}
	until, err := http.ParseTime(value)
	if err != nil {
		return 0, false
	}
	wait = roundUp(until.Sub(sentAt(date, now)))
	return max(wait, 0), wait > 0
}

// seconds reads a string of digits, and nothing else, of any length.
func seconds(s string) (time.Duration, bool) {
	var n int64
	for _, c := range []byte(s) {
		if c < '0' || c > '9' {
			return 0, false
		}
		// Once past the longest wait the value stays there: further digits
		// only make it longer, and still have to be digits.
		if n <= maxSeconds {
			n = n*10 + int64(c-'0')
		}
	}
	if n > maxSeconds {
		return math.MaxInt64, true
	}
	return time.Duration(n) * time.Second, s != ""
}

// sentAt returns the time by the server's own clock where it is told.
func sentAt(date []string, now time.Time) time.Time {
	if len(date) == 1 {
		if t, err := http.ParseTime(trim(date[0])); err == nil {
			return t
		}
	}
	return now
}

// roundUp is needed although an HTTP-date has whole seconds: now does not, and
// time.Parse accepts a fraction that no layout names.
func roundUp(d time.Duration) time.Duration {
	part := d % time.Second
	switch {
	case part <= 0:
		return d - part
	case d > math.MaxInt64-time.Second:
		return math.MaxInt64
	default:
		return d - part + time.Second
	}
}

// trim removes the optional white space that may stand around a field value.
func trim(s string) string { return strings.Trim(s, " \t") }
