package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
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

type background = consumer.Background[tx]

// note returns a work that leaves a line in the list "background".
func note(line string) func(context.Context, tx) error {
	return func(_ context.Context, tx tx) error {
		tx.Append("background", line)
		return nil
	}
}

func TestBackgroundWorkCommitsUnderTheClaimAndLeavesThePosition(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		want := r.fill(0, 3)
		p := r.start("a", each(record).Background(func(ctx context.Context, b background) {
			<-b.Applied()
			if err := b.Do(ctx, note(fmt.Sprintf("%v epoch %d", b.Partition(), b.Epoch()))); err != nil {
				t.Errorf("Do: %v", err)
			}
			<-ctx.Done()
		}), options{})
		synctest.Wait()
		r.wantNext(0, 3)
		r.log.Append(0, "more")
		synctest.Wait()
		p.end()
		r.wantEffects(0, append(want, "more")...)
		if got, want := fmt.Sprint(r.sink.List("background")), fmt.Sprintf("[%v epoch %d]", r.partition(0), wantOne[consumer.Claimed](p).Fence.Epoch); got != want {
			t.Errorf("background: %s, want %s", got, want)
		}
		if d := seen[consumer.InDoubt](p); len(d) > 0 {
			t.Errorf("the messages' claim was in doubt: %v", d)
		}
	})
}

// TestEachBackgroundWorkIsDone: an outbox's relay is not dropped for the next work.
func TestEachBackgroundWorkIsDone(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		want := r.fill(0, 3)
		works := func(name string, tries *atomic.Int32) func(context.Context, background) {
			return func(ctx context.Context, b background) {
				<-b.Applied() // each has what has happened said to it
				if tries.Add(1) == 1 && name == "panics" {
					panic("once")
				}
				if err := b.Do(ctx, note(name)); err != nil {
					t.Errorf("%s: Do: %v", name, err)
				}
				<-ctx.Done()
			}
		}
		var first, second, panics atomic.Int32
		h := each(record).Background(works("first", &first)).Background(nil)
		both := h.Background(works("second", &second)).Background(works("panics", &panics))
		h.Background(func(context.Context, background) { t.Error("what was given to other handlers is done") })
		p := r.start("a", both, options{RetryMin: time.Millisecond})
		synctest.Wait()
		r.wantNext(0, 3)
		r.log.Append(0, "more")
		<-time.After(time.Second) // the one that panicked is started again
		r.log.Append(0, "and more")
		synctest.Wait()
		p.end()
		r.wantEffects(0, append(want, "more", "and more")...)
		did := r.sink.List("background")
		slices.Sort(did)
		if want := []string{"first", "panics", "second"}; !slices.Equal(did, want) {
			t.Errorf("background: %v, want %v", did, want)
		}
		if first.Load() != 1 || second.Load() != 1 || panics.Load() != 2 {
			t.Errorf("called %d, %d and %d times", first.Load(), second.Load(), panics.Load())
		}
	})
}

func TestWorkAndMessagesRunBesideEachOtherAndNeitherDisturbsTheOther(t *testing.T) {
	inBubble(t, 3, func(r *rig) {
		const rounds = 200
		var did atomic.Int64
		p := r.start("a", each(record).Background(func(ctx context.Context, b background) {
			for ctx.Err() == nil && did.Load() < rounds {
				if err := b.Do(ctx, note("x")); err != nil && ctx.Err() == nil {
					t.Errorf("Do: %v", err)
				}
				did.Add(1)
			}
			<-ctx.Done()
		}), options{MaxBatch: 1}, memsink.Hooks{
			Commit:     func(_ context.Context, _ []epoch.Advance, do func() error) error { runtime.Gosched(); return do() },
			CommitHeld: func(_ context.Context, _ epoch.Hold, do func() error) error { runtime.Gosched(); return do() },
		})
		var want [3][]string
		for n := range int32(3) {
			want[n] = r.fill(n, 100)
		}
		r.pass(time.Minute)
		p.end()
		for n := range int32(3) {
			r.wantEffects(n, want[n]...)
		}
		if n := did.Load(); n < rounds || len(r.sink.List("background")) != int(n) {
			t.Errorf("%d pieces of work were done and %d committed, want at least %d and as many", n, len(r.sink.List("background")), rounds)
		}
		if d, c := seen[consumer.InDoubt](p), seen[consumer.Claimed](p); len(d) > 0 || len(c) != 3 {
			t.Errorf("%d claims, doubts %v", len(c), d)
		}
	})
}

