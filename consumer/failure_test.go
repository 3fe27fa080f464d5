package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/memsink"
)

var errPoison = errors.New("poison")

// failOn returns record, but for the messages with these values, which write
// something and then fail.
func failOn(err error, values ...string) handler {
	return func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
		if slices.Contains(values, string(m.Value)) {
			tx.Append(list(m.Partition.Number), "half of "+string(m.Value))
			return err
		}
		return record(ctx, tx, m, e)
	}
}

func TestAFailingMessageIsTriedAgainAndRolledBackEachTime(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		want := r.fill(0, 5)
		tries := 0
		p := r.start("a", each(func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
			if m.Offset == 2 {
				if tries++; tries < 6 {
					return failOn(errPoison, string(m.Value))(ctx, tx, m, e)
				}
			}
			return record(ctx, tx, m, e)
		}), options{RetryMin: time.Second, RetryMax: 4 * time.Second})
		began := time.Now()
		r.applied()
		p.end()
		r.wantEffects(0, want...)
		retries := seen[consumer.Retried](p)
		if len(retries) != 4 { // the first try was among other messages, and does not count
			t.Fatalf("retries: %v", retries)
		}
		for i, e := range retries {
			if e.Offset != 2 || e.Attempt != i+1 || !errors.Is(e.Err, errPoison) {
				t.Errorf("retry %d: %+v", i, e)
			}
		}
		if took := time.Since(began); took < 4*time.Second || took > 30*time.Second {
			t.Errorf("four waits from 1 s doubling to 4 s took %v", took)
		}
	})
}

func TestAMessageThatKeepsFailingHaltsItsPartitionOnly(t *testing.T) {
	inBubble(t, 2, func(r *rig) {
		zero, one := r.fill(0, 9), r.fill(1, 9)
		p := r.start("a", each(failOn(errPoison, zero[4])), options{MaxAttempts: 3})
		r.pass(time.Minute)
		r.wantEffects(0, zero[:4]...)
		r.wantEffects(1, one...)
		halt := seen[consumer.Halted](p)[0]
		var failed *consumer.HandlerError
		if !errors.As(halt.Err, &failed) || failed.Offset != 4 || failed.Attempts != 3 || !errors.Is(halt.Err, errPoison) {
			t.Errorf("halted with %v", halt.Err)
		}
		if halt.Partition != r.partition(0) || halt.Next != 4 || halt.RetryIn <= 0 {
			t.Errorf("halted: %+v", halt)
		}
		p.end()
	})
}

func TestAHaltedPartitionIsTriedAgainAndGoesOnWhenThatHelps(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		want := r.fill(0, 9)
		var fixed atomic.Bool
		p := r.start("a", each(func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
			if !fixed.Load() {
				return failOn(errPoison, want[4])(ctx, tx, m, e)
			}
			return record(ctx, tx, m, e)
		}), options{MaxAttempts: 2})
		r.pass(time.Hour)
		fixed.Store(true)
		r.pass(2 * time.Minute) // HaltMax, with jitter
		p.end()
		r.wantEffects(0, want...)
		if n := len(seen[consumer.Halted](p)); n < 30 || n > 200 {
			t.Errorf("halted %d times in an hour; want a wait that grows to a minute", n)
		}
	})
}

func TestOnFailureRunsInTheFencedTransactionThatMovesPastTheMessage(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		values := r.fill(0, 30)
		p := r.start("a", each(failOn(errPoison, values[11], values[12], values[29])).OnFailure(r.sink.DeadLetter), options{MaxAttempts: 2})
		r.applied()
		p.end()
		r.wantEffects(0, slices.Concat(values[:11], values[13:29])...)
		r.wantNext(0, 30)
		dead := r.sink.DeadLetters()
		if len(dead) != 3 {
			t.Fatalf("dead letters: %v", dead)
		}
		for i, at := range []epoch.Offset{11, 12, 29} {
			if d := dead[i]; d.Message.Offset != at || !strings.Contains(d.Cause, "poison") || d.Epoch < 1 {
				t.Errorf("dead letter %d: %+v", i, d)
			}
		}
		failed := 0
		for _, a := range seen[consumer.Advanced](p) {
			failed += a.Failed
		}
		if failed != 3 {
			t.Errorf("Advanced.Failed adds up to %d", failed)
		}
	})
}

