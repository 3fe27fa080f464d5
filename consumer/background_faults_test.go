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
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/memsink"
)

// backgroundOnly answers for the commits beside the messages, and lets the others be.
func backgroundOnly(answer func(do func() error) error) memsink.Hooks {
	return memsink.Hooks{CommitHeld: func(_ context.Context, _ epoch.Hold, do func() error) error { return answer(do) }}
}

func poison(context.Context, tx, consumer.Message, epoch.Epoch) error {
	return consumer.Permanent(errPoison)
}

// unreachable is a sink whose transactions beside the messages cannot begin.
type unreachable struct {
	*memsink.Sink
	down *atomic.Bool
}

func (u unreachable) CommitHeld(ctx context.Context, h epoch.Hold, o epoch.TxOptions, apply func(context.Context, tx) error) error {
	if u.down.Load() {
		return fmt.Errorf("cannot connect: %w", epoch.ErrInDoubt)
	}
	return u.Sink.CommitHeld(ctx, h, o, apply)
}

// Do promises that ErrInDoubt ends the claim. Whoever waits for that must not
// wait in vain because the doubt was unfounded.
func TestDoubtEndsTheClaimAlsoIfNothingWasBegun(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		p := r.process("a", nil)
		u := unreachable{p.sink, new(atomic.Bool)}
		u.down.Store(true)
		p.run(func(ctx context.Context) error {
			return consumer.Run(ctx, p.member, u, consumer.Each(record).Background(func(ctx context.Context, b background) {
				if err := b.Do(ctx, note("x")); errors.Is(err, epoch.ErrInDoubt) {
					u.down.Store(false)
				}
				<-ctx.Done()
			}), p.watched(options{}))
		})
		r.pass(time.Minute)
		p.end()
		if got := fmt.Sprint(r.sink.List("background")); got != "[x]" {
			t.Errorf("background: %s", got)
		}
	})
}

// A halt can last; the work beside the messages does not wait for its end to
// look up what is in doubt.
func TestDoubtBesideAHaltedPartitionIsFollowedByANewClaimAtOnce(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.fill(0, 1)
		calls, lose := 0, true
		p := r.start("a", each(poison).Background(func(ctx context.Context, b background) {
			calls++
			r.pass(time.Minute)
			_ = b.Do(ctx, note(fmt.Sprint(calls)))
			<-ctx.Done()
		}), options{HaltMin: 24 * time.Hour, HaltMax: 24 * time.Hour}, backgroundOnly(func(do func() error) error {
			if lose {
				lose = false
				return errors.Join(epoch.ErrInDoubt, do())
			}
			return do()
		}))
		r.pass(time.Hour)
		p.end()
		if got := fmt.Sprint(r.sink.List("background")); got != "[1 2]" {
			t.Errorf("background: %s after an hour", got)
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
		hooks := backgroundOnly(func(func() error) error { down.Store(true); return epoch.ErrInDoubt })
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
		p := r.start("a", each(poison).Background(func(ctx context.Context, b background) {
			r.pass(time.Minute)
			_ = b.Do(ctx, note("x"))
		}), options{HaltMin: time.Hour, HaltMax: time.Hour}, hooks)
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
				p := r.start("a", each(handle).Background(func(ctx context.Context, b background) {
					calls++
					r.pass(time.Minute)
					if err := b.Do(ctx, note("x")); !errors.Is(err, epoch.ErrTxEndedByHandler) {
						t.Errorf("Do = %v", err)
					}
					<-ctx.Done()
				}), options{HaltMin: time.Hour, HaltMax: time.Hour}, backgroundOnly(func(func() error) error { return fmt.Errorf("commit: %w", epoch.ErrTxEndedByHandler) }))
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
					found = found || errors.Is(h.Err, epoch.ErrTxEndedByHandler) && h.RetryIn == 0
				}
				if !found {
					t.Errorf("no halt until restart: %v", p.events)
				}
			})
		})
	}
}

