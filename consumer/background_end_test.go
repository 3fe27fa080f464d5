package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/memsink"
)

// Beside may return before a goroutine that it has started: what that one has
// under way belongs to the claim all the same.
func TestThePartitionIsNotGivenBackBeforeWorkThatNobodyWaitsForHasEnded(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		release, answer := make(chan struct{}), make(chan error, 1)
		p := r.start("a", each(record).Background(func(ctx context.Context, b background) {
			go func() {
				answer <- b.Do(context.WithoutCancel(ctx), func(context.Context, tx) error {
					<-release // deaf to its context
					return nil
				})
			}()
		}), options{})
		synctest.Wait()
		p.stop()
		synctest.Wait()
		if len(seen[consumer.Drained](p)) > 0 {
			t.Error("drained with a transaction under way")
		}
		close(release)
		p.end()
		if err := <-answer; err == nil {
			t.Error("committed after the partition was revoked")
		}
		wantOne[consumer.Drained](p)
	})
}

// What the work of one claim comes to says nothing about the next claim.
func TestTheNextClaimWaitsForTheWorkOfTheLastOne(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.fill(0, 1)
		release, answer, calls := make(chan struct{}), make(chan error, 1), 0
		p := r.start("a", each(poison).Background(func(ctx context.Context, b background) {
			if calls++; calls > 1 {
				return
			}
			go func() {
				answer <- b.Do(context.WithoutCancel(ctx), func(context.Context, tx) error {
					<-release // deaf to its context
					return nil
				})
			}()
		}), options{HaltMin: time.Minute, HaltMax: time.Minute})
		synctest.Wait()
		r.claimAway(0)
		r.pass(10 * time.Minute)
		if calls != 1 {
			t.Error("claimed again while the last claim's work continues")
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
	if _, err := r.sink.Claim(r.Context(), f, epoch.NewClaim(epoch.Lease{Origin: f.Origin, Generation: f.Generation})); err != nil {
		r.Fatal(err)
	}
}

func TestDoWithAContextThatHasEndedBeginsNothing(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		tired := errors.New("tired")
		p := r.start("a", each(record).Background(func(ctx context.Context, b background) {
			over, cancel := context.WithCancelCause(ctx)
			cancel(tired)
			for range 100 {
				if err := b.Do(over, note("x")); !errors.Is(err, tired) {
					t.Errorf("Do = %v, want the cause", err)
				}
			}
		}), options{})
		r.pass(time.Minute)
		p.end()
		if n := len(r.sink.List("background")); n > 0 {
			t.Errorf("%d committed", n)
		}
	})
}

func TestDoIsRefusedFromTheMomentThePartitionIsAskedBack(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		begun, busy, release := make(chan struct{}), make(chan struct{}), make(chan struct{})
		p := r.start("a", each(func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
			close(busy)
			<-release
			return record(ctx, tx, m, e)
		}).Background(func(ctx context.Context, b background) {
			close(begun) // it is not called for a claim that has ended before that
			<-ctx.Done()
			if err := b.Do(context.WithoutCancel(ctx), note("late")); err == nil {
				t.Error("begun after the end of its context")
			}
			close(release)
		}), options{})
		want := r.fill(0, 1)
		<-begun
		<-busy
		p.stop()
		p.end()
		r.wantEffects(0, want...)
	})
}

// The last work of a claim may come to an end only when the partition has been
// revoked.
func TestWhatEndsTheClaimInADrainIsReportedAndRemembered(t *testing.T) {
	for name, c := range map[string]struct {
		err  error
		want func(p *process) int
	}{
		"in doubt": {epoch.ErrInDoubt, func(p *process) int { return len(seen[consumer.InDoubt](p)) }},
		"escaped":  {epoch.ErrTxEndedByHandler, func(p *process) int { return len(seen[consumer.Halted](p)) }},
		"stale":    {&epoch.StaleError{}, func(p *process) int { return len(seen[consumer.Stale](p)) }},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, 1, func(r *rig) {
				g := r.group()
				g.Script()
				calls := 0
				p := r.start("a", each(record).Background(func(ctx context.Context, b background) {
					calls++
					_ = b.Do(ctx, note("x"))
				}), options{}, memsink.Hooks{CommitHeld: func(ctx context.Context, h epoch.Hold, _ func() error) error {
					<-ctx.Done() // by then the partition has been revoked
					var stale *epoch.StaleError
					if errors.As(c.err, &stale) {
						return &epoch.StaleError{Partition: h.Partition, Ours: h.Claim}
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

func TestWorkThatIsDeafToItsContextIsReported(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		release := make(chan struct{})
		p := r.start("a", each(record).Background(func(ctx context.Context, b background) {
			if err := b.Do(ctx, func(context.Context, tx) error { <-release; return nil }); err == nil && b.Epoch() == 1 {
				t.Error("committed after its time")
			}
		}), options{BatchTimeout: time.Second})
		r.pass(3 * time.Second)
		if o := wantOne[consumer.Overdue](p); o.Partition != r.partition(0) || o.From != 0 || o.To != 0 || o.Timeout != time.Second {
			t.Errorf("%+v", o)
		}
		close(release)
		synctest.Wait()
		p.end()
	})
}

func TestBackgroundWorkIsBoundedInTime(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		began := time.Now()
		p := r.start("a", each(record).Background(func(ctx context.Context, b background) {
			err := b.Do(ctx, func(ctx context.Context, _ tx) error { <-ctx.Done(); return context.Cause(ctx) })
			if took := time.Since(began); err == nil || took != time.Second {
				t.Errorf("Do = %v after %v", err, took)
			}
			if err := b.Do(ctx, note("next")); err != nil {
				t.Errorf("Do = %v", err)
			}
		}), options{BatchTimeout: time.Second})
		r.pass(time.Minute)
		p.end()
		if got := fmt.Sprint(r.sink.List("background")); got != "[next]" {
			t.Errorf("background: %s", got)
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
		p := r.start("a", each(func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
			var err error
			once.Do(func() { err = errPoison })
			if err != nil {
				defer close(failed)
				return err
			}
			return record(ctx, tx, m, e)
		}).Background(func(ctx context.Context, b background) {
			<-failed
			r.pass(time.Second)
			_ = b.Do(ctx, note("x"))
			<-ctx.Done()
		}), options{MaxBatch: 1, RetryMin: 6 * time.Hour, RetryMax: 6 * time.Hour}, backgroundOnly(func(do func() error) error {
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

func TestWorkUnderWayEndsWithTheContextOfItsCall(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		p := r.start("a", each(record).Background(func(ctx context.Context, b background) {
			short, cancel := context.WithTimeout(ctx, time.Second)
			defer cancel()
			began := time.Now()
			err := b.Do(short, func(ctx context.Context, tx tx) error {
				tx.Append("background", "rolled back")
				<-ctx.Done()
				return context.Cause(ctx)
			})
			if took := time.Since(began); !errors.Is(err, context.DeadlineExceeded) || took != time.Second {
				t.Errorf("Do = %v after %v", err, took)
			}
		}), options{})
		r.pass(time.Minute)
		p.end()
		if got := r.sink.List("background"); len(got) > 0 {
			t.Errorf("committed: %v", got)
		}
	})
}
