// Package bubble begins a synctest bubble that the race detector survives.
//
// Go 1.26 runs all timers of a bubble under one context of the race detector. Two goroutines that
// meet an expired timer at a channel at the same time, on two processors, use it at once, and
// ThreadSanitizer ends the process with "CHECK failed" (golang/go#78156). With one processor no
// two do.
package bubble

import (
	"testing"
	"testing/synctest"
)

// Test is [synctest.Test]; under the race detector the process has one processor meanwhile.
func Test(t *testing.T, f func(*testing.T)) {
	t.Helper()
	defer oneProcessor()()
	synctest.Test(t, f)
}

// Rounds returns how many of n random histories a test plays: all, and a quarter under the race detector.
// Its steps take ten times as long there, and what two goroutines do to one variable is the same in most
// histories.
func Rounds(n int) int {
	if raced {
		return max(n/4, 1)
	}
	return n
}
