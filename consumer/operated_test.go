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

// acts has an operator do something to a partition, seen right before.
func (r *rig) acts(kind operate.ActKind, n int32, change ...func(*operate.Act)) epoch.Fence {
	r.Helper()
	op := r.sink.Operator()
	seen, err := op.Partition(r.Context(), r.partition(n))
	if err != nil {
		r.Fatal(err)
	}
	a := operate.NewAct(kind, seen.Fence, "anna", "for the test")
	for _, c := range change {
		c(&a)
	}
	f, err := op.Act(r.Context(), a)
	if err != nil {
		r.Fatal(err)
	}
	return f
}

func to(at epoch.Offset) func(*operate.Act) {
	return func(a *operate.Act) { a.To = &epoch.Position{Offset: at, Mark: epoch.NoMark} }
}

// decided are the decisions of a kind about a partition, oldest first.
func (r *rig) decided(n int32, kinds ...operate.DecisionKind) []operate.Decision {
	r.Helper()
	p := r.partition(n)
	ds, err := r.sink.Operator().History(r.Context(), operate.HistoryQuery{Partition: &p, Kinds: kinds, Limit: 10_000})
	if err != nil {
		r.Fatal(err)
	}
	slices.Reverse(ds)
	return ds
}

// halt returns the halt of a partition that the audit log has now, or "".
func (r *rig) halt(n int32) string {
	r.Helper()
	op := r.sink.Operator()
	p, err := op.Partition(r.Context(), r.partition(n))
	if err != nil {
		r.Fatal(err)
	}
	halts, err := operate.Halts(r.Context(), op, []operate.Partition{p})
	if err != nil {
		r.Fatal(err)
	}
	if d := halts[r.partition(n)]; d != nil {
		return d.Reason
	}
	return ""
}

// noAlarm fails the test if a process took an operator's act for something else.
func noAlarm(p *process) {
	p.rig.Helper()
	if back, halted, doubt := seen[consumer.WentBack](p), seen[consumer.Halted](p), seen[consumer.InDoubt](p); len(back)+len(halted)+len(doubt) > 0 {
		p.rig.Errorf("an operator's act was taken for something else: %v %v %v", back, halted, doubt)
	}
}

func TestALiveOwnerGoesOnFromWhereAPersonTold(t *testing.T) {
	for name, c := range map[string]struct {
		kind operate.ActKind
		to   epoch.Offset
		then []int // offsets that are applied after the act
	}{
		"rewound":    {operate.ActRewind, 2, []int{2, 3, 4, 5}},
		"to the end": {operate.ActRewind, 5, []int{5}},
		"skipped":    {operate.ActSkip, 6, nil},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 2, func(r *rig) {
				p := r.start("a", each(record), options{})
				want := r.fill(0, 5)
				r.pass(10 * time.Second)
				r.acts(c.kind, 0, to(c.to))
				r.log.Append(0, "0/5") // whose transaction is refused, as the owner knows of nothing
				r.pass(5 * time.Second)
				for _, o := range c.then {
					want = append(want, fmt.Sprintf("0/%d", o))
				}
				r.wantEffects(0, want...)
				r.log.Append(0, "more")
				r.log.Append(1, "other")
				r.pass(time.Second)
				r.wantEffects(0, append(want, "more")...)
				r.wantEffects(1, "other")
				noAlarm(p)
				if stale := wantOne[consumer.Stale](p); stale.Held.Owner != "operator anna" {
					t.Errorf("the refusal names %q", stale.Held.Owner)
				}
				p.end()
			})
		})
	}
}

func TestAnIdleOwnerNoticesAnActWithinSeconds(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.group().SetTerm(10 * time.Minute)
		p := r.start("a", each(record), options{})
		want := r.fill(0, 5)
		r.pass(time.Minute)
		r.acts(operate.ActRewind, 0, to(3))
		r.pass(5 * time.Second)
		r.wantEffects(0, append(want, "0/3", "0/4")...)
		noAlarm(p)
		if at, ok := r.group().Position("orders", 0); !ok || at != 5 {
			t.Errorf("the group is told %d, %v", at, ok)
		}
		p.end()
	})
}

func TestAMessageThatIsTriedAgainIsSkippedWithinSeconds(t *testing.T) {
	for name, failure := range map[string]error{"a failure that counts": errors.New("poison"), "a failure that passes": epoch.ErrTransient} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 1, func(r *rig) {
				p := r.start("a", each(func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
					if m.Offset == 2 {
						return failure
					}
					return record(ctx, tx, m, e)
				}), options{})
				r.fill(0, 5)
				r.pass(10 * time.Second)
				r.acts(operate.ActSkip, 0, to(3))
				r.pass(5 * time.Second)
				r.wantEffects(0, "0/0", "0/1", "0/3", "0/4")
				p.end()
			})
		})
	}
}

