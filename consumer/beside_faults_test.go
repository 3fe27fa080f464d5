package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/memsink"
)

// besideOnly answers for the commits beside the messages, and lets the others be.
func besideOnly(answer func(do func() error) error) memsink.Hooks {
	return memsink.Hooks{Commit: func(_ context.Context, as []epoch.Advance, do func() error) error {
		if as[0].From == as[0].To {
			return answer(do)
		}
		return do()
	}}
}

func poison(context.Context, tx, consumer.Message, epoch.Epoch) error {
	return consumer.Permanent(errPoison)
}

// Beside may return before a goroutine that it has started: what that one has
// under way belongs to the claim all the same.
func TestThePartitionIsNotGivenBackBeforeWorkThatNobodyWaitsForHasEnded(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		release, answer := make(chan struct{}), make(chan error, 1)
		p := r.start("a", record, options{Beside: func(ctx context.Context, b beside) {
			go func() {
				answer <- b.Do(context.WithoutCancel(ctx), func(context.Context, tx) error {
					<-release // deaf to its context
					return nil
				})
			}()
		}})
		synctest.Wait()
		p.stop()
		synctest.Wait()
		if len(seen[consumer.Drained](p)) > 0 {
			t.Error("drained with a transaction under way")
		}
		close(release)
		p.end()
		if err := <-answer; err == nil {
			t.Error("committed after the partition was asked back")
		}
		wantOne[consumer.Drained](p)
	})
}

// What the work of one claim comes to says nothing about the next claim.
func TestTheNextClaimWaitsForTheWorkOfTheLastOne(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.fill(0, 1)
		release, answer, calls := make(chan struct{}), make(chan error, 1), 0
		p := r.start("a", poison, options{HaltMin: time.Minute, HaltMax: time.Minute, Beside: func(ctx context.Context, b beside) {
			if calls++; calls > 1 {
				return
			}
			go func() {
				answer <- b.Do(context.WithoutCancel(ctx), func(context.Context, tx) error {
					<-release // deaf to its context
					return nil
				})
			}()
		}})
		synctest.Wait()
		r.claimAway(0)
		r.pass(10 * time.Minute)
		if calls != 1 {
			t.Error("claimed again while the last claim's work goes on")
		}
		close(release)
		if err := <-answer; err == nil {
			t.Error("committed under a claim that is over")
		}
		r.pass(10 * time.Minute)
		p.end()
		if n := len(seen[consumer.Claimed](p)); n != 2 || calls != 2 {
			t.Errorf("%d claims and %d calls, want two each", n, calls)
		}
	})
}

// claimAway replaces the claim of a partition, as another process would.
func (r *rig) claimAway(n int32) {
	r.Helper()
	f := r.sink.Fences()[r.partition(n)]
	if _, err := r.sink.Claim(r.Context(), f, epoch.NewClaim(epoch.Lease{Origin: f.Origin, Number: f.Number})); err != nil {
		r.Fatal(err)
	}
}

func TestDoWithAContextThatHasEndedBeginsNothing(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		tired := errors.New("tired")
		p := r.start("a", record, options{Beside: func(ctx context.Context, b beside) {
			over, cancel := context.WithCancelCause(ctx)
			cancel(tired)
			for range 100 {
				if err := b.Do(over, note("x")); !errors.Is(err, tired) {
					t.Errorf("Do = %v, want the cause", err)
				}
			}
		}})
		r.pass(time.Minute)
		p.end()
		if n := len(r.sink.List("beside")); n > 0 {
			t.Errorf("%d committed", n)
		}
	})
}

func TestDoIsRefusedFromTheMomentThePartitionIsAskedBack(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		busy, release := make(chan struct{}), make(chan struct{})
		p := r.start("a", func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
			close(busy)
			<-release
			return record(ctx, tx, m, e)
		}, options{Beside: func(ctx context.Context, b beside) {
			<-ctx.Done()
			if err := b.Do(context.WithoutCancel(ctx), note("late")); err == nil {
				t.Error("begun after the end of its context")
			}
			close(release)
		}})
		want := r.fill(0, 1)
		<-busy
		p.stop()
		p.end()
		r.wantEffects(0, want...)
	})
}

// unreachable is a sink whose transactions beside the messages cannot begin.
type unreachable struct {
	*memsink.Sink
	down *atomic.Bool
}

