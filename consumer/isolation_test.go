package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/memsink"
)

// The handler sorts what it is given, to lock rows in key order, and a failure
// has the batch tried again in parts: the slice that says what is still to be
// applied must not be the handler's.
func TestABatchHandlerThatSortsItsBatchLosesNothing(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		want := r.fill(0, 8)
		failed := false
		p := r.start("a", consumer.Batches(func(ctx context.Context, tx tx, ms []consumer.Message, e epoch.Epoch) error {
			slices.SortFunc(ms, func(a, b consumer.Message) int { return int(b.Offset - a.Offset) }) // by key, say
			for _, m := range ms {
				tx.Append("seen", string(m.Value))
			}
			if !failed {
				failed = true
				return errors.New("deadlock detected")
			}
			return nil
		}), options{})
		r.pass(time.Hour)
		p.end()
		got := r.sink.List("seen")
		slices.Sort(got)
		if !slices.Equal(got, want) {
			t.Errorf("got %v\nwant %v\nfence at %d; halts: %v", got, want, r.sink.Fences()[r.partition(0)].Next, seen[consumer.Halted](p))
		}
	})
}

func TestABatchHandlerThatFiltersItsBatchLosesNothing(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		want := r.fill(0, 8)
		failed := false
		p := r.start("a", consumer.Batches(func(ctx context.Context, tx tx, ms []consumer.Message, e epoch.Epoch) error {
			ms = slices.DeleteFunc(ms, func(m consumer.Message) bool { return string(m.Value) == want[0] }) // tombstones, say
			for _, m := range ms {
				tx.Append("seen", string(m.Value))
			}
			if !failed {
				failed = true
				return errors.New("deadlock detected")
			}
			return nil
		}), options{})
		r.pass(time.Hour)
		p.end()
		if got := r.sink.List("seen"); !slices.Equal(got, want[1:]) || len(seen[consumer.Halted](p)) > 0 {
			t.Errorf("got %v\nwant %v\nhalts: %v", got, want[1:], seen[consumer.Halted](p))
		}
	})
}

// The sink's answer holds the cause of the context's end, which is the loss of
// the other partition. The hook answers as pgsink does.
func TestTheLossOfOnePartitionDoesNotGiveUpAnother(t *testing.T) {
	inBubble(t, 2, func(r *rig) {
		g := r.group()
		g.Script()
		g.SetGeneration(1)
		p := r.start("a", each(record), options{MaxBatch: 2})
		synctest.Wait()
		g.Grant(p.member, r.log.Name(), 0)
		g.Grant(p.member, r.log.Name(), 1)
		synctest.Wait()
		release, shared := make(chan struct{}), make(chan struct{})
		var doubted atomic.Bool
		p.sink.Script(memsink.Hooks{Commit: func(ctx context.Context, as []epoch.Advance, do func() error) error {
			<-release
			if len(as) == 2 && !doubted.Swap(true) {
				close(shared)
				<-ctx.Done() // COMMIT is on its way
				return fmt.Errorf("%w: %w: timeout: context canceled", epoch.ErrInDoubt, context.Cause(ctx))
			}
			return do()
		}})
		want := r.fill(0, 3)
		synctest.Wait()
		r.fill(1, 1)
		synctest.Wait()
		close(release)
		<-shared
		g.Lose(p.member, r.log.Name(), 1, nil)
		r.pass(24 * time.Hour)
		r.wantEffects(0, want...)
		p.end()
	})
}

type gated struct {
	*memsink.Sink
	open chan struct{}
}

// Commit waits for a connection, as pgsink's acquire does.
func (g *gated) Commit(ctx context.Context, as []epoch.Advance, o epoch.TxOptions, calls ...func(context.Context, *memsink.Tx) error) error {
	select {
	case <-g.open:
	case <-ctx.Done():
		return fmt.Errorf("get a connection: %w", context.Cause(ctx))
	}
	return g.Sink.Commit(ctx, as, o, calls...)
}

