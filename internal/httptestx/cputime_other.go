//go:build !unix

package httptestx

import "time"

// cpuTime is not known here.
func cpuTime() time.Duration { return 0 }
