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
	"github.com/epochfence/epochfence/ops/operate"
	"github.com/epochfence/epochfence/sinks/memsink"
)

// acts has a person do something to a partition, seen right before.
func (r *rig) acts(kind epoch.ActKind, n int32, change ...func(*epoch.Act)) epoch.Fence {
	r.Helper()
	op := r.sink.Operator()
	seen, err := op.Partition(r.Context(), r.partition(n))
	if err != nil {
		r.Fatal(err)
	}
	a := epoch.NewAct(kind, seen.Fence, "anna", "for the test")
	for _, c := range change {
		c(&a)
	}
	f, err := op.Act(r.Context(), a)
	if err != nil {
		r.Fatal(err)
	}
	return f
}

func to(at epoch.Offset) func(*epoch.Act) {
	return func(a *epoch.Act) { a.To = &epoch.Position{Offset: at, Mark: epoch.NoMark} }
}

// decided are the decisions of a kind about a partition, oldest first.
func (r *rig) decided(n int32, kinds ...epoch.DecisionKind) []epoch.Decision {
	r.Helper()
	p := r.partition(n)
	ds, err := r.sink.Operator().History(r.Context(), operate.HistoryQuery{Partition: &p, Kinds: kinds, Limit: 10_000})
	if err != nil {
		r.Fatal(err)
	}
	slices.Reverse(ds)
	return ds
}

// noAlarm fails the test if a process took a person's act for something else.
func noAlarm(p *process) {
	p.rig.Helper()
	if back, halted, doubt := seen[consumer.WentBack](p), seen[consumer.Halted](p), seen[consumer.InDoubt](p); len(back)+len(halted)+len(doubt) > 0 {
		p.rig.Errorf("a person's act was taken for something else: %v %v %v", back, halted, doubt)
	}
}

func TestALiveOwnerGoesOnFromWhereAPersonTold(t *testing.T) {
	for name, c := range map[string]struct {
		kind epoch.ActKind
		to   epoch.Offset
		then []int // offsets that are applied after the act
	}{
		"rewound":    {epoch.ActRewind, 2, []int{2, 3, 4, 5}},
		"to the end": {epoch.ActRewind, 5, []int{5}},
		"skipped":    {epoch.ActSkip, 6, nil},
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
		r.acts(epoch.ActRewind, 0, to(3))
		r.pass(5 * time.Second)
		r.wantEffects(0, append(want, "0/3", "0/4")...)
		noAlarm(p)
		if at, ok := r.group().Position("orders", 0); !ok || at != 5 {
			t.Errorf("the group is told %d, %v", at, ok)
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
		r.acts(epoch.ActSkip, 0, to(3))
		r.pass(5 * time.Second)
		r.wantEffects(0, "0/0", "0/1", "0/3", "0/4")
		if ds := r.decided(0, epoch.DecidedHalt); len(ds) != 1 || ds[0].From != 2 || !strings.Contains(ds[0].Reason, "poison") {
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
		f := r.acts(epoch.ActEvict, 0)
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
		r.acts(epoch.ActPause, 0)
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
		if ds := r.decided(0, epoch.DecidedHalt); len(ds) != 1 {
			t.Errorf("the log has %+v", ds)
		}
		b := r.start("b", each(record), options{}) // whoever has it, and comes new
		r.pass(time.Minute)
		r.wantEffects(0, want...)
		r.acts(epoch.ActResume, 0)
		r.pass(6 * time.Second)
		r.wantEffects(0, append(want, more...)...)
		if len(seen[consumer.WentBack](p)) > 0 {
			t.Error("the pause was taken for a sink that went back")
		}
		b.end()
		p.end()
	})
}

func TestAPausedPartitionThatIsResumedIsNotMissed(t *testing.T) {
	inBubble(t, 1, func(r *rig) { // without a look that would tell of the act
		deaf := memsink.Hooks{Requests: func(context.Context, []epoch.Partition, func() error) error { return errors.New("no answer") }}
		p := r.start("a", each(record), options{HaltMax: time.Hour}, deaf)
		r.pass(time.Second)
		r.acts(epoch.ActPause, 0)
		want := r.fill(0, 3)
		r.pass(time.Hour)
		r.wantEffects(0)
		r.acts(epoch.ActResume, 0)
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
		r.acts(epoch.ActRebase, 0, to(1), func(a *epoch.Act) { a.Log = changed.Source })
		r.pass(6 * time.Second)
		r.wantEffects(0, append(want, "new 1")...)
		p.end()
	})
}

// letters is a handler that refuses what refuse says.
func letters(r *rig, refuse func(m consumer.Message) error) handlers {
	return each(func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
		if err := refuse(m); err != nil {
			return err
		}
		return record(ctx, tx, m, e)
	}).OnFailure(r.sink.DeadLetter)
}

