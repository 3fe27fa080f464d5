package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/memsink"
)

func TestClaimedSaysHowManyAttemptsItTookAndHowLongSinceTheGrant(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		answers := []error{errors.New("no leader"), errors.New("no leader"), nil}
		r.group().OnConfirm(func(context.Context, confirmation) error {
			<-time.After(3 * time.Second)
			err := answers[0]
			answers = answers[1:]
			return err
		})
		p := r.start("a", each(record), options{RetryMin: time.Second, RetryMax: time.Second})
		r.pass(time.Minute)
		for _, n := range seen[consumer.NotClaimed](p) {
			if n.Partition != r.partition(0) || n.Reason != consumer.ReasonNotConfirmed || n.Took != 3*time.Second || n.Err == nil {
				t.Errorf("%+v, want an attempt of 3 s that was not confirmed", n)
			}
		}
		c := wantOne[consumer.Claimed](p)
		if c.Attempts != 3 || c.Took != 3*time.Second || c.Waited < 9*time.Second || c.Waited > 12*time.Second {
			t.Errorf("%d attempts, the last took %v, %v in all; want 3, 3 s, and 9 s with the waits between them", c.Attempts, c.Took, c.Waited)
		}
		p.end()
	})
}

func TestAnotherClaimThatCameFirstIsAnAttemptThatFailed(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		raced := false
		p := r.start("a", each(record), options{}, memsink.Hooks{Claim: func(_ context.Context, _ epoch.Claim, do func() error) error {
			if !raced {
				raced = true
				now := r.sink.Fences()[r.partition(0)]
				lease := epoch.Lease{Origin: now.Origin, Generation: 1, Owner: "b"}
				if _, err := r.sink.Claim(t.Context(), now, epoch.NewClaim(lease)); err != nil {
					return err
				}
			}
			return do()
		}})
		r.pass(time.Minute)
		if n := wantOne[consumer.NotClaimed](p); n.Reason != consumer.ReasonStale {
			t.Errorf("%+v", n)
		}
		if c := wantOne[consumer.Claimed](p); c.Attempts != 2 || c.Seen.Owner != "b" {
			t.Errorf("%+v", c)
		}
		p.end()
	})
}

func TestAdvancedSaysHowFarBehindAPartitionIs(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		began := time.Now()
		var ms []consumer.Message
		for i := range 5 {
			ms = append(ms, consumer.Message{Value: []byte(fmt.Sprint(i)), Time: began.Add(time.Duration(i) * time.Second)})
		}
		r.log.AppendMessages(0, ms...)
		p := r.start("a", each(record), options{MaxBatch: 2})
		synctest.Wait()
		var got []string
		for _, a := range seen[consumer.Advanced](p) {
			got = append(got, fmt.Sprint(a.Messages, a.Lag, a.Oldest.Sub(began), a.Newest.Sub(began)))
		}
		if want := []string{"2 3 0s 1s", "2 1 2s 3s", "1 0 4s 4s"}; !slices.Equal(got, want) {
			t.Errorf("messages, lag, oldest, newest:\n got %v\nwant %v", got, want)
		}
		p.end()
	})
}