func TestADeadLetterIsWrittenOnceAlsoWhenItsCommitIsInDoubt(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		values := r.fill(0, 3)
		var doubted atomic.Bool
		p := r.start("a", each(failOn(consumer.Permanent(errPoison), values[1])).OnFailure(r.sink.DeadLetter), options{}, memsink.Hooks{
			Commit: func(_ context.Context, as []epoch.Advance, do func() error) error {
				if as[0].From == 1 && !doubted.Swap(true) {
					return errors.Join(do(), epoch.ErrInDoubt)
				}
				return do()
			},
		})
		r.applied()
		p.end()
		r.wantEffects(0, values[0], values[2])
		if dead := r.sink.DeadLetters(); len(dead) != 1 {
			t.Errorf("dead letters: %v", dead)
		}
	})
}

func TestAnOnFailureThatFailsHaltsThePartition(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		values := r.fill(0, 3)
		errFull := errors.New("disk full")
		p := r.start("a", each(failOn(consumer.Permanent(errPoison), values[1])).OnFailure(func(context.Context, tx, consumer.Message, epoch.Epoch, error) error { return errFull }), options{})
		synctest.Wait()
		halt := wantOne[consumer.Halted](p)
		if !errors.Is(halt.Err, errPoison) || !errors.Is(halt.Err, errFull) || halt.Next != 1 {
			t.Errorf("halted: %+v", halt)
		}
		p.end()
		r.wantEffects(0, values[0])
	})
}

func TestAPermanentErrorIsNotTriedAgain(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		values := r.fill(0, 3)
		p := r.start("a", each(failOn(fmt.Errorf("no such item: %w", consumer.Permanent(errPoison)), values[1])), options{})
		synctest.Wait()
		p.end()
		if n := len(seen[consumer.Retried](p)); n != 0 {
			t.Errorf("%d retries", n)
		}
		if h := wantOne[consumer.Halted](p); !errors.Is(h.Err, errPoison) {
			t.Errorf("halted with %v", h.Err)
		}
	})
}

func TestAPanicIsThatMessagesErrorWithItsStack(t *testing.T) {
	inBubble(t, 2, func(r *rig) {
		zero, one := r.fill(0, 3), r.fill(1, 3)
		p := r.start("a", each(func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
			if string(m.Value) == zero[1] {
				var nobody *process
				nobody.end()
			}
			return record(ctx, tx, m, e)
		}), options{MaxAttempts: 1})
		synctest.Wait()
		p.end()
		r.wantEffects(0, zero[:1]...)
		r.wantEffects(1, one...)
		var panicked *consumer.PanicError
		h := wantOne[consumer.Halted](p)
		if !errors.As(h.Err, &panicked) || !strings.Contains(string(panicked.Stack), "failure_test.go") {
			t.Fatalf("halted with %v", h.Err)
		}
		line := regexp.MustCompile(`^panic: runtime error: [^\n]+ in \S+\(\*process\)\.end \(\S+\.go:\d+\), \S+ \(\S+/failure_test\.go:\d+\)[^\n]*$`)
		if text := panicked.Error(); !line.MatchString(text) {
			t.Errorf("a panic is one line, with where it was: %s", text)
		}
	})
}

func TestWhileOnePartitionWaitsToRetryItsCommitterServesTheOthers(t *testing.T) {
	inBubble(t, 2, func(r *rig) {
		zero := r.fill(0, 1)
		p := r.start("a", each(failOn(errPoison, zero[0])), options{RetryMin: time.Hour, RetryMax: time.Hour})
		r.pass(time.Minute)
		one := r.fill(1, 5)
		r.pass(time.Second)
		r.wantEffects(1, one...)
		p.end() // and does not wait for the hour
		r.wantEffects(0)
	})
}

func TestABatchHandlersFailureIsHalvedDownToTheMessageAtFault(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		values := r.fill(0, 256)
		calls := 0
		p := r.start("a", consumer.Batches(func(ctx context.Context, tx tx, ms []consumer.Message, e epoch.Epoch) error {
			calls++
			for _, m := range ms {
				if err := failOn(errPoison, values[100])(ctx, tx, m, e); err != nil {
					return err
				}
			}
			return nil
		}).OnFailure(r.sink.DeadLetter), options{MaxAttempts: 1})
		r.applied()
		p.end()
		r.wantEffects(0, slices.Concat(values[:100], values[101:])...)
		if dead := r.sink.DeadLetters(); len(dead) != 1 || dead[0].Message.Offset != 100 {
			t.Errorf("dead letters: %v", dead)
		}
		if calls > 25 {
			t.Errorf("%d calls to find one message among 256", calls)
		}
	})
}

