// Command measure measures what bodies and connections cost through retrip, beside the bare
// transport, and exits with a failure where a bound does not hold.
//
//	go run ./internal/measure                  every row; about a minute
//	go run ./internal/measure -row trickle     one row, or several with commas between
//	go run -race ./internal/measure -row early under the race detector
//
// It needs Linux: memory is VmHWM of /proc/self/status, in a process of its own per run.
package main

import (
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
)

// A settings holds what the flags say.
type settings struct {
	runs int   // of each memory figure
	size int64 // of the file, in bytes
	ops  int   // operations of the rows that count connections and leftovers
}

// A result is one line of the table.
type result struct {
	what, bound  string
	bare, retrip string
	ok           bool
}

// rows are the lines by name, in the order in which they are printed.
var rows = []struct {
	name string
	run  func(settings) ([]result, error)
}{
	{"file", measureFiles},
	{"conns", measureConnections},
	{"drain", measureDrains},
	{"early", measureEarly},
	{"trickle", measureTrickle},
	{"cancel", measureCancel},
}

func main() {
	child := flag.String("child", "", "internal: what a child process sends")
	only := flag.String("row", "", "rows to measure, with commas between; default all: "+strings.Join(names(), ","))
	runs := flag.Int("runs", 5, "runs of each memory figure; their median counts")
	size := flag.Int64("size", 256, "size of the file, in MiB")
	ops := flag.Int("ops", 1000, "operations of the rows conns and cancel")
	flag.Parse()
	if *child != "" {
		if err := runChild(*child); err != nil {
			fmt.Fprintln(os.Stderr, "measure:", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(run(os.Stdout, *only, settings{runs: *runs, size: *size << 20, ops: *ops}))
}

func names() []string {
	all := make([]string, len(rows))
	for i, r := range rows {
		all[i] = r.name
	}
	return all
}

// run prints the table and returns the exit code.
func run(out io.Writer, only string, s settings) int {
	chosen := names()
	if only != "" {
		chosen = strings.Split(only, ",")
	}
	for _, name := range chosen {
		if !slices.Contains(names(), name) {
			fmt.Fprintf(os.Stderr, "measure: no row %q; there are %s\n", name, strings.Join(names(), ", "))
			return 2
		}
	}
	fmt.Fprintf(out, "%s %s/%s, %d CPUs, race detector %s\n\n", runtime.Version(), runtime.GOOS, runtime.GOARCH,
		runtime.NumCPU(), map[bool]string{true: "on", false: "off"}[raceEnabled])
	fmt.Fprintln(out, "| what | bound | bare | retrip | |")
	fmt.Fprintln(out, "|---|---|---|---|---|")
	code := 0
	for _, row := range rows {
		if !slices.Contains(chosen, row.name) {
			continue
		}
		results, err := row.run(s)
		if err != nil {
			fmt.Fprintf(os.Stderr, "measure: %s: %v\n", row.name, err)
			return 1
		}
		for _, r := range results {
			verdict := "holds"
			if !r.ok {
				verdict, code = "DOES NOT HOLD", 1
			}
			fmt.Fprintf(out, "| %s | %s | %s | %s | %s |\n", r.what, r.bound, r.bare, r.retrip, verdict)
		}
	}
	return code
}