func (u unreachable) Commit(ctx context.Context, as []epoch.Advance, apply func(context.Context, tx) error) error {
	if as[0].From == as[0].To && u.down.Load() {
		return fmt.Errorf("cannot connect: %w", epoch.ErrInDoubt)
	}
	return u.Sink.Commit(ctx, as, apply)
}

// Do promises that ErrInDoubt ends the claim. Whoever waits for that must not
// wait in vain because the doubt was unfounded.
func TestDoubtEndsTheClaimAlsoIfNothingWasBegun(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		p := r.process("a", nil)
		u := unreachable{p.sink, new(atomic.Bool)}
		u.down.Store(true)
		p.run(func(ctx context.Context) error {
			return consumer.Run(ctx, p.member, u, record, p.watched(options{Beside: func(ctx context.Context, b beside) {
				if err := b.Do(ctx, note("x")); errors.Is(err, epoch.ErrInDoubt) {
					u.down.Store(false)
				}
				<-ctx.Done()
			}}))
		})
		r.pass(time.Minute)
		p.end()
		if got := fmt.Sprint(r.sink.List("beside")); got != "[x]" {
			t.Errorf("beside: %s", got)
		}
	})
}

// A halt can last; the work beside the messages does not wait for its end to
// look up what is in doubt.
func TestDoubtBesideAHaltedPartitionIsFollowedByANewClaimAtOnce(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.fill(0, 1)
		calls, lose := 0, true
		p := r.start("a", poison, options{HaltMin: 24 * time.Hour, HaltMax: 24 * time.Hour, Beside: func(ctx context.Context, b beside) {
			calls++
			r.pass(time.Minute)
			_ = b.Do(ctx, note(fmt.Sprint(calls)))
			<-ctx.Done()
		}}, besideOnly(func(do func() error) error {
			if lose {
				lose = false
				return errors.Join(epoch.ErrInDoubt, do())
			}
			return do()
		}))
		r.pass(time.Hour)
		p.end()
		if got := fmt.Sprint(r.sink.List("beside")); got != "[1 2]" {
			t.Errorf("beside: %s after an hour", got)
		}
		if n := len(seen[consumer.InDoubt](p)); n != 1 {
			t.Errorf("%d doubts were reported", n)
		}
	})
}

// A database that is away meanwhile is asked now and then, not without end.
func TestDoubtBesideAHaltedPartitionWhoseFenceCannotBeReadIsNoBusyLoop(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.fill(0, 1)
		var down atomic.Bool
		reads := 0
		hooks := besideOnly(func(func() error) error { down.Store(true); return epoch.ErrInDoubt })
		hooks.Fence = func(_ context.Context, _ epoch.Partition, do func() error) error {
			if down.Load() {
				reads++
				if reads > 1000 {
					runtime.Goexit()
				}
				return errors.New("away")
			}
			return do()
		}
		p := r.start("a", poison, options{HaltMin: time.Hour, HaltMax: time.Hour, Beside: func(ctx context.Context, b beside) {
			r.pass(time.Minute)
			_ = b.Do(ctx, note("x"))
		}}, hooks)
		r.pass(10 * time.Minute)
		p.end()
		if reads < 10 || reads > 1000 {
			t.Errorf("the fence was read %d times in nine minutes", reads)
		}
	})
}

func TestWorkThatCommitsByItselfHaltsThePartitionUntilARestart(t *testing.T) {
	for name, halted := range map[string]bool{"while the partition is idle": false, "while it is halted": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 1, func(r *rig) {
				g := r.group()
				g.Script()
				handle := record
				if halted {
					handle = poison
					r.fill(0, 1)
				}
				calls := 0
				p := r.start("a", handle, options{HaltMin: time.Hour, HaltMax: time.Hour, Beside: func(ctx context.Context, b beside) {
					calls++
					r.pass(time.Minute)
					if err := b.Do(ctx, note("x")); !errors.Is(err, epoch.ErrEscaped) {
						t.Errorf("Do = %v", err)
					}
					<-ctx.Done()
				}}, besideOnly(func(func() error) error { return fmt.Errorf("commit: %w", epoch.ErrEscaped) }))
				synctest.Wait()
				for range 3 {
					g.Grant(p.member, r.log.Name(), 0)
					r.pass(2 * time.Minute)
					g.Drain(p.member, r.log.Name(), 0)
					r.pass(time.Minute)
				}
				p.end()
				if calls != 1 {
					t.Errorf("the work was let loose %d times", calls)
				}
				found := false
				for _, h := range seen[consumer.Halted](p) {
					found = found || errors.Is(h.Err, epoch.ErrEscaped) && h.RetryIn == 0
				}
				if !found {
					t.Errorf("no halt until restart: %v", p.events)
				}
			})
		})
	}
}