// A fence that is missing is an operator's to bring back. Once it is back, what
// the work beside the messages met is over.
func TestAFenceMissingForBackgroundWorkHaltsUntilItIsBack(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		empty := r.sink.Snapshot()
		goOn := make(chan struct{})
		calls := 0
		p := r.start("a", each(record).Background(func(ctx context.Context, b background) {
			if calls++; calls == 1 {
				<-goOn
				// The look at idle fences may notice before it does.
				if err := b.Do(ctx, note("x")); err == nil {
					t.Error("Do found a fence")
				}
			}
			<-ctx.Done()
		}), options{})
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
			t.Errorf("Background was called %d times", calls)
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
		p := r.start("a", each(poison).Background(func(ctx context.Context, _ background) {
			calls++
			<-ctx.Done()
		}), options{HaltMin: time.Minute, HaltMax: time.Minute}, memsink.Hooks{Claim: func(_ context.Context, _ epoch.Claim, do func() error) error {
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

// An operator sets the position behind a message that halts the partition. The
// claim continues from there, and the work beside the messages with it.
func TestBackgroundWorkFollowsAPositionSetByHand(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.fill(0, 1)
		p := r.start("a", each(poison).Background(func(ctx context.Context, b background) {
			r.pass(10 * time.Minute)
			if err := b.Do(ctx, note("x")); err != nil {
				t.Errorf("Do: %v", err)
			}
		}), options{HaltMin: time.Minute, HaltMax: time.Minute})
		synctest.Wait()
		f := r.sink.Fences()[r.partition(0)]
		skip := []epoch.Advance{{Partition: f.Partition, Claim: f.Claim, From: 0, To: 1}}
		if err := r.sink.Commit(r.Context(), skip, epoch.TxOptions{}, func(context.Context, tx) error { return nil }); err != nil {
			t.Fatal(err)
		}
		r.pass(20 * time.Minute)
		p.end()
		wantOne[consumer.Claimed](p)
	})
}

// What may have been committed without a word to this process can have work in it: a request in the
// outbox, for example. No message has to come for the work to look.
func TestTheWorkBeginsAnewAfterWhatThisProcessDidNotSeeCommitted(t *testing.T) {
	act := func(kind operate.ActKind, change ...func(*operate.Act)) func(*rig) {
		return func(r *rig) { r.acts(kind, 0, change...) }
	}
	for name, then := range map[string]func(r *rig){
		"a message in doubt": func(r *rig) { r.fill(0, 1) },
		"a replay in doubt":  (*rig).requests,
		"a rewind":           act(operate.ActRewind, to(0)),
		"a skip":             act(operate.ActSkip, to(3)),
		"a rebase":           act(operate.ActRebase, to(2), func(a *operate.Act) { a.Log = a.Seen.Log }),
		"an eviction":        act(operate.ActEvict),
		"a resume":           func(r *rig) { r.acts(operate.ActPause, 0); r.pass(time.Minute); r.acts(operate.ActResume, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 1, func(r *rig) {
				var begun atomic.Int32
				var fixed atomic.Bool
				p := r.start("a", letters(r, func(m consumer.Message) error {
					if m.Offset == 1 && !fixed.Load() {
						return consumer.Permanent(errPoison)
					}
					return nil
				}).Background(func(ctx context.Context, _ background) {
					begun.Add(1)
					<-ctx.Done()
				}), options{})
				r.fill(0, 2)
				r.pass(time.Minute)
				if n := begun.Swap(0); n != 1 {
					t.Errorf("the work began %d times before", n)
				}
				fixed.Store(true)
				p.sink.Script(once(func(do func() error) error { return errors.Join(do(), epoch.ErrInDoubt) })) // it has landed
				then(r)
				r.pass(10 * time.Second)
				if begun.Load() == 0 {
					t.Error("the work did not begin anew")
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
		p := r.process("a", []memsink.Hooks{{
			Commit: func(context.Context, []epoch.Advance, func() error) error {
				begin()
				r.pass(time.Second) // for the work to be under way
				return epoch.ErrInDoubt
			},
			CommitHeld: func(context.Context, epoch.Hold, func() error) error {
				r.pass(2 * time.Second)
				return epoch.ErrTxEndedByHandler
			},
		}})
		work := func(ctx context.Context, b background) {
			calls++
			<-begun
			if err := b.Do(context.WithoutCancel(ctx), note("x")); !errors.Is(err, epoch.ErrTxEndedByHandler) {
				t.Errorf("Do = %v", err)
			}
			close(escaped)
		}
		o := p.watched(options{})
		o.Observe = func(e consumer.Event) {
			p.Observe(e)
			if _, doubt := e.(consumer.InDoubt); doubt {
				<-escaped
			}
		}
		p.run(func(ctx context.Context) error {
			return consumer.Run(ctx, p.member, p.sink, each(record).Background(work), o)
		})
		r.pass(time.Hour)
		if h := wantOne[consumer.Halted](p); !errors.Is(h.Err, epoch.ErrTxEndedByHandler) || h.RetryIn != 0 {
			t.Errorf("%+v", h)
		}
		p.end()
		if calls != 1 {
			t.Errorf("the work was let loose %d times", calls)
		}
	})
}
