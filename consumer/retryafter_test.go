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

var errBank = errors.New("the bank does not answer")

func (r *rig) deferred() []operate.DeadLetter {
	r.Helper()
	ls, err := r.sink.Operator().DeadLetters(r.Context(), operate.DeadLetterQuery{Deferred: true})
	if err != nil {
		r.Fatal(err)
	}
	return ls
}

func (r *rig) wantSet(n int32, want []string) {
	r.Helper()
	got, want := r.sink.List(list(n)), slices.Clone(want)
	slices.Sort(got)
	slices.Sort(want)
	if !slices.Equal(got, want) {
		r.Errorf("effects of partition %d:\n got %v\nwant %v", n, got, want)
	}
}

// TestAMessageThatIsWantedLaterHoldsNobodyUp: in each form of handlers, the others of its batch commit at once and
// in order, and it is applied once it is due.
func TestAMessageThatIsWantedLaterHoldsNobodyUp(t *testing.T) {
	for _, form := range []string{"Each", "EachKey", "Batches", "EachTransaction"} {
		t.Run(form, func(t *testing.T) {
			inBubble(t, 2, func(r *rig) {
				var back atomic.Bool
				var early, calls atomic.Int32
				began := time.Now()
				one := func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
					if m.Offset%10 == 3 {
						calls.Add(1)
						if !back.Load() {
							return consumer.RetryAfter(fmt.Errorf("debit: %w", errBank), time.Minute)
						}
						if m.Replay == 0 || time.Since(began) < time.Minute {
							early.Add(1)
						}
					}
					return record(ctx, tx, m, e)
				}
				several := func(ctx context.Context, tx tx, ms []consumer.Message) error {
					for _, m := range ms {
						if err := one(ctx, tx, m, m.Under.Epoch); err != nil {
							return err
						}
					}
					return nil
				}
				h := map[string]handlers{
					"Each": consumer.Each(one), "EachKey": consumer.EachKey(one, 4), "EachTransaction": consumer.EachTransaction(several),
					"Batches": consumer.Batches(func(ctx context.Context, tx tx, ms []consumer.Message, _ epoch.Epoch) error {
						return several(ctx, tx, ms)
					}),
				}[form]
				all := [][]string{r.fill(0, 40), r.fill(1, 40)}
				p := r.start("a", h, options{})
				r.pass(10 * time.Second)
				for n := range int32(2) {
					prompt := slices.Clone(all[n])
					prompt = slices.DeleteFunc(prompt, func(v string) bool { return v[len(v)-1] == '3' })
					r.wantEffects(n, prompt...)
					r.wantNext(n, 40)
				}
				ls := r.deferred()
				if len(ls) != 8 || len(r.sink.DeadLetters()) != 0 || seen[consumer.Halted](p) != nil || seen[consumer.Retried](p) != nil {
					t.Fatalf("%d are deferred, %d dead letters, halts %v, retries %v", len(ls), len(r.sink.DeadLetters()), seen[consumer.Halted](p), seen[consumer.Retried](p))
				}
				failed, later := 0, 0
				for _, e := range seen[consumer.Advanced](p) {
					failed, later = failed+e.Failed, later+e.Deferred
				}
				for _, e := range seen[consumer.Transacted](p) {
					if e.Outcome != consumer.OutcomeCommitted && e.Outcome != consumer.OutcomeDeferred || e.Failure != consumer.FailureNone {
						t.Errorf("a transaction counts as %+v", e)
					}
				}
				if failed != 0 || later != 8 {
					t.Errorf("%d count as failed and %d as deferred", failed, later)
				}
				before := calls.Load()
				r.pass(45 * time.Second)
				if calls.Load() != before {
					t.Errorf("the handler was called %d times before the messages were due", calls.Load()-before)
				}
				back.Store(true)
				r.pass(30 * time.Second)
				for n := range int32(2) {
					r.wantSet(n, all[n])
				}
				if early.Load() != 0 || len(r.deferred()) != 0 {
					t.Errorf("%d were applied early, %d are left", early.Load(), len(r.deferred()))
				}
				p.end()
			})
		})
	}
}

