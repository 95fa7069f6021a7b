package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// An upload's order is what the child process is asked for, and its report what it says.
type (
	uploadOrder struct {
		Origin *origin
		Client string
		Source string // one of uploadSources
		File   string
	}
	uploadReport struct {
		Status   int
		Received string
		PeakKiB  int64 // the process's largest resident set
		Wall     time.Duration
		CPU      time.Duration // user and system
		Problem  string
	}
)

const (
	sourceFile     = "file"
	sourceStream   = "one-shot reader"
	sourceRepeated = "file, answered 503 once"

	uploadSize  = 256 << 20
	uploadShort = 32 << 20
)

func uploadSources() []string { return []string{sourceFile, sourceStream, sourceRepeated} }

// upload is the child's part: it sends one body by one client and tells what that took.
func upload(in io.Reader, out io.Writer) error {
	var order uploadOrder
	if err := json.NewDecoder(in).Decode(&order); err != nil {
		return err
	}
	c, err := clientNamed(order.Client)
	if err != nil {
		return err
	}
	file, err := os.Open(order.File)
	if err != nil {
		return err
	}
	defer file.Close() // most clients have closed it by then
	info, err := file.Stat()
	if err != nil {
		return err
	}
	base, err := order.Origin.transport()
	if err != nil {
		return err
	}
	put := call{method: http.MethodPut, url: order.Origin.Plain + "/", source: file, size: info.Size()}
	repeated := order.Source == sourceRepeated
	switch {
	case order.Source == sourceStream:
		put.source = struct{ io.Reader }{file}
	case repeated:
		put.url = order.Origin.Plain + flakyPath
	}

	var report uploadReport
	began := time.Now()
	got, err := c.on(base, repeated)(context.Background(), put)
	report.Wall, report.CPU = time.Since(began), cpuTime()
	report.Status, report.Received = got.status, got.received
	if err != nil {
		report.Problem = strings.ReplaceAll(err.Error(), order.File, "the file")
	}
	if report.PeakKiB, err = peakKiB(); err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(report)
}

// cpuTime is what this process has used so far.
func cpuTime() time.Duration {
	var usage syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &usage); err != nil {
		panic(err) // the arguments are constants
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}

// peakKiB reads the kernel's own mark. Rusage has one too, which begins with that of the
// process that started this one.
func peakKiB() (int64, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			return strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
		}
	}
	return 0, errors.New("benchmarks: /proc/self/status has no VmHWM")
}

// An uploadKey names a cell of the table.
type uploadKey struct{ client, source string }

// runUploads sends a file of size zeros in child processes, by turns.
func runUploads(ctx context.Context, who []client, rounds int, size int64, progress io.Writer) (map[uploadKey][]uploadReport, error) {
	file, err := os.CreateTemp("", "retrip-upload-")
	if err != nil {
		return nil, err
	}
	defer func() { _ = os.Remove(file.Name()) }()
	err = errors.Join(file.Truncate(size), file.Close())
	if err != nil {
		return nil, err
	}
	reports := map[uploadKey][]uploadReport{}
	for round := range rounds {
		fmt.Fprintf(progress, "uploads, round %d of %d\n", round+1, rounds)
		for _, source := range uploadSources() {
			for _, c := range rotated(who, round) {
				if source == sourceRepeated && c.name == bareName {
					continue // nothing repeats it
				}
				report, err := runUpload(ctx, uploadOrder{Client: c.name, Source: source, File: file.Name()})
				if err != nil {
					return nil, fmt.Errorf("benchmarks: upload by %s from %s: %w", c.name, source, err)
				}
				key := uploadKey{c.name, source}
				reports[key] = append(reports[key], report)
			}
		}
	}
	return reports, nil
}

// runUpload has an origin of its own, because one that answered a client which gave up
// half-way would begin the next one's exchanges with the wrong answer.
func runUpload(ctx context.Context, order uploadOrder) (report uploadReport, err error) {
	o, err := startOrigin(ctx)
	if err != nil {
		return report, err
	}
	defer func() { err = errors.Join(err, o.close()) }()
	order.Origin = o
	text, err := json.Marshal(order)
	if err != nil {
		return report, err
	}
	cmd, err := startRole(ctx, roleUpload)
	if err != nil {
		return report, err
	}
	var out bytes.Buffer
	cmd.Stdin, cmd.Stdout = bytes.NewReader(text), &out
	if err := cmd.Run(); err != nil {
		return report, err
	}
	return report, json.NewDecoder(bufio.NewReader(&out)).Decode(&report)
}

// rotated gives everybody each place in turn.
func rotated[T any](all []T, round int) []T {
	at := round % len(all)
	return append(append([]T(nil), all[at:]...), all[:at]...)
}