func TestAPartitionLostWhileWaitingForAConnectionCostsNoOtherItsClaim(t *testing.T) {
	inBubble(t, 2, func(r *rig) {
		g := r.group()
		g.Script()
		g.SetGeneration(1)
		p := r.process("a", nil)
		s := &gated{p.sink, make(chan struct{})}
		var first atomic.Bool
		entered, release := make(chan struct{}), make(chan struct{})
		h := func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
			if !first.Swap(true) {
				close(entered)
				<-release
			}
			return record(ctx, tx, m, e)
		}
		p.run(func(ctx context.Context) error {
			return consumer.Run[tx](ctx, p.member, s, each(h), p.watched(options{MaxBatch: 2}))
		})
		synctest.Wait()
		g.Grant(p.member, r.log.Name(), 0)
		g.Grant(p.member, r.log.Name(), 1)
		synctest.Wait()
		want := r.fill(0, 3)
		s.open <- struct{}{}
		<-entered
		r.fill(1, 1)
		synctest.Wait()
		close(release)
		synctest.Wait() // both wait for a connection
		g.Lose(p.member, r.log.Name(), 1, nil)
		synctest.Wait()
		close(s.open)
		r.pass(time.Hour)
		r.wantEffects(0, want...)
		n := 0
		for _, c := range seen[consumer.Claimed](p) {
			if c.Fence.Partition == r.partition(0) {
				n++
			}
		}
		if n != 1 {
			t.Errorf("partition 0 was claimed %d times although nothing was ever in doubt (R7)", n)
		}
		p.end()
	})
}

// As t.FailNow does, in a handler under test.
func TestAHandlerThatCallsGoexitDoesNotHangRun(t *testing.T) {
	inBubble(t, 2, func(r *rig) {
		zero := r.fill(0, 3)
		p := r.start("a", each(func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
			if string(m.Value) == zero[1] {
				runtime.Goexit()
			}
			return record(ctx, tx, m, e)
		}), options{MaxAttempts: 1})
		r.pass(time.Minute)
		one := r.fill(1, 3)
		r.pass(time.Minute)
		r.wantEffects(1, one...)
		p.stop()
		select {
		case err := <-p.done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(24 * time.Hour):
			t.Errorf("Run has not returned a day after it was stopped")
		}
	})
}

func TestAHandlerThatNeverReturnsIsReported(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		release := make(chan struct{})
		p := r.start("a", each(func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
			<-release
			return record(ctx, tx, m, e)
		}), options{BatchTimeout: time.Second})
		r.fill(0, 1)
		r.pass(24 * time.Hour)
		if o := wantOne[consumer.Overdue](p); o.Partition != r.partition(0) || o.From != 0 || o.Timeout != time.Second {
			t.Errorf("overdue: %+v", o)
		}
		close(release)
		synctest.Wait()
		p.end()
	})
}

func TestAnEscapedHandlerIsNotLetLooseAgainByARebalance(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		g := r.group()
		g.Script()
		g.SetGeneration(1)
		r.fill(0, 3)
		var calls atomic.Int32
		p := r.start("a", each(record), options{MaxBatch: 10}, memsink.Hooks{
			Commit: func(context.Context, []epoch.Advance, func() error) error {
				calls.Add(1)
				return fmt.Errorf("commit: %w", epoch.ErrTxEndedByHandler)
			},
		})
		synctest.Wait()
		for range 3 {
			g.Grant(p.member, r.log.Name(), 0)
			r.pass(time.Minute)
			g.Drain(p.member, r.log.Name(), 0)
			r.pass(time.Minute)
		}
		if n := calls.Load(); n != 1 {
			t.Errorf("the handler committed by itself %d times", n)
		}
		p.end()
	})
}

func TestContentionIsNotAMessagesFault(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		want := r.fill(0, 1)
		calm := time.Now().Add(2 * time.Minute)
		n := 0
		p := r.start("a", each(func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
			tx.Get("hot")
			return record(ctx, tx, m, e)
		}).OnFailure(r.sink.DeadLetter), options{}, memsink.Hooks{
			Commit: func(ctx context.Context, _ []epoch.Advance, do func() error) error {
				if time.Now().Before(calm) {
					n++
					_ = r.sink.Update(ctx, func(_ context.Context, tx tx) error { tx.Put("hot", fmt.Sprint(n)); return nil })
				}
				return do()
			},
		})
		r.pass(time.Hour)
		p.end()
		r.wantEffects(0, want...)
		if dead := r.sink.DeadLetters(); len(dead) != 0 {
			t.Errorf("dead-lettered for contention: %v", dead[0].Cause)
		}
	})
}

