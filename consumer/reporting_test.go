package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"
	"weak"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/memsink"
)

func TestEventsDoNotStateAPositionThatNobodyKnows(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.fill(0, 9)
		p := r.start("a", each(record), options{})
		synctest.Wait()
		p.end() // the fence is at 9
		p = r.start("b", each(record), options{}, memsink.Hooks{
			Fence: func(context.Context, epoch.Partition, func() error) error { return errors.New("connection refused") },
		})
		r.pass(time.Second)
		p.end()
		for _, h := range seen[consumer.Halted](p) {
			if h.Next != -1 {
				t.Errorf("Halted says the partition stopped at %d", h.Next)
				break
			}
		}
		for _, d := range seen[consumer.Drained](p) {
			if d.Next != -1 {
				t.Errorf("Drained says the partition was given back at %d, epoch %d", d.Next, d.Epoch)
			}
		}
	})
}

func TestALeaseThatIsNeverConfirmedIsReported(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.group().OnConfirm(func(context.Context, confirmation) error { return errors.New("GROUP_AUTHORIZATION_FAILED") })
		r.fill(0, 1)
		p := r.start("a", each(record), options{})
		r.pass(24 * time.Hour)
		p.mu.Lock()
		n := len(p.events)
		p.mu.Unlock()
		if n == 0 {
			t.Errorf("a partition has stood still for a day: no event")
		}
		p.end()
	})
}

// reading is a source whose Read is a function of the test.
type reading struct {
	consumer.Source
	read func(t consumer.Tenure, ctx context.Context, from epoch.Fence) iter.Seq2[consumer.Batch, error]
}

type readingTenure struct {
	consumer.Tenure
	s reading
}

func (s reading) Run(ctx context.Context, joined func(error), own func(context.Context, consumer.Tenure)) error {
	return s.Source.Run(ctx, joined, func(ctx context.Context, t consumer.Tenure) { own(ctx, readingTenure{t, s}) })
}

func (t readingTenure) Read(ctx context.Context, from epoch.Fence) iter.Seq2[consumer.Batch, error] {
	return t.s.read(t.Tenure, ctx, from)
}

func TestAnIdlePartitionKeepsNoMessages(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		var kept weak.Pointer[consumer.Message]
		p := r.process("a", nil)
		s := reading{p.member, func(t consumer.Tenure, ctx context.Context, from epoch.Fence) iter.Seq2[consumer.Batch, error] {
			return func(yield func(consumer.Batch, error) bool) {
				for b, err := range t.Read(ctx, from) {
					b.Messages = slices.Clone(b.Messages)
					if len(b.Messages) > 0 {
						kept = weak.Make(&b.Messages[0])
					}
					ok := yield(b, err)
					b = consumer.Batch{}
					if !ok {
						return
					}
				}
			}
		}}
		p.run(func(ctx context.Context) error {
			return consumer.Run(ctx, s, p.sink, consumer.Each(func(context.Context, tx, consumer.Message, epoch.Epoch) error { return nil }), p.watched(options{}))
		})
		synctest.Wait()
		r.fill(0, 10)
		r.applied()
		synctest.Wait()
		for range 3 {
			runtime.GC()
		}
		if kept.Value() != nil {
			t.Errorf("the batch that was applied is still reachable while the partition is idle")
		}
		p.end()
	})
}

// ending is a context that has ended before those who were derived from it hear of it.
type ending struct {
	context.Context
	done chan struct{}
}

func (e *ending) Done() <-chan struct{} { return e.done }

func (e *ending) Err() error {
	select {
	case <-e.done:
		return context.Canceled
	default:
		return nil
	}
}

func TestASourceWhoseReadEndsAsTheLeaseIsLostIsNotBlamed(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		p := r.process("a", nil)
		var tenure *ending
		s := reading{p.member, func(consumer.Tenure, context.Context, epoch.Fence) iter.Seq2[consumer.Batch, error] {
			return func(func(consumer.Batch, error) bool) { close(tenure.done) }
		}}
		lose := owning{s, func(ctx context.Context) context.Context { tenure = &ending{ctx, make(chan struct{})}; return tenure }}
		p.run(func(ctx context.Context) error {
			return consumer.Run(ctx, lose, p.sink, consumer.Each(record), p.watched(options{}))
		})
		synctest.Wait()
		if halted := seen[consumer.Halted](p); len(halted) > 0 || len(seen[consumer.Lost](p)) != 1 {
			t.Errorf("halted %v, lost %v; want one loss", halted, seen[consumer.Lost](p))
		}
		p.end()
	})
}

// owning is a source that gives own another context.
type owning struct {
	consumer.Source
	of func(context.Context) context.Context
}

func (s owning) Run(ctx context.Context, joined func(error), own func(context.Context, consumer.Tenure)) error {
	return s.Source.Run(ctx, joined, func(ctx context.Context, t consumer.Tenure) { own(s.of(ctx), t) })
}

