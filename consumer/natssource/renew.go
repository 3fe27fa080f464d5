package natssource

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/internal/backoff"
)

// renew renews the lease of a tenure, and ends the tenure if the lease is gone.
func (t *tenure) renew(ctx context.Context) (revision, error) {
	rev, err := t.lease.renew(ctx, t.record)
	if errors.Is(err, consumer.ErrLost) {
		t.Lose(err)
		t.s.view.refresh() // the bucket itself may be another one
	}
	return rev, err
}

// keep keeps the lease alive until ctx or the tenure ends.
func (t *tenure) keep(ctx context.Context) {
	ctx, cancel := t.UntilLost(ctx)
	defer cancel()
	var workers sync.WaitGroup
	defer workers.Wait()
	workers.Go(func() { t.watchClock(ctx) })
	every := t.s.LeaseTTL / 3
	for pause := jitter(every); backoff.Sleep(ctx, pause); {
		if err := t.renewOnce(ctx, every); err != nil && ctx.Err() == nil {
			t.s.trouble("lease not renewed, trying again", err, "stream", t.stream, "partition", t.number, "left", t.lease.left().Round(time.Millisecond))
			pause = jitter(every / 8)
			continue
		}
		pause = jitter(every)
	}
}

func (t *tenure) renewOnce(ctx context.Context, within time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	if _, err := t.renew(ctx); err != nil {
		return err
	}
	t.publish(ctx)
	return nil
}

// watchClock ends the tenure when the lease has run out on our own clock,
// whatever the connection does. A lost connection alone is not a lost lease.
func (t *tenure) watchClock(ctx context.Context) {
	for backoff.Sleep(ctx, t.lease.left()) {
		if t.lease.left() <= 0 {
			t.Lose(errRanOut)
			t.s.isSilent(t.s.LeaseTTL/2, errRanOut) // or it is this lease alone that cannot be renewed
			return
		}
	}
}

// jitter is d, less up to a fifth, so that the renewals of many leases spread.
func jitter(d time.Duration) time.Duration {
	return d - time.Duration(rand.Int64N(int64(d)/5+1))
}