// requests asks for the replay of all dead letters.
func (r *rig) requests() {
	r.Helper()
	op := r.sink.Operator()
	ls, err := op.DeadLetters(r.Context(), operate.DeadLetterQuery{})
	if err != nil {
		r.Fatal(err)
	}
	for _, l := range ls {
		if _, err := op.DoDeadLetter(r.Context(), operate.DeadLetterAct{Kind: operate.Replay, Seen: l, By: "anna", Reason: "mended"}); err != nil {
			r.Fatal(err)
		}
	}
}

func TestDeadLettersAreReplayedWithinSecondsBesideTheMessages(t *testing.T) {
	inBubble(t, 2, func(r *rig) {
		var mended atomic.Bool
		var at [2]atomic.Int32
		p := r.start("a", each(func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
			if at[m.Partition.Number].Add(1) > 1 {
				t.Error("the handler runs twice at a time for one partition")
			}
			defer at[m.Partition.Number].Add(-1)
			<-time.After(time.Millisecond)
			if m.Offset%5 == 1 && m.Offset < 100 && !mended.Load() {
				return consumer.Permanent(errors.New("poison"))
			}
			return record(ctx, tx, m, e)
		}).OnFailure(r.sink.DeadLetter), options{})
		all := map[int32][]string{0: r.fill(0, 100), 1: r.fill(1, 100)}
		r.pass(time.Minute)
		if n := len(r.sink.DeadLetters()); n != 40 {
			t.Fatalf("%d dead letters", n)
		}
		before := r.sink.Fences()[r.partition(0)]
		mended.Store(true)
		r.requests()
		for range 200 { // the messages go on
			for n := range int32(2) {
				v := fmt.Sprintf("%d/%d", n, len(all[n]))
				all[n] = append(all[n], v)
				r.log.Append(n, v)
			}
			r.pass(20 * time.Millisecond)
		}
		r.pass(10 * time.Second)
		if left := r.sink.DeadLetters(); len(left) > 0 {
			t.Errorf("%d dead letters are left", len(left))
		}
		for n := range int32(2) {
			got, want := r.sink.List(list(n)), slices.Clone(all[n])
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Errorf("partition %d has %d effects, want %d, each once", n, len(got), len(want))
			}
		}
		if now := r.sink.Fences()[r.partition(0)]; now.Claim != before.Claim {
			t.Errorf("a replay has cost the claim: %+v, before %+v", now, before)
		}
		done := seen[consumer.Replayed](p)
		if len(done) != 40 || slices.ContainsFunc(done, func(e consumer.Replayed) bool { return e.Err != nil || !e.Final }) {
			t.Errorf("%d replays: %+v", len(done), done)
		}
		if ds := r.decided(0, epoch.DecidedReplay); len(ds) != 20 || ds[0].By != "anna" || ds[0].Epoch != before.Epoch {
			t.Errorf("the log has %d replays: %+v", len(ds), ds)
		}
		p.end()
	})
}

