package consumer_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/memsink"
)

// claims counts how often p claimed a partition.
func (p *process) claims(n int32) int {
	count := 0
	for _, c := range seen[consumer.Claimed](p) {
		if c.Fence.Partition == p.rig.partition(n) {
			count++
		}
	}
	return count
}

// A topic of n partitions would otherwise send n times n starts.
func TestPartitionsThatAreNewTogetherAreSeededOnce(t *testing.T) {
	inBubble(t, 50, func(r *rig) {
		var times atomic.Int32
		p := r.start("a", each(record), options{}, memsink.Hooks{Seed: func(_ context.Context, _ []epoch.Start, do func() error) error {
			times.Add(1)
			<-time.After(time.Second)
			return do()
		}})
		r.pass(time.Minute)
		p.end()
		if n := len(seen[consumer.Claimed](p)); n != 50 || times.Load() != 1 {
			t.Errorf("%d partitions were claimed after %d seedings, want 50 after one", n, times.Load())
		}
	})
}

func TestASeedingThatIsCutOffIsDoneForTheOthersByOneOfThem(t *testing.T) {
	inBubble(t, 3, func(r *rig) {
		r.group().Script()
		var times atomic.Int32
		p := r.start("a", each(record), options{}, memsink.Hooks{Seed: func(ctx context.Context, _ []epoch.Start, do func() error) error {
			if times.Add(1) == 1 {
				<-ctx.Done()
				return ctx.Err()
			}
			return do()
		}})
		synctest.Wait()
		for n := range int32(3) {
			r.group().Grant(p.member, r.log.Name(), n)
			synctest.Wait()
		}
		if n := times.Load(); n != 1 {
			t.Fatalf("%d seedings before the first is over", n)
		}
		r.group().Lose(p.member, r.log.Name(), 0, errors.New("taken away"))
		synctest.Wait()
		if n := len(seen[consumer.Claimed](p)); n != 2 || times.Load() != 2 {
			t.Errorf("%d partitions are claimed after %d seedings, want the two that are left after another one", n, times.Load())
		}
		p.end()
	})
}

// R2: only a yes is a yes.
func TestR2AnAnswerThatIsNotKnownMakesNoClaim(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.group().OnConfirm(func(context.Context, confirmation) error { return errors.New("timed out") })
		p := r.start("a", each(record), options{})
		r.pass(time.Hour)
		p.end()
		if f := r.sink.Fences()[r.partition(0)]; f.Epoch != 0 {
			t.Errorf("claimed without a confirmation: %+v", f)
		}
	})
}

// The CHECK comes before the CONFIRM, which publishes the fence's position.
func TestNoPositionOfAnotherLogIsPublished(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		origin := epoch.Origin{Partition: r.partition(0), Log: "another log", Source: "another source"}
		if err := r.sink.Seed(r.Context(), []epoch.Start{{Origin: origin, Next: epoch.Position{Offset: 7, Mark: epoch.NoMark}}}); err != nil {
			t.Fatal(err)
		}
		p := r.start("a", each(record), options{})
		r.pass(time.Minute)
		p.end()
		if at, ok := r.group().Position(r.log.Name(), 0); ok {
			t.Errorf("the group was told position %d", at)
		}
		if h := seen[consumer.Halted](p); len(h) == 0 || !errors.Is(h[0].Err, epoch.ErrLogChanged) {
			t.Errorf("halts: %v", h)
		}
	})
}

// betweenReadAndSwap has a commit of the claim before, which was in flight, land
// when the next process has read the fence and before it swaps.
func betweenReadAndSwap(t *testing.T, check func(r *rig, p *process)) {
	inBubble(t, 1, func(r *rig) {
		p := r.start("a", each(record), options{})
		synctest.Wait()
		p.end()
		f := r.sink.Fences()[r.partition(0)]
		r.fill(0, 3)
		p = r.start("b", each(record), options{}, memsink.Hooks{Claim: func(ctx context.Context, _ epoch.Claim, do func() error) error {
			landing := epoch.Advance{Partition: f.Partition, Claim: f.Claim, From: 0, To: 3, Mark: epoch.NoMark}
			if err := r.sink.Commit(ctx, []epoch.Advance{landing}, epoch.TxOptions{}, func(context.Context, tx) error { return nil }); err != nil {
				t.Errorf("the commit in flight: %v", err)
			}
			return do()
		}})
		synctest.Wait()
		check(r, p)
		p.end()
	})
}

// R5: the swap's answer says where to continue, not what was read before it.
func TestR5ReadingStartsAtThePositionThatTheSwapReturned(t *testing.T) {
	betweenReadAndSwap(t, func(r *rig, p *process) {
		r.log.Append(0, "next")
		synctest.Wait()
		r.wantEffects(0, "next")
		if d := seen[consumer.InDoubt](p); len(d) > 0 {
			t.Errorf("began at the position that was seen: %v", d)
		}
	})
}

