package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"log/slog"
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

// Each of these tests, and of those in claim_guards_test.go, is about one guard of the protocol.

type commitHook = memsink.Hook[[]epoch.Advance]

// together has one transaction of p take what fill appends to partitions from 1
// on: one of partition 0 holds the committer until then. That one is not shown
// to the hook.
func (r *rig) together(p *process, hook commitHook, fill func()) {
	release := make(chan struct{})
	var holding atomic.Bool
	p.sink.Script(memsink.Hooks{Commit: func(ctx context.Context, as []epoch.Advance, do func() error) error {
		if !holding.Swap(true) {
			<-release
			return do()
		}
		return hook(ctx, as, do)
	}})
	synctest.Wait()
	r.log.Append(0, "first")
	synctest.Wait()
	fill()
	synctest.Wait()
	close(release)
}

// R10: without the mark a log that was rewritten, and is as long as
// before, looks like the one that was read.
func TestR10ALogRewrittenBelowThePositionIsRecognisedByItsMark(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.log.Truncate(0, 0) // from now on leader epoch 1
		first := r.fill(0, 3)
		p := r.start("a", each(record), options{})
		synctest.Wait()
		p.end()
		r.log.Truncate(0, 1)
		r.fill(0, 9)
		p = r.start("a", each(record), options{})
		r.pass(time.Minute)
		p.end()
		r.wantEffects(0, first...)
		if h := seen[consumer.Halted](p); len(h) == 0 || !errors.Is(h[0].Err, consumer.ErrTruncated) {
			t.Errorf("halts: %v", h)
		}
	})
}

func TestR10AnOffsetThatComesTwiceInOneBatchHalts(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.fill(0, 3)
		p := r.process("a", nil)
		s := reading{p.member, func(t consumer.Tenure, ctx context.Context, from epoch.Fence) iter.Seq2[consumer.Batch, error] {
			return func(yield func(consumer.Batch, error) bool) {
				t.Read(ctx, from)(func(b consumer.Batch, err error) bool {
					b.Messages = append(b.Messages, b.Messages[len(b.Messages)-1])
					return yield(b, err)
				})
			}
		}}
		p.run(func(ctx context.Context) error {
			return consumer.Run(ctx, s, p.sink, consumer.Each(record), p.watched(options{}))
		})
		synctest.Wait()
		p.end()
		r.wantEffects(0)
		if h := seen[consumer.Halted](p); len(h) == 0 || !errors.Is(h[0].Err, consumer.ErrOutOfOrder) {
			t.Errorf("halts: %v", h)
		}
	})
}

// R9 and R3: a fence that is missing at the commit is no doubt that another
// claim resolves.
func TestR9AFenceMissingAtTheCommitHaltsAtOnce(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		empty := r.sink.Snapshot()
		p := r.start("a", each(record), options{})
		synctest.Wait()
		r.sink.Restore(empty)
		r.fill(0, 3)
		synctest.Wait()
		p.end()
		if h := wantOne[consumer.Halted](p); !errors.Is(h.Err, epoch.ErrMissing) || h.RetryIn <= 0 {
			t.Errorf("halted: %+v", h)
		}
		if d := seen[consumer.InDoubt](p); len(d) > 0 {
			t.Errorf("in doubt: %v", d)
		}
		r.wantEffects(0)
	})
}

