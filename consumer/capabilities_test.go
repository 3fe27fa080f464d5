package consumer_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/suites/bubble"
	"github.com/epochfence/epochfence/internal/waits"
	"github.com/epochfence/epochfence/sinks/memsink"
)

// least is a sink of the five methods that every store must have. A transaction of it has one
// partition and at most fits offsets.
type least struct {
	in   *memsink.Sink
	fits epoch.Offset

	mu    sync.Mutex
	tries []epoch.Offset // how many offsets each Commit was for
	many  int            // Commits for more than one partition
}

func (*least) Facts() epoch.Facts { return epoch.Facts{Guarantee: epoch.PerItem, Partitions: 1} }

func (s *least) Look(ctx context.Context, ps []epoch.Partition) (epoch.Fences, error) {
	return s.in.Look(ctx, ps)
}

func (s *least) Seed(ctx context.Context, starts []epoch.Start) error { return s.in.Seed(ctx, starts) }
func (s *least) Claim(ctx context.Context, seen epoch.Fence, c epoch.Claim) (epoch.Fence, error) {
	return s.in.Claim(ctx, seen, c)
}

func (s *least) Commit(ctx context.Context, as []epoch.Advance, o epoch.TxOptions, calls ...func(context.Context, *memsink.Tx) error) error {
	n := as[0].To - as[0].From
	s.mu.Lock()
	if s.tries = append(s.tries, n); len(as) > 1 {
		s.many++
	}
	s.mu.Unlock()
	waits.Sleep(ctx, time.Millisecond) // what a transaction costs
	if n <= s.fits {
		return s.in.Commit(ctx, as, o, calls...)
	}
	return s.in.Commit(ctx, as, o, append(slices.Clone(calls), func(context.Context, *memsink.Tx) error {
		return fmt.Errorf("least: %d offsets: %w", n, epoch.ErrTooLarge)
	})...)
}

// bounded says that it takes so many messages.
type bounded struct {
	*least
	most int
}

func (s bounded) Facts() epoch.Facts {
	return epoch.Facts{Guarantee: epoch.PerItem, Partitions: 1, Messages: s.most}
}

// TestASinkOfFiveMethodsIsEnough: two owners in turn, idle partitions, and transactions that do not
// fit, which are made smaller until they do.
func TestASinkOfFiveMethodsIsEnough(t *testing.T) {
	for name, most := range map[string]int{"the store says what does not fit": 0, "the sink says how many fit": 3} {
		t.Run(name, func(t *testing.T) {
			bubble.Test(t, func(t *testing.T) {
				log := memsource.New("orders", 3)
				in := &least{in: memsink.New(), fits: 3}
				var sink epoch.Sink[*memsink.Tx] = in
				if most > 0 {
					sink = bounded{in, most}
				}
				var want []string
				for owner := range 2 {
					for n := range 2000 {
						value := fmt.Sprint(owner, "/", n)
						want = append(want, value)
						log.Append(int32(n%2), value)
					}
					ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
					err := consumer.Run(log.UntilApplied(ctx), log.Member(fmt.Sprint(owner)), sink,
						consumer.Batches(func(_ context.Context, tx *memsink.Tx, ms []consumer.Message, _ epoch.Epoch) error {
							for _, m := range ms {
								tx.Append("seen", string(m.Value))
							}
							return nil
						}), consumer.Options{Guarantee: epoch.PerItem})
					if err != nil || ctx.Err() != nil {
						t.Fatalf("owner %d: %v, %v", owner, err, ctx.Err())
					}
					cancel()
				}
				got := in.in.List("seen")
				slices.Sort(got)
				slices.Sort(want)
				if !slices.Equal(got, want) {
					t.Errorf("applied %d messages of %d", len(got), len(want))
				}
				if in.many > 0 {
					t.Errorf("%d transactions had more than one partition", in.many)
				}
				refused := len(slices.DeleteFunc(slices.Clone(in.tries), func(n epoch.Offset) bool { return n <= in.fits }))
				if (refused > 0) != (most == 0) || refused > len(in.tries)/5 {
					t.Errorf("%d transactions of %d did not fit", refused, len(in.tries))
				}
			})
		})
	}
}

// TestAMessageThatDoesNotFitAloneHasFailed: it is told, and nothing else is blamed.
func TestAMessageThatDoesNotFitAloneHasFailed(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		log := memsource.New("orders", 1)
		log.Append(0, "one")
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		var halts []consumer.Halted
		observe := func(e consumer.Event) {
			if h, ok := e.(consumer.Halted); ok {
				halts = append(halts, h)
				cancel()
			}
		}
		err := consumer.Run(ctx, log.Member("a"), &least{in: memsink.New()}, consumer.Each(func(context.Context, *memsink.Tx, consumer.Message, epoch.Epoch) error {
			return nil
		}), consumer.Options{Guarantee: epoch.PerItem, MaxAttempts: 2, Observe: observe})
		if err != nil || len(halts) != 1 || halts[0].Reason != consumer.ReasonMessageFailed {
			t.Errorf("%v, halts %+v", err, halts)
		}
	})
}