// A message whose failure takes the connection with it (backend crash, OOM
// kill, FATAL by a timeout): pgsink's abandon returns ErrInDoubt then.
var errBackendGone = errors.New("server closed the connection unexpectedly")

type fragile struct{ *memsink.Sink }

// Commit answers as pgsink's abandon does when the handler's connection died.
func (f fragile) Commit(ctx context.Context, as []epoch.Advance, o epoch.TxOptions, calls ...func(context.Context, *memsink.Tx) error) error {
	err := f.Sink.Commit(ctx, as, o, calls...)
	if errors.Is(err, errBackendGone) {
		return fmt.Errorf("%w: %w", epoch.ErrInDoubt, err)
	}
	return err
}

func TestAMessageThatKillsItsConnectionIsGivenUpAndDoesNotHoldUpTheOthers(t *testing.T) {
	inBubble(t, 2, func(r *rig) {
		var killed atomic.Int32
		p := r.process("a", nil)
		h := func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
			if m.Partition.Number == 0 && m.Offset == 0 {
				killed.Add(1)
				<-time.After(time.Second)
				return fmt.Errorf("insert: %w", errBackendGone)
			}
			<-time.After(10 * time.Millisecond)
			return record(ctx, tx, m, e)
		}
		o := p.watched(options{MaxAttempts: 3, MaxBatch: 100})
		p.run(func(ctx context.Context) error {
			return consumer.Run[tx](ctx, p.member, fragile{p.sink}, each(h).OnFailure(r.sink.DeadLetter), o)
		})
		synctest.Wait()
		r.log.Append(1, slices.Repeat([]string{"x"}, 6000)...)
		r.fill(0, 3)
		r.pass(time.Minute)
		rolledBack := 0
		for _, d := range seen[consumer.InDoubt](p) {
			if d.Partition == r.partition(1) {
				rolledBack++
			}
		}
		if applied := len(r.sink.List(list(1))); rolledBack > 2 {
			t.Errorf("partition 1 applied %d messages in the first minute, of 6000 if alone; it was rolled back and claimed again %d times for partition 0's message", applied, rolledBack)
		}
		r.pass(24 * time.Hour)
		if dead := r.sink.DeadLetters(); len(dead) != 1 {
			t.Errorf("after a day and %d dead connections: %d dead letters; halts %v; retries %v; epoch %d", killed.Load(), len(dead),
				seen[consumer.Halted](p), seen[consumer.Retried](p), r.sink.Fences()[r.partition(0)].Epoch)
		}
		p.end()
	})
}

func TestManyPartitionsWithSlowMessagesDoNotThrash(t *testing.T) {
	const partitions, messages = 60, 20
	inBubble(t, partitions, func(r *rig) {
		for n := range int32(partitions) {
			r.fill(n, messages)
		}
		var calls atomic.Int32
		p := r.start("a", each(func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
			calls.Add(1)
			select {
			case <-time.After(100 * time.Millisecond):
			case <-ctx.Done():
				return ctx.Err()
			}
			return record(ctx, tx, m, e)
		}), options{BatchTimeout: 3 * time.Second})
		r.applied()
		p.end()
		if calls.Load() > partitions*messages*12/10 {
			t.Errorf("%d calls for %d messages", calls.Load(), partitions*messages)
		}
	})
}

