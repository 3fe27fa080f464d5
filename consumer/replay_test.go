package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/memsink"
)

// letters is a handler that refuses what refuse says.
func letters(r *rig, refuse func(m consumer.Message) error) handlers {
	return each(func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
		if err := refuse(m); err != nil {
			return err
		}
		return record(ctx, tx, m, e)
	}).OnFailure(r.sink.DeadLetter)
}

// requests asks for the replay of all dead letters.
func (r *rig) requests() {
	r.Helper()
	op := r.sink.Operator()
	ls, err := op.DeadLetters(r.Context(), operate.DeadLetterQuery{})
	if err != nil {
		r.Fatal(err)
	}
	for _, l := range ls {
		if _, err := op.DoDeadLetter(r.Context(), operate.DeadLetterAct{Kind: operate.Replay, Seen: l, By: "anna", Reason: "fixed"}); err != nil {
			r.Fatal(err)
		}
	}
}

func TestDeadLettersAreReplayedWithinSecondsBesideTheMessages(t *testing.T) {
	inBubble(t, 2, func(r *rig) {
		var fixed atomic.Bool
		var at [2]atomic.Int32
		p := r.start("a", each(func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
			if at[m.Partition.Number].Add(1) > 1 {
				t.Error("the handler runs twice at a time for one partition")
			}
			defer at[m.Partition.Number].Add(-1)
			<-time.After(time.Millisecond)
			if m.Offset%5 == 1 && m.Offset < 100 && !fixed.Load() {
				return consumer.Permanent(errors.New("poison"))
			}
			return record(ctx, tx, m, e)
		}).OnFailure(r.sink.DeadLetter), options{})
		all := map[int32][]string{0: r.fill(0, 100), 1: r.fill(1, 100)}
		r.pass(time.Minute)
		if n := len(r.sink.DeadLetters()); n != 40 {
			t.Fatalf("%d dead letters", n)
		}
		before := r.sink.Fences()[r.partition(0)]
		fixed.Store(true)
		r.requests()
		for range 200 { // the messages continue
			for n := range int32(2) {
				v := fmt.Sprintf("%d/%d", n, len(all[n]))
				all[n] = append(all[n], v)
				r.log.Append(n, v)
			}
			r.pass(20 * time.Millisecond)
		}
		r.pass(10 * time.Second)
		if left := r.sink.DeadLetters(); len(left) > 0 {
			t.Errorf("%d dead letters are left", len(left))
		}
		for n := range int32(2) {
			got, want := r.sink.List(list(n)), slices.Clone(all[n])
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Errorf("partition %d has %d effects, want %d, each once", n, len(got), len(want))
			}
		}
		if now := r.sink.Fences()[r.partition(0)]; now.Claim != before.Claim {
			t.Errorf("a replay has cost the claim: %+v, before %+v", now, before)
		}
		done := seen[consumer.Replayed](p)
		if len(done) != 40 || slices.ContainsFunc(done, func(e consumer.Replayed) bool { return e.Err != nil || !e.Final }) {
			t.Errorf("%d replays: %+v", len(done), done)
		}
		if ds := r.decided(0, operate.DecidedReplay); len(ds) != 20 || ds[0].By != "anna" || ds[0].Epoch != before.Epoch {
			t.Errorf("the log has %d replays: %+v", len(ds), ds)
		}
		p.end()
	})
}

// TestAReplayOnAQuietPartitionWakesTheBackgroundWork: a relay sends what a replay has added to the outbox,
// also if no message comes after it.
func TestAReplayOnAQuietPartitionWakesTheBackgroundWork(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		var fixed, woken atomic.Int32
		p := r.start("a", letters(r, func(consumer.Message) error {
			if fixed.Load() == 0 {
				return consumer.Permanent(errors.New("poison"))
			}
			return nil
		}).Background(func(ctx context.Context, b background) {
			for {
				select {
				case <-b.Applied():
					woken.Add(1)
				case <-ctx.Done():
					return
				}
			}
		}), options{})
		r.fill(0, 1)
		r.pass(time.Minute)
		before := woken.Load()
		fixed.Store(1)
		r.requests()
		r.pass(time.Minute)
		if len(r.sink.DeadLetters()) > 0 || woken.Load() != before+1 {
			t.Errorf("%d dead letters are left, and the work was woken %d times, want once", len(r.sink.DeadLetters()), woken.Load()-before)
		}
		p.end()
	})
}