// The last work of a claim may come to an end only when the partition has been
// asked back.
func TestWhatEndsTheClaimInADrainIsReportedAndRemembered(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want func(p *process) int
	}{
		"in doubt": {epoch.ErrInDoubt, func(p *process) int { return len(seen[consumer.InDoubt](p)) }},
		"escaped":  {epoch.ErrEscaped, func(p *process) int { return len(seen[consumer.Halted](p)) }},
		"stale":    {&epoch.StaleError{}, func(p *process) int { return len(seen[consumer.Stale](p)) }},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 1, func(r *rig) {
				g := r.group()
				g.Script()
				calls := 0
				p := r.start("a", record, options{Beside: func(ctx context.Context, b beside) {
					calls++
					_ = b.Do(ctx, note("x"))
				}}, memsink.Hooks{Commit: func(ctx context.Context, as []epoch.Advance, _ func() error) error {
					<-ctx.Done() // by then the partition has been asked back
					var stale *epoch.StaleError
					if errors.As(c.err, &stale) {
						return &epoch.StaleError{Partition: as[0].Partition, Ours: as[0].Claim}
					}
					return c.err
				}})
				synctest.Wait()
				g.Grant(p.member, r.log.Name(), 0)
				synctest.Wait()
				g.Drain(p.member, r.log.Name(), 0)
				r.pass(time.Minute)
				if n := c.want(p); n != 1 {
					t.Errorf("reported %d times: %v", n, p.events)
				}
				wantOne[consumer.Drained](p)
				g.Grant(p.member, r.log.Name(), 0)
				synctest.Wait()
				if want := map[bool]int{true: 1, false: 2}[name == "escaped"]; calls != want {
					t.Errorf("the work was begun %d times, want %d", calls, want)
				}
				p.end()
			})
		})
	}
}

// A fence that is missing is a person's to bring back. Once it is back, what
// the work beside the messages met is over.
func TestAFenceMissingForWorkBesideHaltsUntilItIsBack(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		empty := r.sink.Snapshot()
		goOn := make(chan struct{})
		calls := 0
		p := r.start("a", record, options{Beside: func(ctx context.Context, b beside) {
			if calls++; calls == 1 {
				<-goOn
				if err := b.Do(ctx, note("x")); !errors.Is(err, epoch.ErrMissing) {
					t.Errorf("Do = %v", err)
				}
			}
			<-ctx.Done()
		}})
		synctest.Wait()
		whole := r.sink.Snapshot()
		r.sink.Restore(empty)
		close(goOn)
		r.pass(time.Minute)
		if len(seen[consumer.Halted](p)) == 0 {
			t.Error("not halted")
		}
		r.sink.Restore(whole)
		want := r.fill(0, 3)
		r.pass(10 * time.Minute)
		p.end()
		r.wantEffects(0, want...)
		if calls != 2 {
			t.Errorf("Beside was called %d times", calls)
		}
	})
}

// A claim that looks lost and comes back with a restore is made anew, and has
// its work beside it.
func TestAClaimThatComesBackWithARestoreIsMadeAnew(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.fill(0, 1)
		calls := 0
		var down atomic.Bool
		p := r.start("a", poison, options{HaltMin: time.Minute, HaltMax: time.Minute, Beside: func(ctx context.Context, _ beside) {
			calls++
			<-ctx.Done()
		}}, memsink.Hooks{Claim: func(_ context.Context, _ epoch.Claim, do func() error) error {
			if down.Load() {
				return errors.New("read only")
			}
			return do()
		}})
		synctest.Wait()
		ours := r.sink.Snapshot()
		down.Store(true)
		r.claimAway(0)
		r.pass(2 * time.Minute)
		r.sink.Restore(ours)
		r.pass(2 * time.Minute)
		down.Store(false)
		r.pass(2 * time.Minute)
		p.end()
		if n := len(seen[consumer.Claimed](p)); n != 2 || calls != 2 {
			t.Errorf("%d claims and %d calls of Beside, want two each", n, calls)
		}
	})
}

func TestWorkThatIsDeafToItsContextIsReported(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		release := make(chan struct{})
		p := r.start("a", record, options{BatchTimeout: time.Second, Beside: func(ctx context.Context, b beside) {
			if err := b.Do(ctx, func(context.Context, tx) error { <-release; return nil }); err == nil {
				t.Error("committed after its time")
			}
		}})
		r.pass(3 * time.Second)
		if o := wantOne[consumer.Overdue](p); o.Partition != r.partition(0) || o.From != 0 || o.To != 0 || o.Timeout != time.Second {
			t.Errorf("%+v", o)
		}
		close(release)
		p.end()
	})
}

