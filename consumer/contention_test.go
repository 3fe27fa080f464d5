package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/memsink"
)

// The database takes so many messages in one transaction and refuses more, as one
// does whose lock table is full, or which another writer is beside.
func TestWhatIsRefusedForItsSizeIsAppliedInSmallerTransactions(t *testing.T) {
	for name, refusal := range map[string]error{
		"in passing": fmt.Errorf("out of shared memory: %w", epoch.ErrTransient),
		"in doubt":   fmt.Errorf("connection lost: %w", epoch.ErrInDoubt),
	} {
		for _, fit := range []int64{1, 3} {
			for _, partitions := range []int32{1, 3} {
				t.Run(fmt.Sprintf("%s/%d fit/%d partitions", name, fit, partitions), func(t *testing.T) {
					inBubble(t, partitions, func(r *rig) {
						var want [][]string
						for n := range partitions {
							want = append(want, r.fill(n, 200))
						}
						began, failed := time.Now(), 0
						p := r.start("a", each(record), options{}, memsink.Hooks{Commit: func(_ context.Context, as []epoch.Advance, do func() error) error {
							<-time.After(time.Millisecond)
							var n int64
							for _, a := range as {
								n += int64(a.To - a.From)
							}
							if n > fit {
								failed++
								return refusal
							}
							return do()
						}})
						r.applied()
						took := time.Since(began)
						p.end()
						for n := range partitions {
							r.wantEffects(n, want[n]...)
						}
						if total := 200 * int(partitions); failed > total/5 || took > time.Duration(total)*3*time.Millisecond+5*time.Second {
							t.Errorf("%d transactions failed, and it took %v, for %d messages that take a millisecond each", failed, took, total)
						}
						if halts := seen[consumer.Halted](p); len(halts) > 0 {
							t.Errorf("halted: %v", halts[0].Err)
						}
					})
				})
			}
		}
	}
}

// lockWaiting gives the limit of a wait for a lock to the handler, which waits in the database's place.
type lockWaiting struct{ *memsink.Sink }

type lockWaitKey struct{}

func (s lockWaiting) Commit(ctx context.Context, as []epoch.Advance, o epoch.TxOptions, calls ...func(context.Context, tx) error) error {
	if o.LockWait > 0 {
		ctx = context.WithValue(ctx, lockWaitKey{}, o.LockWait)
	}
	return s.Sink.Commit(ctx, as, o, calls...)
}

// One partition's first message waits for a lock that is held for long.
func TestAMessageThatIsRefusedAloneDoesNotHoldUpTheOthers(t *testing.T) {
	inBubble(t, 3, func(r *rig) {
		held := time.Now().Add(time.Minute)
		locked := fmt.Errorf("lock not available: %w", epoch.ErrTransient)
		h := func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
			if m.Partition.Number == 0 && time.Now().Before(held) {
				d := 5 * time.Second // the sink's own bound
				if w, limited := ctx.Value(lockWaitKey{}).(time.Duration); limited {
					d = w
				}
				<-time.After(min(d, time.Until(held)))
				if time.Now().Before(held) {
					return locked
				}
			}
			return record(ctx, tx, m, e)
		}
		r.group().SetTerm(30 * time.Second)
		p := r.process("a", nil)
		o := p.watched(options{MaxAttempts: 1})
		p.run(func(ctx context.Context) error {
			return consumer.Run[tx](ctx, p.member, lockWaiting{p.sink}, each(h).OnFailure(r.sink.DeadLetter), o)
		})
		zero, one := r.fill(0, 3), r.fill(1, 500)
		began := time.Now()
		for i := range 20 {
			r.log.Append(2, fmt.Sprint(i))
			for len(r.sink.List(list(2))) <= i {
				r.pass(10 * time.Millisecond)
				if time.Since(began) > 30*time.Second {
					t.Fatalf("only %d messages of a healthy partition are applied", i)
				}
			}
		}
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("20 messages of a healthy partition took %v", took)
		}
		r.wantEffects(1, one...)
		r.pass(29*time.Second - time.Since(began))
		halts := seen[consumer.Halted](p)
		if len(halts) != 1 || halts[0].Partition != r.partition(0) || halts[0].Next != 0 || !errors.Is(halts[0].Err, locked) {
			t.Errorf("halts within the lease's term: %+v; want one, with the reason", halts)
		}
		r.applied()
		if took := time.Since(began); took > 75*time.Second {
			t.Errorf("the lock was held for a minute, the partition stood still for %v", took)
		}
		p.end()
		r.wantEffects(0, zero...)
		if dead, n := r.sink.DeadLetters(), len(seen[consumer.Halted](p)); len(dead) > 0 || n != 1 {
			t.Errorf("%d dead letters, %d halts reported for one standstill", len(dead), n)
		}
	})
}
