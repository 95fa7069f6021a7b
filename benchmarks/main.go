// Command benchmarks compares retrip with other HTTP clients that repeat requests, all of
// them in one run on one machine, and writes what it measured as Markdown.
//
//	go -C benchmarks run . -o ../BENCHMARKS.md
//
// It runs on Linux, from its own folder, and sends to loopback only.
package main

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"time"
)

type settings struct {
	output  string
	raw     string
	rounds  int
	uploads int
	time    time.Duration // of one benchmark in one round
	short   bool
}

func main() {
	played, err := playRole()
	if !played {
		var s settings
		flag.StringVar(&s.output, "o", "", "write the report to this `file` instead of the standard output")
		flag.StringVar(&s.raw, "raw", "", "write the measurements, as benchstat reads them, to this `file`")
		flag.IntVar(&s.rounds, "rounds", 10, "how often each benchmark is run; a significance needs 4")
		flag.IntVar(&s.uploads, "uploads", 4, "how often each upload is run, by turns; a significance needs 4")
		flag.DurationVar(&s.time, "benchtime", 100*time.Millisecond, "how long each client works in a round")
		flag.BoolVar(&s.short, "short", false, "try everything once: the numbers mean nothing")
		flag.Parse()
		err = s.check(flag.NArg())
		if err == nil {
			ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
			err = run(ctx, s)
			stop()
		}
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func (s *settings) check(arguments int) error {
	if s.short {
		s.rounds, s.uploads, s.time = 1, 1, time.Millisecond
	}
	if arguments > 0 || s.rounds < 1 || s.uploads < 1 || s.time <= 0 {
		return errors.New("benchmarks: rounds, uploads and benchtime must be positive, and there are no arguments")
	}
	return nil
}

func run(ctx context.Context, s settings) error {
	r := report{settings: s, began: time.Now()}
	if err := r.describe(); err != nil {
		return err
	}
	raw, err := measure(ctx, s)
	if s.raw != "" && len(raw) > 0 {
		err = errors.Join(err, os.WriteFile(s.raw, raw, 0o600))
	}
	if err != nil {
		return err
	}
	if err := r.read(raw); err != nil {
		return err
	}
	r.uploadSize = uploadSize
	if s.short {
		r.uploadSize = uploadShort
	}
	if r.uploads, err = runUploads(ctx, clients(), s.uploads, r.uploadSize, os.Stderr); err != nil {
		return err
	}
	r.took = time.Since(r.began)
	text := r.markdown()
	if s.output == "" {
		_, err = os.Stdout.Write(text)
		return err
	}
	return os.WriteFile(s.output, text, 0o644) //nolint:gosec // a document, for everybody to read
}

// A suite is a package's benchmarks.
type suite struct {
	folder string
	name   string // a pattern
	time   time.Duration
}

// measure runs the benchmarks of this module and those of retrip itself, all of them once in
// each round.
func measure(ctx context.Context, s settings) ([]byte, error) {
	dir, err := os.MkdirTemp("", "retrip-benchmarks-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	suites := []suite{{"..", "^BenchmarkFastPath", s.time / 2}, {".", ".", s.time}}
	for i, of := range suites {
		build := exec.CommandContext(ctx, "go", "-C", of.folder, "test", "-c", "-o", binary(dir, i), ".") //nolint:gosec // our own folders
		build.Stdout, build.Stderr = os.Stderr, os.Stderr
		if err := build.Run(); err != nil {
			return nil, fmt.Errorf("benchmarks: build in %s: %w", of.folder, err)
		}
	}
	var raw bytes.Buffer
	for round := range s.rounds {
		fmt.Fprintf(os.Stderr, "benchmarks, round %d of %d\n", round+1, s.rounds)
		for i, of := range suites {
			bench := exec.CommandContext(ctx, binary(dir, i), "-test.run=^$", "-test.bench="+of.name, "-test.benchtime="+of.time.String()) //nolint:gosec // built above
			bench.Stdout, bench.Stderr = &raw, os.Stderr
			if err := bench.Run(); err != nil {
				_, _ = io.Copy(os.Stderr, &raw)
				return nil, fmt.Errorf("benchmarks: round %d: %w", round+1, err)
			}
		}
	}
	return raw.Bytes(), nil
}

func binary(dir string, number int) string { return filepath.Join(dir, strconv.Itoa(number)+".test") }
