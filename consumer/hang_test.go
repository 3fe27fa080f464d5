package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/memsink"
)

// hanging is a handler that hangs on some messages, whatever its context says, until it is
// let go. Then it tries to write, late.
type hanging struct {
	on   func(m consumer.Message) bool
	free chan struct{} // closed to let it go
	late atomic.Int32  // writes that came too late, and were refused
	open atomic.Int32  // calls that hang
	in   atomic.Int32  // calls that have ever hung
}

func hangsOn(values ...string) *hanging {
	return &hanging{free: make(chan struct{}), on: func(m consumer.Message) bool { return slices.Contains(values, string(m.Value)) }}
}

func (h *hanging) handle(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) (err error) {
	if !h.on(m) {
		return record(ctx, tx, m, e)
	}
	h.open.Add(1)
	h.in.Add(1)
	<-h.free
	h.open.Add(-1)
	if ctx.Err() == nil {
		return record(ctx, tx, m, e)
	}
	defer func() {
		if r, _ := recover().(error); errors.Is(r, epoch.ErrAbandoned) {
			h.late.Add(1)
			err = r
		}
	}()
	return record(ctx, tx, m, e)
}

// release lets it go, and waits until nothing hangs in this bubble.
func (h *hanging) release() {
	close(h.free)
	synctest.Wait()
}

func TestAHandlerThatHangsCostsItsOwnPartitionAlone(t *testing.T) {
	for _, committers := range []int{1, 4} {
		t.Run(fmt.Sprint(committers, " committers"), func(t *testing.T) {
			inBubble(t, 4, func(r *rig) {
				h := hangsOn("1/2")
				var want [4][]string
				for n := range int32(4) {
					want[n] = r.fill(n, 5)
				}
				a := r.start("a", each(h.handle), options{BatchTimeout: time.Second, Committers: committers})
				r.pass(5 * time.Second)
				for _, n := range []int32{0, 2, 3} {
					r.wantEffects(n, want[n]...)
				}
				o := wantOne[consumer.Overdue](a)
				if o.Partition != r.partition(1) || o.Offset != 2 || o.Function != consumer.FunctionHandler || !strings.Contains(o.Stack, "hanging).handle") {
					t.Errorf("overdue: %+v", o)
				}
				if l := wantOne[consumer.Lost](a); l.Partition != r.partition(1) || l.Reason != consumer.ReasonHung {
					t.Errorf("lost: %+v", l)
				}
				if by := r.group().Owner(r.log.Name(), 1); by != "" {
					t.Errorf("the partition is leased to %q still", by)
				}

				// A second process gets it at once, and the message is well there.
				b := r.start("b", each(record), options{})
				r.pass(5 * time.Second)
				r.wantEffects(1, want[1]...)

				r.fill(1, 1) // what comes later is b's
				h.release()
				if h.late.Load() != 1 {
					t.Error("the late write was not refused")
				}
				r.wantEffects(1, append(want[1], "1/0")...)
				if back := wantOne[consumer.Returned](a); back.Partition != r.partition(1) || back.Took < 9*time.Second {
					t.Errorf("returned: %+v", back)
				}
				a.end()
				b.end()
			})
		})
	}
}

func TestWhatSharesATransactionWithACallThatHangsIsAppliedAgainAtOnce(t *testing.T) {
	inBubble(t, 3, func(r *rig) {
		h := hangsOn("1/0")
		p := r.start("a", each(func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
			if m.Partition.Number == 2 {
				<-time.After(100 * time.Millisecond) // while more comes, of both other partitions
			}
			return h.handle(ctx, tx, m, e)
		}), options{BatchTimeout: time.Second})
		synctest.Wait()
		r.fill(2, 1)
		synctest.Wait()
		zero, one := r.fill(0, 3), r.fill(1, 3)
		r.pass(2*time.Second + time.Second/2)
		if !slices.ContainsFunc(seen[consumer.Transacted](p), func(e consumer.Transacted) bool { return e.Partitions == 2 && e.Outcome == consumer.OutcomeFailed }) {
			t.Error("the two partitions did not share the transaction that was abandoned")
		}
		r.wantEffects(0, zero...)
		h.release()
		r.pass(time.Second)
		r.wantEffects(1, one...)
		p.end()
	})
}

