package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/memsink"
)

// once scripts a fault for one commit.
func once(fault func(do func() error) error) memsink.Hooks {
	var done atomic.Bool
	return memsink.Hooks{Commit: func(_ context.Context, _ []epoch.Advance, do func() error) error {
		if done.Swap(true) {
			return do()
		}
		return fault(do)
	}}
}

// R5: in doubt, claim again.
func TestR5AfterALostAcknowledgementThePartitionIsClaimedAgain(t *testing.T) {
	for name, fault := range map[string]func(do func() error) error{
		"that had landed": func(do func() error) error {
			return errors.Join(do(), epoch.ErrInDoubt)
		},
		"that had not": func(func() error) error {
			return fmt.Errorf("connection reset: %w", epoch.ErrInDoubt)
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 2, func(r *rig) {
				want := r.fill(0, 20)
				p := r.start("a", each(record), options{MaxBatch: 7}, once(fault))
				r.applied()
				p.end()
				r.wantEffects(0, want...)
				var ids []epoch.ClaimID
				for _, c := range seen[consumer.Claimed](p) {
					if c.Fence.Partition == r.partition(0) {
						ids = append(ids, c.Fence.Claim)
					}
				}
				if len(ids) != 2 || ids[0] == ids[1] {
					t.Errorf("claims of the partition in doubt: %v; want two different ones", ids)
				}
				if d := wantOne[consumer.InDoubt](p); !errors.Is(d.Err, epoch.ErrInDoubt) {
					t.Errorf("in doubt because of %v", d.Err)
				}
			})
		})
	}
}

// R5 again: the commit of the old claim is still on its way when the new claim
// is made, and must not land behind it.
func TestR5ACommitStillInFlightCannotLandAfterTheNextClaim(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		want := r.fill(0, 3)
		var late func() error
		p := r.start("a", each(record), options{}, once(func(do func() error) error {
			late = do
			return epoch.ErrInDoubt
		}))
		r.applied()
		if err := late(); !errors.Is(err, epoch.ErrStale) {
			t.Errorf("the commit in flight ended with %v", err)
		}
		p.end()
		r.wantEffects(0, want...)
	})
}

func TestR5AMovedPositionIsClaimedAgainAndFollowed(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		want := r.fill(0, 10)
		p := r.start("a", each(record), options{MaxBatch: 5}, once(func(do func() error) error {
			err := do()
			// As if somebody had moved the fence under our claim: this commit is
			// reported as refused although the position is already 5.
			return errors.Join(err, &epoch.MovedError{Partition: r.partition(0), From: 0, Next: 5})
		}))
		r.applied()
		p.end()
		r.wantEffects(0, want...)
		if len(seen[consumer.Claimed](p)) != 2 {
			t.Errorf("claims: %v", seen[consumer.Claimed](p))
		}
	})
}

// R6: stale ends the tenure of that partition only.
func TestR6StaleStopsOnePartitionAndLeavesTheOthersAlone(t *testing.T) {
	inBubble(t, 2, func(r *rig) {
		g := r.group()
		g.Script()
		g.SetGeneration(4)
		a := r.start("a", each(record), options{})
		b := r.start("b", each(record), options{})
		synctest.Wait()
		g.Grant(a.member, r.log.Name(), 0)
		g.Grant(a.member, r.log.Name(), 1)
		synctest.Wait()
		g.Grant(b.member, r.log.Name(), 0) // and a is not told
		synctest.Wait()
		zero, one := r.fill(0, 8), r.fill(1, 8)
		r.applied()
		synctest.Wait()

		stale := wantOne[consumer.Stale](a)
		if stale.Ours.Partition != r.partition(0) || stale.Ours.Claim == stale.Held.Claim || stale.Held.Epoch <= stale.Ours.Epoch {
			t.Errorf("stale: %+v", stale)
		}
		r.wantEffects(0, zero...)
		r.wantEffects(1, one...)
		if claims := seen[consumer.Claimed](a); len(claims) != 2 {
			t.Errorf("a claimed %d times: it must not take back what the source does not confirm", len(claims))
		}
		a.end()
		b.end()
	})
}