func TestEachTransactionIsAnEventWhateverCameOfIt(t *testing.T) {
	type observed struct {
		outcome consumer.Outcome
		reason  consumer.Reason
		failure consumer.Failure
	}
	once := func(h handler) handler { // fails the first time
		failed := false
		return func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
			if failed {
				return record(ctx, tx, m, e)
			}
			failed = true
			return h(ctx, tx, m, e)
		}
	}
	failing := func(err error) handler {
		return once(func(context.Context, tx, consumer.Message, epoch.Epoch) error { return err })
	}
	hooked := func(err error, landed bool) memsink.Hooks {
		failed := false
		return memsink.Hooks{Commit: func(_ context.Context, _ []epoch.Advance, do func() error) error {
			if failed {
				return do()
			}
			failed = true
			if landed {
				return errors.Join(do(), err)
			}
			return err
		}}
	}
	failed := func(why consumer.Failure) observed {
		return observed{consumer.OutcomeFailed, consumer.ReasonMessageFailed, why}
	}
	none := memsink.Hooks{}
	for _, c := range []struct {
		name  string
		h     handler
		hooks memsink.Hooks
		want  observed
	}{
		{"an error", failing(errors.New("no such item")), none, failed(consumer.FailureError)},
		{"a permanent one", failing(consumer.Permanent(errors.New("no such item"))), none, failed(consumer.FailurePermanent)},
		{"a panic", once(func(context.Context, tx, consumer.Message, epoch.Epoch) error { panic("oh") }), none, failed(consumer.FailurePanic)},
		{"the end of its goroutine", once(func(context.Context, tx, consumer.Message, epoch.Epoch) error { runtime.Goexit(); return nil }), none, failed(consumer.FailureGoexit)},
		{
			"too long", once(func(ctx context.Context, _ tx, _ consumer.Message, _ epoch.Epoch) error {
				<-ctx.Done()
				return ctx.Err()
			}), none,
			observed{consumer.OutcomeFailed, consumer.ReasonTimeout, consumer.FailureTimeout},
		},
		{"a deadlock", failing(fmt.Errorf("%w: deadlock", epoch.ErrTransient)), none, observed{consumer.OutcomeFailed, consumer.ReasonTransient, consumer.FailureTransient}},
		{"a panic with one", once(func(context.Context, tx, consumer.Message, epoch.Epoch) error {
			panic(fmt.Errorf("%w: deadlock", epoch.ErrTransient))
		}), none, observed{consumer.OutcomeFailed, consumer.ReasonTransient, consumer.FailureTransient}},
		{"no table", failing(fmt.Errorf("%w: no table", epoch.ErrUnhealthy)), none, observed{consumer.OutcomeFailed, consumer.ReasonUnhealthy, consumer.FailureUnhealthy}},
		{"a lost answer", record, hooked(epoch.ErrInDoubt, true), observed{outcome: consumer.OutcomeInDoubt, reason: consumer.ReasonInDoubt}},
		{"a refused commit", record, hooked(errors.New("violates a constraint"), false), observed{outcome: consumer.OutcomeFailed, reason: consumer.ReasonSink}},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, 1, func(r *rig) {
				r.log.Append(0, "x")
				p := r.start("a", each(c.h), options{}, c.hooks)
				r.pass(5 * time.Minute)
				p.end()
				ts := seen[consumer.Transacted](p)
				if len(ts) == 0 {
					t.Fatal("no transaction was reported")
				}
				if got := (observed{ts[0].Outcome, ts[0].Reason, ts[0].Failure}); got != c.want {
					t.Errorf("got %v, want %v", got, c.want)
				}
				last := ts[len(ts)-1]
				wantLast := 2
				if c.want.outcome == consumer.OutcomeInDoubt { // which had landed
					wantLast = 1
				}
				if len(ts) != wantLast || wantLast == 2 && (last.Outcome != consumer.OutcomeCommitted || last.Reason != consumer.ReasonNone || last.Messages != 1) {
					t.Errorf("%+v, want %d with a commit at last", ts, wantLast)
				}
			})
		})
	}
}

func TestATransactionSaysHowLongItsHandlersTook(t *testing.T) {
	inBubble(t, 3, func(r *rig) {
		p := r.start("a", each(func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
			<-time.After(time.Millisecond)
			return record(ctx, tx, m, e)
		}), options{})
		r.together(p, func(_ context.Context, _ []epoch.Advance, do func() error) error {
			<-time.After(time.Second)
			return do()
		}, func() { r.fill(1, 3); r.fill(2, 2) })
		r.pass(time.Minute)
		last := seen[consumer.Transacted](p)[1]
		want := consumer.Transacted{Partitions: 2, Messages: 5, Took: time.Second + 5*time.Millisecond, Handling: 5 * time.Millisecond}
		if last != want {
			t.Errorf("%+v, want %+v", last, want)
		}
		p.end()
	})
}

