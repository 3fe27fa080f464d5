package outbox

import (
	"sync"
	"time"
)

// This file decides when failures of a receiver are worth a line in the log. relay.go counts them
// and writes the lines.

// troubleKey identifies a failure: a kind of failure of one receiver, or of the application's
// OnAnswer and OnRefused.
type troubleKey struct {
	receiver string // empty: the application
	kind     Kind
}

// troubles are the current failures of all partitions of a process. They limit log lines, because
// an outage makes many entries fail many times: one line when a failure begins, some while it
// lasts, and one when it is over.
type troubles struct {
	mu sync.Mutex
	of map[troubleKey]*trouble
}

type trouble struct {
	since    time.Time
	failures int
	lanes    int       // that fail
	next     time.Time // of a log line
	wait     time.Duration
}

const (
	minTroubleWait = 30 * time.Second
	maxTroubleWait = 15 * time.Minute
)

// failed counts a failure. newLane says that the lane did not fail so before. report is true
// when it is time for a log line.
func (ts *troubles) failed(k troubleKey, newLane bool) (t trouble, report bool) {
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

// left removes a lane that succeeds again or has ended. last reports whether no other lane fails.
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