// A look that fails has found nothing: the claim is as good as before.
func TestAFenceThatCannotBeReadBetweenAttemptsEndsNoClaim(t *testing.T) {
	inBubble(t, 2, func(r *rig) {
		var down, looks atomic.Int32
		p := r.start("a", each(func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
			if m.Partition.Number == 0 {
				return epoch.ErrTransient
			}
			return record(ctx, tx, m, e)
		}), options{}, memsink.Hooks{Fence: func(_ context.Context, at epoch.Partition, do func() error) error {
			if down.Load() > 0 && at.Number == 0 {
				looks.Add(1)
				return errors.New("out of reach")
			}
			return do()
		}})
		r.fill(0, 1)
		r.fill(1, 1)
		r.pass(10 * time.Second)
		down.Store(1)
		r.acts(operate.ActSkip, 1, to(3))
		r.pass(10 * time.Second)
		claims := 0
		for _, e := range seen[consumer.Claimed](p) {
			if e.Fence.Partition.Number == 0 {
				claims++
			}
		}
		if n := len(seen[consumer.InDoubt](p)); looks.Load() == 0 || claims != 1 || n != 0 {
			t.Errorf("%d looks, %d claims, %d in doubt", looks.Load(), claims, n)
		}
		p.end()
	})
}

func TestAMessageThatHaltsItsPartitionIsSkippedWithinSeconds(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		p := r.start("a", each(func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
			if m.Offset == 2 {
				return consumer.Permanent(errors.New("poison"))
			}
			return record(ctx, tx, m, e)
		}), options{HaltMin: time.Hour, HaltMax: time.Hour})
		r.fill(0, 5)
		r.pass(time.Minute)
		r.wantEffects(0, "0/0", "0/1")
		r.acts(operate.ActSkip, 0, to(3))
		r.pass(5 * time.Second)
		r.wantEffects(0, "0/0", "0/1", "0/3", "0/4")
		if ds := r.decided(0, operate.DecidedHalt); len(ds) != 1 || ds[0].From != 2 || !strings.Contains(ds[0].Reason, "poison") {
			t.Errorf("the log says %+v", ds)
		}
		p.end()
	})
}

func TestAnEvictedOwnerClaimsAgain(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		p := r.start("a", each(record), options{})
		want := r.fill(0, 5)
		r.pass(10 * time.Second)
		f := r.acts(operate.ActEvict, 0)
		r.pass(5 * time.Second)
		if now := r.sink.Fences()[r.partition(0)]; now.Epoch != f.Epoch+1 || now.Owner == f.Owner {
			t.Errorf("after %+v the fence is\n%+v", f, now)
		}
		r.wantEffects(0, want...)
		noAlarm(p)
		p.end()
	})
}

func TestAPausedPartitionWaitsAndComesBackByItself(t *testing.T) {
	inBubble(t, 2, func(r *rig) {
		var status consumer.Status
		p := r.process("a", nil)
		o := p.watched(options{})
		o.Observe = func(e consumer.Event) { p.Observe(e); status.Observe(e) }
		p.run(func(ctx context.Context) error { return consumer.Run(ctx, p.member, p.sink, each(record), o) })
		want := r.fill(0, 3)
		r.pass(10 * time.Second)
		r.acts(operate.ActPause, 0)
		more := []string{"a", "b"}
		r.log.Append(0, more...)
		r.log.Append(1, "other")
		r.pass(10 * time.Minute)
		r.wantEffects(0, want...)
		r.wantEffects(1, "other")
		halted := seen[consumer.Halted](p)
		if len(halted) == 0 || !errors.Is(halted[0].Err, epoch.ErrPaused) || !strings.Contains(halted[0].Err.Error(), "by anna: for the test") {
			t.Fatalf("halted: %v", halted)
		}
		if err := status.Ready(); err != nil {
			t.Errorf("a process whose partition is paused is not ready: %v", err)
		}
		if ds := r.decided(0, operate.DecidedHalt); len(ds) != 1 {
			t.Errorf("the log has %+v", ds)
		}
		b := r.start("b", each(record), options{}) // whoever has it, and comes new
		r.pass(time.Minute)
		r.wantEffects(0, want...)
		r.acts(operate.ActResume, 0)
		r.pass(6 * time.Second)
		r.wantEffects(0, append(want, more...)...)
		if len(seen[consumer.WentBack](p)) > 0 {
			t.Error("the pause was taken for a sink that went back")
		}
		b.end()
		p.end()
	})
}

