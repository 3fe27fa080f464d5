package consumer

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// troubles writes what is wrong with partitions to the log without flooding it: a
// line when a trouble begins, then one with a count after times that double, and
// one when it is over. Partitions with the same trouble share its lines. Observers
// are told of everything.
type troubles struct {
	log *slog.Logger

	mu     sync.Mutex
	closed bool
	open   map[string]*trouble
	of     map[epoch.Partition]*trouble
}

// trouble is one thing that is wrong.
type trouble struct {
	key  string
	what string
	tally
	timer *time.Timer
	last  func() // writes the last line that was not written
}

// tally counts what is not in the log yet. It decides what to say; see its methods.
type tally struct {
	since    time.Time
	wait     time.Duration // before the next line with a count
	times    int           // in all
	unsaid   int
	affected map[epoch.Partition]bool
	over     bool // said so since the last line with a count
}

// notClaimed is the trouble that a claim ends.
const notClaimed = "not claimed, trying again"

const (
	firstCount = 10 * time.Second
	lastCount  = 10 * time.Minute
)

// happened: once more, to p. It reports whether to write a line.
func (t *tally) happened(p epoch.Partition) (say bool) {
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
func (t *tally) due() (say, gone bool) {
	say = t.unsaid > 0
	t.unsaid, t.over = 0, false
	t.wait = min(2*t.wait, lastCount)
	return say, !say && len(t.affected) == 0
}

// passed: p is well. It reports whether to write that all are, which is not worth a
// line after a single failure, nor twice in one wait.
func (t *tally) passed(p epoch.Partition) (say bool) {
	delete(t.affected, p)
	if len(t.affected) > 0 || t.times == 1 || t.over {
		return false
	}
	t.unsaid, t.over = 0, true
	return true
}

func newTroubles(l *slog.Logger) *troubles {
	return &troubles{log: l, open: map[string]*trouble{}, of: map[epoch.Partition]*trouble{}}
}

// add notes that a partition has a trouble. It has its lines with others whose
// database answers likewise.
func (ts *troubles) add(l *slog.Logger, level slog.Level, p epoch.Partition, what string, err error, args ...any) {
	key := what + " " + p.String()
	if what == notClaimed || errors.Is(err, epoch.ErrUnhealthy) || errors.Is(err, epoch.ErrTransient) || errors.Is(err, epoch.ErrInDoubt) {
		key = what + ": " + root(err)
	}
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if ts.closed {
		return
	}
	t := ts.open[key]
	if t == nil {
		t = &trouble{key: key, what: what, tally: tally{since: time.Now(), wait: firstCount, affected: map[epoch.Partition]bool{}}}
		ts.open[key] = t
		t.timer = time.AfterFunc(t.wait, func() { ts.count(t) })
	}
	if before := ts.of[p]; before != nil && before != t {
		delete(before.affected, p)
	}
	ts.of[p] = t
	args = append(args, "err", err)
	if t.happened(p) {
		l.Log(context.Background(), level, what, args...)
		return
	}
	t.last = func() {
		l.Log(context.Background(), level, what, append(args, "times", t.times, "for", time.Since(t.since).Round(time.Second), "partitions", len(t.affected))...)
	}
}

// count writes a line with a count, if there is something to say.
func (ts *troubles) count(t *trouble) {
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

// well notes that a partition goes on.
func (ts *troubles) well(p epoch.Partition) {
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

// claimed notes that a partition has been claimed, which is not to say that it
// goes on.
func (ts *troubles) claimed(p epoch.Partition) {
	ts.mu.Lock()
	t := ts.of[p]
	ts.mu.Unlock()
	if t != nil && t.what == notClaimed {
		ts.well(p)
	}
}

// left notes that a partition is no longer this process's.
func (ts *troubles) left(p epoch.Partition) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	if t := ts.of[p]; t != nil {
		delete(t.affected, p)
		delete(ts.of, p)
	}
}

// troubled reports whether a partition has a trouble.
func (ts *troubles) troubled(p epoch.Partition) bool {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	return ts.of[p] != nil
}

func (ts *troubles) close() {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	ts.closed = true
	for _, t := range ts.open {
		t.timer.Stop()
	}
}

// root is the text of the innermost error, which does not name the partition where
// the cause is one that many have.
func root(err error) string {
	for {
		switch e := err.(type) { //nolint:errorlint // the chain itself is walked
		case interface{ Unwrap() error }:
			inner := e.Unwrap()
			if inner == nil {
				return err.Error()
			}
			err = inner
		case interface{ Unwrap() []error }:
			inner := e.Unwrap()
			if len(inner) == 0 {
				return err.Error()
			}
			err = inner[len(inner)-1]
		default:
			return err.Error()
		}
	}
}