// TestTheNextOwnerReplaysWhatIsDue also if the one that deferred it is gone: the due time is in the sink.
func TestTheNextOwnerReplaysWhatIsDue(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		values := r.fill(0, 3)
		a := r.start("a", each(func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
			if m.Offset == 1 {
				return consumer.RetryAfter(errBank, 5*time.Minute)
			}
			return record(ctx, tx, m, e)
		}), options{})
		r.pass(4 * time.Minute)
		a.end()
		b := r.start("b", each(record), options{})
		r.pass(50 * time.Second)
		r.wantEffects(0, values[0], values[2])
		r.pass(30 * time.Second)
		r.wantEffects(0, values[0], values[2], values[1])
		done := wantOne[consumer.Replayed](b)
		if done.Err != nil || !done.Final || done.Offset != 1 {
			t.Errorf("the replay is %+v", done)
		}
		r.pass(10 * time.Minute)
		r.wantEffects(0, values[0], values[2], values[1])
		b.end()
	})
}

// TestAMessageIsADeadLetterAfterMaxDeferrals: it has so many replays, of which one is reported as a failure.
func TestAMessageIsADeadLetterAfterMaxDeferrals(t *testing.T) {
	for name, c := range map[string]struct {
		later   func(call int32) error
		most    int
		calls   int32
		refused string
	}{
		"each time":        {func(int32) error { return consumer.RetryAfter(errBank, time.Minute) }, 3, 4, errBank.Error()},
		"once":             {func(int32) error { return consumer.RetryAfter(errBank, time.Minute) }, 1, 2, errBank.Error()},
		"then another":     {firstly(consumer.RetryAfter(errBank, time.Minute), errors.New("reset")), 3, 4, "reset"},
		"then permanently": {firstly(consumer.RetryAfter(errBank, time.Minute), consumer.Permanent(errBank)), 3, 2, errBank.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 1, func(r *rig) {
				r.fill(0, 1)
				var calls atomic.Int32
				p := r.start("a", each(func(_ context.Context, _ tx, m consumer.Message, _ epoch.Epoch) error {
					return c.later(calls.Add(1)) // alone in its batch, so its first call defers it
				}), options{MaxDeferrals: c.most})
				r.pass(time.Hour)
				dead := r.sink.DeadLetters()
				if calls.Load() != c.calls || len(dead) != 1 || len(r.deferred()) != 0 {
					t.Fatalf("after %d calls, want %d, there are %d dead letters, and %d are deferred", calls.Load(), c.calls, len(dead), len(r.deferred()))
				}
				ls, err := r.sink.Operator().DeadLetters(r.Context(), operate.DeadLetterQuery{})
				if err != nil || len(ls) != 1 || !ls[0].Due.IsZero() || ls[0].Deferred != int(c.calls)-1 || !strings.Contains(ls[0].ReplayError, c.refused) {
					t.Errorf("the dead letter is %+v, %v", ls, err)
				}
				final, died := 0, 0
				for _, e := range seen[consumer.Replayed](p) {
					if e.Final {
						final++
					}
					if e.Dead {
						died++
					}
				}
				if failures := r.decided(0, operate.DecidedReplayFailure); final != 1 || died != 1 || len(failures) != 1 {
					t.Errorf("%d replays were final, %d are counted as dead letters, and the log has %+v", final, died, failures)
				}
				p.end()
			})
		})
	}
}

func firstly(first, then error) func(int32) error {
	return func(call int32) error {
		if call == 1 {
			return first
		}
		return then
	}
}

// TestADatabaseAtFaultDefersNothing: RetryAfter is about a message. A deadlock is tried again at once, and an
// unhealthy database halts the partition.
func TestADatabaseAtFaultDefersNothing(t *testing.T) {
	for name, err := range map[string]error{"transient": epoch.ErrTransient, "unhealthy": epoch.ErrUnhealthy} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 1, func(r *rig) {
				values := r.fill(0, 3)
				var calls atomic.Int32
				p := r.start("a", each(func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
					if m.Offset == 1 && calls.Add(1) < 4 {
						return consumer.RetryAfter(err, time.Hour)
					}
					return record(ctx, tx, m, e)
				}), options{})
				r.pass(time.Minute)
				r.wantEffects(0, values...)
				if len(r.deferred()) != 0 {
					t.Errorf("deferred are %+v", r.deferred())
				}
				p.end()
			})
		})
	}
}

