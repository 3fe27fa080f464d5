// Package troubles writes what is wrong for long to a log without flooding it.
package troubles

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// Log writes a line when a trouble begins, then one with a count after times that
// double, and one when it is over. Those that have the same trouble share its lines.
// P names whoever can have one: each has one at a time. Its methods are safe for
// concurrent use.
type Log[P comparable] struct {
	log  *slog.Logger
	unit string // what the P are, in the lines with a count

	mu     sync.Mutex
	closed bool
	open   map[string]*trouble[P]
	of     map[P]*trouble[P]
}

// trouble is one thing that is wrong.
type trouble[P comparable] struct {
	key  string
	what string
	tally[P]
	timer *time.Timer
	last  func() // writes the last line that was not written
}

// tally counts what is not in the log yet. It decides what to say; see its methods.
type tally[P comparable] struct {
	since    time.Time
	wait     time.Duration // before the next line with a count
	times    int           // in all
	unsaid   int
	affected map[P]bool
	over     bool // said so since the last line with a count
}

const (
	firstCount = 10 * time.Second
	lastCount  = 10 * time.Minute
)

// happened: once more, to p. It reports whether to write a line.
func (t *tally[P]) happened(p P) (say bool) {
	t.times++
	t.affected[p] = true
	if t.times == 1 {
		return true
	}
	t.unsaid++
	return false
}

// due: the wait is over. It reports whether to write a line with the count, and
// whether that was the last wait, as nothing is wrong any more.
func (t *tally[P]) due() (say, gone bool) {
	say = t.unsaid > 0
	t.unsaid, t.over = 0, false
	t.wait = min(2*t.wait, lastCount)
	return say, !say && len(t.affected) == 0
}

// passed: p is well. It reports whether to write that all are, which is not worth a
// line after a single failure, nor twice in one wait.
func (t *tally[P]) passed(p P) (say bool) {
	delete(t.affected, p)
	if len(t.affected) > 0 || t.times == 1 || t.over {
		return false
	}
	t.unsaid, t.over = 0, true
	return true
}

// New returns one that writes to l, and calls what has a trouble by that plural.
func New[P comparable](l *slog.Logger, unit string) *Log[P] {
	return &Log[P]{log: l, unit: unit, open: map[string]*trouble[P]{}, of: map[P]*trouble[P]{}}
}

// Add notes that p has a trouble, whose lines go to l. It shares them with all that have
// one with the same key.
func (ts *Log[P]) Add(l *slog.Logger, level slog.Level, p P, key, what string, args ...any) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if ts.closed {
		return
	}
	t := ts.open[key]
	if t == nil {
		t = &trouble[P]{key: key, what: what, tally: tally[P]{since: time.Now(), wait: firstCount, affected: map[P]bool{}}}
		ts.open[key] = t
		t.timer = time.AfterFunc(t.wait, func() { ts.count(t) })
	}
	if before := ts.of[p]; before != nil && before != t {
		delete(before.affected, p)
	}
	ts.of[p] = t
	if t.happened(p) {
		l.Log(context.Background(), level, what, args...)
		return
	}
	t.last = func() {
		l.Log(context.Background(), level, what, append(args, "times", t.times, "for", time.Since(t.since).Round(time.Second), ts.unit, len(t.affected))...)
	}
}

// count writes a line with a count, if there is something to say.
func (ts *Log[P]) count(t *trouble[P]) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if ts.closed {
		return
	}
	say, gone := t.due()
	if gone {
		delete(ts.open, t.key)
		return
	}
	if say {
		t.last()
	}
	t.timer.Reset(t.wait)
}

// Well notes that p continues.
func (ts *Log[P]) Well(p P) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	t := ts.of[p]
	if t == nil {
		return
	}
	delete(ts.of, p)
	if t.passed(p) && !ts.closed {
		ts.log.Info("over: "+t.what, "times", t.times, "for", time.Since(t.since).Round(time.Millisecond))
	}
}

// Left notes that p is no longer this process's.
func (ts *Log[P]) Left(p P) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if t := ts.of[p]; t != nil {
		delete(t.affected, p)
		delete(ts.of, p)
	}
}

// Of returns what is wrong with p, or nothing.
func (ts *Log[P]) Of(p P) (what string) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if t := ts.of[p]; t != nil {
		return t.what
	}
	return ""
}

// Close ends all lines.
func (ts *Log[P]) Close() {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.closed = true
	for _, t := range ts.open {
		t.timer.Stop()
	}
}
