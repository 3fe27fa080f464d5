package consumer

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// This file logs what a Run that ends waits for. It ends nothing itself: Options.BatchTimeout and
// HangTimeout limit the wait.

// underWay lists the transactions under way, for operators who wait for them.
type underWay struct {
	mu   sync.Mutex
	open map[*open]struct{}
}

// open is a transaction under way.
type open struct {
	Overdue     // the report if it becomes overdue
	more    int // partitions that share it
	began   time.Time
}

func (u *underWay) add(o Overdue, more int) (done func()) {
	t := &open{o, more, time.Now()}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.open == nil {
		u.open = map[*open]struct{}{}
	}
	u.open[t] = struct{}{}
	return func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		delete(u.open, t)
	}
}

func (u *underWay) list() []*open {
	u.mu.Lock()
	defer u.mu.Unlock()
	return slices.Collect(maps.Keys(u.open))
}

// patienceAtTheEnd is how long a Run that ends waits before it logs what it waits for.
const patienceAtTheEnd = 2 * time.Second

// sayWhatIsWaitedFor logs from time to time what delays the end of Run, until over is closed.
func (r *runner[TX]) sayWhatIsWaitedFor(over <-chan struct{}) {
	began := time.Now()
	for wait := patienceAtTheEnd; ; wait *= 2 {
		timer := time.NewTimer(wait)
		select {
		case <-over:
			timer.Stop()
			return
		case <-timer.C:
		}
		open := r.underWay.list()
		for _, t := range open {
			r.log(t.Partition).Info("stopping: waiting for the end of a transaction", "from", t.From, "to", t.To,
				"partitions_beside", t.more, "for", time.Since(t.began).Round(time.Millisecond), "batch_timeout", t.Timeout)
		}
		if len(open) == 0 {
			r.Logger.Info("stopping: no transaction is under way; waiting for the source to give back what it holds",
				"for", time.Since(began).Round(time.Millisecond))
		}
	}
}
