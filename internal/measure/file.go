package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/retrip/retrip"
)

const offset = 1 << 20

// kinds are the ways in which a child hands the file over.
var kinds = []struct{ name, what string }{
	{"file", "*os.File"},
	{"offset", "*os.File from offset 1 MiB"},
	{"getbody", "GetBody reader"},
	{"chunked", "*os.File without ContentLength"},
}

// An order is what a child is told, a report what it answers.
type order struct {
	Kind, URL, File string
	Bare            bool
}

type report struct {
	PeakKiB int64
	Status  int
	Closed  bool // the file that the request was given

	CPU time.Duration `json:"-"` // of the child, user and system
}

// measureFiles has a child send a large file to an origin that answers 503 to the whole of
// it, then 200.
func measureFiles(s settings) ([]result, error) {
	dir, err := os.MkdirTemp("", "measure")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	name := filepath.Join(dir, "body")
	whole, rest, err := writeFile(name, s.size)
	if err != nil {
		return nil, err
	}
	var results []result
	for _, kind := range kinds {
		want := whole
		if kind.name == "offset" {
			want = rest
		}
		var bare, through, bareCPU, throughCPU []int64
		intact := true
		for range s.runs {
			for _, isBare := range []bool{true, false} {
				r, hashes, err := sendFile(order{Kind: kind.name, File: name, Bare: isBare})
				if err != nil {
					return nil, err
				}
				if isBare {
					bare, bareCPU = append(bare, r.PeakKiB), append(bareCPU, r.CPU.Milliseconds())
					continue
				}
				through, throughCPU = append(through, r.PeakKiB), append(throughCPU, r.CPU.Milliseconds()/2)
				intact = intact && r.Status == http.StatusOK && r.Closed && len(hashes) == 2 && hashes[0] == want && hashes[1] == want
			}
		}
		b, t := median(bare), median(through)
		state := "second body intact, file closed"
		if !intact {
			state = "SECOND BODY WRONG OR FILE OPEN"
		}
		results = append(results, result{
			what:   fmt.Sprintf("%d MiB %s, 503 after the whole body, then 200", s.size>>20, kind.what),
			bound:  "peak RSS < bare + 4 MiB",
			bare:   fmt.Sprintf("%s, %d ms CPU", mib(b), median(bareCPU)),
			retrip: fmt.Sprintf("%s, %d ms CPU per attempt; %s", mib(t), median(throughCPU), state),
			ok:     intact && t < b+4<<10,
		})
	}
	return results, nil
}

func median(v []int64) int64 {
	slices.Sort(v)
	return v[len(v)/2]
}

func mib(kib int64) string { return fmt.Sprintf("%.1f MiB", float64(kib)/1024) }

type digest = [sha256.Size]byte

// writeFile writes bytes that differ from their neighbours and returns the hashes of the
// whole and of what follows the offset.
func writeFile(name string, size int64) (whole, rest digest, err error) {
	f, err := os.Create(name)
	if err != nil {
		return whole, rest, err
	}
	all, tail := sha256.New(), sha256.New()
	block := make([]byte, 1<<20)
	for at := int64(0); at < size; at += int64(len(block)) {
		for i := range block {
			block[i] = byte((at>>20 + int64(i)) % 251)
		}
		all.Write(block)
		if at >= offset {
			tail.Write(block)
		}
		if _, err := f.Write(block); err != nil {
			return whole, rest, errors.Join(err, f.Close())
		}
	}
	return digest(all.Sum(nil)), digest(tail.Sum(nil)), f.Close()
}

// sendFile runs one child against an origin of its own.
func sendFile(o order) (r report, hashes []digest, err error) {
	var mu sync.Mutex
	origin, err := serve(http.HandlerFunc(func(w http.ResponseWriter, req *http.Request) {
		h := sha256.New()
		if _, err := io.CopyBuffer(h, req.Body, make([]byte, 256<<10)); err != nil {
			return
		}
		mu.Lock()
		hashes = append(hashes, digest(h.Sum(nil)))
		n := len(hashes)
		mu.Unlock()
		if n == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
		}
	}))
	if err != nil {
		return r, nil, err
	}
	defer origin.close()
	o.URL = origin.url
	told, err := json.Marshal(o)
	if err != nil {
		return r, nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return r, nil, err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, self, "-child", string(told))
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err == nil {
		err = json.Unmarshal(out, &r)
		r.CPU = cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	}
	mu.Lock()
	defer mu.Unlock()
	return r, hashes, err
}

// runChild sends one file and reports its own peak of memory.
func runChild(told string) error {
	var o order
	if err := json.Unmarshal([]byte(told), &o); err != nil {
		return err
	}
	f, err := os.Open(o.File)
	if err != nil {
		return err
	}
	info, err := f.Stat()
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(context.Background(), http.MethodPut, o.URL, f)
	if err != nil {
		return err
	}
	req.ContentLength = info.Size()
	switch o.Kind {
	case "offset":
		at, err := f.Seek(offset, io.SeekStart)
		if err != nil {
			return err
		}
		req.ContentLength -= at
	case "chunked":
		req.ContentLength = -1
	case "getbody":
		req.GetBody = func() (io.ReadCloser, error) { return os.Open(o.File) }
	}
	var rt http.RoundTripper = &http.Transport{}
	if !o.Bare {
		rt, err = retrip.New(rt, retrip.WithBackoff(retrip.Constant(10*time.Millisecond)))
		if err != nil {
			return err
		}
	}
	resp, err := rt.RoundTrip(req)
	if err != nil {
		return err
	}
	if _, err := io.Copy(io.Discard, resp.Body); err != nil {
		return err
	}
	if err := resp.Body.Close(); err != nil {
		return err
	}
	r := report{Status: resp.StatusCode}
	r.Closed = settles(func() bool {
		_, err := f.Stat()
		return errors.Is(err, os.ErrClosed)
	})
	if r.PeakKiB, err = peak(); err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(r)
}

// peak reads the process's high-water mark of resident memory, in KiB.
func peak() (int64, error) {
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(status)) {
		if value, ok := strings.CutPrefix(line, "VmHWM:"); ok {
			return strconv.ParseInt(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(value), "kB")), 10, 64)
		}
	}
	return 0, errors.New("/proc/self/status has no VmHWM")
}