func TestAReplayThatFailsIsRecordedAndNotTriedAgain(t *testing.T) {
	for name, c := range map[string]struct {
		err   error
		calls int32
		final int
	}{
		"the message's fault":    {errors.New("still poison"), 1, 1},
		"permanently":            {consumer.Permanent(fmt.Errorf("never: %w", epoch.ErrTransient)), 1, 1},
		"what never passes":      {epoch.ErrTransient, 5, 1},
		"an unhealthy database":  {epoch.ErrUnhealthy, 19, 0},
		"another system's stale": {&epoch.StaleError{Partition: epoch.Partition{Group: "x"}}, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 1, func(r *rig) {
				var asked atomic.Bool
				var calls atomic.Int32
				p := r.start("a", letters(r, func(m consumer.Message) error {
					switch {
					case m.Offset != 1:
						return nil
					case asked.Load():
						calls.Add(1)
						return c.err
					default:
						return consumer.Permanent(errors.New("poison"))
					}
				}), options{})
				r.fill(0, 3)
				r.pass(time.Minute)
				asked.Store(true)
				r.requests()
				r.pass(50 * time.Second)
				l, err := r.sink.Operator().DeadLetter(t.Context(), 1)
				if err != nil || (c.final == 1) == l.Requested || c.final == 1 && !strings.Contains(l.ReplayError, c.err.Error()) {
					t.Errorf("the dead letter is %+v, %v", l, err)
				}
				if n := calls.Load(); n != c.calls && (c.final == 1 || n < 15 || n > 25) {
					t.Errorf("the handler was called %d times, want %d", n, c.calls)
				}
				if n := len(r.decided(0, epoch.DecidedReplayFailure)); n != c.final {
					t.Errorf("%d failures are in the log", n)
				}
				r.wantEffects(0, "0/0", "0/2")
				r.wantNext(0, 3)
				if len(seen[consumer.Halted](p))+len(seen[consumer.Stale](p)) > 0 {
					t.Error("the partition did not go on")
				}
				p.end()
			})
		})
	}
}

// Somebody has thought better of it while the handler was at it.
func TestAReplayThatIsWithdrawnMeanwhileIsRolledBackAndNoFailure(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		var asked atomic.Bool
		p := r.start("a", letters(r, func(m consumer.Message) error {
			if m.Offset != 1 {
				return nil
			}
			if !asked.Load() {
				return consumer.Permanent(errors.New("poison"))
			}
			op := r.sink.Operator()
			now, err := op.DeadLetter(t.Context(), 1)
			if err == nil {
				_, err = op.DoDeadLetter(t.Context(), operate.DeadLetterAct{Kind: operate.Withdraw, Seen: now, By: "anna", Reason: "for the test"})
			}
			return err
		}), options{})
		r.fill(0, 3)
		r.pass(time.Minute)
		asked.Store(true)
		r.requests()
		r.pass(time.Minute)
		if done := wantOne[consumer.Replayed](p); !done.Final || !errors.Is(done.Err, epoch.ErrNotRequested) {
			t.Errorf("replayed: %+v", done)
		}
		if n := len(r.decided(0, epoch.DecidedReplayFailure, epoch.DecidedReplay)); n != 0 {
			t.Errorf("%d decisions about a replay that was not wanted", n)
		}
		r.wantEffects(0, "0/0", "0/2")
		noAlarm(p)
		p.end()
	})
}

func TestAReplayUnderAClaimThatIsLostIsRolledBackAndTheNextOwnerDoesIt(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		var asked atomic.Bool
		refuse := func(m consumer.Message) error {
			if m.Offset == 1 && !asked.Load() {
				return consumer.Permanent(errors.New("poison"))
			}
			return nil
		}
		frozen := make(chan struct{})
		var once atomic.Bool
		p := r.start("a", letters(r, refuse), options{}, memsink.Hooks{
			Commit: func(_ context.Context, as []epoch.Advance, do func() error) error {
				if asked.Load() && as[0].From == as[0].To && once.CompareAndSwap(false, true) {
					<-frozen
				}
				return do()
			},
		})
		r.fill(0, 3)
		r.pass(time.Minute)
		asked.Store(true)
		r.requests()
		r.pass(5 * time.Second)
		r.acts(epoch.ActEvict, 0)
		close(frozen)
		r.pass(20 * time.Second)
		r.wantEffects(0, "0/0", "0/2", "0/1")
		if len(r.sink.DeadLetters()) > 0 || len(seen[consumer.Stale](p)) != 1 {
			t.Errorf("dead letters %v, refusals %v", r.sink.DeadLetters(), seen[consumer.Stale](p))
		}
		p.end()
	})
}