func TestWorkBesideIsBoundedInTime(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		began := time.Now()
		p := r.start("a", record, options{BatchTimeout: time.Second, Beside: func(ctx context.Context, b beside) {
			err := b.Do(ctx, func(ctx context.Context, _ tx) error { <-ctx.Done(); return context.Cause(ctx) })
			if took := time.Since(began); err == nil || took != time.Second {
				t.Errorf("Do = %v after %v", err, took)
			}
			if err := b.Do(ctx, note("next")); err != nil {
				t.Errorf("Do = %v", err)
			}
		}})
		r.pass(time.Minute)
		p.end()
		if got := fmt.Sprint(r.sink.List("beside")); got != "[next]" {
			t.Errorf("beside: %s", got)
		}
		wantOne[consumer.Claimed](p)
	})
}

// The message waits to be tried again, or is read already, when the work
// beside it finds that the claim is over.
func TestABrokenClaimTakesItsMessagesWithItWhateverTheyWaitFor(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		want := r.fill(0, 2)
		failed := make(chan struct{})
		var once sync.Once
		lose := true
		p := r.start("a", func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
			var err error
			once.Do(func() { err = errPoison })
			if err != nil {
				defer close(failed)
				return err
			}
			return record(ctx, tx, m, e)
		}, options{MaxBatch: 1, RetryMin: 6 * time.Hour, RetryMax: 6 * time.Hour, Beside: func(ctx context.Context, b beside) {
			<-failed
			r.pass(time.Second)
			_ = b.Do(ctx, note("x"))
			<-ctx.Done()
		}}, besideOnly(func(do func() error) error {
			if lose {
				lose = false
				return epoch.ErrInDoubt
			}
			return do()
		}))
		r.pass(time.Minute)
		if n := len(seen[consumer.InDoubt](p)); n != 1 {
			t.Errorf("%d doubts while the message waits", n)
		}
		r.pass(24 * time.Hour)
		p.end()
		r.wantEffects(0, want...)
		if c := seen[consumer.Claimed](p); len(c) != 2 {
			t.Errorf("%d claims", len(c))
		}
	})
}

// Hundreds of partitions on several committers: each has its own turns.
func TestWorkBesideManyPartitionsGoesOnBesideTheirMessages(t *testing.T) {
	const partitions, messages, works = 300, 6, 3
	inBubble(t, partitions, func(r *rig) {
		var did atomic.Int64
		p := r.start("a", record, options{MaxBatch: 3, Committers: 3, Beside: func(ctx context.Context, b beside) {
			for range works {
				if err := b.Do(ctx, note(b.Partition().String())); err != nil {
					t.Errorf("Do: %v", err)
				}
				did.Add(1)
			}
		}}, memsink.Hooks{Commit: func(_ context.Context, _ []epoch.Advance, do func() error) error {
			r.pass(time.Millisecond)
			return do()
		}})
		var want [partitions][]string
		for n := range int32(partitions) {
			want[n] = r.fill(n, messages)
		}
		<-r.group().UntilApplied(r.Context()).Done()
		r.pass(time.Minute)
		p.end()
		for n := range int32(partitions) {
			r.wantEffects(n, want[n]...)
		}
		if n := len(r.sink.List("beside")); n != partitions*works || did.Load() != partitions*works {
			t.Errorf("%d committed, %d done, want %d", n, did.Load(), partitions*works)
		}
		if d := seen[consumer.InDoubt](p); len(d) > 0 {
			t.Errorf("%d doubts, the first %v", len(d), d[0])
		}
	})
}

// Work that takes its time holds up its own partition's messages, and nobody
// else's.
func TestSlowWorkHoldsUpNoOtherPartitionsMessages(t *testing.T) {
	inBubble(t, 2, func(r *rig) {
		working, release := make(chan struct{}), make(chan struct{})
		p := r.start("a", record, options{Beside: func(ctx context.Context, b beside) {
			if b.Partition().Number == 0 {
				_ = b.Do(ctx, func(context.Context, tx) error {
					close(working)
					<-release
					return nil
				})
			}
		}})
		<-working
		mine, others := r.fill(0, 3), r.fill(1, 3)
		synctest.Wait()
		r.wantEffects(1, others...)
		r.wantEffects(0)
		close(release)
		synctest.Wait()
		p.end()
		r.wantEffects(0, mine...)
	})
}

