package consumer_test

import (
	"context"
	"errors"
	"fmt"
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

// deadly is a sink whose connection dies of what a handler has appended to the list
// "deadly": as it commits, and the handler has returned nil.
func deadly(n *atomic.Int32) memsink.Hooks {
	return memsink.Hooks{Commit: func(_ context.Context, _ []epoch.Advance, do func() error) error {
		if n.Swap(0) > 0 {
			return fmt.Errorf("server closed the connection unexpectedly: %w", epoch.ErrInDoubt)
		}
		return do()
	}}
}

// TestAMessageThatKillsItsConnectionAsItCommitsIsFoundOut: nothing says which message it
// is. It is narrowed down, the others are applied, and it ends as any that fails.
func TestAMessageThatKillsItsConnectionAsItCommitsIsFoundOut(t *testing.T) {
	for name, how := range map[string]func(r *rig, killed *atomic.Int32) handlers{
		"Each": func(r *rig, killed *atomic.Int32) handlers {
			return each(func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
				if string(m.Value) == "0/13" {
					killed.Add(1)
				}
				return record(ctx, tx, m, e)
			})
		},
		"Batches": func(r *rig, killed *atomic.Int32) handlers {
			return consumer.Batches(func(ctx context.Context, tx tx, ms []consumer.Message, e epoch.Epoch) error {
				for _, m := range ms {
					if string(m.Value) == "0/13" {
						killed.Add(1)
					}
					_ = record(ctx, tx, m, e)
				}
				return nil
			})
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 2, func(r *rig) {
				first, other := r.fill(0, 20), r.fill(1, 20)
				var killed atomic.Int32
				p := r.start("a", how(r, &killed).OnFailure(r.sink.DeadLetter), options{MaxAttempts: 2}, deadly(&killed))
				r.appliedWithinAnHour()
				p.end()
				r.wantEffects(0, slices.Delete(slices.Clone(first), 13, 14)...)
				r.wantEffects(1, other...)
				dead := r.sink.DeadLetters()
				if len(dead) != 1 || dead[0].Message.Offset != 13 || !strings.Contains(dead[0].Cause, "lost their connection, while one without it committed") {
					t.Errorf("dead letters: %+v", dead)
				}
			})
		})
	}
}

func TestAMessageThatKillsItsConnectionIsFoundAmongThoseThatGoAloneForAnother(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.fill(0, 20)
		var killed atomic.Int32
		p := r.start("a", each(func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
			switch m.Offset {
			case 19:
				return consumer.Permanent(errPoison)
			case 13:
				killed.Add(1)
			}
			return record(ctx, tx, m, e)
		}).OnFailure(r.sink.DeadLetter), options{MaxAttempts: 2}, deadly(&killed))
		r.appliedWithinAnHour()
		p.end()
		if dead := r.sink.DeadLetters(); len(dead) != 2 || dead[0].Message.Offset+dead[1].Message.Offset != 13+19 {
			t.Errorf("dead letters: %+v", dead)
		}
	})
}

func TestOnFailureThatKillsItsConnectionAsItCommitsHalts(t *testing.T) {
	inBubble(t, 2, func(r *rig) {
		first, other := r.fill(0, 3), r.fill(1, 3)
		var killed atomic.Int32
		p := r.start("a", each(failOn(consumer.Permanent(errPoison), first[1])).OnFailure(
			func(context.Context, tx, consumer.Message, epoch.Epoch, error) error { killed.Add(1); return nil }),
			options{MaxAttempts: 2, HaltMin: time.Hour, HaltMax: time.Hour}, deadly(&killed))
		r.pass(10 * time.Minute)
		p.end()
		r.wantEffects(0, first[0])
		r.wantEffects(1, other...)
		if h := wantOne[consumer.Halted](p); h.Reason != consumer.ReasonOnFailureFailed || h.Next != 1 {
			t.Errorf("halted: %+v", h)
		}
	})
}