func TestAReplayThatFailsIsRecordedAndNotTriedAgain(t *testing.T) {
	for name, c := range map[string]struct {
		err   error
		calls int32
		final int
	}{
		"the message's fault":    {errors.New("still poison"), 1, 1},
		"permanently":            {consumer.Permanent(fmt.Errorf("never: %w", epoch.ErrTransient)), 1, 1},
		"what never passes":      {epoch.ErrTransient, 5, 1},
		"an unhealthy database":  {epoch.ErrUnhealthy, 19, 0},
		"another system's stale": {&epoch.StaleError{Partition: epoch.Partition{Group: "x"}}, 1, 1},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 1, func(r *rig) {
				var asked atomic.Bool
				var calls atomic.Int32
				p := r.start("a", letters(r, func(m consumer.Message) error {
					switch {
					case m.Offset != 1:
						return nil
					case asked.Load():
						calls.Add(1)
						return c.err
					default:
						return consumer.Permanent(errors.New("poison"))
					}
				}), options{})
				r.fill(0, 3)
				r.pass(time.Minute)
				asked.Store(true)
				r.requests()
				r.pass(50 * time.Second)
				l, err := r.sink.Operator().DeadLetter(t.Context(), 1)
				if err != nil || (c.final == 1) == l.Requested || c.final == 1 && !strings.Contains(l.ReplayError, c.err.Error()) {
					t.Errorf("the dead letter is %+v, %v", l, err)
				}
				if n := calls.Load(); n != c.calls && (c.final == 1 || n < 15 || n > 25) {
					t.Errorf("the handler was called %d times, want %d", n, c.calls)
				}
				if n := len(r.decided(0, operate.DecidedReplayFailure)); n != c.final {
					t.Errorf("%d failures are in the log", n)
				}
				r.wantEffects(0, "0/0", "0/2")
				r.wantNext(0, 3)
				if len(seen[consumer.Halted](p))+len(seen[consumer.Stale](p)) > 0 {
					t.Error("the partition did not continue")
				}
				p.end()
			})
		})
	}
}

// Somebody has thought better of it while the handler was at it.
func TestAReplayThatIsWithdrawnMeanwhileIsRolledBackAndNoFailure(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		var asked atomic.Bool
		p := r.start("a", letters(r, func(m consumer.Message) error {
			if m.Offset != 1 {
				return nil
			}
			if !asked.Load() {
				return consumer.Permanent(errors.New("poison"))
			}
			op := r.sink.Operator()
			now, err := op.DeadLetter(t.Context(), 1)
			if err == nil {
				_, err = op.DoDeadLetter(t.Context(), operate.DeadLetterAct{Kind: operate.Withdraw, Seen: now, By: "anna", Reason: "for the test"})
			}
			return err
		}), options{})
		r.fill(0, 3)
		r.pass(time.Minute)
		asked.Store(true)
		r.requests()
		r.pass(time.Minute)
		if done := wantOne[consumer.Replayed](p); !done.Final || !errors.Is(done.Err, operate.ErrRowChanged) {
			t.Errorf("replayed: %+v", done)
		}
		if n := len(r.decided(0, operate.DecidedReplayFailure, operate.DecidedReplay)); n != 0 {
			t.Errorf("%d decisions about a replay that was not wanted", n)
		}
		r.wantEffects(0, "0/0", "0/2")
		noAlarm(p)
		p.end()
	})
}

func TestAReplayUnderAClaimThatIsLostIsRolledBackAndTheNextOwnerDoesIt(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		var asked atomic.Bool
		refuse := func(m consumer.Message) error {
			if m.Offset == 1 && !asked.Load() {
				return consumer.Permanent(errors.New("poison"))
			}
			return nil
		}
		frozen := make(chan struct{})
		var once atomic.Bool
		p := r.start("a", letters(r, refuse), options{}, memsink.Hooks{
			Commit: func(_ context.Context, as []epoch.Advance, do func() error) error {
				if asked.Load() && as[0].From == as[0].To && once.CompareAndSwap(false, true) {
					<-frozen
				}
				return do()
			},
		})
		r.fill(0, 3)
		r.pass(time.Minute)
		asked.Store(true)
		r.requests()
		r.pass(5 * time.Second)
		r.acts(operate.ActEvict, 0)
		close(frozen)
		r.pass(20 * time.Second)
		r.wantEffects(0, "0/0", "0/2", "0/1")
		if len(r.sink.DeadLetters()) > 0 || len(seen[consumer.Stale](p)) != 1 {
			t.Errorf("dead letters %v, refusals %v", r.sink.DeadLetters(), seen[consumer.Stale](p))
		}
		p.end()
	})
}

func TestATenureWaitsForTheReplayUnderWay(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		var asked atomic.Bool
		var open atomic.Int32
		release, began := make(chan struct{}), make(chan struct{})
		handle := func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
			if open.Add(1) > 1 {
				t.Error("the handler runs twice at a time for one partition")
			}
			defer open.Add(-1)
			if m.Offset == 1 && !asked.Load() {
				return consumer.Permanent(errors.New("poison"))
			}
			if m.Offset == 1 && asked.CompareAndSwap(true, true) && len(began) == 0 {
				select {
				case <-began:
				default:
					close(began)
					<-release // it does not heed its context
				}
			}
			return record(ctx, tx, m, e)
		}
		p := r.start("a", each(handle).OnFailure(r.sink.DeadLetter), options{HangTimeout: time.Hour})
		r.fill(0, 3)
		r.pass(time.Minute)
		asked.Store(true)
		r.requests()
		<-began
		r.acts(operate.ActRewind, 0, to(0))
		r.pass(10 * time.Second) // the idle owner has noticed, and may not run the handler again
		r.wantEffects(0, "0/0", "0/2")
		if n := p.claims(0); n != 1 {
			t.Errorf("it was claimed %d times while the replay was under way", n)
		}
		close(release)
		r.pass(20 * time.Second)
		r.wantEffects(0, "0/0", "0/2", "0/0", "0/1", "0/2", "0/1")
		p.end()
	})
}

