package main

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"golang.org/x/perf/benchfmt"
	"golang.org/x/perf/benchmath"
)

// The units of what is measured, as benchfmt gives them.
const (
	timeUnit  = "sec/op"
	cpuUnit   = "cpu-sec/op"
	bytesUnit = "B/op"
	allocUnit = "allocs/op"
)

// A cell is one number of a table.
type cell struct{ group, request, client, unit string }

// read takes the benchmarks' output.
func (r *report) read(raw []byte) error {
	r.samples, r.requests = map[cell][]float64{}, map[string][]string{}
	reader := benchfmt.NewReader(bytes.NewReader(raw), "benchmarks")
	for reader.Scan() {
		switch rec := reader.Result().(type) {
		case *benchfmt.SyntaxError:
			return rec
		case *benchfmt.Result:
			group, parts := rec.Name.Parts()
			at := cell{group: string(group)}
			for _, part := range parts {
				if value, ok := strings.CutPrefix(string(part), "/request="); ok {
					at.request = value
				}
				if value, ok := strings.CutPrefix(string(part), "/client="); ok {
					at.client = value
				}
			}
			if !slices.Contains(r.requests[at.group], at.request) {
				r.requests[at.group] = append(r.requests[at.group], at.request)
			}
			for _, v := range rec.Values {
				at.unit = v.Unit
				r.samples[at] = append(r.samples[at], v.Value)
			}
		}
	}
	return reader.Err()
}

func median(values []float64) float64 {
	return benchmath.AssumeNothing.Summary(benchmath.NewSample(slices.Clone(values), &benchmath.DefaultThresholds), 0.95).Center
}

// difference is the median of the rounds' own differences.
func difference(values, from []float64) float64 {
	var differences []float64
	for i := range min(len(values), len(from)) {
		differences = append(differences, values[i]-from[i])
	}
	return median(differences)
}

// ratio is the median of the rounds' own ratios: what slowed a whole round down cancels out.
func ratio(values, to []float64) float64 {
	var ratios []float64
	for i := range min(len(values), len(to)) {
		ratios = append(ratios, values[i]/to[i])
	}
	return median(ratios)
}

// against tells how values differ from those of retrip, as benchstat does.
func against(values, retrip []float64) string {
	c := benchmath.AssumeNothing.Compare(
		benchmath.NewSample(slices.Clone(retrip), &benchmath.DefaultThresholds),
		benchmath.NewSample(slices.Clone(values), &benchmath.DefaultThresholds))
	return c.FormatDelta(median(retrip), median(values)) + " (" + c.String() + ")"
}

// significant reports whether a has less than b, and not by chance.
func significant(a, b []float64) bool {
	c := benchmath.AssumeNothing.Compare(
		benchmath.NewSample(slices.Clone(a), &benchmath.DefaultThresholds),
		benchmath.NewSample(slices.Clone(b), &benchmath.DefaultThresholds))
	return median(a) < median(b) && c.P < c.Alpha
}

func spread(values []float64, show func(float64) string) string {
	return fmt.Sprintf("%s (%s–%s)", show(median(values)), show(slices.Min(values)), show(slices.Max(values)))
}

func seconds(s float64) string {
	switch {
	case s < 0:
		return "−" + seconds(-s)
	case s < 9.995e-6:
		return fmt.Sprintf("%.0f ns", s*1e9)
	case s < 999.5e-6:
		return fmt.Sprintf("%.1f µs", s*1e6)
	case s < 9.995e-3:
		return fmt.Sprintf("%.2f ms", s*1e3)
	case s < 0.9995:
		return fmt.Sprintf("%.0f ms", s*1e3)
	default:
		return fmt.Sprintf("%.2f s", s)
	}
}

func mebibytes(kib float64) string { return fmt.Sprintf("%.0f MiB", kib/1024) }