// Work that takes its time does not hold up the messages of those who wait in
// line behind it either; and they are not passed over for ever.
func TestSlowWorkHoldsUpNobodyWhoIsInLineBehindIt(t *testing.T) {
	inBubble(t, 4, func(r *rig) {
		r.group().SetTerm(time.Minute)
		var slow, quick atomic.Int64
		hold := make(chan struct{})
		p := r.start("a", func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
			r.pass(100 * time.Millisecond)
			return record(ctx, tx, m, e)
		}, options{MaxBatch: 1, BatchTimeout: 16 * time.Second, Beside: func(ctx context.Context, b beside) {
			<-hold
			for ctx.Err() == nil {
				err := b.Do(ctx, func(context.Context, tx) error {
					if n := b.Partition().Number; n < 3 {
						slow.Add(1)
						r.pass(10 * time.Second)
					} else {
						quick.Add(1)
					}
					return nil
				})
				if err != nil && ctx.Err() == nil {
					t.Errorf("Do: %v", err)
				}
			}
		}})
		synctest.Wait()
		r.fill(3, 7_000)
		close(hold)
		r.pass(10 * time.Minute)
		applied := len(r.sink.List(list(3)))
		p.end()
		// Of each 20 s, one slow work after the other, it waits for 1 s at the
		// beginning of each, and for the whole of the one it was passed over for.
		if at := 10 * 60 * 10; applied < at/4 {
			t.Errorf("%d messages in 10 minutes beside slow work of others, of about %d without it", applied, at)
		}
		if quick.Load() < slow.Load()/4 {
			t.Errorf("%d pieces of work beside those messages, and %d slow ones of others", quick.Load(), slow.Load())
		}
	})
}

// A person sets the position behind a message that halts the partition. The
// claim goes on from there, and the work beside the messages with it.
func TestWorkBesideFollowsAPositionSetByHand(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.fill(0, 1)
		p := r.start("a", poison, options{HaltMin: time.Minute, HaltMax: time.Minute, Beside: func(ctx context.Context, b beside) {
			r.pass(10 * time.Minute)
			if err := b.Do(ctx, note("x")); err != nil {
				t.Errorf("Do: %v", err)
			}
		}})
		synctest.Wait()
		f := r.sink.Fences()[r.partition(0)]
		skip := []epoch.Advance{{Partition: f.Partition, Claim: f.Claim, From: 0, To: 1}}
		if err := r.sink.Commit(r.Context(), skip, func(context.Context, tx) error { return nil }); err != nil {
			t.Fatal(err)
		}
		r.pass(20 * time.Minute)
		p.end()
		wantOne[consumer.Claimed](p)
	})
}

func TestPartitionsTakeTurnsWithTheirWorkBeside(t *testing.T) {
	inBubble(t, 2, func(r *rig) {
		p := r.start("a", record, options{Beside: func(ctx context.Context, b beside) {
			var running sync.WaitGroup
			for range 1 + 3*(1-b.Partition().Number) { // partition 0 always has some queued
				running.Go(func() {
					for ctx.Err() == nil {
						_ = b.Do(ctx, func(_ context.Context, tx tx) error {
							r.pass(10 * time.Millisecond)
							tx.Append("turns of "+list(b.Partition().Number), "x")
							return nil
						})
					}
				})
			}
			running.Wait()
		}})
		r.pass(10 * time.Second)
		p.end()
		many, few := len(r.sink.List("turns of "+list(0))), len(r.sink.List("turns of "+list(1)))
		if few < many/3 {
			t.Errorf("%d turns of the partition that asks all the time, %d of the other", many, few)
		}
	})
}

func TestWorkUnderWayEndsWithTheContextOfItsCall(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		p := r.start("a", record, options{Beside: func(ctx context.Context, b beside) {
			short, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			began := time.Now()
			err := b.Do(short, func(ctx context.Context, tx tx) error {
				tx.Append("beside", "rolled back")
				<-ctx.Done()
				return context.Cause(ctx)
			})
			if took := time.Since(began); !errors.Is(err, context.DeadlineExceeded) || took != time.Second {
				t.Errorf("Do = %v after %v", err, took)
			}
		}})
		r.pass(time.Minute)
		p.end()
		if got := r.sink.List("beside"); len(got) > 0 {
			t.Errorf("committed: %v", got)
		}
	})
}

