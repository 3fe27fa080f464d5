package consumer_test

import (
	"context"
	"fmt"
	"iter"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/memsink"
)

// Whoever has more to apply when a transaction ends is in the next one: a round trip is paid for all.
func TestPartitionsThatHaveMoreToApplyShareEachTransaction(t *testing.T) {
	const partitions, messages = 8, 2000
	inBubble(t, partitions, func(r *rig) {
		for n := range int32(partitions) {
			r.fill(n, messages)
		}
		p := r.start("a", each(record), options{}, r.commitsTake(5*time.Millisecond))
		r.pass(time.Minute)
		p.end()
		ts := seen[consumer.Transacted](p)
		if len(ts) < 5 {
			t.Fatalf("%d transactions show nothing", len(ts))
		}
		shared, middle := 0, ts[1:len(ts)-2] // the first begins with whoever comes first
		for _, e := range middle {
			shared += e.Partitions
		}
		if mean := float64(shared) / float64(len(middle)); mean < 0.65*partitions { // half of that, if nobody is awaited
			t.Errorf("%d transactions have %.1f of %d partitions on average", len(middle), mean, partitions)
		}
		for n := range int32(partitions) {
			r.wantNext(n, messages)
		}
	})
}

// A deadlock, or a server that fails over, ends all transactions that are open: that is one refusal and not
// several, after which each message would go alone.
func TestTransactionsThatAreRefusedTogetherAreRefusedOnce(t *testing.T) {
	const partitions = 4
	inBubble(t, partitions, func(r *rig) {
		var refused atomic.Int32
		p := r.start("a", each(record), options{Committers: partitions}, memsink.Hooks{
			Commit: func(_ context.Context, _ []epoch.Advance, do func() error) error {
				r.pass(time.Second)
				if refused.Add(1) <= partitions {
					return fmt.Errorf("failing over: %w", epoch.ErrTransient)
				}
				return do()
			},
		})
		synctest.Wait()
		for n := range int32(partitions) {
			r.fill(n, 256)
			synctest.Wait()
		}
		r.pass(3 * time.Second)
		p.end()
		if ts := seen[consumer.Transacted](p); len(ts) <= partitions || ts[partitions].Messages < 8 {
			t.Errorf("transactions: %+v", ts)
		}
	})
}

// Partitions that update the same rows are faster one after another. That is no reason for each message to go by
// itself, which is for rows that other processes update.
func TestTransactionsThatRefuseEachOtherGoOneAfterAnother(t *testing.T) {
	const partitions, messages = 8, 20_000
	inBubble(t, partitions, func(r *rig) {
		for n := range int32(partitions) {
			r.fill(n, messages)
		}
		var open, most atomic.Int32
		p := r.start("a", each(record), options{Committers: 4}, memsink.Hooks{
			Commit: func(_ context.Context, as []epoch.Advance, do func() error) error {
				n := open.Add(1)
				defer open.Add(-1)
				most.Store(max(most.Load(), n))
				r.pass(10 * time.Millisecond)
				if n > 1 {
					return fmt.Errorf("deadlock: %w", epoch.ErrTransient)
				}
				return do()
			},
		})
		r.applied()
		p.end()
		refused, applied := 0, 0
		for _, e := range seen[consumer.Transacted](p) {
			if e.Outcome == consumer.OutcomeFailed {
				refused++
			} else {
				applied++
			}
		}
		if most.Load() < 2 || refused == 0 {
			t.Error("none was beside another, which shows nothing")
		}
		if refused > 10 || applied > 400 {
			t.Errorf("%d refused, %d applied", refused, applied)
		}
	})
}

// Nor does one bad moment leave one transaction at a time for good.
func TestAfterACalmTimeTransactionsAreBesideEachOtherAgain(t *testing.T) {
	const partitions = 4
	inBubble(t, partitions, func(r *rig) {
		var open, most, refused atomic.Int32
		p := r.start("a", each(record), options{Committers: partitions, MaxBatch: 1}, memsink.Hooks{
			Commit: func(_ context.Context, _ []epoch.Advance, do func() error) error {
				n := open.Add(1)
				defer open.Add(-1)
				most.Store(max(most.Load(), n))
				r.pass(10 * time.Millisecond)
				if n > 1 && refused.Add(1) <= 6 {
					return fmt.Errorf("deadlock: %w", epoch.ErrTransient)
				}
				return do()
			},
		})
		for n := range int32(partitions) {
			r.fill(n, 2000)
		}
		r.pass(3 * time.Second)
		most.Store(0)
		r.pass(3 * time.Second)
		if most.Load() != partitions {
			t.Errorf("%d at a time", most.Load())
		}
		r.applied()
		p.end()
	})
}

// To end a read costs a source far more than a replay: the session of a client, or a consumer in the server.
func TestReplaysOfAQuietPartitionDoNotEndItsRead(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		var fixed atomic.Bool
		source := &readsCounted{Source: r.group().Member("a")}
		p := r.process("b", nil)
		p.run(func(ctx context.Context) error {
			return consumer.Run(ctx, source, p.sink, letters(r, func(consumer.Message) error {
				if !fixed.Load() {
					return consumer.Permanent(errPoison)
				}
				return nil
			}), p.watched(options{}))
		})
		all := r.fill(0, 20)
		r.pass(time.Minute)
		fixed.Store(true)
		r.requests()
		r.pass(time.Minute)
		all = append(all, r.append(0, 20, 21)...)
		r.pass(time.Minute)
		p.end()
		r.wantEffects(0, all...)
		if n := source.reads.Load(); n != 1 {
			t.Errorf("the partition was read %d times, want once", n)
		}
	})
}

type readsCounted struct {
	consumer.Source
	reads atomic.Int32
}

type readCounted struct {
	consumer.Tenure
	reads *atomic.Int32
}

func (s *readsCounted) Run(ctx context.Context, joined func(error), own func(context.Context, consumer.Tenure)) error {
	return s.Source.Run(ctx, joined, func(ctx context.Context, t consumer.Tenure) { own(ctx, readCounted{t, &s.reads}) })
}

func (t readCounted) Read(ctx context.Context, from epoch.Fence) iter.Seq2[consumer.Batch, error] {
	t.reads.Add(1)
	return t.Tenure.Read(ctx, from)
}
