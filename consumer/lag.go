package consumer

import (
	"context"
	"sync"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

const (
	// lagEvery is the least time between two questions for the lag of one partition. One
	// question is asked at a time, so that many halted partitions take longer.
	lagEvery = 10 * time.Second

	// lagAfterClaim is how long a partition that was claimed is waited for to say its lag
	// by applying something.
	lagAfterClaim = 5 * time.Second

	lagTimeout = 10 * time.Second
)

// lags asks the source for the lag of partitions that do not say it themselves by
// advancing: those that have halted, again and again, and those that were claimed and have
// applied nothing since, once.
type lags struct {
	observe func(Event)
	wake    chan struct{}

	mu sync.Mutex
	of map[epoch.Partition]*asking
}

// asking is what is to be asked for one tenure.
type asking struct {
	tenure Tenure
	at     epoch.Fence // as it was read last
	wanted bool
	once   bool
	due    time.Time // not before
}

func newLags(observe func(Event)) *lags {
	return &lags{observe: observe, wake: make(chan struct{}, 1), of: map[epoch.Partition]*asking{}}
}

// halted: the partition stays at the fence's position.
func (l *lags) halted(t Tenure, at epoch.Fence) { l.want(t, at, false, 0) }

// claimed: the partition has yet to apply something.
func (l *lags) claimed(t Tenure, at epoch.Fence) { l.want(t, at, true, lagAfterClaim) }

func (l *lags) want(t Tenure, at epoch.Fence, once bool, in time.Duration) {
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
	select {
	case l.wake <- struct{}{}:
	default:
	}
}

// moves: the partition says its lag itself.
func (l *lags) moves(p epoch.Partition) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if a := l.of[p]; a != nil {
		a.wanted = false
	}
}

// left: the tenure is over.
func (l *lags) left(p epoch.Partition) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.of, p)
}

// next is the question that is due first.
func (l *lags) next() (first *asking, due time.Time, at epoch.Fence) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, a := range l.of {
		if a.wanted && (first == nil || a.due.Before(due)) {
			first, due, at = a, a.due, a.at
		}
	}
	return first, due, at
}

// ask asks until ctx ends.
func (l *lags) ask(ctx context.Context) {
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

// answer asks, and tells the answer unless the partition has moved meanwhile. It does so under
// the lock, so that a lag that is older than an [Advanced] is not told after it.
func (l *lags) answer(ctx context.Context, a *asking, at epoch.Fence) {
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
	l.observe(Behind{Partition: p, Next: at.Next, Lag: n})
}