// Messages that let work have its turn go on at once when nobody waits for it
// any more.
func TestMessagesGoOnWhenTheWorkTheyWaitForIsTakenBack(t *testing.T) {
	for name, fails := range map[string]bool{"in good order": false, "after a failure": true} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 2, func(r *rig) {
				r.group().SetTerm(time.Minute)
				var began time.Time
				took := make(chan time.Duration, 1)
				p := r.start("a", func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
					switch {
					case began.IsZero() && fails:
						began = time.Now()
						return errPoison
					case began.IsZero():
						began = time.Now()
					case fails || string(m.Value) == "1/1":
						took <- time.Since(began)
					}
					return record(ctx, tx, m, e)
				}, options{MaxBatch: 1, BatchTimeout: 32 * time.Second, RetryMin: 50 * time.Millisecond, RetryMax: 50 * time.Millisecond,
					Beside: func(ctx context.Context, b beside) {
						r.pass(time.Second)
						if b.Partition().Number == 0 {
							_ = b.Do(ctx, func(context.Context, tx) error { r.pass(time.Second); return nil })
							return
						}
						r.pass(200 * time.Millisecond)
						r.fill(1, 2)
						synctest.Wait()
						short, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
						defer cancel()
						if err := b.Do(short, note("x")); err == nil {
							t.Error("the work was not in line behind the other")
						}
					}}, memsink.Hooks{Commit: func(_ context.Context, as []epoch.Advance, do func() error) error {
					if as[0].From < as[0].To && as[0].From == 0 && !fails {
						r.pass(10 * time.Millisecond) // so that the work is in line by then
					}
					return do()
				}})
				r.pass(time.Minute)
				if d := <-took; d != 100*time.Millisecond {
					t.Errorf("the message went on after %v", d)
				}
				p.end()
			})
		})
	}
}

// An escape that comes to light while the partition is busy with a doubt is not
// lost over it.
func TestWorkThatCommitsByItselfBesideADoubtHaltsThePartitionUntilARestart(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.fill(0, 1)
		begun, escaped := make(chan struct{}), make(chan struct{})
		begin := sync.OnceFunc(func() { close(begun) })
		calls := 0
		p := r.process("a", []memsink.Hooks{{Commit: func(_ context.Context, as []epoch.Advance, _ func() error) error {
			if as[0].From < as[0].To {
				begin()
				r.pass(time.Second) // for the work to be in line
				return epoch.ErrInDoubt
			}
			return epoch.ErrEscaped
		}}})
		o := p.watched(options{Beside: func(ctx context.Context, b beside) {
			calls++
			<-begun
			if err := b.Do(context.WithoutCancel(ctx), note("x")); !errors.Is(err, epoch.ErrEscaped) {
				t.Errorf("Do = %v", err)
			}
			close(escaped)
		}})
		o.Observer = consumer.ObserverFunc(func(e consumer.Event) {
			p.Observe(e)
			if _, doubt := e.(consumer.InDoubt); doubt {
				<-escaped
			}
		})
		p.run(func(ctx context.Context) error { return consumer.Run(ctx, p.member, p.sink, record, o) })
		r.pass(time.Hour)
		if h := wantOne[consumer.Halted](p); !errors.Is(h.Err, epoch.ErrEscaped) || h.RetryIn != 0 {
			t.Errorf("%+v", h)
		}
		p.end()
		if calls != 1 {
			t.Errorf("the work was let loose %d times", calls)
		}
	})
}

// One piece of slow work does not cost the next ones their turns.
func TestWorkHasItsTurnsAgainAfterSlowWork(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		p := r.start("a", record, options{MaxBatch: 1, BatchTimeout: time.Second, Beside: func(ctx context.Context, b beside) {
			_ = b.Do(ctx, func(context.Context, tx) error { r.pass(time.Second / 2); return nil })
			r.fill(0, 10_000)
			var running sync.WaitGroup
			for range 2 { // so that one is always queued
				running.Go(func() {
					for ctx.Err() == nil {
						_ = b.Do(ctx, note("x"))
					}
				})
			}
			running.Wait()
		}}, memsink.Hooks{Commit: func(_ context.Context, _ []epoch.Advance, do func() error) error {
			r.pass(time.Millisecond)
			return do()
		}})
		r.pass(2 * time.Second)
		p.end()
		if n := len(r.sink.List("beside")); n < 500 {
			t.Errorf("%d pieces of work in about 1,500 transactions", n)
		}
	})
}
