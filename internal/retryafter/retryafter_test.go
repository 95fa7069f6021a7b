package retryafter

import (
	"math"
	"math/big"
	"regexp"
	"strings"
	"testing"
	"time"
)

const tooLong = time.Duration(math.MaxInt64)

// arrival is when the answers of these tests arrive. Its part of a second must
// never show in a wait.
var arrival = time.Date(2026, time.March, 4, 12, 0, 0, 700_000_000, time.UTC)

func TestParse(t *testing.T) {
	const (
		sentAt     = "Wed, 04 Mar 2026 10:00:00 GMT" // two hours behind arrival
		in90s      = "Wed, 04 Mar 2026 10:01:30 GMT"
		in90s850   = "Wednesday, 04-Mar-26 10:01:30 GMT"
		in90sANSIC = "Wed Mar  4 10:01:30 2026"
	)
	tests := []struct {
		name   string
		header []string
		date   []string
		want   time.Duration
	}{
		{name: "no header"},
		{name: "one second", header: []string{"1"}, want: time.Second},
		{name: "two minutes", header: []string{"120"}, want: 2 * time.Minute},
		{name: "leading zeros", header: []string{"0000000000000000000000007"}, want: 7 * time.Second},
		{name: "white space around", header: []string{" \t3\t "}, want: 3 * time.Second},
		{name: "seconds need no Date", header: []string{"5"}, date: []string{"nonsense"}, want: 5 * time.Second},
		{name: "an epoch is only long", header: []string{"1772625600"}, want: 1772625600 * time.Second},
		{name: "the longest that fits", header: []string{"9223372036"}, want: 9223372036 * time.Second},
		{name: "one more", header: []string{"9223372037"}, want: tooLong},
		{name: "beyond 64 bits", header: []string{"18446744073709551617"}, want: tooLong},
		{name: "a thousand digits", header: []string{strings.Repeat("9", 1000)}, want: tooLong},

		{name: "zero", header: []string{"0"}},
		{name: "zeros", header: []string{strings.Repeat("0", 1000)}},
		{name: "empty", header: []string{""}},
		{name: "blank", header: []string{" \t "}},
		{name: "minus", header: []string{"-1"}},
		{name: "plus", header: []string{"+1"}},
		{name: "decimals", header: []string{"1.5"}},
		{name: "comma", header: []string{"1,5"}},
		{name: "exponent", header: []string{"1e3"}},
		{name: "hexadecimal", header: []string{"0x10"}},
		{name: "underscore", header: []string{"1_000"}},
		{name: "unit", header: []string{"1s"}},
		{name: "white space within", header: []string{"1 2"}},
		{name: "other white space", header: []string{"1\n"}},
		{name: "other digits", header: []string{"١"}},
		{name: "letter after many digits", header: []string{strings.Repeat("9", 1000) + "x"}},
		{name: "word", header: []string{"soon"}},
		{name: "doubled", header: []string{"1", "2"}},
		{name: "doubled and equal", header: []string{"1", "1"}},
		{name: "doubled in one line", header: []string{"1, 1"}},
		{name: "doubled with an empty one", header: []string{"1", ""}},

		{name: "date against Date", header: []string{in90s}, date: []string{sentAt}, want: 90 * time.Second},
		{name: "RFC 850 date", header: []string{in90s850}, date: []string{sentAt}, want: 90 * time.Second},
		{name: "asctime date", header: []string{in90sANSIC}, date: []string{sentAt}, want: 90 * time.Second},
		{name: "Date in RFC 850 form", header: []string{in90s}, date: []string{"Wednesday, 04-Mar-26 10:00:00 GMT"}, want: 90 * time.Second},
		{name: "white space around both", header: []string{"\t" + in90s + " "}, date: []string{" " + sentAt + "\t"}, want: 90 * time.Second},
		{name: "date without Date", header: []string{"Wed, 04 Mar 2026 12:00:05 GMT"}, want: 5 * time.Second},
		{name: "date with a malformed Date", header: []string{"Wed, 04 Mar 2026 12:00:05 GMT"}, date: []string{"4 Mar"}, want: 5 * time.Second},
		{name: "date with a doubled Date", header: []string{"Wed, 04 Mar 2026 12:00:05 GMT"}, date: []string{sentAt, sentAt}, want: 5 * time.Second},
		{name: "less than a second from now", header: []string{"Wed, 04 Mar 2026 12:00:01 GMT"}, want: time.Second},
		{name: "fraction in the date", header: []string{"Wed, 04 Mar 2026 10:00:01.25 GMT"}, date: []string{sentAt}, want: 2 * time.Second},
		{name: "date beyond what fits", header: []string{"Fri, 31 Dec 9999 23:59:59 GMT"}, date: []string{sentAt}, want: tooLong},
		// The last second that a duration reaches from 2026-03-04 10:00:00.
		{name: "fraction beyond what fits", header: []string{"Fri, 14 Jun 2318 09:47:16.5 GMT"}, date: []string{sentAt}, want: tooLong},
		{name: "last date that fits", header: []string{"Fri, 14 Jun 2318 09:47:16 GMT"}, date: []string{sentAt}, want: 9223372036 * time.Second},

		{name: "date equal to Date", header: []string{sentAt}, date: []string{sentAt}},
		{name: "date before Date", header: []string{sentAt}, date: []string{in90s}},
		{name: "past by less than a second", header: []string{"Wed, 04 Mar 2026 12:00:00 GMT"}},
		{name: "date long past", header: []string{"Sun, 06 Nov 1994 08:49:37 GMT"}},
		{name: "date past by more than fits", header: []string{"Sat, 01 Jan 0001 00:00:00 GMT"}},
		{name: "RFC 3339 date", header: []string{"2026-03-04T10:01:30Z"}, date: []string{sentAt}},
		{name: "no such day", header: []string{"Wed, 31 Feb 2026 10:01:30 GMT"}, date: []string{sentAt}},
		{name: "doubled date", header: []string{in90s, in90s}, date: []string{sentAt}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := Parse(tt.header, tt.date, arrival)
			if got != tt.want || ok != (tt.want > 0) {
				t.Errorf("Parse(%q, %q) = %v, %v, want %v, %v", tt.header, tt.date, got, ok, tt.want, tt.want > 0)
			}
		})
	}
}