// later is a handler for which the messages at these offsets are to wait for a while, until back says otherwise.
func later(back *atomic.Bool, delay time.Duration, offsets ...epoch.Offset) handlers {
	return each(func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
		if slices.Contains(offsets, m.Offset) && !back.Load() {
			return consumer.RetryAfter(errBank, delay)
		}
		return record(ctx, tx, m, e)
	})
}

// TestOperatorsDecideAboutWhatIsDeferred: what is discarded or withdrawn is not applied when it is due, and what is
// requested is applied before, once.
func TestOperatorsDecideAboutWhatIsDeferred(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		var back atomic.Bool
		values := r.fill(0, 5)
		p := r.start("a", later(&back, 10*time.Minute, 1, 2, 3), options{})
		r.pass(time.Minute)
		back.Store(true)
		op := r.sink.Operator()
		ls := r.deferred()
		if len(ls) != 3 {
			t.Fatalf("deferred are %+v", ls)
		}
		for i, kind := range []operate.DeadLetterKind{operate.Discard, operate.Withdraw, operate.Replay} {
			if _, err := op.DoDeadLetter(r.Context(), operate.DeadLetterAct{Kind: kind, Seen: ls[i], By: "anna", Reason: "for the test"}); err != nil {
				t.Fatal(err)
			}
		}
		r.pass(5 * time.Second)
		want := []string{values[0], values[4], values[3]}
		r.wantEffects(0, want...)
		r.pass(time.Hour)
		r.wantEffects(0, want...)
		if dead := r.sink.DeadLetters(); len(dead) != 1 || dead[0].Message.Offset != 2 || len(r.deferred()) != 0 {
			t.Errorf("the dead letters are %+v, deferred %+v", dead, r.deferred())
		}
		p.end()
	})
}

// TestAMessageIsDeferredOnceWhateverBecomesOfTheTransaction that stores it: its answer is lost, with or without its
// effect, or another process has taken the partition over.
func TestAMessageIsDeferredOnceWhateverBecomesOfTheTransaction(t *testing.T) {
	for name, fault := range map[string]func(r *rig, do func() error) error{
		"it is lost":           func(*rig, func() error) error { return epoch.ErrInDoubt },
		"its answer is lost":   func(_ *rig, do func() error) error { return errors.Join(epoch.ErrInDoubt, do()) },
		"the database fails":   func(*rig, func() error) error { return epoch.ErrUnhealthy },
		"a later claim has it": func(r *rig, do func() error) error { r.acts(operate.ActEvict, 0); return do() },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 1, func(r *rig) {
				var back, once atomic.Bool
				values := r.fill(0, 3)
				p := r.start("a", later(&back, 10*time.Minute, 1), options{}, memsink.Hooks{
					Commit: func(_ context.Context, as []epoch.Advance, do func() error) error {
						if as[0].From == 1 && as[0].To == 2 && once.CompareAndSwap(false, true) { // the handler refuses it
							return fault(r, do)
						}
						return do()
					},
				})
				r.pass(9 * time.Minute)
				if n := len(r.deferred()); n != 1 || !once.Load() {
					t.Fatalf("%d are deferred, the fault came: %t", n, once.Load())
				}
				r.wantEffects(0, values[0], values[2])
				back.Store(true)
				r.pass(5 * time.Minute)
				r.wantEffects(0, values[0], values[2], values[1])
				p.end()
			})
		})
	}
}

