package consumer

import (
	"maps"
	"slices"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// underWay is a transaction that goes on.
type underWay struct {
	first   epoch.Advance
	more    int // partitions that share it
	began   time.Time
	timeout time.Duration
}

// goesOn notes a transaction until done is called.
func (c *committer[TX]) goesOn(u *underWay) (done func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.under[u] = struct{}{}
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.under, u)
	}
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
		var under []*underWay
		for _, c := range r.committers {
			c.mu.Lock()
			under = slices.AppendSeq(under, maps.Keys(c.under))
			c.mu.Unlock()
		}
		for _, u := range under {
			r.log(u.first.Partition).Info("stopping: waiting for the end of a transaction", "from", u.first.From, "to", u.first.To,
				"partitions_beside", u.more, "for", time.Since(u.began).Round(time.Millisecond), "batch_timeout", u.timeout)
		}
		if len(under) == 0 {
			r.Logger.Info("stopping: no transaction is under way; waiting for the source to give back what it holds",
				"for", time.Since(began).Round(time.Millisecond))
		}
	}
}
