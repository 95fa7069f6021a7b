package httptestx

import (
	"os"
	"runtime"
	"strings"
	"time"
)

// leakLimit is how long goroutines and sockets may take to go away.
const leakLimit = 10 * time.Second

// Leaks notes the goroutines and sockets of the process and fails the test
// where it ends with more. Call it first, so that it looks after every other
// clean-up, and not in a parallel test. Sockets are counted on Linux only.
func Leaks(tb TB) {
	tb.Helper()
	before, sockets := goroutines(), countSockets()
	tb.Cleanup(func() {
		tb.Helper()
		var extra []string
		gone := poll(leakLimit, func() bool {
			extra = extra[:0]
			for id, stack := range goroutines() {
				if _, known := before[id]; !known {
					extra = append(extra, stack)
				}
			}
			return len(extra) == 0
		})
		if !gone {
			tb.Errorf("httptestx: %d goroutines left:\n%s", len(extra), strings.Join(extra, "\n\n"))
		}
		open := 0
		if !poll(leakLimit, func() bool { open = countSockets(); return open <= sockets }) {
			tb.Errorf("httptestx: %d sockets open, %d before the test", open, sockets)
		}
	})
}

// goroutines returns the stacks of all goroutines by their ids, without the
// runtime's and the testing package's own.
func goroutines() map[string]string {
	buf := make([]byte, 1<<16)
	for {
		n := runtime.Stack(buf, true)
		if n < len(buf) {
			buf = buf[:n]
			break
		}
		buf = make([]byte, 2*len(buf))
	}
	all := map[string]string{}
	for stack := range strings.SplitSeq(string(buf), "\n\n") {
		id, _, _ := strings.Cut(stack, " [")
		if strings.Contains(stack, "testing.(*T).Run(") || strings.Contains(stack, "testing.runFuzz") ||
			strings.Contains(stack, "os/signal.loop") || strings.Contains(stack, "runtime.ensureSigM") {
			continue
		}
		all[id] = stack
	}
	return all
}

func countSockets() int {
	entries, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return 0
	}
	n := 0
	for _, e := range entries {
		if to, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.HasPrefix(to, "socket:") {
			n++
		}
	}
	return n
}
