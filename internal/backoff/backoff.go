// Package backoff is how this module waits before it tries something again: for
// times that double, with jitter, and no longer than a context lives.
package backoff

import (
	"context"
	"time"

	cenkalti "github.com/cenkalti/backoff/v4"
)

// Backoff says how long to wait before the next try: about twice as long as the
// time before, never less than least nor more than most. It never gives up. It is
// not safe for concurrent use.
type Backoff struct {
	least, most time.Duration
	next        cenkalti.BackOff // nil at the beginning: many are never waited for
}

// New returns one that begins with the wait least.
func New(least, most time.Duration) *Backoff { return &Backoff{least: least, most: most} }

// Next is the next wait.
func (b *Backoff) Next() time.Duration {
	if b.next == nil {
		b.next = cenkalti.NewExponentialBackOff(
			cenkalti.WithInitialInterval(b.least), cenkalti.WithMaxInterval(b.most),
			cenkalti.WithMultiplier(2), cenkalti.WithMaxElapsedTime(0))
	}
	return min(max(b.next.NextBackOff(), b.least), b.most)
}

// Reset begins again with the least wait.
func (b *Backoff) Reset() { b.next = nil }

// Sleep returns true after d, and false when ctx has ended.
func Sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return ctx.Err() == nil
	case <-ctx.Done():
		return false
	}
}