// R6 in a transaction that several partitions share: the one that is refused is
// the one that is named, and the others keep their claims.
func TestR6TheRefusalOfOnePartitionLeavesTheClaimsOfTheOthersAlone(t *testing.T) {
	for name, refuse := range map[string]func(p epoch.Partition) error{
		"stale":   func(p epoch.Partition) error { return &epoch.StaleError{Partition: p} },
		"moved":   func(p epoch.Partition) error { return &epoch.MovedError{Partition: p} },
		"missing": func(p epoch.Partition) error { return &epoch.MissingError{Partition: p} },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 4, func(r *rig) {
				p := r.start("a", each(record), options{})
				shared := 0
				r.together(p, func(_ context.Context, as []epoch.Advance, do func() error) error {
					if len(as) == 3 {
						if shared++; shared == 1 {
							return fmt.Errorf("commit: %w", refuse(r.partition(2)))
						}
					}
					return do()
				}, func() {
					for n := range int32(3) {
						r.fill(n+1, 1)
					}
				})
				r.pass(time.Minute)
				p.end()
				if shared == 0 {
					t.Fatal("no transaction was shared")
				}
				if one, three := p.claims(1), p.claims(3); one != 1 || three != 1 {
					t.Errorf("partitions 1 and 3 were claimed %d and %d times", one, three)
				}
				if n := len(seen[consumer.Stale](p)) + len(seen[consumer.InDoubt](p)) + len(seen[consumer.Halted](p)); n != 1 {
					t.Errorf("%d partitions were refused: %v", n, p.events)
				}
				for n := range int32(3) {
					r.wantEffects(n+1, fmt.Sprintf("%d/0", n+1))
				}
			})
		})
	}
}

// R4: key order, whatever came first, so that two transactions over the same
// partitions wait for each other in one order, for the rows they write as well.
func TestR4PartitionsAreAppliedInKeyOrder(t *testing.T) {
	inBubble(t, 4, func(r *rig) {
		var order []int32
		p := r.start("a", each(func(_ context.Context, _ tx, m consumer.Message, _ epoch.Epoch) error {
			order = append(order, m.Partition.Number)
			return nil
		}), options{})
		r.together(p, func(_ context.Context, _ []epoch.Advance, do func() error) error { return do() }, func() {
			for _, n := range []int32{3, 2, 1} {
				r.fill(n, 1)
				synctest.Wait()
			}
		})
		synctest.Wait()
		p.end()
		if !slices.Equal(order, []int32{0, 1, 2, 3}) {
			t.Errorf("applied in the order %v", order)
		}
	})
}

// R13: a handler that is deaf to its context is not given the next message.
func TestR13NoMessageIsHandledAfterTheTransactionsContextHasEnded(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		g := r.group()
		g.Script()
		r.fill(0, 5)
		entered := make(chan struct{})
		late := 0
		p := r.start("a", each(func(ctx context.Context, _ tx, m consumer.Message, _ epoch.Epoch) error {
			if ctx.Err() != nil {
				late++
			}
			if m.Offset == 0 {
				close(entered)
				<-ctx.Done()
			}
			return nil
		}), options{})
		g.Grant(p.member, r.log.Name(), 0)
		<-entered
		g.Lose(p.member, r.log.Name(), 0, nil)
		synctest.Wait()
		p.end()
		if late > 0 {
			t.Errorf("%d messages were handled after the partition was lost", late)
		}
	})
}

// withoutBegin is a sink that cannot begin a transaction for some time, and does
// not know that this is doubt.
type withoutBegin struct {
	*memsink.Sink
	refusals int
}

func (s *withoutBegin) Commit(ctx context.Context, as []epoch.Advance, o epoch.TxOptions, calls ...func(context.Context, tx) error) error {
	if s.refusals > 0 {
		s.refusals--
		return errors.New("cannot begin: too many connections")
	}
	return s.Sink.Commit(ctx, as, o, calls...)
}

