package main

import (
	"os"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestMain(m *testing.M) {
	if slices.Contains(os.Args, "-origin") {
		serveOrders(os.Stdin, os.Stdout)
		return
	}
	os.Exit(m.Run())
}

// show plays s and returns the lines.
func show(t *testing.T, s scene) (wrong int, lines string) {
	t.Helper()
	out, err := os.Create(filepath.Join(t.TempDir(), "out"))
	require.NoError(t, err)
	defer out.Close()
	wrong, err = play(out, []scene{s})
	require.NoError(t, err)
	text, err := os.ReadFile(out.Name())
	require.NoError(t, err)
	return wrong, string(text)
}

func TestALineThatIsAsStatedIsOK(t *testing.T) {
	s := scene{
		method: "GET", origin: behaviour{Answers: []string{"500"}},
		want: outcome{result: "500", received: 1, decisions: decisions(returned)},
	}
	wrong, lines := show(t, s)
	assert.Zero(t, wrong)
	assert.Regexp(t, `(?m)^ok +GET +500 +500, 1 attempt +1 +return$`, lines)
	assert.NotContains(t, lines, "\x1b", "a file is no terminal")
}

func TestALineThatIsNotAsStatedIsCountedAndExplained(t *testing.T) {
	s := scene{
		method: "POST", key: "order-7731", origin: behaviour{Answers: []string{disconnect, "500"}},
		want: outcome{result: "200", received: 3, keys: 2, gap: 1 << 62, took: 1, decisions: decisions(returned)},
	}
	wrong, lines := show(t, s)
	assert.Equal(t, 1, wrong)
	assert.Regexp(t, `(?m)^WRONG POST \+ key +disconnect, then 500 +500, 2 attempts +2, different keys: 1, the second .+ later +retry, return$`, lines)
	for _, complaint := range []string{
		`came back "500", stated is "200"`,
		`the origin received 2, stated is 3`,
		`1 different keys, stated is 2`,
		`decisions [retry return], stated is [return]`,
		`the second request came after `,
		`it took `,
	} {
		assert.Contains(t, lines, complaint)
	}
}
