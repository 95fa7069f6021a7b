//go:build race

package main

// raceEnabled lets the server processes be built as the tests are.
const raceEnabled = true
