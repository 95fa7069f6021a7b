package main

import (
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestEveryClientMakesOneExchangeWhereNothingFails(t *testing.T) {
	for _, c := range clients() {
		for _, r := range rows(noopPlain, noopSecure) {
			base := &noop{major: r.major}
			got, err := c.on(counted{base}, false)(t.Context(), r.call)
			require.NoError(t, err, "%s, %s", c.name, r.name)
			require.Equal(t, http.StatusOK, got.status, "%s, %s", c.name, r.name)
			require.Equal(t, 1, base.calls, "%s, %s", c.name, r.name)
		}
	}
}

type counted struct{ *noop }

func (c counted) RoundTrip(req *http.Request) (*http.Response, error) {
	c.calls++
	return c.noop.RoundTrip(req)
}

func TestEveryClientRepeatsOnce(t *testing.T) {
	o := needOrigin(t)
	for _, c := range clients() {
		base := &noop{major: 1, flaky: true}
		got, err := c.on(base, true)(t.Context(), call{method: http.MethodPut, url: noopPlain, data: []byte("sent twice")})
		require.NoError(t, err, c.name)
		require.Equal(t, http.StatusOK, got.status, c.name)
		require.Equal(t, 2, base.calls, c.name)

		// Without a body: most of the others rewind a reader that the connection may still
		// read, which the race detector reports.
		got, err = c.on(o.base(t), true)(t.Context(), call{method: http.MethodGet, url: o.Plain + flakyPath})
		require.NoError(t, err, c.name)
		require.Equal(t, http.StatusOK, got.status, c.name)
	}
}

// The others are left out for the same reason.
func TestEveryUploadIsReported(t *testing.T) {
	const size = 1 << 20
	who := clients()[:2]
	reports, err := runUploads(t.Context(), who, 2, size, io.Discard)
	require.NoError(t, err)
	require.Len(t, reports, len(uploadSources())*len(who)-1)
	for key, got := range reports {
		require.Len(t, got, 2, key)
		for _, u := range got {
			require.Positive(t, u.PeakKiB, key)
			require.Positive(t, u.CPU, key)
			require.Equal(t, "200", u.outcome(size), key)
		}
	}
}

func TestTheReportTellsWhatWasMeasured(t *testing.T) {
	var raw strings.Builder
	for round := range 5 {
		for i, c := range clients() {
			// rehttp takes half of what retrip takes, and with more allocations.
			nanoseconds := map[string]int{bareName: 1000, retripName: 2000, "rehttp": 1500}[c.name]
			if nanoseconds == 0 {
				nanoseconds = 9000
			}
			for _, group := range []string{"Transport", "TransportParallel", "Call", "Loopback", "Repeat", "FastPath", "FastPathParallel"} {
				request := "GET"
				if group == "Repeat" {
					request = "GET-loopback"
				}
				fmt.Fprintf(&raw, "Benchmark%s/request=%s/client=%s-2 \t 100 \t %d ns/op \t %d cpu-ns/op \t 8 B/op \t %d allocs/op\n",
					group, request, c.name, nanoseconds+round, nanoseconds, 10+i)
			}
		}
	}
	r := report{settings: settings{rounds: 5, uploads: 1, time: time.Millisecond}, uploadSize: uploadSize}
	require.NoError(t, r.describe())
	require.NoError(t, r.read([]byte(raw.String())))
	r.uploads = map[uploadKey][]uploadReport{
		{retripName, sourceFile}: {{Status: http.StatusOK, Received: strconv.Itoa(uploadSize), PeakKiB: 10 << 10}},
		{"rehttp", sourceFile}:   {{Problem: `Put "http://127.0.0.1/": a | b`}},
	}
	text := string(r.markdown())
	for _, line := range []string{
		"| retrip | 2002 ns (2000 ns–2004 ns) | 1000 ns | 2.00 |  | 8 | 11 |",
		"| rehttp | 1502 ns (1500 ns–1504 ns) | 500 ns | 1.50 | -24.98% (p=0.008 n=5) | 8 | 12 |",
		"| Transport | GET | rehttp | × 0.75 |  |  |  |",
		"| Loopback | GET | rehttp | × 0.75 | × 0.75 |  |  |",
		"| retrip | 10 MiB (10 MiB–10 MiB) | 0 ns (0 ns–0 ns) | 0 ns (0 ns–0 ns) | 200 |",
		`a \| b |`,
		"| GET, http | 1 | 0 | **no** | 1000 ns | 100 ns | **no** | 2.0 |",
		"| GET | 2.00, 2.00 | 2.00, 2.00 | yes |",
	} {
		require.Contains(t, text, line)
	}
	require.NotContains(t, text, "| GET | heimdall |")
}

func TestABrokenMeasurementIsAnError(t *testing.T) {
	var r report
	require.Error(t, r.read([]byte("BenchmarkCall/request=GET/client=bare-2 \t 100 \t many ns/op\n")))
}
