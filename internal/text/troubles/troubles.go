// Package troubles logs incidents that last long without flooding the log.
package troubles

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// Log writes a line when an incident begins, lines with a count after waits that double, and a line
// when the incident is over. Incidents with the same key share their lines, and so do those of one
// kind beyond mostKeys. P identifies who has an
// incident; each P has at most one. Log's methods are safe for concurrent use.
type Log[P comparable] struct {
	log  *slog.Logger
	unit string // the plural of P, for the lines with a count

	mu     sync.Mutex
	closed bool
	open   map[string]*trouble[P]
	of     map[P]*trouble[P]
}

type trouble[P comparable] struct {
	key  string
	what string
	tally[P]
	timer *time.Timer
	last  func() // writes the newest line that was not written
}

// tally counts what is not in the log yet, and decides when to write a line.
type tally[P comparable] struct {
	since    time.Time
	wait     time.Duration // before the next line with a count
	times    int
	unsaid   int
	affected map[P]bool
	met      map[P]bool // since the last line with a count
	over     bool       // the end was logged since the last line with a count
}

const (
	firstCount = 10 * time.Second
	lastCount  = 10 * time.Minute

	// mostKeys limits the incidents of one kind that have lines of their own at a time.
	mostKeys = 20
)

// happened counts one more occurrence, to p. It reports whether to write a line.
func (t *tally[P]) happened(p P) (say bool) {
	t.times++
	t.affected[p], t.met[p] = true, true
	if t.times == 1 {
		return true
	}
	t.unsaid++
	return false
}

// due is called after the wait. say asks for a line with the count; gone ends the incident.
func (t *tally[P]) due() (say, gone bool) {
	say = t.unsaid > 0
	t.unsaid, t.over = 0, false
	t.wait = min(2*t.wait, lastCount)
	return say, !say && len(t.affected) == 0
}

// passed reports whether to write that all are well: not after one failure, nor twice in a wait.
func (t *tally[P]) passed(p P) (say bool) {
	delete(t.affected, p)
	if len(t.affected) > 0 || t.times == 1 || t.over {
		return false
	}
	t.unsaid, t.over = 0, true
	return true
}

// New returns a Log that writes to l. unit is the plural of P.
func New[P comparable](l *slog.Logger, unit string) *Log[P] {
	return &Log[P]{log: l, unit: unit, open: map[string]*trouble[P]{}, of: map[P]*trouble[P]{}}
}

// Add records an incident of p. All incidents with the same key share the lines, which go to l.
func (ts *Log[P]) Add(l *slog.Logger, level slog.Level, p P, key, what string, args ...any) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if ts.closed {
		return
	}
	t := ts.open[key]
	if t == nil && ts.kinds(what) >= mostKeys {
		key = what
		t = ts.open[key]
	}
	if t == nil {
		t = &trouble[P]{key: key, what: what, tally: tally[P]{since: time.Now(), wait: firstCount, affected: map[P]bool{}, met: map[P]bool{}}}
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
		l.Log(context.Background(), level, what, append(args, "times", t.times, "for", time.Since(t.since).Round(time.Second), ts.unit, len(t.met))...)
	}
}

func (ts *Log[P]) kinds(what string) (n int) {
	for _, t := range ts.open {
		if t.what == what {
			n++
		}
	}
	return n
}

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
		clear(t.met)
	}
	t.timer.Reset(t.wait)
}

// Well records that p continues.
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

// Left records that p is no longer this process's.
func (ts *Log[P]) Left(p P) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if t := ts.of[p]; t != nil {
		delete(t.affected, p)
		delete(ts.of, p)
	}
}

// Of returns what is wrong with p, or "".
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