func TestARefusalIsATransactionThatWasRefused(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		p := r.start("a", each(record), options{}, memsink.Hooks{Commit: func(_ context.Context, _ []epoch.Advance, do func() error) error {
			now := r.sink.Fences()[r.partition(0)]
			if now.Owner == "a" {
				if _, err := r.sink.Claim(t.Context(), now, epoch.NewClaim(epoch.Lease{Origin: now.Origin, Generation: 9, Owner: "b"})); err != nil {
					return err
				}
			}
			return do()
		}})
		r.fill(0, 1)
		r.pass(time.Second / 100)
		tx := wantOne[consumer.Transacted](p)
		if tx.Outcome != consumer.OutcomeRefused || tx.Reason != consumer.ReasonStale || tx.Failure != consumer.FailureNone {
			t.Errorf("%+v", tx)
		}
		wantOne[consumer.Stale](p)
		p.end()
	})
}

func TestLostSaysWhyAndWhetherATransactionWasUnderWay(t *testing.T) {
	taken := errors.New("taken away")
	for _, c := range []struct {
		name     string
		inFlight bool
		lose     func(r *rig, p *process)
		want     consumer.Reason
	}{
		{"while idle", false, func(r *rig, p *process) { r.group().Lose(p.member, r.log.Name(), 0, taken) }, consumer.ReasonLeaseTaken},
		{"in a transaction", true, func(r *rig, p *process) { r.group().Lose(p.member, r.log.Name(), 0, taken) }, consumer.ReasonLeaseTaken},
		{"expired in a transaction", true, func(r *rig, p *process) { r.group().Expire(p.member) }, consumer.ReasonLeaseExpired},
	} {
		t.Run(c.name, func(t *testing.T) {
			inBubble(t, 1, func(r *rig) {
				r.group().Script()
				p := r.start("a", each(func(ctx context.Context, _ tx, _ consumer.Message, _ epoch.Epoch) error {
					<-ctx.Done()
					return ctx.Err()
				}), options{})
				synctest.Wait()
				r.group().Grant(p.member, r.log.Name(), 0)
				synctest.Wait()
				if c.inFlight {
					r.fill(0, 1)
				}
				synctest.Wait()
				c.lose(r, p)
				synctest.Wait()
				if l := wantOne[consumer.Lost](p); l.InFlight != c.inFlight || l.Reason != c.want || !errors.Is(l.Cause, consumer.ErrLost) {
					t.Errorf("%+v, want in flight: %v, %v", l, c.inFlight, c.want)
				}
				for _, tx := range seen[consumer.Transacted](p) {
					if tx.Outcome != consumer.OutcomeLost || tx.Failure != consumer.FailureNone {
						t.Errorf("%+v, want one that was lost", tx)
					}
				}
				p.end()
			})
		})
	}
}

func TestHaltedSaysWhyInAWord(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		r.fill(0, 1)
		p := r.start("a", each(failOn(consumer.Permanent(errPoison), "0/0")), options{})
		synctest.Wait()
		if h := wantOne[consumer.Halted](p); h.Reason != consumer.ReasonMessageFailed || !h.Reason.NeedsOperator() || h.Epoch != 1 {
			t.Errorf("%+v", h)
		}
		p.end()
	})
	inBubble(t, 1, func(r *rig) {
		p := r.start("a", each(record), options{}, memsink.Hooks{
			Fence: func(context.Context, epoch.Partition, func() error) error { return errors.New("connection refused") },
		})
		r.pass(time.Second)
		if h := seen[consumer.Halted](p)[0]; h.Reason != consumer.ReasonSink || h.Reason.NeedsOperator() || h.Epoch != 0 {
			t.Errorf("%+v", h)
		}
		p.end()
	})
}
