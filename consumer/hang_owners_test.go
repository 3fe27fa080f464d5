package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/memsink"
)

// hangOptions are those of processes that give a call up after two seconds.
func hangOptions(maxAttempts int) options {
	return options{BatchTimeout: time.Second, MaxAttempts: maxAttempts, HaltMin: time.Hour, HaltMax: time.Hour}
}

// owners starts so many processes. One of them has the partition, and the next one gets it
// when that one gives it up.
func (r *rig) owners(n int, h handlers, o options) (ps []*process) {
	for i := range n {
		ps = append(ps, r.start(string(rune('a'+i)), h, o))
	}
	return ps
}

func all[E consumer.Event](ps []*process) (es []E) {
	for _, p := range ps {
		es = append(es, seen[E](p)...)
	}
	return es
}

// over stops the processes. Those in which a call hung return that.
func over(ps ...*process) {
	for _, p := range ps {
		p.stop()
		var hung *consumer.HungError
		if err := <-p.done; err != nil && !errors.As(err, &hung) {
			p.rig.Errorf("Run: %v", err)
		}
	}
}

// hung are the hangs in the audit log, oldest first.
func (r *rig) hung() (observed []string) {
	r.Helper()
	for _, d := range r.decided(0, operate.DecidedHang, operate.DecidedOnFailureHang) {
		observed = append(observed, fmt.Sprintf("%s %d>%d %s", d.Kind, d.From, d.To, d.Owner))
	}
	return observed
}

func TestAMessageThatHangsOneOwnerAfterTheOtherEndsInOnFailure(t *testing.T) {
	for _, n := range []int{2, 3} {
		t.Run(fmt.Sprint(n, " owners"), func(t *testing.T) {
			inBubble(t, 1, func(r *rig) {
				h := hangsOn("0/2")
				r.fill(0, 5)
				ps := r.owners(n, each(h.handle).OnFailure(r.sink.DeadLetter), hangOptions(n-1))
				r.pass(time.Minute)
				if hung := h.in.Load(); hung != int32(n-1) {
					t.Errorf("the message hung %d times, want MaxAttempts", hung)
				}
				r.wantEffects(0, "0/0", "0/1", "0/3", "0/4")
				if l := r.sink.DeadLetters(); len(l) != 1 || l[0].Message.Offset != 2 {
					t.Errorf("dead letters: %v", l)
				}
				if hung := r.hung(); len(hung) != n-1 || !strings.HasPrefix(hung[0], "hang 2>3 ") {
					t.Errorf("the audit log says %q", hung)
				}
				h.release()
				over(ps...)
			})
		})
	}
}

func TestAMessageThatHangsOneOwnerAfterTheOtherHaltsItsPartition(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		h := hangsOn("0/2")
		r.fill(0, 5)
		ps := r.owners(3, each(h.handle), hangOptions(2))
		r.pass(time.Minute)
		halted := all[consumer.Halted](ps)
		if h.in.Load() != 2 || len(halted) != 1 || halted[0].Reason != consumer.ReasonMessageFailed || halted[0].Next != 2 {
			t.Fatalf("%d hangs, and halted: %v", h.in.Load(), halted)
		}
		var failure *consumer.HandlerError
		if !errors.As(halted[0].Err, &failure) || failure.Offset != 2 || failure.Attempts != 2 || !strings.Contains(halted[0].Err.Error(), "paused and resumed") {
			t.Errorf("halted with %v", halted[0].Err)
		}
		h.release()
		over(ps...)
	})
}

// Whoever tries it after a halt hangs too: it waits for an operator, whatever HaltMin is.
func TestAMessageThatHaltedAfterItsHangsIsTriedOnceAnOperatorLetsItContinue(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		h := hangsOn("0/2")
		fixed := atomic.Bool{}
		handle := each(func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
			if fixed.Load() {
				return record(ctx, tx, m, e)
			}
			return h.handle(ctx, tx, m, e)
		})
		want := r.fill(0, 5)
		ps := r.owners(5, handle, options{BatchTimeout: time.Second, MaxAttempts: 2})
		r.pass(time.Hour)
		if n := h.in.Load(); n != 2 {
			t.Errorf("%d calls hang, want MaxAttempts", n)
		}
		if n := len(all[consumer.Lost](ps)); n != 2 {
			t.Errorf("the partition was given up %d times, want by the processes that hang", n)
		}
		fixed.Store(true)
		r.pass(time.Hour)
		r.wantEffects(0, want[:2]...)
		r.acts(operate.ActPause, 0)
		r.acts(operate.ActResume, 0)
		r.pass(10 * time.Second)
		r.wantEffects(0, want...)
		h.release()
		over(ps...)
	})
}

