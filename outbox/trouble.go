package outbox

import (
	"sync"
	"time"
)

// troubleKey is what fails: one state of one receiver, or the application's own
// OnAnswer or OnRefused.
type troubleKey struct {
	receiver string // empty: the application
	kind     Kind
}

// troubles are the states that last. All partitions of a process tell of one in a line
// when it begins, now and then while it lasts, and when it is over: an outage fails
// many entries, many times.
type troubles struct {
	mu sync.Mutex
	of map[troubleKey]*trouble
}

type trouble struct {
	since    time.Time
	failures int
	lanes    int // which fail
	next     time.Time
	wait     time.Duration
}

const (
	minTroubleWait = 30 * time.Second
	maxTroubleWait = 15 * time.Minute
)

// failed counts a failure, of a lane that is new to the trouble or is not. It reports
// whether it is time for a line, and returns what there is to tell.
func (ts *troubles) failed(k troubleKey, newLane bool) (t trouble, tell bool) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	now := time.Now()
	if ts.of == nil {
		ts.of = map[troubleKey]*trouble{}
	}
	at := ts.of[k]
	if at == nil {
		at = &trouble{since: now, next: now, wait: minTroubleWait / 2}
		ts.of[k] = at
	}
	at.failures++
	if newLane {
		at.lanes++
	}
	if now.Before(at.next) {
		return *at, false
	}
	at.wait = min(2*at.wait, maxTroubleWait)
	at.next = now.Add(at.wait)
	return *at, true
}

// left counts a lane that does not fail any more, or of which nothing is known any more,
// and reports whether it was the last one.
func (ts *troubles) left(k troubleKey) (t trouble, last bool) {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	at := ts.of[k]
	if at.lanes--; at.lanes > 0 {
		return *at, false
	}
	delete(ts.of, k)
	return *at, true
}