func TestR8ThePositionThatTheSwapReturnedIsMirrored(t *testing.T) {
	betweenReadAndSwap(t, func(r *rig, _ *process) {
		if at, _ := r.group().Position(r.log.Name(), 0); at != 3 {
			t.Errorf("the group was told position %d; the fence is at 3", at)
		}
	})
}

// R9: all partitions of the topic get their fences when the group begins.
func TestR9APartitionClaimedLaterStartsWhereItWasWhenTheGroupBegan(t *testing.T) {
	inBubble(t, 2, func(r *rig) {
		g := r.group()
		g.Script()
		r.fill(0, 5)
		r.fill(1, 5)
		p := r.start("a", each(record), options{Start: consumer.StartLatest})
		synctest.Wait()
		g.Grant(p.member, r.log.Name(), 0)
		synctest.Wait()
		r.log.Append(1, "since")
		g.Grant(p.member, r.log.Name(), 1)
		synctest.Wait()
		p.end()
		r.wantEffects(1, "since")
	})
}

// R9 again: nor does a new claim make the fence again, at the earliest message.
func TestR9AFenceMissingWhileInDoubtIsNotMadeAgain(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		empty := r.sink.Snapshot()
		r.fill(0, 3)
		p := r.start("a", each(record), options{})
		synctest.Wait()
		p.sink.Script(once(func(func() error) error {
			r.sink.Restore(empty) // the effects are gone as well
			return epoch.ErrInDoubt
		}))
		r.log.Append(0, "after")
		r.pass(10 * time.Minute)
		p.end()
		r.wantEffects(0)
		if h := seen[consumer.Halted](p); len(h) == 0 || !errors.Is(h[0].Err, epoch.ErrMissing) {
			t.Errorf("halts: %v", h)
		}
	})
}

// A process that was asked in vain for a lease it has lost does not ask again.
func TestR6ALeaseThatIsKnownToBeLostEndsTheTenure(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		p := r.process("a", nil)
		asked := 0
		s := refusing{p.member, &asked}
		p.run(func(ctx context.Context) error {
			return consumer.Run(ctx, s, p.sink, consumer.Each(record), p.watched(options{}))
		})
		r.pass(time.Hour)
		p.end()
		if asked != 1 || len(seen[consumer.Lost](p)) != 1 {
			t.Errorf("asked %d times; %v", asked, p.events)
		}
	})
}

// refusing is a source that says no, and tells nobody else so.
type refusing struct {
	consumer.Source
	asked *int
}

type refusingTenure struct {
	consumer.Tenure
	asked *int
}

func (s refusing) Run(ctx context.Context, joined func(error), own func(context.Context, consumer.Tenure)) error {
	return s.Source.Run(ctx, joined, func(ctx context.Context, t consumer.Tenure) { own(ctx, refusingTenure{t, s.asked}) })
}

func (t refusingTenure) Confirm(context.Context, epoch.Fence) (epoch.Lease, error) {
	*t.asked++
	return epoch.Lease{}, consumer.ErrLost
}

func TestALostTenureIsNotReportedAsDrained(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		g := r.group()
		g.Script()
		p := r.start("a", each(record), options{})
		g.Grant(p.member, r.log.Name(), 0)
		synctest.Wait()
		g.Lose(p.member, r.log.Name(), 0, nil)
		synctest.Wait()
		p.end()
		wantOne[consumer.Lost](p)
		if d := seen[consumer.Drained](p); len(d) > 0 {
			t.Errorf("drained: %v", d)
		}
	})
}

// R12: a sink that does not answer does not hold a claim up for ever.
func TestR12AnAttemptToClaimIsBoundedInTime(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		want := r.fill(0, 3)
		var silent atomic.Bool
		silent.Store(true)
		p := r.start("a", each(record), options{}, memsink.Hooks{Fence: func(ctx context.Context, _ epoch.Partition, do func() error) error {
			if silent.Swap(false) {
				<-ctx.Done()
				return ctx.Err()
			}
			return do()
		}})
		r.pass(time.Hour)
		r.wantEffects(0, want...)
		p.end()
	})
}

// What one step takes is not missing from the next one's time, which would be blamed.
func TestEachStepOfAClaimHasItsOwnTime(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		want := r.fill(0, 3)
		slow := func(ctx context.Context) error {
			select {
			case <-time.After(450 * time.Millisecond):
				return nil
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		p := r.start("a", each(record), options{BatchTimeout: time.Second}, memsink.Hooks{
			Fence: func(ctx context.Context, _ epoch.Partition, do func() error) error {
				return errors.Join(slow(ctx), do())
			},
			Claim: func(ctx context.Context, _ epoch.Claim, do func() error) error { return errors.Join(slow(ctx), do()) },
		})
		r.pass(time.Minute)
		r.wantEffects(0, want...)
		if refused := seen[consumer.NotClaimed](p); len(refused) > 0 {
			t.Errorf("not claimed: %v", refused[0].Err)
		}
		p.end()
	})
}