func TestAProcessThatIsRestartedGoesOnCountingHangs(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		h := hangsOn("0/2")
		r.fill(0, 5)
		for range 4 {
			p := r.start("a", each(h.handle).OnFailure(r.sink.DeadLetter), hangOptions(3))
			r.pass(10 * time.Second)
			over(p)
		}
		if n := h.in.Load(); n != 3 {
			t.Errorf("the message hung %d times, want MaxAttempts", n)
		}
		r.wantEffects(0, "0/0", "0/1", "0/3", "0/4")
		h.release()
	})
}

func TestAProcessThatIsToldToStopRecordsWhatHangs(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		h := hangsOn("0/2")
		r.fill(0, 5)
		p := r.start("a", each(h.handle), options{HangTimeout: time.Hour})
		r.pass(time.Second)
		over(p)
		if hung := r.hung(); !slices.Equal(hung, []string{"hang 2>3 a"}) {
			t.Errorf("the audit log says %q", hung)
		}
		h.release()
	})
}

// The first owner only knows that a message of its batch hangs. Those after it try the
// messages one by one.
func TestOfABatchThatHangsTheMessageIsFoundByTheNextOwners(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		free := make(chan struct{})
		var hung atomic.Int32
		h := consumer.Batches(func(ctx context.Context, tx tx, ms []consumer.Message, e epoch.Epoch) error {
			for _, m := range ms {
				if m.Offset == 3 {
					hung.Add(1)
					<-free
					return ctx.Err()
				}
			}
			for _, m := range ms {
				if err := record(ctx, tx, m, e); err != nil {
					return err
				}
			}
			return nil
		}).OnFailure(r.sink.DeadLetter)
		r.fill(0, 6)
		ps := r.owners(4, h, hangOptions(2))
		r.pass(time.Minute)
		if n := hung.Load(); n != 3 {
			t.Errorf("the message hung %d times, want once among others and twice alone", n)
		}
		if hung := r.hung(); len(hung) != 3 || !strings.HasPrefix(hung[0], "hang 0>6 ") || !strings.HasPrefix(hung[1], "hang 3>4 ") {
			t.Errorf("the audit log says %q", hung)
		}
		r.wantEffects(0, "0/0", "0/1", "0/2", "0/4", "0/5")
		close(free)
		over(ps...)
	})
}

func TestAnOnFailureThatHangsHaltsThePartitionOfTheNextOwner(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		free := make(chan struct{})
		var hung atomic.Int32
		h := each(poison).OnFailure(func(context.Context, tx, consumer.Message, epoch.Epoch, error) error {
			hung.Add(1)
			<-free
			return nil
		})
		r.fill(0, 1)
		ps := r.owners(3, h, hangOptions(1))
		r.pass(time.Minute)
		halted := all[consumer.Halted](ps)
		if hung.Load() != 1 || len(halted) != 1 || halted[0].Reason != consumer.ReasonOnFailureFailed || !strings.Contains(halted[0].Err.Error(), "poison") {
			t.Errorf("OnFailure hung %d times, and halted: %v", hung.Load(), halted)
		}
		if hung := r.hung(); len(hung) != 1 || !strings.HasPrefix(hung[0], "on-failure-hang 0>1 ") {
			t.Errorf("the audit log says %q", hung)
		}
		close(free)
		over(ps...)
	})
}

// Whoever resumes a partition wants its message tried, by a new owner and by one that
// remembers.
func TestAResumeForgivesHangs(t *testing.T) {
	for _, sameOwner := range []bool{true, false} {
		t.Run(fmt.Sprint("same owner ", sameOwner), func(t *testing.T) {
			inBubble(t, 1, func(r *rig) {
				h := hangsOn("0/2")
				fixed := atomic.Bool{}
				handle := each(func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
					if fixed.Load() {
						return record(ctx, tx, m, e)
					}
					return h.handle(ctx, tx, m, e)
				}).OnFailure(r.sink.DeadLetter)
				want := r.fill(0, 5)
				ps := r.owners(1, handle, hangOptions(1))
				r.pass(time.Second)
				r.acts(operate.ActPause, 0)
				r.pass(9 * time.Second)
				fixed.Store(true)
				if sameOwner {
					h.release()
				} else {
					ps = append(ps, r.start("b", handle, hangOptions(1)))
				}
				r.pass(10 * time.Second)
				r.acts(operate.ActResume, 0)
				r.pass(10 * time.Second)
				r.wantEffects(0, want...)
				if !sameOwner {
					h.release()
				}
				over(ps...)
			})
		})
	}
}