func TestMessagesDoNotWaitForWorkUnderWayNorItForThem(t *testing.T) {
	inBubble(t, 2, func(r *rig) {
		release, done := make(chan struct{}), make(chan error, 2)
		p := r.start("a", each(record).Background(func(ctx context.Context, b background) {
			if b.Partition().Number == 0 {
				done <- b.Do(ctx, func(ctx context.Context, tx tx) error {
					<-release
					return note("x")(ctx, tx)
				})
			}
			<-ctx.Done()
		}), options{})
		synctest.Wait() // the work is under way
		mine, others := r.fill(0, 3), r.fill(1, 3)
		synctest.Wait()
		r.wantEffects(0, mine...)
		r.wantEffects(1, others...)
		close(release)
		if err := <-done; err != nil {
			t.Errorf("Do, while the position moved: %v", err)
		}
		p.end()
		if d := seen[consumer.InDoubt](p); len(d) > 0 {
			t.Errorf("in doubt: %v", d)
		}
	})
}

// Whoever asks without end takes nothing from the messages, nor they from it.
func TestNeitherWorkNorMessagesStarveTheOther(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		p := r.start("a", each(record).Background(func(ctx context.Context, b background) {
			var running sync.WaitGroup
			for range 4 { // so that one is always queued
				running.Go(func() {
					for ctx.Err() == nil {
						_ = b.Do(ctx, note("x"))
					}
				})
			}
			running.Wait()
		}), options{MaxBatch: 1}, r.commitsTake(time.Millisecond))
		r.fill(0, 2000)
		r.pass(time.Second)
		p.end()
		messages, work := len(r.sink.List(list(0))), len(r.sink.List("background"))
		if messages < 900 || work < 900 {
			t.Errorf("in the time of 1,000 transactions %d were of messages and %d beside them", messages, work)
		}
	})
}

// commitsTake makes every transaction take so long.
func (r *rig) commitsTake(d time.Duration) memsink.Hooks {
	return memsink.Hooks{
		Commit:     func(_ context.Context, _ []epoch.Advance, do func() error) error { r.pass(d); return do() },
		CommitHeld: func(_ context.Context, _ epoch.Hold, do func() error) error { r.pass(d); return do() },
	}
}

func TestAZombiesBackgroundWorkIsRefusedAndEndsItsClaim(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.group().Script()
		goOn, refused := make(chan struct{}), make(chan error, 1)
		a := r.start("a", each(record).Background(func(ctx context.Context, b background) {
			select {
			case <-goOn:
			case <-ctx.Done():
				return
			}
			refused <- b.Do(ctx, note("zombie"))
			<-ctx.Done()
		}), options{})
		synctest.Wait()
		r.group().Grant(a.member, r.log.Name(), 0)
		synctest.Wait()
		b := r.start("b", each(record), options{})
		synctest.Wait()
		r.group().Grant(b.member, r.log.Name(), 0) // and a is not told
		synctest.Wait()
		close(goOn)
		if err := <-refused; !errors.Is(err, epoch.ErrStale) {
			t.Errorf("Do = %v, want a refusal as stale", err)
		}
		synctest.Wait()
		if s := wantOne[consumer.Stale](a); s.Held.Claim != wantOne[consumer.Claimed](b).Fence.Claim {
			t.Errorf("%+v", s)
		}
		if got := r.sink.List("background"); len(got) > 0 {
			t.Errorf("committed: %v", got)
		}
		a.end()
		b.end()
	})
}

func TestBackgroundWorkInDoubtIsFollowedByANewClaim(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		lose := true
		var epochs []epoch.Epoch // one claim after the other
		p := r.start("a", each(record).Background(func(ctx context.Context, b background) {
			epochs = append(epochs, b.Epoch())
			err := b.Do(ctx, note(fmt.Sprint(len(epochs))))
			if first := len(epochs) == 1; first != errors.Is(err, epoch.ErrInDoubt) {
				t.Errorf("Do under claim %d: %v", len(epochs), err)
			}
			<-ctx.Done()
		}), options{}, memsink.Hooks{CommitHeld: func(_ context.Context, _ epoch.Hold, do func() error) error {
			if lose {
				lose = false
				return errors.Join(epoch.ErrInDoubt, do())
			}
			return do()
		}})
		r.pass(time.Minute)
		p.end()
		if len(epochs) != 2 || epochs[1] <= epochs[0] {
			t.Errorf("epochs %v, want two, rising", epochs)
		}
		if ds := r.decided(0, operate.DecidedInDoubt); len(ds) != 1 || !strings.HasPrefix(ds[0].Reason, "it moves no position, so nobody knows") {
			t.Errorf("the audit log says %+v", ds)
		}
		if got := fmt.Sprint(r.sink.List("background")); got != "[1 2]" {
			t.Errorf("background: %s", got)
		}
	})
}