func TestAPartitionIsNotAskedForBeforeTheCallHasReturned(t *testing.T) {
	inBubble(t, 2, func(r *rig) {
		h := hangsOn("1/0")
		r.fill(1, 1)
		p := r.start("a", each(h.handle), options{BatchTimeout: time.Second})
		r.pass(10 * time.Second)
		b := r.start("b", each(record), options{}) // the group shares out anew
		r.pass(10 * time.Second)
		b.end() // and again
		r.pass(time.Minute)
		if n := len(p.grants(1)); n != 1 {
			t.Errorf("the partition was granted %d times while its handler hangs", n)
		}
		h.release()
		r.pass(time.Second)
		if n := len(p.grants(1)); n != 2 {
			t.Errorf("the partition was granted %d times, want once more after its handler has returned", n)
		}
		p.end()
	})
}

func (p *process) grants(n int32) (gs []consumer.Granted) {
	for _, g := range seen[consumer.Granted](p) {
		if g.Partition.Number == n {
			gs = append(gs, g)
		}
	}
	return gs
}

func TestASourceThatGrantsAPartitionAllTheSameGetsItBack(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		g := r.group()
		g.Script()
		g.SetGeneration(1)
		h := hangsOn("0/0")
		r.fill(0, 1)
		p := r.start("a", each(h.handle), options{BatchTimeout: time.Second})
		synctest.Wait()
		g.Grant(p.member, r.log.Name(), 0)
		r.pass(5 * time.Second)
		for range 3 {
			g.Grant(p.member, r.log.Name(), 0)
			r.pass(5 * time.Second)
		}
		if h.in.Load() != 1 || len(seen[consumer.Claimed](p)) != 1 {
			t.Errorf("%d calls and %d claims while the first call hangs", h.in.Load(), len(seen[consumer.Claimed](p)))
		}
		h.release()
		g.Grant(p.member, r.log.Name(), 0)
		r.pass(5 * time.Second)
		r.wantEffects(0, "0/0")
		p.end()
	})
}

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

func TestRunReturnsWithWhatHangsWhenItIsStopped(t *testing.T) {
	inBubble(t, 2, func(r *rig) {
		h := hangsOn("1/0")
		r.fill(1, 1)
		p := r.start("a", each(h.handle), options{BatchTimeout: time.Second})
		r.pass(time.Second / 2)
		p.stop()
		began := time.Now()
		err := <-p.done
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("Run returned after %v", took)
		}
		var hung *consumer.HungError
		if !errors.As(err, &hung) || len(hung.Calls) != 1 || hung.Calls[0].Partition != r.partition(1) || hung.Calls[0].Offset != 0 {
			t.Fatalf("Run: %v", err)
		}
		for _, said := range []string{"orders/1", "offset 0", "epoch 1", "hang_test.go", "goroutine "} {
			if !strings.Contains(err.Error(), said) {
				t.Errorf("the error does not say %q:\n%v", said, err)
			}
		}
		h.release()
		if h.late.Load() != 1 {
			t.Error("the late write was not refused")
		}
		r.wantEffects(1)
	})
}

func TestRunReturnsWhenTooManyCallsHang(t *testing.T) {
	inBubble(t, 4, func(r *rig) {
		h := hangsOn("0/0", "1/0", "2/0")
		for n := range int32(4) {
			r.fill(n, 1)
		}
		p := r.start("a", each(h.handle), options{BatchTimeout: time.Second, MaxHung: 2})
		select {
		case err := <-p.done:
			var hung *consumer.HungError
			if !errors.As(err, &hung) || len(hung.Calls) != 3 {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(time.Minute):
			t.Error("Run continues although more calls hang than MaxHung")
			p.stop()
		}
		h.release()
	})
}

// A drain has its bound, whatever HangTimeout is.
func TestADrainDoesNotWaitForAHandlerThatHangs(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		h := hangsOn("0/0")
		r.fill(0, 2)
		a := r.start("a", each(h.handle), options{BatchTimeout: time.Second, HangTimeout: time.Hour})
		r.pass(2 * time.Second)
		a.stop()
		r.pass(12 * time.Second) // the term, and a second
		select {
		case err := <-a.done:
			var hung *consumer.HungError
			if !errors.As(err, &hung) {
				t.Errorf("Run: %v", err)
			}
		default:
			t.Error("Run waits for a handler that hangs")
		}
		h.release()
	})
}

