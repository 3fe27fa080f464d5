package remedies_test

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/operate/remedies"
	"github.com/epochfence/epochfence/operate/stats"
	"github.com/epochfence/epochfence/sinks/memsink"
)

// scenarios bring each reason about, do what its remedy says, and see that it helps.
var scenarios = map[consumer.Reason]func(r *rig){
	consumer.ReasonMessageFailed: func(r *rig) {
		r.handle = func(_ context.Context, m consumer.Message) error {
			if string(m.Value) == "poison" {
				return consumer.Permanent(errors.New("no amount"))
			}
			return nil
		}
		r.log.Append(0, "a", "poison", "b")
		r.begin()
		r.wantHalt(consumer.ReasonMessageFailed)
		r.act(operate.ActSkip, to(2))
		r.wantGoesOn("a", "b")
	},
	consumer.ReasonOnFailureFailed: func(r *rig) {
		r.options.MaxAttempts = 2
		r.handle = func(_ context.Context, m consumer.Message) error {
			if string(m.Value) == "poison" {
				return errors.New("no amount")
			}
			return nil
		}
		r.onFailure = func() error {
			if r.broken.Load() {
				return errors.New("no right to write dead letters")
			}
			return nil
		}
		r.log.Append(0, "a", "poison", "b")
		r.begin()
		r.wantHalt(consumer.ReasonOnFailureFailed)
		r.broken.Store(false)
		r.wantGoesOn("a", "b")
	},
	consumer.ReasonHandlerEndedTx: func(r *rig) {
		r.hooks.Commit = func(_ context.Context, _ []epoch.Advance, do func() error) error {
			if r.broken.Load() {
				return fmt.Errorf("commit: %w", epoch.ErrTxEndedByHandler)
			}
			return do()
		}
		r.log.Append(0, "a")
		r.begin()
		r.wantHalt(consumer.ReasonHandlerEndedTx)
		r.act(operate.ActPause, nil)
		r.begin() // another process gets the partition
		r.pass(time.Minute)
		if got := r.sink.List("applied"); len(got) > 0 {
			r.Errorf("applied %q while it is paused", got)
		}
		r.broken.Store(false) // the handler is changed, and deployed
		r.begin()
		r.act(operate.ActResume, nil)
		r.wantGoesOn("a")
	},
	consumer.ReasonLogChanged: func(r *rig) {
		r.log.Append(0, "a")
		r.begin()
		r.wantGoesOn("a")
		r.log.Recreate(1)
		r.log.Append(0, "b")
		r.begin()
		var changed *epoch.LogChangedError
		if r.wantHalt(consumer.ReasonLogChanged); !errors.As(r.err(), &changed) {
			r.Fatal("the error does not name the log")
		}
		r.act(operate.ActRebase, func(a *operate.Act) { a.Log = changed.Source; to(0)(a) })
		r.wantGoesOn("a", "b")
	},
	consumer.ReasonForeignLease: func(r *rig) {
		r.log.Append(0, "a")
		r.begin()
		r.wantGoesOn("a")
		r.end()
		r.act(operate.ActRebase, func(a *operate.Act) { a.Source = "another cluster" }) // where the group was until now
		r.log.Append(0, "b")
		r.begin()
		var foreign *epoch.ForeignLeaseError
		if r.wantHalt(consumer.ReasonForeignLease); !errors.As(r.err(), &foreign) {
			r.Fatal("the error does not name the issuer")
		}
		r.act(operate.ActRebase, func(a *operate.Act) { a.Source = foreign.Source })
		r.wantGoesOn("a", "b")
	},
	consumer.ReasonMessagesExpired: func(r *rig) {
		r.log.Append(0, "a")
		r.begin()
		r.wantGoesOn("a")
		r.end()
		r.log.Append(0, "lost", "b")
		r.log.Trim(0, 2)
		r.begin()
		r.wantHalt(consumer.ReasonMessagesExpired)
		begin, _ := r.log.Bounds(0)
		r.act(operate.ActRewind, to(begin))
		r.wantGoesOn("a", "b")
	},
	consumer.ReasonLogTruncated: func(r *rig) {
		r.log.Append(0, "a", "b", "c")
		r.begin()
		r.wantGoesOn("a", "b", "c")
		r.end()
		r.log.Truncate(0, 1)
		r.begin()
		r.wantHalt(consumer.ReasonLogTruncated)
		_, end := r.log.Bounds(0)
		r.log.Append(0, "d")
		r.act(operate.ActRewind, to(end))
		r.wantGoesOn("a", "b", "c", "d")
	},
	consumer.ReasonOutOfOrder: func(r *rig) {
		r.log.Append(0, "a")
		r.begin()
		r.wantGoesOn("a")
		r.read = func(from epoch.Fence) iter.Seq2[consumer.Batch, error] {
			return func(yield func(consumer.Batch, error) bool) {
				again := consumer.Message{Partition: r.partition(), Offset: from.Next - 1, Value: []byte("a")}
				yield(consumer.Batch{Messages: []consumer.Message{again}, Next: from.Next}, nil)
			}
		}
		r.begin()
		r.log.Append(0, "b")
		r.wantHalt(consumer.ReasonOutOfOrder)
		r.broken.Store(false)
		r.act(operate.ActEvict, nil)
		r.wantGoesOn("a", "b")
	},
	consumer.ReasonMissingFence: func(r *rig) {
		empty := r.sink.Snapshot()
		r.log.Append(0, "a")
		r.begin()
		r.wantGoesOn("a")
		good := r.sink.Snapshot()
		r.sink.Restore(empty)
		r.log.Append(0, "b")
		r.wantHalt(consumer.ReasonMissingFence)
		r.sink.Restore(good) // the table is there again
		r.wantGoesOn("a", "b")

		r.sink.Restore(empty) // and now it is lost for good, with the effects
		r.log.Append(0, "c")
		r.wantHalt(consumer.ReasonMissingFence)
		r.handle = func(context.Context, consumer.Message) error { return errors.New("not yet") }
		r.begin()
		r.wantHalt(consumer.ReasonMessageFailed)
		r.act(operate.ActRewind, to(2))
		r.end()
		r.handle = nil
		r.begin()
		r.wantGoesOn("c")
	},
	consumer.ReasonElsewhere: func(r *rig) {
		r.hooks.Claim = failing[epoch.Claim](r, fmt.Errorf("routed to shard 1, and in shard 2: %w", epoch.ErrElsewhere))
		r.log.Append(0, "a")
		r.begin()
		r.wantHalt(consumer.ReasonElsewhere)
		r.broken.Store(false) // the routing is fixed
		r.wantGoesOn("a")
	},
	consumer.ReasonPaused: func(r *rig) {
		r.log.Append(0, "a")
		r.begin()
		r.wantGoesOn("a")
		r.act(operate.ActPause, nil)
		r.log.Append(0, "b")
		r.wantHalt(consumer.ReasonPaused)
		r.act(operate.ActResume, nil)
		r.wantGoesOn("a", "b")
	},
	consumer.ReasonUnhealthy: func(r *rig) {
		r.hooks.Commit = failing[[]epoch.Advance](r, fmt.Errorf("%w: no table ledger", epoch.ErrUnhealthy))
		r.log.Append(0, "a")
		r.begin()
		r.wantHalt(consumer.ReasonUnhealthy)
		r.broken.Store(false)
		r.wantGoesOn("a")
	},
	consumer.ReasonStale: func(r *rig) {
		r.log.Append(0, "a")
		r.begin()
		r.wantGoesOn("a")
		now := r.sink.Fences()[r.partition()]
		if _, err := r.sink.Claim(r.Context(), now, epoch.NewClaim(epoch.Lease{Origin: now.Origin, Generation: 1, Owner: "another"})); err != nil {
			r.Fatal(err)
		}
		r.log.Append(0, "b")
		r.wantGoesOn("a", "b")
		for _, m := range r.stats.Timeline() {
			if m.Kind == stats.Refused && m.Reason == consumer.ReasonStale && m.OtherOwner == "another" {
				return
			}
		}
		r.Errorf("no refusal in %+v", r.stats.Timeline())
	},
	consumer.ReasonMoved: func(r *rig) {
		r.hooks.Commit = failing[[]epoch.Advance](r, &epoch.MovedError{Partition: r.partition(), Next: 7})
		r.log.Append(0, "a")
		r.begin()
		r.wantHalt(consumer.ReasonMoved)
		r.broken.Store(false)
		r.wantGoesOn("a")
	},
	consumer.ReasonInDoubt: func(r *rig) {
		r.hooks.Commit = failing[[]epoch.Advance](r, epoch.ErrInDoubt)
		r.log.Append(0, "a")
		r.begin()
		r.wantHalt(consumer.ReasonInDoubt)
		r.broken.Store(false)
		r.wantGoesOn("a")
	},
	consumer.ReasonTransient: func(r *rig) {
		r.hooks.Commit = failing[[]epoch.Advance](r, fmt.Errorf("%w: lock not granted", epoch.ErrTransient))
		r.log.Append(0, "a")
		r.begin()
		r.wantHalt(consumer.ReasonTransient)
		r.broken.Store(false)
		r.wantGoesOn("a")
	},
	consumer.ReasonTimeout: func(r *rig) {
		r.hooks.Claim = func(ctx context.Context, _ epoch.Claim, do func() error) error {
			if r.broken.Load() { // the database does not answer
				<-ctx.Done()
				return ctx.Err()
			}
			return do()
		}
		r.log.Append(0, "a")
		r.begin()
		r.wantHalt(consumer.ReasonTimeout)
		r.broken.Store(false)
		r.wantGoesOn("a")
	},
	consumer.ReasonNotConfirmed: func(r *rig) {
		r.group().OnConfirm(func(context.Context, memsource.Confirmation) error {
			if r.broken.Load() {
				return errors.New("no coordinator")
			}
			return nil
		})
		r.log.Append(0, "a")
		r.begin()
		r.wantHalt(consumer.ReasonNotConfirmed)
		r.broken.Store(false)
		r.wantGoesOn("a")
	},
	consumer.ReasonBlocked: func(r *rig) {
		r.read = func(epoch.Fence) iter.Seq2[consumer.Batch, error] {
			return func(yield func(consumer.Batch, error) bool) {
				yield(consumer.Batch{}, fmt.Errorf("the run is too long: %w", consumer.ErrBlocked))
			}
		}
		r.log.Append(0, "a", "b")
		r.begin()
		r.wantHalt(consumer.ReasonBlocked)
		r.act(operate.ActSkip, to(1))
		r.broken.Store(false) // the source blocks at "a" alone
		r.wantGoesOn("b")
	},
	consumer.ReasonSource: func(r *rig) {
		r.read = func(epoch.Fence) iter.Seq2[consumer.Batch, error] {
			return func(yield func(consumer.Batch, error) bool) { yield(consumer.Batch{}, errors.New("no leader")) }
		}
		r.log.Append(0, "a")
		r.begin()
		r.wantHalt(consumer.ReasonSource)
		r.broken.Store(false)
		r.wantGoesOn("a")
	},
	consumer.ReasonSink: func(r *rig) {
		r.hooks.Claim = failing[epoch.Claim](r, errors.New("connection refused"))
		r.log.Append(0, "a")
		r.begin()
		r.wantHalt(consumer.ReasonSink)
		r.broken.Store(false)
		r.wantGoesOn("a")
	},
	consumer.ReasonLeaseTaken: func(r *rig) {
		r.log.Append(0, "a")
		r.begin()
		r.wantGoesOn("a")
		r.group().Lose(r.member, "orders", 0, errors.New("a rebalance"))
		synctest.Wait()
		r.wantLost(consumer.ReasonLeaseTaken)
	},
	consumer.ReasonLeaseExpired: func(r *rig) {
		r.log.Append(0, "a")
		r.begin()
		r.wantGoesOn("a")
		r.group().Expire(r.member)
		r.log.Append(0, "b")
		r.wantGoesOn("a", "b") // it has joined again
		r.wantLost(consumer.ReasonLeaseExpired)
	},
	consumer.ReasonDrainOverrun: func(r *rig) {
		goOn := make(chan struct{})
		r.options.HangTimeout = time.Hour
		r.handle = func(context.Context, consumer.Message) error { <-goOn; return nil } // does not return when it should
		r.log.Append(0, "a")
		r.begin()
		r.pass(time.Second)
		r.stop()
		r.pass(time.Minute)
		close(goOn)
		if err := <-r.done; err == nil {
			r.Error("Run does not say that own took too long")
		}
		r.stop = nil
		r.wantLost(consumer.ReasonDrainOverrun)
	},
	consumer.ReasonHung: func(r *rig) {
		goOn := make(chan struct{})
		r.handle = func(context.Context, consumer.Message) error { <-goOn; return nil } // waits for what never comes
		r.log.Append(0, "a")
		r.begin()
		r.pass(time.Minute)
		r.wantLost(consumer.ReasonHung)
		r.stop()
		var hung *consumer.HungError
		if err := <-r.done; !errors.As(err, &hung) {
			r.Errorf("Run: %v", err)
		}
		r.stop = nil
		r.handle = nil // it is changed, and the process started again
		r.begin()
		r.wantGoesOn("a")
		close(goOn)
	},
}