func TestAPauseOfAnIdlePartitionIsNoRefusalOfATransaction(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		p := r.start("a", each(record), options{})
		r.fill(0, 3)
		r.pass(time.Minute)
		r.acts(operate.ActPause, 0)
		r.pass(time.Minute)
		if ds := r.decided(0, operate.DecidedStale); len(ds) > 0 {
			t.Errorf("nothing was in hand, and the audit log has %+v", ds)
		}
		if ds, es := r.decided(0, operate.DecidedHalt), seen[consumer.Halted](p); len(ds) != 1 || len(es) == 0 {
			t.Errorf("the log has %+v, and the events are %+v", ds, es)
		}
		p.end()
	})
}

func TestAPausedPartitionThatIsResumedIsNotMissed(t *testing.T) {
	inBubble(t, 1, func(r *rig) { // without a look that would tell of the act
		deaf := memsink.Hooks{Requests: func(context.Context, []epoch.Partition, func() error) error { return errors.New("no answer") }}
		p := r.start("a", each(record), options{HaltMax: time.Hour}, deaf)
		r.pass(time.Second)
		r.acts(operate.ActPause, 0)
		want := r.fill(0, 3)
		r.pass(time.Hour)
		r.wantEffects(0)
		r.acts(operate.ActResume, 0)
		r.pass(6 * time.Second)
		r.wantEffects(0, want...)
		p.end()
	})
}

func TestARecreatedLogIsAcceptedWhilePeopleWaitForIt(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		p := r.start("a", each(record), options{HaltMin: time.Hour, HaltMax: time.Hour})
		want := r.fill(0, 3)
		r.pass(10 * time.Second)
		r.log.Recreate(1)
		r.log.Append(0, "new 0", "new 1")
		r.pass(time.Minute)
		halted := seen[consumer.Halted](p)
		var changed *epoch.LogChangedError
		if len(halted) == 0 || !errors.As(halted[0].Err, &changed) {
			t.Fatalf("halted: %v", halted)
		}
		r.acts(operate.ActRebase, 0, to(1), func(a *operate.Act) { a.Log = changed.Source })
		r.pass(6 * time.Second)
		r.wantEffects(0, append(want, "new 1")...)
		p.end()
	})
}

func TestR9ANewPartitionOfAnotherLogWaitsForTheDecisionAboutTheOthers(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		p := r.start("a", each(record), options{HaltMin: 10 * time.Second, HaltMax: time.Minute})
		want := r.fill(0, 3)
		r.pass(10 * time.Second)
		r.log.Recreate(2)
		r.log.Append(0, "new 0")
		r.log.Append(1, "new 1")
		r.pass(5 * time.Minute)
		r.wantEffects(1)
		var changed *epoch.LogChangedError
		waits := slices.ContainsFunc(seen[consumer.Halted](p), func(h consumer.Halted) bool {
			return h.Partition.Number == 1 && errors.As(h.Err, &changed) && changed.Partition.Number == 0
		})
		if !waits {
			t.Fatalf("partition 1 is not halted for partition 0: %v", seen[consumer.Halted](p))
		}
		r.acts(operate.ActRebase, 0, to(0), func(a *operate.Act) { a.Log = changed.Source })
		r.pass(2 * time.Minute)
		r.wantEffects(0, append(want, "new 0")...)
		r.wantEffects(1, "new 1")
		p.end()
	})
}

// plain hides what a sink has besides.
type plain struct{ epoch.Sink[tx] }

func TestASinkWithoutAnythingForPeopleIsConsumedAsBefore(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		p := r.process("a", nil)
		p.run(func(ctx context.Context) error {
			return consumer.Run(ctx, p.member, plain{p.sink}, each(record), p.watched(options{}))
		})
		want := r.fill(0, 3)
		r.pass(time.Minute)
		r.wantEffects(0, want...)
		r.group().Lose(p.member, "orders", 0, errors.New("gone"))
		synctest.Wait()
		p.end()
		if len(r.decided(0, operate.DecidedLoss)) > 0 {
			t.Error("a hidden log was written")
		}
	})
}

func TestThePausedAskTheSourceForNothing(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		p := r.start("a", each(record), options{})
		r.fill(0, 3)
		r.pass(time.Second)
		r.acts(operate.ActPause, 0)
		r.pass(10 * time.Second)
		r.group().OnConfirm(func(context.Context, confirmation) error {
			t.Error("a paused partition's lease is confirmed")
			return nil
		})
		r.pass(time.Minute)
		r.group().OnConfirm(nil)
		p.end()
	})
}
