package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A report is all that was measured, and on what.
type report struct {
	settings settings
	began    time.Time
	took     time.Duration

	processor string
	kernel    string
	load      string // before the run
	modules   map[string]string

	samples    map[cell][]float64 // in the order of the rounds
	requests   map[string][]string
	uploads    map[uploadKey][]uploadReport
	uploadSize int64
}

// describe tells of the machine and of the versions that this program was built with.
func (r *report) describe() error {
	kernel, err := os.ReadFile("/proc/sys/kernel/osrelease")
	if err != nil {
		return err
	}
	load, err := os.ReadFile("/proc/loadavg")
	if err != nil {
		return err
	}
	processors, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return err
	}
	r.kernel = strings.TrimSpace(string(kernel))
	r.load, _, _ = strings.Cut(string(load), " ")
	r.processor = "unknown processor"
	for line := range strings.Lines(string(processors)) {
		if name, value, _ := strings.Cut(line, ":"); strings.TrimSpace(name) == "model name" {
			r.processor = strings.TrimSpace(value)
			break
		}
	}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return errors.New("benchmarks: this program has no build information")
	}
	r.modules = map[string]string{}
	for _, m := range info.Deps {
		r.modules[m.Path] = m.Version
		if m.Replace != nil {
			r.modules[m.Path] = "this tree"
		}
	}
	return nil
}

// markdown is the document.
func (r *report) markdown() []byte {
	var b bytes.Buffer
	r.writeHead(&b)
	r.writeSummary(&b)
	r.writeBounds(&b)
	for _, g := range []struct{ name, title, text string }{
		{"Transport", "What a transport adds", "The base does no work but reads the request's body, so that nearly all that is seen is the " +
			"client's own cost. Only the clients that are an `http.RoundTripper` take part. Each call has a copy of the request, for all alike."},
		{"TransportParallel", "The same from all cores at once", "One transport, one origin."},
		{"Call", "What a whole call costs", "The same base below the client that a program would use: an `http.Client` with the transport, or " +
			"the client that the library brings along."},
		{"Loopback", "A call on loopback", "The origin is a process of its own on the same machine. HTTP2 is over TLS, the others are HTTP/1.1 without it. " +
			"CPU is that of the client's process."},
		{"Repeat", "A call that is repeated once", "The first exchange is answered by 503, the second by 200, with no wait between them; `bare` is two exchanges on " +
			"the bare base. retrip's budget is off here, since it would rightly end a load of which half fails."},
	} {
		fmt.Fprintf(&b, "\n## %s\n\n%s\n", g.title, g.text)
		r.writeGroup(&b, g.name)
	}
	r.writeUploads(&b)
	r.writeLosses(&b)
	r.writeHow(&b)
	return b.Bytes()
}

func (r *report) writeHead(b *bytes.Buffer) {
	fmt.Fprintf(b, "# Benchmarks\n\n")
	fmt.Fprintf(b, "<!-- Written by `go -C benchmarks run . -o ../BENCHMARKS.md`; changes by hand are lost. -->\n\n")
	if r.settings.short || r.settings.rounds < 4 {
		fmt.Fprintf(b, "**A trial run, %d × %s for each benchmark: its numbers say nothing.**\n\n", r.settings.rounds, r.settings.time)
	}
	fmt.Fprintf(b, "Measured on %s with %s on %s/%s, kernel %s, %d × %s; load average before the run %s. ",
		r.began.UTC().Format(time.DateOnly), runtime.Version(), runtime.GOOS, runtime.GOARCH, r.kernel, runtime.NumCPU(), r.processor, r.load)
	fmt.Fprintf(b, "%d rounds of %s for each benchmark, %d for each upload, %s in all. ",
		r.settings.rounds, r.settings.time, r.settings.uploads, r.took.Round(time.Second))
	fmt.Fprintf(b, "In a round all clients work by turns of 2 ms, in a random order, so that what makes the machine slower for a while meets them "+
		"alike; a client's time in a round is the mean of its turns without the fastest and the slowest tenth.\n\n")
	fmt.Fprintf(b, "Times are medians of the rounds, with the least and the greatest in brackets. \"More than bare\" and \"× bare\" are the medians of the "+
		"rounds' own differences and ratios to the bare base. \"Against retrip\" is how the medians differ, with the p-value of the "+
		"Mann-Whitney U test that benchstat uses; ~ is a difference that may be chance. Allocations and bytes are per call.\n\n")
	fmt.Fprintf(b, "| client | module | version | settings |\n|---|---|---|---|\n")
	for _, c := range clients() {
		module, version := "net/http", runtime.Version()
		if c.module != "" {
			module, version = c.module, r.modules[c.module]
		}
		fmt.Fprintf(b, "| %s | %s | %s | %s |\n", c.name, module, version, c.settings)
	}
}

