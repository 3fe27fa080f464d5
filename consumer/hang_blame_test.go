package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
)

// Each time a message hangs is an attempt, over several tenures.
func TestAMessageThatHangsAgainAndAgainEndsInOnFailure(t *testing.T) {
	for _, onFailure := range []bool{true, false} {
		t.Run(fmt.Sprint("OnFailure ", onFailure), func(t *testing.T) {
			inBubble(t, 1, func(r *rig) {
				var hung atomic.Int32
				handle := func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
					if m.Offset == 2 {
						hung.Add(1)
						<-time.After(5 * time.Second) // deaf to its context, and past twice the timeout
					}
					return record(ctx, tx, m, e)
				}
				h := each(handle)
				if onFailure {
					h = h.OnFailure(r.sink.DeadLetter)
				}
				r.fill(0, 5)
				p := r.start("a", h, options{BatchTimeout: time.Second, MaxAttempts: 3, HaltMin: time.Hour, HaltMax: time.Hour})
				r.pass(time.Minute)
				if n := hung.Load(); n != 3 {
					t.Errorf("the message was tried %d times, want MaxAttempts", n)
				}
				if !onFailure {
					if h := wantOne[consumer.Halted](p); h.Reason != consumer.ReasonMessageFailed || h.Next != 2 {
						t.Errorf("halted: %+v", h)
					}
					p.end()
					return
				}
				r.wantEffects(0, "0/0", "0/1", "0/3", "0/4")
				if l := r.sink.DeadLetters(); len(l) != 1 || l[0].Message.Offset != 2 {
					t.Errorf("dead letters: %v", l)
				}
				p.end()
			})
		})
	}
}

// A call of Batches has many messages: which of them hangs shows when they are tried one by one.
func TestOfABatchThatHangsTheMessageIsFound(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		var calls [][]epoch.Offset
		var mu sync.Mutex
		h := consumer.Batches(func(ctx context.Context, tx tx, ms []consumer.Message, e epoch.Epoch) error {
			var offsets []epoch.Offset
			for _, m := range ms {
				offsets = append(offsets, m.Offset)
			}
			mu.Lock()
			calls = append(calls, offsets)
			mu.Unlock()
			if slices.Contains(offsets, 3) {
				<-time.After(5 * time.Second)
			}
			for _, m := range ms {
				if err := record(ctx, tx, m, e); err != nil {
					return err
				}
			}
			return nil
		}).OnFailure(r.sink.DeadLetter)
		r.fill(0, 6)
		p := r.start("a", h, options{BatchTimeout: time.Second, MaxAttempts: 2})
		r.pass(time.Minute)
		r.wantEffects(0, "0/0", "0/1", "0/2", "0/4", "0/5")
		hung := 0
		for _, c := range calls {
			if slices.Contains(c, 3) {
				hung++
			}
		}
		if hung != 3 {
			t.Errorf("calls with the message that hangs: %d of %v, want one with the others and two alone", hung, calls)
		}
		p.end()
	})
}

func TestAnOnFailureThatHangsHaltsThePartition(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		h := each(poison).OnFailure(func(context.Context, tx, consumer.Message, epoch.Epoch, error) error {
			<-time.After(5 * time.Second)
			return nil
		})
		r.fill(0, 1)
		p := r.start("a", h, options{BatchTimeout: time.Second, MaxAttempts: 1, HaltMin: time.Hour, HaltMax: time.Hour})
		r.pass(time.Minute)
		if o := wantOne[consumer.Overdue](p); o.Function != consumer.FunctionOnFailure || o.Offset != 0 {
			t.Errorf("overdue: %+v", o)
		}
		if h := wantOne[consumer.Halted](p); h.Reason != consumer.ReasonOnFailureFailed {
			t.Errorf("halted: %+v", h)
		}
		p.end()
	})
}

func TestBackgroundWorkThatOutlivesItsContextDoesNotHoldItsPartition(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		release, late := make(chan struct{}), make(chan error, 1)
		var work atomic.Int32
		h := each(record).Background(func(ctx context.Context, b background) {
			if work.Add(1) > 1 {
				<-ctx.Done()
				return
			}
			<-release
			late <- b.Do(context.Background(), func(context.Context, tx) error { return nil })
		})
		for range 8 { // which return as they should, and are not to blame
			h = h.Background(func(ctx context.Context, _ background) { <-ctx.Done() })
		}
		p := r.start("a", h, options{BatchTimeout: time.Second})
		r.fill(0, 1)
		r.pass(time.Second)
		b := r.start("b", each(record), options{})
		r.pass(time.Second)
		p.stop()
		r.pass(3 * time.Second)
		if by := r.group().Owner(r.log.Name(), 0); by != "b" {
			t.Errorf("the partition is leased to %q", by)
		}
		var hung *consumer.HungError
		if err := <-p.done; !errors.As(err, &hung) || len(hung.Calls) != 1 || hung.Calls[0].Function != consumer.FunctionBackground {
			t.Errorf("Run: %v", err)
		}
		if returned := seen[consumer.Returned](p); len(returned) > 0 {
			t.Errorf("work that returned in time was taken for work that hangs: %v", returned)
		}
		close(release)
		if err := <-late; err == nil {
			t.Error("work that was abandoned committed")
		}
		b.end()
	})
}

func TestAReplayThatHangsStaysADeadLetter(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		var asked atomic.Bool
		free := make(chan struct{})
		p := r.start("a", letters(r, func(m consumer.Message) error {
			if m.Offset != 1 {
				return nil
			}
			if asked.Load() {
				<-free
			}
			return consumer.Permanent(errors.New("poison"))
		}), options{BatchTimeout: time.Second})
		r.fill(0, 3)
		r.pass(10 * time.Second)
		asked.Store(true)
		r.requests()
		r.pass(20 * time.Second)
		if o := wantOne[consumer.Overdue](p); o.Function != consumer.FunctionReplay || o.Offset != 1 {
			t.Errorf("overdue: %+v", o)
		}
		if e := wantOne[consumer.Replayed](p); !e.Final || e.Err == nil {
			t.Errorf("replayed: %+v", e)
		}
		close(free)
		r.fill(0, 1)
		r.pass(time.Minute)
		r.wantNext(0, 4)
		p.end()
	})
}