func TestAFailureOfBackgroundWorkIsTheWorksOwn(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		broken := errors.New("broken")
		p := r.start("a", each(record).Background(func(ctx context.Context, b background) {
			err := b.Do(ctx, func(_ context.Context, tx tx) error {
				tx.Append("background", "rolled back")
				return broken
			})
			if !errors.Is(err, broken) {
				t.Errorf("Do = %v", err)
			}
			var panicked *consumer.PanicError
			if err := b.Do(ctx, func(context.Context, tx) error { panic("no") }); !errors.As(err, &panicked) {
				t.Errorf("Do = %v, want a panic", err)
			}
			// What another fenced store says is not said of this one.
			if err := b.Do(ctx, func(context.Context, tx) error { return epoch.ErrStale }); err == nil || errors.Is(err, epoch.ErrStale) {
				t.Errorf("Do = %v", err)
			}
			if err := b.Do(ctx, note("kept")); err != nil {
				t.Errorf("Do = %v", err)
			}
			<-ctx.Done()
		}), options{})
		want := r.fill(0, 2)
		synctest.Wait()
		p.end()
		r.wantEffects(0, want...)
		wantOne[consumer.Claimed](p)
		if got := fmt.Sprint(r.sink.List("background")); got != "[kept]" {
			t.Errorf("background: %s", got)
		}
	})
}

func TestBackgroundWorkGoesOnWhileAMessageHaltsThePartition(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.fill(0, 1)
		calls := 0
		p := r.start("a", each(func(context.Context, tx, consumer.Message, epoch.Epoch) error {
			return consumer.Permanent(errors.New("poison"))
		}).Background(func(ctx context.Context, b background) {
			calls++
			for tick := time.NewTicker(time.Minute); ; {
				select {
				case <-tick.C:
				case <-ctx.Done():
					tick.Stop()
					return
				}
				if err := b.Do(ctx, note("x")); err != nil {
					t.Errorf("Do: %v", err)
				}
			}
		}), options{HaltMin: time.Hour, HaltMax: time.Hour})
		r.pass(150*time.Minute + time.Second)
		p.end()
		if n := len(r.sink.List("background")); n != 150 || calls != 1 {
			t.Errorf("%d pieces of work in 150 minutes, in %d calls", n, calls)
		}
	})
}

func TestThePartitionIsNotGivenBackBeforeTheBackgroundWorkHasReturned(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		goOn, asked := make(chan struct{}), make(chan struct{})
		p := r.start("a", each(record).Background(func(ctx context.Context, b background) {
			<-ctx.Done()
			close(asked)
			<-goOn
			if err := b.Do(context.WithoutCancel(ctx), note("late")); err == nil {
				t.Error("Do after the end of the claim")
			}
		}), options{})
		synctest.Wait()
		p.stop()
		<-asked
		synctest.Wait()
		if len(seen[consumer.Drained](p)) > 0 {
			t.Error("drained while the work beside went on")
		}
		close(goOn)
		p.end()
		wantOne[consumer.Drained](p)
	})
}

func TestBackgroundWorkThatPanicsOrEndsItsGoroutineIsCalledAgain(t *testing.T) {
	for name, fail := range map[string]func(){"panic": func() { panic("no") }, "goexit": runtime.Goexit} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 1, func(r *rig) {
				calls := 0
				p := r.start("a", each(record).Background(func(ctx context.Context, b background) {
					if calls++; calls < 3 {
						fail()
					}
					if err := b.Do(ctx, note("x")); err != nil {
						t.Errorf("Do: %v", err)
					}
				}), options{})
				r.pass(time.Minute)
				want := r.fill(0, 1)
				synctest.Wait()
				p.end()
				r.wantEffects(0, want...)
				if calls != 3 || len(r.sink.List("background")) != 1 {
					t.Errorf("called %d times, committed %v", calls, r.sink.List("background"))
				}
			})
		})
	}
}

func TestWorkThatNoLongerWaitsIsNotBegun(t *testing.T) {
	inBubble(t, 2, func(r *rig) {
		underWay, release := make(chan struct{}), make(chan struct{})
		p := r.start("a", each(record).Background(func(ctx context.Context, b background) {
			if b.Partition().Number == 0 {
				_ = b.Do(ctx, func(context.Context, tx) error { close(underWay); <-release; return nil })
				return
			}
			<-underWay
			short, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			if err := b.Do(short, note("x")); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("Do = %v", err)
			}
			close(release)
		}), options{})
		r.pass(time.Minute)
		p.end()
		if got := r.sink.List("background"); len(got) > 0 {
			t.Errorf("committed: %v", got)
		}
	})
}