func TestR6AfterStaleTheClaimIsMadeAgainIfTheSourceConfirms(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		a := r.start("a", each(record), options{})
		synctest.Wait()
		// An intruder claims without asking the source, as no process of ours can.
		f := r.sink.Fences()[r.partition(0)]
		if _, err := r.sink.Claim(r.Context(), f, epoch.NewClaim(epoch.Lease{Origin: f.Origin, Generation: 1, Owner: "intruder"})); err != nil {
			t.Fatal(err)
		}
		want := r.fill(0, 5)
		r.applied()
		r.wantEffects(0, want...)
		if held := wantOne[consumer.Stale](a).Held; held.Owner != "intruder" {
			t.Errorf("stale: %+v", held)
		}
		a.end()
	})
}

// R2: a claim frozen between its confirmation and its swap finds another claim
// than it read, and the source says no to the next confirmation.
func TestR2AClaimFrozenAfterItsConfirmationDoesNotThrowOutTheNextOwner(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		g := r.group()
		g.Script()
		g.SetGeneration(3)
		frozen, thaw := make(chan struct{}), make(chan struct{})
		a := r.start("a", each(record), options{BatchTimeout: 6 * time.Second}, memsink.Hooks{
			Claim: func(_ context.Context, _ epoch.Claim, do func() error) error {
				close(frozen)
				<-thaw
				return do()
			},
		})
		b := r.start("b", each(record), options{})
		synctest.Wait()
		g.Grant(a.member, r.log.Name(), 0)
		<-frozen
		g.Grant(b.member, r.log.Name(), 0)
		want := r.fill(0, 4)
		r.applied()
		close(thaw)
		synctest.Wait()
		if n := len(seen[consumer.Claimed](a)); n != 0 {
			t.Errorf("a claimed %d times", n)
		}
		r.log.Append(0, "after")
		r.applied()
		r.wantEffects(0, append(want, "after")...)
		if len(seen[consumer.Stale](b)) != 0 {
			t.Error("the rightful owner was thrown out")
		}
		a.end()
		b.end()
	})
}

// R2 once more: a confirmation that was asked for before the read would be too
// old. The fence that Confirm is given is the one the swap compares with.
func TestR2TheConfirmationIsAskedForAfterTheRead(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		g := r.group()
		var (
			mu    sync.Mutex
			order []string
		)
		step := func(s string) {
			mu.Lock()
			defer mu.Unlock()
			order = append(order, s)
		}
		g.OnConfirm(func(context.Context, confirmation) error {
			step("confirm")
			return nil
		})
		p := r.start("a", each(record), options{}, memsink.Hooks{
			Fence: func(_ context.Context, _ epoch.Partition, do func() error) error {
				step("read")
				return do()
			},
			Claim: func(_ context.Context, _ epoch.Claim, do func() error) error {
				step("swap")
				return do()
			},
		})
		synctest.Wait()
		p.end()
		n := len(order)
		if n < 3 || order[n-3] != "read" || order[n-2] != "confirm" || order[n-1] != "swap" {
			t.Errorf("the claim's steps were %v", order)
		}
	})
}

func TestASinkThatIsDownBlamesNoMessageAndComesBack(t *testing.T) {
	inBubble(t, 2, func(r *rig) {
		want := r.fill(0, 5)
		var up atomic.Bool
		outage := func(do func() error) error {
			if !up.Load() {
				return fmt.Errorf("connection refused: %w", epoch.ErrInDoubt)
			}
			return do()
		}
		p := r.start("a", each(record).OnFailure(r.sink.DeadLetter), options{MaxAttempts: 2}, memsink.Hooks{
			Fence:  func(_ context.Context, _ epoch.Partition, do func() error) error { return outage(do) },
			Commit: func(_ context.Context, _ []epoch.Advance, do func() error) error { return outage(do) },
		})
		r.pass(time.Hour)
		up.Store(true)
		r.applied()
		p.end()
		r.wantEffects(0, want...)
		if dead := r.sink.DeadLetters(); len(dead) != 0 {
			t.Errorf("an outage was blamed on %v", dead)
		}
	})
}

