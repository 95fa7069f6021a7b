package matrix

import (
	"flag"
	"fmt"
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/retrip/retrip"
)

var tableFile = flag.String("table", "", "write the matrix as a Markdown table to this file; - is standard output")

// line is one run in the table.
type line struct {
	row       row
	proto     proto
	method    method
	bare, got result
}

// ranAll reports whether no -run pattern has left rows out.
func ranAll(t *testing.T) bool {
	t.Helper()
	return !strings.Contains(flag.Lookup("test.run").Value.String(), "/") &&
		flag.Lookup("test.skip").Value.String() == ""
}

const tableHead = `# What retrip does about each fault

One run of ` + "`go -C internal/matrix test -run '^TestMatrix$' . -args -table ../../docs/matrix.md`" + `: a real origin fails on purpose, and
the same request is sent by the bare ` + "`http.Transport`" + ` and by retrip with its defaults, but for the budget (none) and the delay (1 ms). Each
fault lasts for one attempt unless its line says otherwise. *n* is the number of request header blocks that reached the origin.
POST has a body and no key, POST-nr has a body without GetBody, POST0 has no body. h1 is HTTP/1.1, h1tls the same over TLS, h2 is
HTTP/2. Where a fault is a race, the classes and counts of another run may differ within what the test allows.

| id | fault | requests | bare: n, result | first attempt: class, delivery | decision / reason, permit | attempts, n | comes back |
|---|---|---|---|---|---|---|---|
`

// writeTable writes the runs as a table; runs of one row that agree share a line.
func writeTable(t *testing.T, lines []*line) {
	t.Helper()
	if *tableFile == "" {
		return
	}
	var b strings.Builder
	b.WriteString(tableHead)
	for i := 0; i < len(lines); {
		n := i
		for n < len(lines) && lines[n].row.id == lines[i].row.id {
			n++
		}
		writeRow(&b, lines[i:n])
		i = n
	}
	fmt.Fprintf(&b, "\n%d runs.\n", len(lines))
	if *tableFile == "-" {
		_, err := os.Stdout.WriteString(b.String())
		require.NoError(t, err)
		return
	}
	require.NoError(t, os.WriteFile(*tableFile, []byte(b.String()), 0o600))
	require.NoError(t, os.Chmod(*tableFile, 0o644))
}

func writeRow(b *strings.Builder, lines []*line) {
	var order []string
	requests := map[string][]string{}
	for _, l := range lines {
		cells := l.cells()
		if requests[cells] == nil {
			order = append(order, cells)
		}
		requests[cells] = append(requests[cells], string(l.proto)+" "+l.method.name)
	}
	for _, cells := range order {
		fmt.Fprintf(b, "| %s | %s | %s | %s |\n", lines[0].row.id, lines[0].row.fault, joined(requests[cells]), cells)
	}
}

// joined turns "h1 GET", "h1 PUT", "h2 GET", "h2 PUT" into "h1, h2: GET PUT".
func joined(requests []string) string {
	var protos []string
	methods := map[string][]string{}
	for _, r := range requests {
		p, m, _ := strings.Cut(r, " ")
		if methods[p] == nil {
			protos = append(protos, p)
		}
		methods[p] = append(methods[p], m)
	}
	var parts []string
	done := map[string]bool{}
	for _, p := range protos {
		list := strings.Join(methods[p], " ")
		if done[list] {
			continue
		}
		done[list] = true
		var same []string
		for _, q := range protos {
			if strings.Join(methods[q], " ") == list {
				same = append(same, q)
			}
		}
		parts = append(parts, strings.Join(same, ", ")+": "+list)
	}
	return strings.Join(parts, "; ")
}

func (l *line) cells() string {
	e := l.got.events[0]
	met := string(e.Class)
	if e.StatusCode != 0 {
		met = strconv.Itoa(e.StatusCode)
	}
	permit := ""
	if e.Permit != retrip.PermitNone {
		permit = ", " + string(e.Permit)
	}
	back := l.got.text()
	if w := l.got.wrapped(); w != nil {
		back = "*Error: " + string(w.Decision)
		if w.MaybeApplied {
			back += ", MaybeApplied"
		}
	}
	last := l.got.events[len(l.got.events)-1]
	return fmt.Sprintf("%s, %s | %s, %s | %s / %s%s | %d, %s | %s",
		count(l.bare.heads), l.bare.text(), met, e.Delivery, e.Decision, e.Reason, permit, last.Attempt, count(l.got.heads), back)
}

// count rounds what is unbounded, so that the table does not change with the
// machine's speed.
func count(n int) string {
	if n >= 10 {
		return "10+"
	}
	return strconv.Itoa(n)
}

var address = regexp.MustCompile(`\d+\.\d+\.\d+\.\d+:\d+`)

func (r result) text() string {
	if r.err == nil {
		text := strconv.Itoa(r.status)
		if r.bodyErr != nil {
			text += ", body fails"
		}
		return text
	}
	text := address.ReplaceAllString(r.err.Error(), "A:P")
	text = strings.NewReplacer("|", "/", "\n", " ", "`", "'", "\x00", "", "\x01", "").Replace(text)
	if len(text) > 90 {
		text = text[:90] + "…"
	}
	return "`" + text + "`"
}
