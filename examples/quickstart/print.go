package main

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"time"
)

const row = "%-5s %-10s %-28s %-35s %-28s %s\n"

// printScene writes the line of a scene, and what is wrong with it.
func printScene(out *os.File, s scene, got *outcome, problems []string) {
	verdict := paint(out, green, "ok   ")
	if len(problems) > 0 {
		verdict = paint(out, red, "WRONG")
	}
	steps := make([]string, len(got.decisions))
	for i, d := range got.decisions {
		steps[i] = string(d)
	}
	fmt.Fprintf(out, row, verdict, s.request(), s.origin, got.cameBack(s), got.seen(s), strings.Join(steps, ", "))
	for _, p := range problems {
		fmt.Fprintln(out, "      "+paint(out, red, p))
	}
}

func (s scene) request() string {
	if s.key != "" {
		return s.method + " + key"
	}
	return s.method
}

func (got *outcome) cameBack(s scene) string {
	text := fmt.Sprintf("%s, %d attempt", got.result, len(got.decisions))
	if len(got.decisions) != 1 {
		text += "s"
	}
	if s.timeout > 0 {
		text += fmt.Sprintf(" in %v of %v", got.took.Round(time.Millisecond), s.timeout)
	}
	return text
}

func (got *outcome) seen(s scene) string {
	text := strconv.Itoa(got.received)
	if s.key != "" {
		text += fmt.Sprintf(", different keys: %d", got.keys)
	}
	if s.want.gap > 0 {
		text += fmt.Sprintf(", the second %v later", got.gap.Round(time.Millisecond))
	}
	return text
}

const (
	green = "\x1b[32m"
	red   = "\x1b[31m"
	plain = "\x1b[0m"
)

// paint colours text where out is a terminal. See https://no-color.org for NO_COLOR.
func paint(out *os.File, colour, text string) string {
	info, err := out.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 || os.Getenv("NO_COLOR") != "" || os.Getenv("TERM") == "dumb" {
		return text
	}
	return colour + text + plain
}