// R9 and R3: a fence that vanishes under its owner is no reason to start again
// at the earliest message.
func TestR9AFenceDeletedUnderItsOwnerHaltsThePartition(t *testing.T) {
	inBubble(t, 2, func(r *rig) {
		empty := r.sink.Snapshot()
		first := r.fill(0, 3)
		p := r.start("a", each(record), options{})
		r.applied()
		synctest.Wait() // both partitions are claimed: neither creates fences again
		effects := r.sink.List(list(0))
		r.sink.Restore(empty)
		r.log.Append(0, "after")
		r.pass(10 * time.Minute)
		p.end()
		if len(effects) != len(first) {
			t.Fatalf("effects before: %v", effects)
		}
		r.wantEffects(0)
		halts := seen[consumer.Halted](p)
		if len(halts) < 2 || !errors.Is(halts[0].Err, epoch.ErrMissing) {
			t.Errorf("halts: %v", halts)
		}
	})
}

// What is known of a message is about that message: not about the one at which a
// restored sink is.
func TestAMessageGivenUpOnIsNotMistakenForAnotherAfterARestore(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		values := r.fill(0, 8)
		var backup memsink.Snapshot
		restored := false
		p := r.start("a", each(failOn(consumer.Permanent(errPoison), values[5])).OnFailure(r.sink.DeadLetter), options{MaxBatch: 1}, memsink.Hooks{
			Commit: func(_ context.Context, as []epoch.Advance, do func() error) error {
				switch {
				case as[0].From == 3:
					backup = r.sink.Snapshot()
				case as[0].From == 5 && !restored: // OnFailure's
					restored = true
					r.sink.Restore(backup)
					return epoch.ErrInDoubt
				}
				return do()
			},
		})
		r.applied()
		p.end()
		r.wantEffects(0, append(values[:5:5], values[6:]...)...)
		if dead := r.sink.DeadLetters(); len(dead) != 1 || dead[0].Message.Offset != 5 {
			t.Errorf("dead letters: %v", dead)
		}
	})
}

// A partition of which each transaction ends in doubt is claimed again before each, which
// says nothing of whether it continues.
func TestAPartitionThatIsInDoubtAgainAndAgainStaysHalted(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.fill(0, 1)
		var fixed atomic.Bool
		p := r.process("a", []memsink.Hooks{{Commit: func(_ context.Context, _ []epoch.Advance, do func() error) error {
			if fixed.Load() {
				return do()
			}
			return fmt.Errorf("connection reset: %w", epoch.ErrInDoubt)
		}}})
		s, o := statusOf(p, options{})
		p.run(func(ctx context.Context) error { return consumer.Run(ctx, p.member, p.sink, each(record), o) })
		r.pass(time.Minute)
		claims := p.claims(0)
		for range 60 {
			if now := s.Partitions()[0]; now.State != consumer.StateHalted || now.Reason != consumer.ReasonInDoubt {
				t.Fatalf("it does not move, and is %+v", now)
			}
			if halt := r.halt(0); !strings.HasPrefix(halt, "in_doubt: ") {
				t.Fatalf("it does not move, and the audit log says %q", halt)
			}
			r.pass(10 * time.Second)
		}
		if n := p.claims(0); n < claims+5 {
			t.Errorf("%d claims meanwhile", n-claims)
		}
		if n := len(seen[consumer.Halted](p)); n != 1 {
			t.Errorf("one standstill was reported %d times", n)
		}
		fixed.Store(true)
		r.pass(2 * time.Minute)
		r.wantNext(0, 1)
		if now := s.Partitions()[0]; now.State != consumer.StateClaimed || s.Ready() != nil {
			t.Errorf("it continues, and is %+v", now)
		}
		p.end()
	})
}
