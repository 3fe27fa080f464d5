package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
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