// TestWhatIsDueIsReplayedWhileASinkHasNoRoomForMore: the message that it cannot store waits without a halt, because a
// halted partition replays nothing, and nothing would make room.
func TestWhatIsDueIsReplayedWhileASinkHasNoRoomForMore(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		values := r.fill(0, 4)
		refusals := 0
		p := r.start("a", each(func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
			if m.Replay == 0 && (m.Offset == 1 || m.Offset == 2) {
				return consumer.RetryAfter(errBank, time.Minute)
			}
			return record(ctx, tx, m, e)
		}), options{}, memsink.Hooks{
			Commit: func(_ context.Context, as []epoch.Advance, do func() error) error {
				if as[0].From == 2 && as[0].To == 3 && len(r.deferred()) > 0 {
					refusals++
					return epoch.ErrTransient
				}
				return do()
			},
		})
		r.pass(50 * time.Second)
		r.wantEffects(0, values[0])
		r.pass(30 * time.Second)
		r.wantEffects(0, values[0], values[1], values[3])
		r.pass(time.Minute)
		r.wantEffects(0, values[0], values[1], values[3], values[2])
		if advanced := seen[consumer.Advanced](p); refusals < 5 || advanced[len(advanced)-1].Epoch != 1 {
			t.Errorf("it was refused %d times, and the partition ends as %+v", refusals, advanced[len(advanced)-1])
		}
		p.end()
	})
}

// TestADeferredMessageThatEndsItsConnectionEachTimeIsCountedAsADeadLetter when it becomes one: an alert waits for the count.
func TestADeferredMessageThatEndsItsConnectionEachTimeIsCountedAsADeadLetter(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.fill(0, 1)
		p := r.start("a", each(func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
			if m.Replay == 0 {
				return consumer.RetryAfter(errBank, time.Minute)
			}
			return record(ctx, tx, m, e)
		}), options{}, memsink.Hooks{
			Commit: func(_ context.Context, as []epoch.Advance, do func() error) error {
				if as[0].From == as[0].To { // a replay
					return epoch.ErrInDoubt
				}
				return do()
			},
		})
		r.pass(10 * time.Minute)
		died := 0
		for _, e := range seen[consumer.Replayed](p) {
			if e.Dead {
				died++
			}
		}
		if dead := r.sink.DeadLetters(); died != 1 || len(dead) != 1 || len(r.deferred()) != 0 {
			t.Errorf("%d are counted as dead letters, and there are %d; %d are deferred", died, len(dead), len(r.deferred()))
		}
		p.end()
	})
}

// TestWhatIsDeferredNowIsReported by whoever has the partition, within a minute and a half, whatever became of it.
func TestWhatIsDeferredNowIsReported(t *testing.T) {
	inBubble(t, 2, func(r *rig) {
		r.fill(0, 3)
		r.fill(1, 2)
		h := each(func(_ context.Context, _ tx, m consumer.Message, _ epoch.Epoch) error {
			if m.Replay == 0 {
				return consumer.RetryAfter(errBank, time.Hour)
			}
			return nil
		})
		reported := func(p *process, want int) {
			t.Helper()
			r.pass(90 * time.Second)
			all := seen[consumer.Deferring](p)
			if len(all) == 0 || all[len(all)-1].Messages != want {
				t.Errorf("reported are %+v, want %d at last", all, want)
			}
		}
		a := r.start("a", h, options{})
		reported(a, 5)
		ls := r.deferred()
		if _, err := r.sink.Operator().DoDeadLetter(r.Context(), operate.DeadLetterAct{Kind: operate.Withdraw, Seen: ls[0], By: "anna", Reason: "no"}); err != nil {
			t.Fatal(err)
		}
		reported(a, 4)
		b := r.start("b", h, options{})
		r.pass(90 * time.Second)
		of := func(p *process) int {
			all := seen[consumer.Deferring](p)
			return all[len(all)-1].Messages
		}
		if of(a)+of(b) != 4 || of(a) == 0 || of(b) == 0 {
			t.Errorf("of 4 in two partitions, one process has %d, and the other %d", of(a), of(b))
		}
		a.end()
		reported(b, 4)
		r.pass(time.Hour)
		reported(b, 0)
		b.end()
	})
}
