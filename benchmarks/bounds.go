package main

import (
	"bytes"
	"fmt"
	"time"
)

// A bound is what retrip promises to add to the bare base where nothing fails.
type bound struct {
	title    string
	requests []string // of the root's BenchmarkFastPath; the dearest counts
	suffix   string   // of their names
	more     bool     // than the same request without the suffix
	allocs   float64
	time     time.Duration
}

// bounds are those of the root's alloc_test.go, and what they should take.
func bounds() []bound {
	all := []string{"GET", "GET-under-trace", "POST-with-key", "PUT", "POST", "GET-HTTP2", "POST-HTTP2"}
	return []bound{
		{title: "GET, http", requests: all[:1], allocs: 0, time: 100 * time.Nanosecond},
		{title: "GET, http, under a trace of the caller", requests: all[1:2], allocs: 0, time: 120 * time.Nanosecond},
		{title: "POST 1 KiB with a key, PUT 1 KiB; http", requests: all[2:4], allocs: 4, time: 500 * time.Nanosecond},
		{title: "POST 1 KiB without a key, http", requests: all[4:5], allocs: 6, time: 900 * time.Nanosecond},
		{title: "GET, HTTP/2", requests: all[5:6], allocs: 6, time: 900 * time.Nanosecond},
		{title: "POST 1 KiB without a key, HTTP/2", requests: all[6:7], allocs: 9, time: 1400 * time.Nanosecond},
		{title: "GET, http; the base asks for its trace, as net/http does", requests: all[:1], suffix: "-asked", allocs: 0, time: 100 * time.Nanosecond},
		{title: "POST 1 KiB with a key, PUT 1 KiB, http; asks", requests: all[2:4], suffix: "-asked", allocs: 4, time: 500 * time.Nanosecond},
		{title: "POST 1 KiB without a key, http; asks", requests: all[4:5], suffix: "-asked", allocs: 6, time: 900 * time.Nanosecond},
		{title: "GET, HTTP/2; asks", requests: all[5:6], suffix: "-asked", allocs: 6, time: 900 * time.Nanosecond},
		{title: "POST 1 KiB without a key, HTTP/2; asks", requests: all[6:7], suffix: "-asked", allocs: 9, time: 1400 * time.Nanosecond},
		{title: "any of these with a hook", requests: all, suffix: "-hook", allocs: 13, time: 2 * time.Microsecond},
		{title: "any of these with a logger whose handler does no work", requests: all, suffix: "-logger", allocs: 13, time: 2 * time.Microsecond},
		{title: "WithAttemptTimeout: more than without", requests: all, suffix: "-attempt-timeout", more: true, allocs: 6, time: 1300 * time.Nanosecond},
		{title: "Override with one option, its context made before: more than without", requests: all, suffix: "-override", more: true, allocs: 2, time: 250 * time.Nanosecond},
	}
}

// added is what retrip adds to the bare base.
func (r *report) added(group, request, unit string) float64 {
	return difference(
		r.samples[cell{group, request, retripName, unit}],
		r.samples[cell{group, request, bareName, unit}])
}

// dearest is the most that retrip adds to one of the bound's requests, and which one that is.
func (r *report) dearest(of bound, unit string) (most float64, dearest string) {
	for i, request := range of.requests {
		added := r.added("FastPath", request+of.suffix, unit)
		if of.more {
			added -= r.added("FastPath", request, unit)
		}
		if i == 0 || added > most {
			most, dearest = added, request+of.suffix
		}
	}
	return most, dearest
}

// times is the ratio of what retrip takes to what the bare base takes.
func (r *report) times(group, request, unit string) float64 {
	return ratio(r.samples[cell{group, request, retripName, unit}], r.samples[cell{group, request, bareName, unit}])
}

func (r *report) writeBounds(b *bytes.Buffer) {
	fmt.Fprintf(b, "\n## Bounds\n\nWhat `RoundTrip` adds to a base that does nothing at all, by the benchmarks of the root package. Of several requests the "+
		"dearest counts. The bounds of the allocations are promises, and tested. Those of the time are for orientation: they were set on a "+
		"machine where rehttp adds 100 ns to the GET and 1.2 µs to the POST.\n\n")
	fmt.Fprintf(b, "| request | allocations | at most | holds | time | orientation | within | × bare |\n|---|---|---|---|---|---|---|---|\n")
	for _, of := range bounds() {
		allocs, _ := r.dearest(of, allocUnit)
		took, request := r.dearest(of, timeUnit)
		fmt.Fprintf(b, "| %s | %.0f | %.0f | %s | %s | %s | %s | %.1f |\n", of.title, allocs, of.allocs, verdict(allocs <= of.allocs),
			seconds(took), seconds(of.time.Seconds()), verdict(took <= of.time.Seconds()), r.times("FastPath", request, timeUnit))
	}
	repeated := func(unit string) (ours, bare []float64) {
		return r.samples[cell{"Repeat", "GET-loopback", retripName, unit}], r.samples[cell{"Repeat", "GET-loopback", bareName, unit}]
	}
	allocs := difference(repeated(allocUnit))
	cpu := ratio(repeated(cpuUnit))
	fmt.Fprintf(b, "| GET repeated once on loopback: more than two bare exchanges | %.0f | 15 | %s | %+.1f %% CPU | +5 %% CPU | %s | %.2f |\n",
		allocs, verdict(allocs <= 15), 100*(cpu-1), verdict(cpu <= 1.05), cpu)

	fmt.Fprintf(b, "\nFrom all cores at once the times of retrip can grow by more than those of the bare base, since only one that works on a single "+
		"core has another one that collects its garbage meanwhile. The verdict is by CPU.\n")
	fmt.Fprintf(b, "\n| from all cores at once | × bare, one core: time, CPU | × bare, all cores: time, CPU | no worse |\n|---|---|---|---|\n")
	for _, request := range r.requests["FastPathParallel"] {
		serial, parallel := r.times("FastPath", request, cpuUnit), r.times("FastPathParallel", request, cpuUnit)
		fmt.Fprintf(b, "| %s | %.2f, %.2f | %.2f, %.2f | %s |\n", spaced(request), r.times("FastPath", request, timeUnit), serial,
			r.times("FastPathParallel", request, timeUnit), parallel, verdict(parallel <= serial))
	}
}

func verdict(holds bool) string {
	if holds {
		return "yes"
	}
	return "**no**"
}