func TestACommitThatTheDatabaseRefusesIsHalvedDownToo(t *testing.T) {
	inBubble(t, 2, func(r *rig) {
		errDeferred := errors.New("violates a deferred constraint")
		refuse := func(_ context.Context, as []epoch.Advance, do func() error) error {
			for _, a := range as {
				if a.Partition.Number == 0 && a.From <= 7 && 7 < a.To {
					return errDeferred
				}
			}
			return do()
		}
		zero, one := r.fill(0, 20), r.fill(1, 20)
		p := r.start("a", each(record), options{MaxAttempts: 2}, memsink.Hooks{Commit: refuse})
		r.pass(500 * time.Millisecond)
		r.wantEffects(0, zero[:7]...)
		r.wantEffects(1, one...)
		if h := wantOne[consumer.Halted](p); !errors.Is(h.Err, errDeferred) || h.Next != 7 {
			t.Errorf("halted: %+v", h)
		}
		p.end()
	})
}

// What a handler committed by itself is out of the fence's reach; trying again
// would commit it again.
func TestAHandlerThatEndsTheTransactionHaltsThePartitionForGood(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.fill(0, 3)
		var calls atomic.Int32
		p := r.start("a", each(record), options{}, memsink.Hooks{
			Commit: func(context.Context, []epoch.Advance, func() error) error {
				calls.Add(1)
				return fmt.Errorf("commit: %w", epoch.ErrTxEndedByHandler)
			},
		})
		r.pass(24 * time.Hour)
		if n := calls.Load(); n != 1 {
			t.Errorf("the handler was let loose %d times", n)
		}
		if h := wantOne[consumer.Halted](p); !errors.Is(h.Err, epoch.ErrTxEndedByHandler) || h.RetryIn != 0 {
			t.Errorf("halted: %+v", h)
		}
		p.end()
	})
}

// R12, R13: a transaction ends at BatchTimeout, and what made it slow does not
// keep the partition from getting on.
func TestR13TransactionsThatTakeTooLongAreCutOffAndMadeSmaller(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		want := r.fill(0, 200)
		p := r.start("a", each(func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
			select {
			case <-time.After(100 * time.Millisecond): // a batch of 200 would take 20 s
			case <-ctx.Done():
				return ctx.Err()
			}
			return record(ctx, tx, m, e)
		}), options{BatchTimeout: 3 * time.Second, MaxAttempts: 1})
		r.applied()
		p.end()
		r.wantEffects(0, want...)
		for _, a := range seen[consumer.Advanced](p) {
			if a.Took > 3*time.Second {
				t.Errorf("a transaction took %v", a.Took)
			}
		}
		if halts := seen[consumer.Halted](p); len(halts) != 0 {
			t.Errorf("halts: %v", halts)
		}
	})
}

// Where the commit is slow and not the messages, smaller transactions would only
// mean more of them.
func TestASlowDatabaseDoesNotShrinkTransactionsForEver(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.group().SetTerm(40 * time.Second)
		r.fill(0, 1600)
		p := r.start("a", each(record), options{MaxBatch: 100}, memsink.Hooks{
			Commit: func(_ context.Context, _ []epoch.Advance, do func() error) error {
				<-time.After(12 * time.Second) // of 20
				return do()
			},
		})
		r.applied()
		p.end()
		if n := len(seen[consumer.Advanced](p)); n > 24 { // the slices that Read yields need not be full
			t.Errorf("%d transactions for 16 batches", n)
		}
	})
}

func TestR13AMessageThatTakesTooLongIsThatMessagesFailure(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		values := r.fill(0, 5)
		p := r.start("a", each(func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
			if string(m.Value) == values[2] {
				<-ctx.Done()
				return ctx.Err()
			}
			return record(ctx, tx, m, e)
		}).OnFailure(r.sink.DeadLetter), options{BatchTimeout: time.Second, MaxAttempts: 2})
		r.applied()
		p.end()
		r.wantEffects(0, slices.Concat(values[:2], values[3:])...)
		if dead := r.sink.DeadLetters(); len(dead) != 1 || dead[0].Message.Offset != 2 {
			t.Errorf("dead letters: %v", dead)
		}
	})
}

