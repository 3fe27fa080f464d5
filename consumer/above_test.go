package consumer_test

import (
	"context"
	"fmt"
	"math"
	"testing"
	"testing/synctest"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
)

// After a failover that lost claims, receivers of effects have seen epochs that the sink
// issues again.
func TestTheNextClaimIsAboveAnEpochThatAnotherSystemHasSeen(t *testing.T) {
	for name, h := range map[string]handler{"consuming": record, "halted": poison} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 1, func(r *rig) {
				want := r.fill(0, 3)
				var epochs []epoch.Epoch
				p := r.start("a", each(h).Background(func(ctx context.Context, b background) {
					epochs = append(epochs, b.Epoch())
					r.pass(time.Minute)
					if b.Epoch() < 41 {
						if err := b.Above(41); err != nil {
							t.Error(err)
						}
						<-ctx.Done() // at once: nothing else happens
						return
					}
					for _, seen := range []epoch.Epoch{41, 3} { // nothing to do
						if err := b.Above(seen); err != nil {
							t.Error(err)
						}
					}
					if err := b.Do(ctx, note("done")); err != nil {
						t.Error(err)
					}
					<-ctx.Done()
				}), options{HaltMin: 24 * time.Hour, HaltMax: 24 * time.Hour})
				r.pass(time.Hour)
				p.end()
				if fmt.Sprint(epochs) != "[1 42]" || r.sink.Fences()[r.partition(0)].Epoch != 42 || len(r.sink.List("background")) != 1 {
					t.Errorf("claimed under the epochs %v, the fence is %+v, done %v", epochs, r.sink.Fences()[r.partition(0)], r.sink.List("background"))
				}
				if name == "consuming" {
					r.wantEffects(0, want...)
				}
			})
		})
	}
}

// It would burn the epochs to follow whatever somebody says.
func TestNoClaimIsMadeAboveAnEpochThatIsOutOfReach(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		p := r.start("a", each(record).Background(func(ctx context.Context, b background) {
			for _, seen := range []epoch.Epoch{math.MaxInt64, math.MaxInt64 - 1, epoch.MaxAbove + 1, epoch.MaxAbove, 1 << 41} {
				if err := b.Above(seen); err == nil {
					t.Errorf("above %d", seen)
				}
			}
			if err := b.Do(ctx, note("still ours")); err != nil {
				t.Error(err)
			}
			<-ctx.Done()
		}), options{})
		r.pass(time.Minute)
		p.end()
		if e := wantOne[consumer.Claimed](p).Fence.Epoch; e != 1 || len(r.sink.List("background")) != 1 {
			t.Errorf("claimed under %d", e)
		}
	})
}

// A zombie hears from a receiver that it is one before it hears it from the sink.
func TestAZombieThatHearsOfAHigherEpochClaimsNothing(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.group().Script()
		goOn := make(chan struct{})
		a := r.start("a", each(record).Background(func(ctx context.Context, b background) {
			select {
			case <-goOn:
				_ = b.Above(b.Epoch() + 1)
			case <-ctx.Done():
			}
			<-ctx.Done()
		}), options{})
		synctest.Wait()
		r.group().Grant(a.member, r.log.Name(), 0)
		synctest.Wait()
		b := r.start("b", each(record), options{})
		synctest.Wait()
		r.group().Grant(b.member, r.log.Name(), 0) // and a is not told
		synctest.Wait()
		close(goOn)
		r.pass(time.Hour)
		wantOne[consumer.Claimed](a)
		if f := r.sink.Fences()[r.partition(0)]; f.Claim != wantOne[consumer.Claimed](b).Fence.Claim {
			t.Errorf("the fence is %+v", f)
		}
		a.end()
		b.end()
	})
}
