// Package waits has what waits and tries again: a [Backoff] between tries, with jitter, and a [Server]
// that does not answer yet when a program starts. A wait ends with its context.
package waits

import (
	"context"
	"math/rand/v2"
	"time"

	cenkalti "github.com/cenkalti/backoff/v4"
)

// Backoff returns waits between least and most, each about twice as long as the last. It has no
// limit for the number of waits. It is not safe for concurrent use.
type Backoff struct {
	least, most time.Duration
	next        cenkalti.BackOff // created by the first Next, because most Backoffs never need one
}

// New returns a Backoff whose first wait is about least.
func New(least, most time.Duration) *Backoff { return &Backoff{least: least, most: most} }

// Next returns the next wait.
func (b *Backoff) Next() time.Duration {
	if b.next == nil {
		b.next = cenkalti.NewExponentialBackOff(
			cenkalti.WithInitialInterval(b.least), cenkalti.WithMaxInterval(b.most),
			cenkalti.WithMultiplier(2), cenkalti.WithMaxElapsedTime(0))
	}
	return min(max(b.next.NextBackOff(), b.least), b.most)
}

// Reset starts again with the shortest wait.
func (b *Backoff) Reset() { b.next = nil }

// Jitter returns d less up to a fifth, so that requests of many processes spread out.
func Jitter(d time.Duration) time.Duration { return d - time.Duration(rand.Int64N(int64(d)/5+1)) }

// Until calls done, again after each wait of every, until it returns true. It returns false once ctx has
// ended.
func Until(ctx context.Context, every time.Duration, done func() bool) bool {
	for !done() {
		if !Sleep(ctx, every) {
			return false
		}
	}
	return true
}

// Sleep returns true after d, or false as soon as ctx ends.
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
