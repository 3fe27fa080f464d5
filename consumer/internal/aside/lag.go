package aside

import (
	"context"
	"sync"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/waits"
)

// This file decides when the source is asked for the lag of a partition that does not advance, which
// only operators want to know. A partition that advances reports its lag by itself.

const (
	// lagEvery is the least time between two requests for the lag of one partition. Requests are
	// sent one at a time, so that many halted partitions take longer.
	lagEvery = 10 * time.Second

	// lagAfterClaim is how long a claimed partition may take to report its lag by advancing.
	lagAfterClaim = 5 * time.Second

	lagTimeout = 10 * time.Second
)

// Lags requests the lag of partitions that do not report it by advancing. It requests the lag of
// halted partitions repeatedly, and once for those that have applied nothing since their claim.
type Lags struct {
	report func(p epoch.Partition, next epoch.Offset, lag int64)
	wake   chan struct{}

	mu sync.Mutex
	of map[epoch.Partition]*asking
}

// tenure is what a lag needs of a consumer.Tenure.
type tenure interface {
	Origin() epoch.Origin
	Lag(ctx context.Context, from epoch.Fence) (int64, error)
}

// asking is the request for the lag of one partition. It stays after an answer, so that the next
// request keeps its distance.
type asking struct {
	tenure tenure
	at     epoch.Fence
	wanted bool
	once   bool
	due    time.Time // not before
}

// NewLags returns Lags that report each answer. A lag of -1 is one that the source does not know.
func NewLags(report func(p epoch.Partition, next epoch.Offset, lag int64)) *Lags {
	return &Lags{report: report, wake: make(chan struct{}, 1), of: map[epoch.Partition]*asking{}}
}

// Halted requests the lag until the partition moves or is left: it grows meanwhile, and operators
// see how urgent the halt is.
func (l *Lags) Halted(t tenure, at epoch.Fence) { l.want(t, at, false, 0) }

// Claimed requests the lag of a partition unless it applies something soon.
func (l *Lags) Claimed(t tenure, at epoch.Fence) { l.want(t, at, true, lagAfterClaim) }

// want keeps one request for each partition, the newest, and never brings its time forward.
func (l *Lags) want(t tenure, at epoch.Fence, once bool, in time.Duration) {
	p, earliest := t.Origin().Partition, time.Now().Add(in)
	l.mu.Lock()
	defer l.mu.Unlock()
	a := l.of[p]
	if a == nil {
		a = &asking{tenure: t, due: earliest}
		l.of[p] = a
	}
	if once && earliest.After(a.due) {
		a.due = earliest
	}
	a.at, a.wanted, a.once = at, true, once
	waits.Notify(l.wake)
}

// Moves cancels the request: the partition advances.
func (l *Lags) Moves(p epoch.Partition) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a := l.of[p]; a != nil {
		a.wanted = false
	}
}

// Left ends the requests of a partition that this process no longer has.
func (l *Lags) Left(p epoch.Partition) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.of, p)
}

// next returns the request that is due first.
func (l *Lags) next() (first *asking, due time.Time, at epoch.Fence) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range l.of {
		if a.wanted && (first == nil || a.due.Before(due)) {
			first, due, at = a, a.due, a.at
		}
	}
	return first, due, at
}

// Ask sends the requests that are due, one at a time. A source that does not answer delays only
// other requests for the lag.
func (l *Lags) Ask(ctx context.Context) {
	for ctx.Err() == nil {
		a, due, at := l.next()
		in := lagEvery
		if a != nil {
			in = time.Until(due)
		}
		if in <= 0 {
			l.answer(ctx, a, at)
			continue
		}
		timer := time.NewTimer(in)
		select {
		case <-ctx.Done():
		case <-l.wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// answer requests the lag and reports it, unless the partition has moved meanwhile. It reports
// under the lock, so that an old lag is not reported after a newer consumer.Advanced.
func (l *Lags) answer(ctx context.Context, a *asking, at epoch.Fence) {
	ctx, cancel := context.WithTimeout(ctx, lagTimeout)
	defer cancel()
	p, n := a.tenure.Origin().Partition, int64(-1)
	if at.Check(a.tenure.Origin()) == nil {
		if behind, err := a.tenure.Lag(ctx, at); err == nil {
			n = behind
		}
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	a.due = time.Now().Add(lagEvery)
	if l.of[p] != a || !a.wanted || a.at.Next != at.Next {
		return
	}
	if a.once && n >= 0 {
		a.wanted = false
	}
	l.report(p, at.Next, n)
}
