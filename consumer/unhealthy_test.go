package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/memsink"
)

// A deploy forgot a table, or the disk is broken: no message can be applied, and
// none is at fault.
func TestAnUnhealthyDatabaseHaltsThePartitionAndCostsNoMessage(t *testing.T) {
	sick := fmt.Errorf("insert: no such table: stock: %w", epoch.ErrUnhealthy)
	for name, inHandler := range map[string]bool{"a statement": true, "the commit": false} {
		for name2, err := range map[string]error{"refused": sick, "in doubt": errors.Join(epoch.ErrInDoubt, errBackendGone, sick)} {
			t.Run(name+"/"+name2, func(t *testing.T) {
				inBubble(t, 2, func(r *rig) {
					var fixed atomic.Bool
					zero, one := r.fill(0, 40), r.fill(1, 3)
					table := func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
						if inHandler && m.Partition.Number == 0 && m.Offset >= 20 && !fixed.Load() {
							return err
						}
						return record(ctx, tx, m, e)
					}
					p := r.process("a", []memsink.Hooks{{Commit: func(_ context.Context, as []epoch.Advance, do func() error) error {
						i := slices.IndexFunc(as, func(a epoch.Advance) bool { return a.Partition.Number == 0 && a.To > 20 })
						if !inHandler && i >= 0 && !fixed.Load() {
							return err
						}
						return do()
					}}})
					o := p.watched(options{MaxAttempts: 2})
					p.run(func(ctx context.Context) error {
						return consumer.Run[tx](ctx, p.member, fragile{p.sink}, each(table).OnFailure(r.sink.DeadLetter), o)
					})
					r.pass(10 * time.Minute)
					r.wantEffects(0, zero[:20]...)
					r.wantEffects(1, one...)
					halts := seen[consumer.Halted](p)
					if len(halts) < 5 || len(halts) > 40 {
						t.Errorf("halted %d times in ten minutes; want a wait that grows to a minute", len(halts))
					}
					for _, h := range halts {
						if h.Partition != r.partition(0) || h.Next != 20 || !errors.Is(h.Err, epoch.ErrUnhealthy) {
							t.Errorf("halted: %+v", h)
						}
					}
					fixed.Store(true)
					r.pass(2 * time.Minute)
					p.end()
					r.wantEffects(0, zero...)
					if dead := r.sink.DeadLetters(); len(dead) > 0 {
						t.Errorf("%d dead letters, the first for %q", len(dead), dead[0].Cause)
					}
				})
			})
		}
	}
}

func TestAMessageThatIsPermanentIsNotHeldUpByAnUnhealthyDatabase(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		values := r.fill(0, 3)
		sick := consumer.Permanent(fmt.Errorf("tenant unknown: %w", epoch.ErrUnhealthy))
		p := r.start("a", each(failOn(sick, values[1])).OnFailure(r.sink.DeadLetter), options{})
		r.applied()
		p.end()
		if n := len(r.sink.DeadLetters()); n != 1 {
			t.Errorf("%d dead letters, want one", n)
		}
		r.wantEffects(0, values[0], values[2])
	})
}