func TestReadinessFailsWhileACallHangs(t *testing.T) {
	inBubble(t, 2, func(r *rig) {
		h := hangsOn("1/0")
		r.fill(1, 1)
		var status consumer.Status
		p := r.process("a", nil)
		o := p.watched(options{BatchTimeout: time.Second})
		o.Observe = status.Observe
		p.run(func(ctx context.Context) error { return consumer.Run(ctx, p.member, p.sink, each(h.handle), o) })
		r.pass(time.Hour)
		if err := status.Ready(); err == nil || !strings.Contains(err.Error(), "orders/1") || !strings.Contains(err.Error(), "hang_test.go") {
			t.Errorf("Ready = %v", err)
		}
		if calls := status.Hung(); len(calls) != 1 {
			t.Errorf("Hung = %v", calls)
		}
		h.release()
		r.pass(time.Second)
		if err := status.Ready(); err != nil {
			t.Errorf("Ready = %v after the call has returned", err)
		}
		p.end()
	})
}

func TestTheLogSaysAgainWhatHangsAndWhere(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		h := hangsOn("0/0")
		r.fill(0, 1)
		lines := &logged{}
		p := r.start("a", each(h.handle), options{BatchTimeout: time.Second, Logger: lines.logger()})
		r.pass(time.Hour)
		n := len(lines.lines("hang_test.go"))
		if n < 5 || n > 15 {
			t.Errorf("%d lines in an hour say where it hangs", n)
		}
		h.release()
		r.pass(time.Hour)
		if more := lines.lines("hang_test.go"); len(more) > 0 {
			t.Errorf("lines after it has returned: %v", more)
		}
		p.end()
	})
}

// A handler that returns when its context ends, however often, does not hang.
func TestAHandlerThatIsSlowDoesNotHang(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.fill(0, 1)
		p := r.start("a", each(func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
			<-ctx.Done()
			return record(context.WithoutCancel(ctx), tx, m, e)
		}), options{BatchTimeout: time.Second, MaxAttempts: 2, HaltMin: time.Hour})
		r.pass(time.Minute)
		if n := len(seen[consumer.Overdue](p)); n > 0 {
			t.Errorf("a handler that returns when its context ends was abandoned %d times", n)
		}
		p.end()
	})
}

// Where it is the sink that does not return, the partitions are claimed again: only the fence
// knows what is committed.
func TestASinkThatHangsDoesNotHoldItsLane(t *testing.T) {
	inBubble(t, 2, func(r *rig) {
		free := make(chan struct{})
		var hung atomic.Bool
		p := r.start("a", each(record), options{BatchTimeout: time.Second}, memsink.Hooks{
			Commit: func(_ context.Context, _ []epoch.Advance, do func() error) error {
				if hung.CompareAndSwap(false, true) {
					<-free
				}
				return do()
			},
		})
		zero, one := r.fill(0, 2), r.fill(1, 2)
		r.pass(10 * time.Second)
		if o := wantOne[consumer.Overdue](p); o.Function != consumer.FunctionSink {
			t.Errorf("overdue: %+v", o)
		}
		r.wantEffects(0, zero...)
		r.wantEffects(1, one...)
		close(free)
		r.pass(time.Second)
		r.wantEffects(0, zero...)
		p.end()
	})
}

// What docs/command-line.md says of evict: what a process that hangs commits later is refused.
func TestWhatAnEvictedProcessThatHangsCommitsIsRefused(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		h := hangsOn("0/0")
		r.fill(0, 1)
		p := r.start("a", each(h.handle), options{})
		r.pass(time.Second) // within its time
		r.acts(operate.ActEvict, 0)
		h.release()
		r.pass(10 * time.Second)
		r.wantEffects(0, "0/0")
		wantOne[consumer.Stale](p)
		p.end()
	})
}

// Goroutines that Run leaves behind end when the handler returns.
func TestNothingIsLeftOnceTheHandlerHasReturned(t *testing.T) {
	before := runtime.NumGoroutine()
	inBubble(t, 1, func(r *rig) {
		h := hangsOn("0/0")
		r.fill(0, 1)
		p := r.start("a", each(h.handle), options{BatchTimeout: time.Second})
		r.pass(time.Second)
		p.stop()
		if err := <-p.done; err == nil {
			t.Error("Run returned nil while a handler hung")
		}
		h.release()
	})
	if after := runtime.NumGoroutine(); after > before+2 {
		t.Errorf("%d goroutines, %d before", after, before)
	}
}
