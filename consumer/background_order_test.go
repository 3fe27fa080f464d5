package consumer_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
)

// Hundreds of partitions on several committers: each has its own turns.
func TestBackgroundWorkOfManyPartitionsGoesOnBesideTheirMessages(t *testing.T) {
	const partitions, messages, works = 300, 6, 3
	inBubble(t, partitions, func(r *rig) {
		var did atomic.Int64
		p := r.start("a", each(record).Background(func(ctx context.Context, b background) {
			for range works {
				if err := b.Do(ctx, note(b.Partition().String())); err != nil {
					t.Errorf("Do: %v", err)
				}
				did.Add(1)
			}
		}), options{MaxBatch: 3, Committers: 3}, r.commitsTake(time.Millisecond))
		var want [partitions][]string
		for n := range int32(partitions) {
			want[n] = r.fill(n, messages)
		}
		r.applied()
		r.pass(time.Minute)
		p.end()
		for n := range int32(partitions) {
			r.wantEffects(n, want[n]...)
		}
		if n := len(r.sink.List("background")); n != partitions*works || did.Load() != partitions*works {
			t.Errorf("%d committed, %d done, want %d", n, did.Load(), partitions*works)
		}
		if d := seen[consumer.InDoubt](p); len(d) > 0 {
			t.Errorf("%d doubts, the first %v", len(d), d[0])
		}
	})
}

// Work that takes its time does not hold up the messages of those who wait in
// line behind it, and these have their turn.
func TestSlowWorkHoldsUpNobodyWhoIsInLineBehindIt(t *testing.T) {
	inBubble(t, 4, func(r *rig) {
		r.group().SetTerm(time.Minute)
		var slow, quick atomic.Int64
		hold := make(chan struct{})
		p := r.start("a", each(func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
			r.pass(100 * time.Millisecond)
			return record(ctx, tx, m, e)
		}).Background(func(ctx context.Context, b background) {
			<-hold
			for ctx.Err() == nil {
				err := b.Do(ctx, func(context.Context, tx) error {
					if n := b.Partition().Number; n < 3 {
						slow.Add(1)
						r.pass(10 * time.Second)
					} else {
						quick.Add(1)
					}
					return nil
				})
				if err != nil && ctx.Err() == nil {
					t.Errorf("Do: %v", err)
				}
			}
		}), options{MaxBatch: 1, BatchTimeout: 16 * time.Second})
		synctest.Wait()
		r.fill(3, 7_000)
		close(hold)
		r.pass(10 * time.Minute)
		applied := len(r.sink.List(list(3)))
		p.end()
		if at := 10 * 60 * 10; applied < at*9/10 {
			t.Errorf("%d messages in 10 minutes beside slow work of others, of about %d without it", applied, at)
		}
		if quick.Load() < slow.Load()/4 {
			t.Errorf("%d pieces of work beside those messages, and %d slow ones of others", quick.Load(), slow.Load())
		}
	})
}

func TestPartitionsAlternateWithTheirBackgroundWork(t *testing.T) {
	inBubble(t, 2, func(r *rig) {
		p := r.start("a", each(record).Background(func(ctx context.Context, b background) {
			var running sync.WaitGroup
			for range 1 + 3*(1-b.Partition().Number) { // partition 0 always has some queued
				running.Go(func() {
					for ctx.Err() == nil {
						_ = b.Do(ctx, func(_ context.Context, tx tx) error {
							r.pass(10 * time.Millisecond)
							tx.Append("turns of "+list(b.Partition().Number), "x")
							return nil
						})
					}
				})
			}
			running.Wait()
		}), options{})
		r.pass(10 * time.Second)
		p.end()
		many, few := len(r.sink.List("turns of "+list(0))), len(r.sink.List("turns of "+list(1)))
		if few < many/3 {
			t.Errorf("%d turns of the partition that asks all the time, %d of the other", many, few)
		}
	})
}

// One piece of slow work does not cost the next ones their turns.
func TestWorkRunsAgainAfterSlowWork(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		p := r.start("a", each(record).Background(func(ctx context.Context, b background) {
			_ = b.Do(ctx, func(context.Context, tx) error { r.pass(time.Second / 2); return nil })
			r.fill(0, 10_000)
			var running sync.WaitGroup
			for range 2 { // so that one is always queued
				running.Go(func() {
					for ctx.Err() == nil {
						_ = b.Do(ctx, note("x"))
					}
				})
			}
			running.Wait()
		}), options{MaxBatch: 1, BatchTimeout: time.Second}, r.commitsTake(time.Millisecond))
		r.pass(2 * time.Second)
		p.end()
		if n := len(r.sink.List("background")); n < 1300 {
			t.Errorf("%d pieces of work in the time of about 1,500 transactions", n)
		}
	})
}