// A partition with many letters to replay continues with its messages.
func TestReplaysAlternateWithMessages(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		var fixed atomic.Bool
		p := r.start("a", letters(r, func(m consumer.Message) error {
			switch {
			case m.Offset >= 40:
				return nil
			case !fixed.Load():
				return consumer.Permanent(errors.New("poison"))
			}
			<-time.After(time.Second)
			return nil
		}), options{MaxBatch: 1})
		r.fill(0, 40)
		r.pass(time.Minute)
		fixed.Store(true)
		r.requests()
		r.pass(5 * time.Second)
		r.fill(0, 10)
		r.pass(15 * time.Second)
		r.wantNext(0, 50) // long before the last letter
		if n := len(r.sink.DeadLetters()); n < 10 || n > 30 {
			t.Errorf("%d of 40 letters are left", n)
		}
		r.pass(time.Minute)
		if n := len(r.sink.DeadLetters()); n != 0 {
			t.Errorf("%d letters are left", n)
		}
		p.end()
	})
}

// answering is a sink whose commits are answered in another way.
type answering struct {
	epoch.Sink[tx]
	answer func(as []epoch.Advance, err error) error
}

func (s answering) Unwrap() epoch.Sink[tx] { return s.Sink }

func (s answering) Commit(ctx context.Context, as []epoch.Advance, o epoch.TxOptions, calls ...func(context.Context, tx) error) error {
	return s.answer(as, s.Sink.Commit(ctx, as, o, calls...))
}

func (r *rig) startAnswering(name string, h handlers, answer func(as []epoch.Advance, err error) error) *process {
	p := r.process(name, nil)
	o := p.watched(options{HangTimeout: time.Hour})
	p.run(func(ctx context.Context) error { return consumer.Run(ctx, p.member, answering{p.sink, answer}, h, o) })
	return p
}

// A message that ends the connection, whatever is done with it, is not tried for ever.
func TestAReplayThatEndsItsConnectionEachTimeIsGivenUp(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		var asked atomic.Bool
		var calls atomic.Int32
		p := r.startAnswering("a", letters(r, func(m consumer.Message) error {
			if m.Offset != 1 {
				return nil
			}
			if asked.Load() {
				calls.Add(1)
				return errors.New("the server closed the connection")
			}
			return consumer.Permanent(errors.New("poison"))
		}), func(_ []epoch.Advance, err error) error {
			if err != nil && asked.Load() {
				return errors.Join(err, epoch.ErrInDoubt)
			}
			return err
		})
		r.fill(0, 3)
		r.pass(time.Minute)
		asked.Store(true)
		r.requests()
		r.pass(10 * time.Minute)
		l, err := r.sink.Operator().DeadLetter(t.Context(), 1)
		if err != nil || l.Requested || !strings.Contains(l.ReplayError, "closed the connection") || calls.Load() != 5 {
			t.Errorf("after %d tries the dead letter is %+v, %v", calls.Load(), l, err)
		}
		r.fill(0, 3)
		r.pass(time.Minute)
		r.wantNext(0, 6)
		p.end()
	})
}

// What the handler wrote in its own transaction may be committed: it must not be written
// again, whatever the tenure was at meanwhile.
func TestAReplayThatEndsTheTransactionHaltsForGoodAlsoWhereItsClaimWasEnding(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		var asked atomic.Bool
		var calls atomic.Int32
		began, release := make(chan struct{}), make(chan struct{})
		p := r.startAnswering("a", letters(r, func(m consumer.Message) error {
			if m.Offset != 1 {
				return nil
			}
			if !asked.Load() {
				return consumer.Permanent(errors.New("poison"))
			}
			if calls.Add(1) == 1 {
				close(began)
				<-release
			}
			return nil
		}), func(as []epoch.Advance, err error) error {
			if asked.Load() && as[0].From == as[0].To {
				return epoch.ErrTxEndedByHandler
			}
			return err
		})
		r.fill(0, 3)
		r.pass(time.Minute)
		asked.Store(true)
		r.requests()
		<-began
		r.acts(operate.ActEvict, 0) // the idle owner notices, and lets go of its claim
		r.pass(20 * time.Second)
		close(release)
		r.pass(5 * time.Minute)
		if n := calls.Load(); n != 1 {
			t.Errorf("the handler was called %d times", n)
		}
		if h := seen[consumer.Halted](p); len(h) == 0 || h[len(h)-1].Reason != consumer.ReasonHandlerEndedTx || h[len(h)-1].RetryIn != 0 {
			t.Errorf("halts: %+v", h)
		}
		p.end()
	})
}