func TestATenureWaitsForTheReplayUnderWay(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		var asked atomic.Bool
		var open atomic.Int32
		release, began := make(chan struct{}), make(chan struct{})
		handle := func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
			if open.Add(1) > 1 {
				t.Error("the handler runs twice at a time for one partition")
			}
			defer open.Add(-1)
			if m.Offset == 1 && !asked.Load() {
				return consumer.Permanent(errors.New("poison"))
			}
			if m.Offset == 1 && asked.CompareAndSwap(true, true) && len(began) == 0 {
				select {
				case <-began:
				default:
					close(began)
					<-release // it does not heed its context
				}
			}
			return record(ctx, tx, m, e)
		}
		p := r.start("a", each(handle).OnFailure(r.sink.DeadLetter), options{})
		r.fill(0, 3)
		r.pass(time.Minute)
		asked.Store(true)
		r.requests()
		<-began
		r.acts(epoch.ActRewind, 0, to(0))
		r.pass(10 * time.Second) // the idle owner has noticed, and may not run the handler again
		r.wantEffects(0, "0/0", "0/2")
		close(release)
		r.pass(20 * time.Second)
		r.wantEffects(0, "0/0", "0/2", "0/0", "0/1", "0/2", "0/1")
		p.end()
	})
}

func TestDecisionsOfAConsumerAreRecorded(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.group().Script()
		p := r.start("a", each(record), options{})
		r.group().Grant(p.member, "orders", 0)
		r.fill(0, 3)
		r.pass(time.Second)
		r.acts(epoch.ActEvict, 0)
		r.log.Append(0, "0/3")
		r.pass(time.Second)
		lost := atomic.Bool{}
		p.sink.Script(memsink.Hooks{Commit: func(_ context.Context, _ []epoch.Advance, do func() error) error {
			if lost.CompareAndSwap(false, true) {
				_ = do()
				return epoch.ErrInDoubt
			}
			return do()
		}})
		r.log.Append(0, "0/4")
		r.pass(time.Second)
		r.group().Lose(p.member, "orders", 0, errors.New("fenced by the broker"))
		r.pass(time.Second)
		ds := r.decided(0, epoch.DecidedStale, epoch.DecidedInDoubt, epoch.DecidedLoss)
		var got []string
		for _, d := range ds {
			got = append(got, fmt.Sprintf("%s %d %d>%d %s", d.Kind, d.Epoch, d.From, d.To, d.Owner))
		}
		want := []string{"stale 1 3>3 a", "in-doubt 3 4>5 a", "loss 4 5>5 a"}
		if !slices.Equal(got, want) || !strings.Contains(ds[0].Reason, `"operator anna"`) || !strings.Contains(ds[2].Reason, "fenced by the broker") {
			t.Errorf("the log says %q, want %q: %+v", got, want, ds)
		}
		p.end()
	})
}

func TestADecisionLogThatCannotBeWrittenHoldsNothingUp(t *testing.T) {
	const partitions = 8 // which have more to tell than the log has room for
	inBubble(t, partitions, func(r *rig) {
		var calls atomic.Int32
		broken := memsink.Hooks{Record: func(ctx context.Context, _ []epoch.Decision, _ func() error) error {
			calls.Add(1)
			<-ctx.Done() // a database that does not answer
			return ctx.Err()
		}}
		p := r.start("a", each(record), options{}, broken)
		want := map[int32][]string{}
		for n := range int32(partitions) {
			want[n] = r.fill(n, 3)
		}
		r.pass(time.Second)
		for range 400 {
			for n := range int32(partitions) {
				r.acts(epoch.ActEvict, n)
				r.log.Append(n, "more")
				want[n] = append(want[n], "more")
			}
			r.pass(200 * time.Millisecond)
		}
		r.pass(5 * time.Second)
		for n := range int32(partitions) {
			r.wantEffects(n, want[n]...)
		}
		began := time.Now()
		p.end()
		if took := time.Since(began); took > 3*time.Second {
			t.Errorf("Run took %v to end", took)
		}
		missing := 0
		for _, u := range seen[consumer.Unrecorded](p) {
			missing += u.Decisions
		}
		if stale := len(seen[consumer.Stale](p)); missing != stale || stale < 2500 || calls.Load() == 0 {
			t.Errorf("%d decisions are said to be missing, of %d", missing, stale)
		}
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
		if len(r.decided(0, epoch.DecidedLoss)) > 0 {
			t.Error("a hidden log was written")
		}
	})
}

func TestThePausedAskTheSourceForNothing(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		p := r.start("a", each(record), options{})
		r.fill(0, 3)
		r.pass(time.Second)
		r.acts(epoch.ActPause, 0)
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