func TestSecondsDoNotAllocate(t *testing.T) {
	header, date := []string{" 120 "}, []string{"Wed, 04 Mar 2026 10:00:00 GMT"}
	allocs := testing.AllocsPerRun(100, func() {
		if wait, ok := Parse(header, date, arrival); !ok || wait != 2*time.Minute {
			t.Errorf("Parse = %v, %v", wait, ok)
		}
	})
	if allocs != 0 {
		t.Errorf("%v allocations", allocs)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("120", "", "", byte(1), byte(0), int64(1772625600), int64(0))
	f.Add("9223372037", "", "", byte(1), byte(0), int64(0), int64(999_999_999))
	f.Add("1", "1", "", byte(2), byte(0), int64(0), int64(0))
	f.Add("Wed, 04 Mar 2026 10:01:30 GMT", "", "Wed, 04 Mar 2026 10:00:00 GMT", byte(1), byte(1), int64(0), int64(0))
	f.Add("Wed, 04 Mar 2026 10:01:30,5 GMT", "", "Wednesday, 04-Mar-26 10:00:00 GMT", byte(1), byte(2), int64(1772625600), int64(1))
	f.Add("Wed Mar  4 10:01:30 9999", "", "", byte(1), byte(0), int64(-60_000_000_000), int64(5))
	f.Fuzz(func(t *testing.T, first, second, dated string, values, dates byte, sec, nsec int64) {
		header := []string{first, second}[:values%3]
		date := []string{dated, dated}[:dates%3]
		now := time.Unix(sec%250_000_000_000, nsec%1_000_000_000)

		got, ok := Parse(header, date, now)
		want := slowParse(header, date, now)
		if got != want || ok != (want > 0) {
			t.Errorf("Parse(%q, %q, %v) = %d, %v, want %d", header, date, now, got, ok, want)
		}
		if got < 0 || got%time.Second != 0 && got != tooLong {
			t.Errorf("Parse(%q, %q, %v) = %d", header, date, now, got)
		}
	})
}

var digits = regexp.MustCompile(`^[ \t]*([0-9]+)[ \t]*$`)

// slowParse reckons in numbers that have no end; 0 is no wait.
func slowParse(header, date []string, now time.Time) time.Duration {
	if len(header) != 1 {
		return 0
	}
	wait := new(big.Int)
	if m := digits.FindStringSubmatch(header[0]); m != nil {
		wait.SetString(m[1], 10)
	} else {
		until, ok := slowDate(header[0])
		if !ok {
			return 0
		}
		base := now
		if len(date) == 1 {
			if sent, ok := slowDate(date[0]); ok {
				base = sent
			}
		}
		// Up to the next whole second: minus the floor of minus the distance.
		wait.Sub(nanos(base), nanos(until))
		wait.Div(wait, big.NewInt(int64(time.Second))).Neg(wait)
	}
	if wait.Sign() <= 0 {
		return 0
	}
	wait.Mul(wait, big.NewInt(int64(time.Second)))
	if !wait.IsInt64() {
		return tooLong
	}
	return time.Duration(wait.Int64())
}

func slowDate(s string) (time.Time, bool) {
	for _, layout := range []string{"Mon, 02 Jan 2006 15:04:05 GMT", time.RFC850, time.ANSIC} {
		if t, err := time.Parse(layout, strings.Trim(s, "\t ")); err == nil {
			return t, true
		}
	}
	return time.Time{}, false
}

func nanos(t time.Time) *big.Int {
	n := new(big.Int).Mul(big.NewInt(t.Unix()), big.NewInt(int64(time.Second)))
	return n.Add(n, big.NewInt(int64(t.Nanosecond())))
}