// TestAMessageThatMovesItsOwnFenceHasFailedAnAttempt: the fence is where it was each time
// it is looked at.
func TestAMessageThatMovesItsOwnFenceHasFailedAnAttempt(t *testing.T) {
	stale := func(a epoch.Advance, by epoch.Epoch) error {
		held := epoch.Fence{Origin: epoch.Origin{Partition: a.Partition}, Epoch: 1 + by, Claim: epoch.ClaimID{1}, Next: a.From}
		return &epoch.StaleError{Partition: a.Partition, Ours: a.Claim, Held: held}
	}
	for name, refused := range map[string]func(epoch.Advance) error{
		"ahead": func(a epoch.Advance) error {
			return &epoch.MovedError{Partition: a.Partition, From: a.From, Next: a.From + 1}
		},
		"back":                func(a epoch.Advance) error { return &epoch.MovedError{Partition: a.Partition, From: a.From} },
		"to another claim":    func(a epoch.Advance) error { return stale(a, 0) },
		"to an earlier epoch": func(a epoch.Advance) error { return stale(a, -1) },
		"to a later epoch":    func(a epoch.Advance) error { return stale(a, 1000) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 1, func(r *rig) {
				want := r.fill(0, 5)
				var moves atomic.Int32
				h := each(func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
					if string(m.Value) == want[3] {
						moves.Add(1)
					}
					return record(ctx, tx, m, e)
				}).OnFailure(r.sink.DeadLetter)
				p := r.start("a", h, options{MaxAttempts: 2}, memsink.Hooks{Commit: func(_ context.Context, as []epoch.Advance, do func() error) error {
					if moves.Swap(0) > 0 {
						return refused(as[0])
					}
					return do()
				}})
				r.appliedWithinAnHour()
				p.end()
				r.wantEffects(0, want[0], want[1], want[2], want[4])
				if dead := r.sink.DeadLetters(); len(dead) != 1 || dead[0].Message.Offset != 3 || !strings.Contains(dead[0].Cause, "does the handler of this message write to the fence") {
					t.Errorf("dead letters: %+v", dead)
				}
				if back, stale := seen[consumer.WentBack](p), seen[consumer.Stale](p); len(back)+len(stale) > 0 {
					t.Errorf("the sink went back: %+v; a later claim: %+v", back, stale)
				}
			})
		})
	}
}

// TestAConnectionThatSomebodyElseHasEndedIsNoAttempt: an operator, again and again, or a
// database that is not there for the claim that follows.
func TestAConnectionThatSomebodyElseHasEndedIsNoAttempt(t *testing.T) {
	for name, ends := range map[string]func(r *rig, p *process){
		"an operator's evict": func(r *rig, _ *process) {
			op := r.sink.Operator()
			f := r.sink.Fences()[r.partition(0)]
			if _, err := op.Act(r.Context(), operate.NewAct(operate.ActEvict, f, "anna", "it hangs")); err != nil {
				r.Fatal(err)
			}
		},
		"a database that was away": func(_ *rig, p *process) {
			var failed atomic.Bool
			p.sink.Script(memsink.Hooks{Claim: func(_ context.Context, _ epoch.Claim, do func() error) error {
				if failed.Swap(true) {
					return do()
				}
				return errors.New("connection refused")
			}})
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 1, func(r *rig) {
				want := r.fill(0, 1)
				var ended atomic.Int32
				p := r.process("a", nil)
				o := p.watched(options{MaxAttempts: 1})
				lossy := answering{p.sink, func(_ []epoch.Advance, err error) error {
					if err != nil {
						return errors.Join(err, epoch.ErrInDoubt)
					}
					return nil
				}}
				h := each(func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
					if ended.Add(1) <= 8 {
						ends(r, p)
						return errors.New("server closed the connection unexpectedly")
					}
					return record(ctx, tx, m, e)
				}).OnFailure(r.sink.DeadLetter)
				p.run(func(ctx context.Context) error { return consumer.Run(ctx, p.member, lossy, h, o) })
				r.appliedWithinAnHour()
				p.end()
				r.wantEffects(0, want...)
				if dead := r.sink.DeadLetters(); len(dead) > 0 {
					t.Errorf("dead letters: %+v", dead)
				}
			})
		})
	}
}

// appliedWithinAnHour waits, in virtual time, for what may never come.
func (r *rig) appliedWithinAnHour() {
	ctx, cancel := context.WithTimeout(r.Context(), time.Hour)
	defer cancel()
	<-r.group().UntilApplied(ctx).Done()
	synctest.Wait()
}