func TestAPartitionWhoseFenceIsOfAnotherLogOrLeaseHaltsAndTheOthersGoOn(t *testing.T) {
	for name, spoil := range map[string]func(f *epoch.Fence){
		epoch.ErrLogChanged.Error():   func(f *epoch.Fence) { f.Log = "another log" },
		epoch.ErrForeignLease.Error(): func(f *epoch.Fence) { f.Source = "another deployment" },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 2, func(r *rig) {
				p := r.start("a", each(record), options{})
				synctest.Wait()
				p.end()
				foreign := r.sink.Fences()[r.partition(0)]
				spoil(&foreign)
				database := memsink.New()
				if err := database.Seed(r.Context(), []epoch.Start{
					{Origin: foreign.Origin},
					{Origin: r.sink.Fences()[r.partition(1)].Origin},
				}); err != nil {
					t.Fatal(err)
				}
				r.sink = database
				r.fill(0, 4)
				one := r.fill(1, 4)
				p = r.start("b", each(record), options{})
				r.pass(time.Minute)
				p.end()
				r.wantEffects(0)
				r.wantEffects(1, one...)
				if halts := seen[consumer.Halted](p); len(halts) < 2 || !strings.Contains(halts[0].Err.Error(), name) {
					t.Errorf("halts: %v", halts)
				}
			})
		})
	}
}

// R10: nothing is skipped silently.
func TestR10ALogThatNoLongerHoldsThePositionHaltsWithBothNumbers(t *testing.T) {
	for kind, damage := range map[error]func(r *rig){
		consumer.ErrOffsetExpired: func(r *rig) { r.fill(0, 9); r.log.Trim(0, 8) },
		consumer.ErrTruncated:     func(r *rig) { r.log.Truncate(0, 2) },
	} {
		t.Run(kind.Error(), func(t *testing.T) {
			inBubble(t, 1, func(r *rig) {
				first := r.fill(0, 5)
				p := r.start("a", each(record), options{})
				r.applied()
				p.end()
				damage(r)
				p = r.start("a", each(record), options{})
				r.pass(time.Second / 10)
				p.end()
				r.wantEffects(0, first...)
				var e *consumer.PositionError
				if h := seen[consumer.Halted](p); len(h) == 0 || !errors.As(h[0].Err, &e) || !errors.Is(e, kind) || e.Position != 5 || e.Found == 5 {
					t.Errorf("halts: %v", h)
				}
			})
		})
	}
}

// A failover, or an operator who evicts the owner, must not be said to be OnFailure's fault.
func TestOnFailureThatLosesItsConnectionIsCalledAgainUnderAnotherClaim(t *testing.T) {
	for name, c := range map[string]struct {
		losses int
		halts  bool
	}{"twice": {2, false}, "each time, which may be the message's fault": {1 << 20, true}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 1, func(r *rig) {
				want := r.fill(0, 3)
				calls := 0
				h := each(failOn(consumer.Permanent(errPoison), want[1])).OnFailure(func(_ context.Context, tx tx, m consumer.Message, _ epoch.Epoch, err error) error {
					var failure *consumer.HandlerError
					if !errors.As(err, &failure) || failure.Offset != m.Offset || failure.Attempts != 1 {
						t.Errorf("OnFailure is told of %v", err)
					}
					if calls++; calls <= c.losses {
						return errors.New("the connection was terminated")
					}
					tx.Append(list(m.Partition.Number), "aside "+string(m.Value))
					return nil
				})
				p := r.process("a", nil)
				o := p.watched(options{MaxAttempts: 3, HaltMin: time.Hour, HaltMax: time.Hour})
				lossy := answering{p.sink, func(_ []epoch.Advance, err error) error {
					if err != nil && calls > 0 {
						return errors.Join(err, epoch.ErrInDoubt)
					}
					return err
				}}
				p.run(func(ctx context.Context) error { return consumer.Run(ctx, p.member, lossy, h, o) })
				r.pass(time.Minute)
				p.end()
				halted := seen[consumer.Halted](p)
				if !c.halts {
					if len(halted) > 0 {
						t.Errorf("halted: %+v", halted)
					}
					r.wantEffects(0, want[0], "aside "+want[1], want[2])
					return
				}
				r.wantEffects(0, want[0])
				halted = slices.DeleteFunc(halted, func(h consumer.Halted) bool { return h.Reason == consumer.ReasonInDoubt }) // it does not move
				// The first two lost connections are nobody's fault.
				if calls != 5 || len(halted) != 1 || halted[0].Reason != consumer.ReasonOnFailureFailed {
					t.Errorf("after %d calls of OnFailure it has halted: %+v", calls, halted)
				}
			})
		})
	}
}