func TestTheNextOwnerGetsAPartitionOnceItCanReadWhatHung(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		h := hangsOn("0/0")
		r.fill(0, 1)
		leased := make(chan string, 1) // to whom, when the hang was recorded
		a := r.start("a", each(h.handle), hangOptions(1), memsink.Hooks{
			Record: func(_ context.Context, ds []operate.Decision, do func() error) error {
				if ds[0].Kind == operate.DecidedHang {
					<-time.After(time.Second) // it takes its time
					leased <- r.group().Owner(r.log.Name(), 0)
				}
				return do()
			},
		})
		r.pass(time.Second)
		b := r.start("b", each(record), hangOptions(1))
		if to := <-leased; to != "a" {
			t.Errorf("the partition was leased to %q before the hang was recorded", to)
		}
		r.pass(time.Second)
		if to := r.group().Owner(r.log.Name(), 0); to != "b" {
			t.Errorf("then the partition is leased to %q", to)
		}
		h.release()
		over(a, b)
	})
}

func TestADecisionLogThatTakesNoHangDelaysTheNextOwnerBriefly(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		h := hangsOn("0/0")
		r.fill(0, 1)
		a := r.start("a", each(h.handle), hangOptions(1), memsink.Hooks{
			Record: func(ctx context.Context, _ []operate.Decision, _ func() error) error {
				<-ctx.Done() // a database that does not answer
				return ctx.Err()
			},
		})
		r.pass(time.Second)
		b := r.start("b", each(record), hangOptions(1))
		r.pass(4 * time.Second)
		r.wantEffects(0, "0/0")
		if u := wantOne[consumer.Unrecorded](a); u.Decisions != 1 {
			t.Errorf("unrecorded: %+v", u)
		}
		h.release()
		over(a, b)
	})
}

func TestWithoutADecisionLogHangsAreCountedInMemory(t *testing.T) {
	no := errors.New("permission denied")
	for name, hooks := range map[string]memsink.Hooks{
		"it cannot be written": {Record: func(context.Context, []operate.Decision, func() error) error { return no }},
		"it cannot be read":    {Hangs: func(context.Context, epoch.Partition, func() error) error { return no }},
		"it does not answer": {Hangs: func(ctx context.Context, _ epoch.Partition, _ func() error) error {
			<-ctx.Done()
			return ctx.Err()
		}},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 1, func(r *rig) {
				var hung atomic.Int32
				h := each(func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
					if m.Offset == 2 {
						hung.Add(1)
						<-time.After(5 * time.Second)
					}
					return record(ctx, tx, m, e)
				}).OnFailure(r.sink.DeadLetter)
				r.fill(0, 5)
				p := r.start("a", h, hangOptions(3), hooks)
				r.pass(time.Minute)
				if n := hung.Load(); n != 3 {
					t.Errorf("the message was tried %d times, want MaxAttempts", n)
				}
				r.wantEffects(0, "0/0", "0/1", "0/3", "0/4")
				p.end()
			})
		})
	}
}

func TestWhatHungIsReadOnceInATenureAndNeverByTheFirst(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		var reads atomic.Int32
		counting := memsink.Hooks{Hangs: func(_ context.Context, _ epoch.Partition, do func() error) error {
			reads.Add(1)
			return do()
		}}
		want := r.fill(0, 5)
		for n := range int32(3) {
			p := r.start("a", each(record), options{}, counting)
			r.pass(time.Second)
			r.acts(operate.ActEvict, 0)
			r.log.Append(0, "more")
			want = append(want, "more")
			r.pass(5 * time.Second)
			if reads.Load() != n {
				t.Errorf("after tenure %d what hung was read %d times", n+1, reads.Load())
			}
			p.end()
		}
		r.wantEffects(0, want...)
	})
}