// writeSummary shows what the many tables below say in few.
func (r *report) writeSummary(b *bytes.Buffer) {
	fmt.Fprintf(b, "\n## In short\n")
	for _, t := range []struct {
		group, title string
		show         func(values, bare cell) string
	}{
		{"Transport", "time and allocations added by the transport alone", func(values, bare cell) string {
			more := difference(r.samples[values], r.samples[bare])
			values.unit, bare.unit = allocUnit, allocUnit
			return fmt.Sprintf("%s, %.0f", seconds(more), difference(r.samples[values], r.samples[bare]))
		}},
		{"Call", "a whole call on a base that does no work, × bare", func(values, bare cell) string {
			return fmt.Sprintf("%.2f", ratio(r.samples[values], r.samples[bare]))
		}},
		{"Loopback", "a call on loopback, × bare: time, CPU of the client", r.timeAndCPU},
		{"Repeat", "a call repeated once, × two bare exchanges: time, CPU of the client", r.timeAndCPU},
	} {
		var names []string
		for _, c := range clients() {
			if c.name != bareName && len(r.samples[cell{t.group, r.requests[t.group][0], c.name, timeUnit}]) > 0 {
				names = append(names, c.name)
			}
		}
		fmt.Fprintf(b, "\n| %s | %s |\n|---|%s\n", t.title, strings.Join(names, " | "), strings.Repeat("---|", len(names)))
		for _, request := range r.requests[t.group] {
			fmt.Fprintf(b, "| %s |", spaced(request))
			for _, name := range names {
				fmt.Fprintf(b, " %s |", t.show(cell{t.group, request, name, timeUnit}, cell{t.group, request, bareName, timeUnit}))
			}
			fmt.Fprintln(b)
		}
	}
	fmt.Fprintf(b, "\n| largest resident set, upload of %d MiB |", r.uploadSize>>20)
	for _, c := range clients() {
		fmt.Fprintf(b, " %s |", c.name)
	}
	fmt.Fprintf(b, "\n|---|%s\n", strings.Repeat("---|", len(clients())))
	for _, source := range uploadSources() {
		fmt.Fprintf(b, "| %s |", source)
		for _, c := range clients() {
			key := uploadKey{c.name, source}
			switch peaks := r.peaks(key); {
			case len(peaks) == 0:
				fmt.Fprintf(b, " – |")
			case r.uploads[key][0].outcome(r.uploadSize) != "200":
				fmt.Fprintf(b, " failed |")
			default:
				fmt.Fprintf(b, " %s |", mebibytes(median(peaks)))
			}
		}
		fmt.Fprintln(b)
	}
}

func (r *report) timeAndCPU(values, bare cell) string {
	times := ratio(r.samples[values], r.samples[bare])
	values.unit, bare.unit = cpuUnit, cpuUnit
	return fmt.Sprintf("%.2f, %.2f", times, ratio(r.samples[values], r.samples[bare]))
}

func spaced(name string) string { return strings.ReplaceAll(name, "-", " ") }

func (r *report) writeGroup(b *bytes.Buffer, group string) {
	cpu := group == "Loopback" || group == "Repeat"
	for _, request := range r.requests[group] {
		get := func(client, unit string) []float64 { return r.samples[cell{group, request, client, unit}] }
		bare, ours := get(bareName, timeUnit), get(retripName, timeUnit)
		fmt.Fprintf(b, "\n| %s | time | more than bare | × bare | against retrip |", spaced(request))
		if cpu {
			fmt.Fprintf(b, " CPU | CPU × bare |")
		}
		fmt.Fprintf(b, " bytes | allocations |\n|---|---|---|---|---|---|---|%s\n", strings.Repeat("---|", 2*btoi(cpu)))
		for _, c := range clients() {
			values := get(c.name, timeUnit)
			if len(values) == 0 {
				continue
			}
			more, than, times := "", "", ""
			if c.name != bareName {
				more, times = seconds(difference(values, bare)), fmt.Sprintf("%.2f", ratio(values, bare))
			}
			if c.name != retripName {
				than = against(values, ours)
			}
			fmt.Fprintf(b, "| %s | %s | %s | %s | %s |", c.name, spread(values, seconds), more, times, than)
			if cpu {
				used := get(c.name, cpuUnit)
				fmt.Fprintf(b, " %s | %.2f |", spread(used, seconds), ratio(used, get(bareName, cpuUnit)))
			}
			fmt.Fprintf(b, " %.0f | %.0f |\n", median(get(c.name, bytesUnit)), median(get(c.name, allocUnit)))
		}
	}
}

func btoi(yes bool) int {
	if yes {
		return 1
	}
	return 0
}

// peaks are in KiB.
func (r *report) peaks(key uploadKey) (peaks []float64) {
	for _, u := range r.uploads[key] {
		peaks = append(peaks, float64(u.PeakKiB))
	}
	return peaks
}