// R5: what failed before the handler was called is no message's fault.
func TestR5ATransactionThatCouldNotBeginIsBlamedOnNoMessage(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		want := r.fill(0, 1)
		p := r.process("a", nil)
		s := &withoutBegin{p.sink, 5}
		var log strings.Builder
		o := options{MaxAttempts: 1, Logger: slog.New(slog.NewTextHandler(&log, nil))}
		p.run(func(ctx context.Context) error {
			return consumer.Run[tx](ctx, p.member, s, each(record).OnFailure(p.sink.DeadLetter), p.watched(o))
		})
		r.pass(time.Hour)
		p.end()
		r.wantEffects(0, want...)
		if n, dead := len(seen[consumer.Retried](p)), r.sink.DeadLetters(); n+len(dead) > 0 {
			t.Errorf("%d retries, dead letters %v", n, dead)
		}
		if s := log.String(); !strings.Contains(s, "nothing was committed, claiming again") || strings.Contains(s, "in doubt") {
			t.Errorf("it says:\n%s", s)
		}
		if ds := r.decided(0, operate.DecidedInDoubt); len(ds) > 0 {
			t.Errorf("the audit log has %+v", ds)
		}
	})
}

// One attempt is all that a message has, and failing among others is none.
func TestWhatFailsInASharedTransactionIsTriedAloneBeforeItIsBlamed(t *testing.T) {
	for name, fail := range map[string]func(ctx context.Context) error{
		"an error": func(context.Context) error { return errPoison },
		"a timeout": func(ctx context.Context) error {
			<-ctx.Done()
			return ctx.Err()
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 3, func(r *rig) {
				failed := false
				p := r.start("a", each(func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
					if m.Partition.Number == 2 && !failed {
						failed = true
						return fail(ctx)
					}
					return record(ctx, tx, m, e)
				}), options{MaxAttempts: 1})
				r.together(p, func(_ context.Context, _ []epoch.Advance, do func() error) error { return do() }, func() {
					r.fill(1, 1)
					r.fill(2, 1)
				})
				r.pass(time.Minute)
				p.end()
				r.wantEffects(1, "1/0")
				r.wantEffects(2, "2/0")
				if h := seen[consumer.Halted](p); len(h) > 0 {
					t.Errorf("halts: %v", h)
				}
			})
		})
	}
}

func TestAttemptsAreCountedForEachMessageAnew(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		want := r.fill(0, 4)
		tries := map[epoch.Offset]int{}
		p := r.start("a", each(func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
			if tries[m.Offset]++; tries[m.Offset] <= 2 {
				return errPoison
			}
			return record(ctx, tx, m, e)
		}), options{MaxBatch: 1, MaxAttempts: 3})
		r.pass(time.Hour)
		p.end()
		r.wantEffects(0, want...)
		if h := seen[consumer.Halted](p); len(h) > 0 {
			t.Errorf("halts: %v", h)
		}
	})
}

func TestProgressMakesTheWaitOfTheNextHaltShortAgain(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.fill(0, 3)
		var fixed atomic.Bool
		p := r.start("a", each(func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
			if m.Offset == 2 || m.Offset == 1 && !fixed.Load() {
				return consumer.Permanent(errPoison)
			}
			return record(ctx, tx, m, e)
		}), options{HaltMin: time.Second, HaltMax: time.Hour})
		r.pass(24 * time.Hour)
		fixed.Store(true)
		r.pass(24 * time.Hour)
		p.end()
		var longest time.Duration // before there was progress
		for _, h := range seen[consumer.Halted](p) {
			if h.Next == 1 {
				longest = max(longest, h.RetryIn)
				continue
			}
			if longest < 10*time.Minute || h.RetryIn > 10*time.Second {
				t.Errorf("waits grew to %v, and began again at %v", longest, h.RetryIn)
			}
			return
		}
		t.Error("never halted at the second message")
	})
}

func TestPartitionsAreSpreadOverTheTransactionsThatMayBeOpen(t *testing.T) {
	inBubble(t, 2, func(r *rig) {
		release := make(chan struct{})
		p := r.start("a", each(func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
			if m.Partition.Number == 0 {
				<-release
			}
			return record(ctx, tx, m, e)
		}), options{Committers: 2})
		synctest.Wait()
		r.fill(0, 1)
		synctest.Wait()
		one := r.fill(1, 1)
		synctest.Wait()
		r.wantEffects(1, one...)
		close(release)
		p.end()
	})
}
