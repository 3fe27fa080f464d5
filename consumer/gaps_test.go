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

// A process that was refused as stale continues asking the source, and as long as
// that says no it makes no claim.
func TestR6AfterStaleNothingIsTakenBackWithoutAConfirmation(t *testing.T) {
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
		r.fill(0, 8)
		r.fill(1, 8)
		r.applied()
		r.pass(time.Minute)
		if claims := seen[consumer.Claimed](a); len(claims) != 2 {
			t.Errorf("a claimed %d times", len(claims))
		}
		if n := len(seen[consumer.Stale](b)); n != 0 {
			t.Errorf("the rightful owner was thrown out %d times", n)
		}
		a.end()
		b.end()
	})
}

// A batch without messages moves the position, and nobody's handler sees it.
func TestABatchWithoutMessagesMovesThePositionAndReachesNoHandler(t *testing.T) {
	for name, start := range map[string]func(r *rig, called *atomic.Int64) *process{
		"one by one": func(r *rig, called *atomic.Int64) *process {
			return r.start("a", each(func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
				called.Add(1)
				return record(ctx, tx, m, e)
			}), options{})
		},
		"all at once": func(r *rig, called *atomic.Int64) *process {
			return r.start("a", consumer.Batches(func(ctx context.Context, tx tx, ms []consumer.Message, e epoch.Epoch) error {
				if len(ms) == 0 {
					called.Add(1)
				}
				for _, m := range ms {
					called.Add(1)
					if err := record(ctx, tx, m, e); err != nil {
						return err
					}
				}
				return nil
			}), options{})
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 2, func(r *rig) {
				all, none := r.fill(0, 4), r.fill(1, 3)
				r.log.Delete(0, 2, 3)
				r.log.Delete(1, 0, 1, 2)
				var called atomic.Int64
				p := start(r, &called)
				synctest.Wait()
				p.end()
				r.wantEffects(0, all[0], all[1])
				r.wantEffects(1)
				r.wantNext(0, 4)
				r.wantNext(1, epoch.Offset(len(none)))
				if n := called.Load(); n != 2 {
					t.Errorf("the handler saw %d messages of 2", n)
				}
				n := 0
				for _, a := range seen[consumer.Advanced](p) {
					n += a.Messages
				}
				if n != 2 {
					t.Errorf("%d messages were reported as applied, want 2", n)
				}
			})
		})
	}
}

// A sink that refuses to move past one is in doubt, and no message is to blame.
func TestABatchWithoutMessagesIsNobodysFault(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.fill(0, 3)
		r.log.Delete(0, 0, 1, 2)
		var broken atomic.Bool
		broken.Store(true)
		p := r.start("a", each(record).OnFailure(func(context.Context, tx, consumer.Message, epoch.Epoch, error) error {
			t.Error("a batch without messages was given up on")
			return nil
		}), options{MaxAttempts: 1}, memsink.Hooks{Commit: func(_ context.Context, _ []epoch.Advance, do func() error) error {
			if broken.Load() {
				return errors.New("refused")
			}
			return do()
		}})
		r.pass(time.Minute)
		r.wantNext(0, 0)
		if h := seen[consumer.Halted](p); len(h) != 1 {
			t.Errorf("the standstill was reported %d times: %v", len(h), h)
		}
		broken.Store(false)
		r.pass(time.Minute)
		r.wantNext(0, 3)
		p.end()
	})
}

func TestR10AGapThatTheSourceExplainsIsPassedOver(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		want := r.fill(0, 9)
		r.log.Delete(0, 0, 3, 4)
		p := r.start("a", each(record), options{MaxBatch: 2})
		r.pass(time.Minute)
		p.end()
		r.wantEffects(0, want[1], want[2], want[5], want[6], want[7], want[8])
		r.wantNext(0, 9)
		if h, d := seen[consumer.Halted](p), seen[consumer.InDoubt](p); len(h)+len(d) > 0 {
			t.Errorf("%v %v", h, d)
		}
	})
}