func TestADrainDoesNotWaitForOtherPartitionsLoneTransactions(t *testing.T) {
	const partitions = 8
	inBubble(t, partitions, func(r *rig) {
		g := r.group()
		g.SetTerm(10 * time.Second)
		g.Script()
		var slow, refused atomic.Bool
		p := r.start("a", each(func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
			if slow.Load() {
				<-time.After(3 * time.Second)
			}
			return record(ctx, tx, m, e)
		}), options{BatchTimeout: 4 * time.Second, MaxBatch: 1})
		release := make(chan struct{})
		p.sink.Script(memsink.Hooks{Commit: func(_ context.Context, as []epoch.Advance, do func() error) error {
			<-release
			if len(as) > 1 && !refused.Swap(true) { // a deferred constraint, a full disk
				slow.Store(true)
				return errors.New("refused")
			}
			return do()
		}})
		synctest.Wait()
		for n := range int32(partitions) {
			g.Grant(p.member, r.log.Name(), n)
		}
		synctest.Wait()
		r.fill(0, 2)
		synctest.Wait()
		for n := range int32(partitions) {
			if n > 0 {
				r.fill(n, 1)
			}
		}
		synctest.Wait()
		close(release)
		r.pass(time.Second) // the first lone transaction is under way
		last := int32(partitions - 1)
		asked := time.Now()
		g.Drain(p.member, r.log.Name(), last)
		for {
			r.pass(100 * time.Millisecond)
			drained := seen[consumer.Drained](p)
			if slices.ContainsFunc(drained, func(d consumer.Drained) bool { return d.Partition.Number == last }) {
				break
			}
			if time.Since(asked) > time.Hour {
				t.Fatal("never drained")
			}
		}
		if took := time.Since(asked); took > 4*time.Second {
			t.Errorf("the drain took %v; BatchTimeout is 4s, Term 10s", took)
		}
		p.end()
	})
}

func TestATinyRetryMinDoesNotStopAPartitionForEver(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		want := r.fill(0, 1)
		n := 0
		p := r.start("a", each(record), options{RetryMin: 1, RetryMax: 1}, memsink.Hooks{
			Commit: func(_ context.Context, _ []epoch.Advance, do func() error) error {
				if n++; n < 40 {
					return epoch.ErrInDoubt
				}
				return do()
			},
		})
		r.pass(24 * time.Hour)
		p.end()
		r.wantEffects(0, want...)
	})
}

func TestRetryMinAndRetryMaxBoundTheWait(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		values := r.fill(0, 1)
		p := r.start("a", each(failOn(errPoison, values[0])), options{RetryMin: time.Second, RetryMax: 4 * time.Second, MaxAttempts: 200})
		r.pass(20 * time.Minute)
		p.end()
		low, high := time.Hour, time.Duration(0)
		for _, e := range seen[consumer.Retried](p) {
			low, high = min(low, e.RetryIn), max(high, e.RetryIn)
		}
		if low < time.Second || high > 4*time.Second {
			t.Errorf("waits from %v to %v; RetryMin is 1s, RetryMax 4s", low, high)
		}
	})
}

// The handler uses another fenced store, and returns its errors.
func TestAHandlersErrorIsNeverTakenForTheSinks(t *testing.T) {
	for name, theirs := range map[string]func(p epoch.Partition) error{
		"stale, of another database, for this partition": func(p epoch.Partition) error { return &epoch.StaleError{Partition: p} },
		"stale, of another database, for another":        func(epoch.Partition) error { return &epoch.StaleError{} },
		"in doubt, of another database":                  func(epoch.Partition) error { return fmt.Errorf("ledger: %w", epoch.ErrInDoubt) },
		"escaped":                                        func(epoch.Partition) error { return fmt.Errorf("ledger: %w", epoch.ErrTxEndedByHandler) },
		"lost":                                           func(epoch.Partition) error { return fmt.Errorf("ledger: %w", consumer.ErrLost) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 1, func(r *rig) {
				values := r.fill(0, 3)
				p := r.start("a", each(failOn(theirs(r.partition(0)), values[1])), options{MaxAttempts: 3})
				r.pass(time.Hour)
				p.end()
				retried, halted := len(seen[consumer.Retried](p)), len(seen[consumer.Halted](p))
				if retried < 2 || halted < 1 {
					t.Errorf("retried %d, halted %d, stale %d, in doubt %d, claimed %d: the message is never given up on, or the partition stops unreported",
						retried, halted, len(seen[consumer.Stale](p)), len(seen[consumer.InDoubt](p)), len(seen[consumer.Claimed](p)))
				}
			})
		})
	}
}