func TestABatchThatMovesNothingIsPassedOver(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		want := r.fill(0, 3)
		p := r.process("a", nil)
		s := reading{p.member, func(t consumer.Tenure, ctx context.Context, from epoch.Fence) iter.Seq2[consumer.Batch, error] {
			return func(yield func(consumer.Batch, error) bool) {
				if !yield(consumer.Batch{Next: from.Next, Mark: from.Mark}, nil) {
					return
				}
				t.Read(ctx, from)(yield)
			}
		}}
		p.run(func(ctx context.Context) error {
			return consumer.Run(ctx, s, p.sink, consumer.Each(record), p.watched(options{}))
		})
		synctest.Wait()
		p.end()
		r.wantEffects(0, want...)
	})
}

func TestAMessageThatAlwaysTimesOutDoesNotStarveTheOthers(t *testing.T) {
	inBubble(t, 2, func(r *rig) {
		r.group().SetTerm(45 * time.Second) // an ordinary session timeout
		p := r.start("a", each(func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
			if m.Partition.Number == 0 && m.Offset == 0 {
				<-ctx.Done()
				return ctx.Err()
			}
			return record(ctx, tx, m, e)
		}), options{})
		synctest.Wait()
		r.fill(0, 256)
		var worst time.Duration
		late := 0
		for i := range 300 {
			sent := time.Now()
			r.log.Append(1, fmt.Sprint(i))
			<-time.After(time.Second)
			for len(r.sink.List(list(1))) <= i {
				<-time.After(time.Second)
			}
			worst = max(worst, time.Since(sent))
			if time.Since(sent) > 5*time.Second {
				late++
			}
		}
		if late > 1 { // the one that shared the first transaction to fail
			t.Errorf("%d messages of the healthy partition took more than 5 s, up to %v", late, worst)
		}
		p.end()
	})
}

func TestAHaltKeepsTheClaim(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		values := r.fill(0, 3)
		p := r.start("a", each(failOn(consumer.Permanent(errPoison), values[1])), options{})
		r.pass(24 * time.Hour)
		f := r.sink.Fences()[r.partition(0)]
		if int64(f.Epoch) != f.Generation {
			t.Errorf("after a day of halts, and no doubt at all, the epoch is %d, the lease's generation %d", f.Epoch, f.Generation)
		}
		p.end()
	})
}

func TestLostAcknowledgementsThatLandedAreProgress(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.fill(0, 60)
		p := r.start("a", each(record), options{MaxBatch: 1}, memsink.Hooks{
			Commit: func(_ context.Context, _ []epoch.Advance, do func() error) error {
				return errors.Join(do(), epoch.ErrInDoubt)
			},
		})
		began := time.Now()
		r.applied()
		if took := time.Since(began); took > 30*time.Second {
			t.Errorf("60 messages, each applied at the first try, took %v", took)
		}
		p.end()
	})
}

func TestALostPartitionIsAnEvent(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		g := r.group()
		g.Script()
		g.SetGeneration(1)
		p := r.start("a", each(record), options{})
		g.Grant(p.member, r.log.Name(), 0)
		synctest.Wait()
		before := len(p.events)
		g.Lose(p.member, r.log.Name(), 0, nil)
		r.pass(time.Hour)
		p.mu.Lock()
		after := len(p.events)
		p.mu.Unlock()
		if after == before {
			t.Errorf("Claimed was observed, its end was not: %+v", p.events)
		}
		p.end()
	})
}

func TestAConfirmationOfAnotherPartitionIsRefused(t *testing.T) {
	inBubble(t, 2, func(r *rig) {
		p := r.process("a", nil)
		g := r.group()
		g.Script()
		g.Grant(p.member, r.log.Name(), 0)
		p.run(func(ctx context.Context) error {
			return consumer.Run(ctx, crossed{p.member}, p.sink, consumer.Each(record), p.watched(options{}))
		})
		synctest.Wait()
		if f := r.sink.Fences()[r.partition(1)]; f.Epoch != 0 {
			t.Errorf("partition 1, which nobody was granted, was claimed: %+v", f)
		}
		p.end()
	})
}

type crossed struct{ consumer.Source }
type crossedTenure struct{ consumer.Tenure }

func (s crossed) Run(ctx context.Context, joined func(error), own func(context.Context, consumer.Tenure)) error {
	return s.Source.Run(ctx, joined, func(ctx context.Context, t consumer.Tenure) { own(ctx, crossedTenure{t}) })
}
func (t crossedTenure) Confirm(ctx context.Context, seen epoch.Fence) (epoch.Lease, error) {
	l, err := t.Tenure.Confirm(ctx, seen)
	l.Partition.Number = 1
	return l, err
}