func (r *report) writeUploads(b *bytes.Buffer) {
	fmt.Fprintf(b, "\n## Memory of an upload\n\nA PUT of %d MiB on loopback over HTTP/1.1, each in a process of its own: from a file, from a reader that can be read once, and from "+
		"a file where the first exchange is answered by 503 after all of it was read. Peak is the process's largest resident set.\n", r.uploadSize>>20)
	for _, source := range uploadSources() {
		fmt.Fprintf(b, "\n| %s | peak | time | CPU | outcome |\n|---|---|---|---|---|\n", source)
		for _, c := range clients() {
			key := uploadKey{c.name, source}
			if len(r.uploads[key]) == 0 {
				continue
			}
			var wall, cpu []float64
			var outcomes []string
			for _, u := range r.uploads[key] {
				wall, cpu = append(wall, u.Wall.Seconds()), append(cpu, u.CPU.Seconds())
				if o := u.outcome(r.uploadSize); !slices.Contains(outcomes, o) {
					outcomes = append(outcomes, o)
				}
			}
			fmt.Fprintf(b, "| %s | %s | %s | %s | %s |\n", c.name, spread(r.peaks(key), mebibytes),
				spread(wall, seconds), spread(cpu, seconds), strings.Join(outcomes, "; "))
		}
	}
}

// outcome tells in a few words what became of an upload.
func (u uploadReport) outcome(size int64) string {
	switch {
	case u.Problem != "":
		text := u.Problem
		if at := strings.LastIndex(text, "\": "); at >= 0 { // what url.Error puts before it
			text = text[at+len("\": "):]
		}
		return "error: " + strings.NewReplacer("|", "\\|", "\n", " ").Replace(text)
	case u.Received != strconv.FormatInt(size, 10):
		return fmt.Sprintf("%d, but the origin got %s bytes", u.Status, u.Received)
	default:
		return strconv.Itoa(u.Status)
	}
}

// writeLosses lists by the numbers where another client is better, so that nobody has to
// look for it.
func (r *report) writeLosses(b *bytes.Buffer) {
	fmt.Fprintf(b, "\n## Where another client is better than retrip\n\nEvery row above where another client's time, CPU, allocations or memory are less than "+
		"retrip's, and not by chance: its share of retrip's. Where nothing fails retrip spends more mostly on the trace from which it learns whether a "+
		"request was sent: those over HTTP/2 need it, and those that may not simply be repeated.\n\n")
	fmt.Fprintf(b, "| table | request | client | time | CPU | allocations | memory |\n|---|---|---|---|---|---|---|\n")
	for _, group := range []string{"Transport", "TransportParallel", "Call", "Loopback", "Repeat"} {
		for _, request := range r.requests[group] {
			for _, c := range others() {
				shares := make([]string, 0, 4)
				for _, unit := range []string{timeUnit, cpuUnit, allocUnit} {
					theirs, ours := r.samples[cell{group, request, c.name, unit}], r.samples[cell{group, request, retripName, unit}]
					if unit == cpuUnit && group != "Loopback" && group != "Repeat" {
						theirs = nil // the tables do not show it
					}
					shares = append(shares, share(theirs, ours))
				}
				writeShares(b, group, spaced(request), c.name, append(shares, "")...)
			}
		}
	}
	for _, source := range uploadSources() {
		for _, c := range others() {
			writeShares(b, "upload", source, c.name, "", "", "",
				share(r.peaks(uploadKey{c.name, source}), r.peaks(uploadKey{retripName, source})))
		}
	}
}

func others() []client { return clients()[2:] }

// share is empty where theirs are not less, or that may be chance.
func share(theirs, ours []float64) string {
	if len(theirs) == 0 || !significant(theirs, ours) {
		return ""
	}
	return fmt.Sprintf("× %.2f", ratio(theirs, ours))
}

func writeShares(b *bytes.Buffer, group, request, name string, shares ...string) {
	if strings.Join(shares, "") != "" {
		fmt.Fprintf(b, "| %s | %s | %s | %s |\n", group, request, name, strings.Join(shares, " | "))
	}
}

func (r *report) writeHow(b *bytes.Buffer) {
	fmt.Fprintf(b, `
## How to repeat it

`+"```"+`
go -C benchmarks run . -o ../BENCHMARKS.md                    # this document
go -C benchmarks run . -short                                 # a trial of everything, in seconds
go -C benchmarks run . -o /tmp/report.md -raw /tmp/raw.txt    # the measurements too
go -C benchmarks tool benchstat -col /client /tmp/raw.txt     # what benchstat makes of them
`+"```"+`

It needs Linux and a machine that does nothing else. What retrip itself promises of its fast path is tested in the root by
`+"`go test -run Allocations .`"+` and measured by `+"`go test -run '^$' -bench . -benchmem .`"+`.
`)
}
