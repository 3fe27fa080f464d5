package consumer

import (
	"maps"
	"slices"
	"sync"
	"time"
)

// underWay lists the transactions that continue, for operators who wait for them.
type underWay struct {
	mu   sync.Mutex
	open map[*open]struct{}
}

// open is a transaction that continues.
type open struct {
	Overdue     // what is to be said of it once it is
	more    int // partitions that share it
	began   time.Time
}

// add notes a transaction until done is called.
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

// patienceAtTheEnd is how long a Run that ends is silent about what it waits for.
const patienceAtTheEnd = 2 * time.Second

// sayWhatIsWaitedFor writes what keeps a Run that is to end, now and then until
// it is over.
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