// failing is a step that fails until that is fixed.
func failing[T any](r *rig, err error) memsink.Hook[T] {
	return func(_ context.Context, _ T, do func() error) error {
		if r.broken.Load() {
			return err
		}
		return do()
	}
}

func TestEachReasonIsBroughtAboutAndItsRemedyHelps(t *testing.T) {
	for _, why := range consumer.Reasons() {
		t.Run(why.String(), func(t *testing.T) {
			scenario := scenarios[why]
			if scenario == nil {
				t.Fatal("nothing brings it about")
			}
			inBubble(t, scenario)
		})
	}
}

func TestEachReasonHasARemedyInWords(t *testing.T) {
	if len(remedies.All()) != len(consumer.Reasons()) {
		t.Errorf("%d remedies for %d reasons", len(remedies.All()), len(consumer.Reasons()))
	}
	for i, why := range consumer.Reasons() {
		r, ok := remedies.Of(why)
		if !ok || remedies.All()[i].Reason != why {
			t.Errorf("%v has none, or not at its place", why)
			continue
		}
		for _, text := range []string{r.Means, r.Do} {
			if len(text) < 40 || !strings.HasSuffix(text, ".") || strings.Contains(text, "  ") {
				t.Errorf("%v: %q", why, text)
			}
		}
		for _, c := range r.Commands {
			if !strings.HasPrefix(c.Line, "epochfence ") || c.For == "" {
				t.Errorf("%v: %+v", why, c)
			}
			if writes := strings.Contains(c.Line, "--execute"); writes != strings.Contains(c.Line, "--reason") {
				t.Errorf("%v: %q: what writes needs --execute and --reason", why, c.Line)
			}
		}
	}
	if _, ok := remedies.Of(consumer.ReasonNone); ok {
		t.Error("no reason has a remedy")
	}
}

func TestACommandNamesAPartitionThatAShellTakesAsItStands(t *testing.T) {
	c := remedies.Command{Line: "epochfence explain PARTITION"}
	for want, p := range map[string]epoch.Partition{
		"epochfence explain billing/orders.v2/3": {Group: "billing", Topic: "orders.v2", Number: 3},
		"epochfence explain PARTITION":           {Group: "$(reboot)", Topic: "orders", Number: 3},
	} {
		if got := c.On(p); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	if got := c.On(epoch.Partition{Group: "--execute", Topic: "orders"}); got != c.Line {
		t.Errorf("a name that is a flag: %q", got)
	}
}
