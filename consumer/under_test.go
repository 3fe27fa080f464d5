package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/epochfence/epochfence/cas/guard"
	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// A consumer with its positions in one database writes items of another store. The messages that its
// handlers get say all that the items are guarded with.
func TestAHandlerGuardsItemsOfAnotherStoreWithItsMessages(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		store, fixed := memstore.New(), atomic.Bool{}
		h := each(func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
			if m.Offset == 3 && !fixed.Load() {
				return consumer.Permanent(errors.New("poison"))
			}
			if m.Under == nil || m.Under.Epoch != e || m.Under.Log == "" || m.Mark == epoch.NoMark || (m.Replay != 0) != (m.Offset == 3) {
				t.Errorf("offset %d under epoch %d: under %+v, mark %d, replay %d", m.Offset, e, m.Under, m.Mark, m.Replay)
			}
			_, err := guard.At(store, m).Update(ctx, "items", func(old guard.State) (guard.State, []byte, error) {
				return guard.Text(fmt.Sprint(string(old.Value), m.Offset, " ")), nil, nil
			})
			if err != nil && !errors.Is(err, guard.ErrPassed) {
				return err
			}
			return record(ctx, tx, m, e)
		}).OnFailure(r.sink.DeadLetter)
		items := func() string {
			state, err := guard.Read(t.Context(), store, "items")
			if err != nil {
				t.Fatal(err)
			}
			return strings.TrimSpace(string(state.Value))
		}
		r.fill(0, 6)
		p := r.start("a", h, options{})
		r.pass(time.Minute)
		p.end()
		p = r.start("b", h, options{})
		r.pass(time.Minute)
		fixed.Store(true)
		r.requests()
		r.pass(time.Minute)
		if got := items(); got != "0 1 2 4 5 3" {
			t.Errorf("the item has %q", got)
		}
		f, err := epoch.FenceOf(t.Context(), r.sink, r.partition(0))
		if err != nil {
			t.Fatal(err)
		}
		back := operate.NewAct(operate.ActRewind, f, "anna", "again")
		back.To = &epoch.Position{Offset: 4, Mark: epoch.NoMark}
		if _, err := r.sink.Operator().Act(t.Context(), back); err != nil {
			t.Fatal(err)
		}
		r.pass(time.Minute)
		p.end()
		if got := items(); got != "0 1 2 4 5 3 4 5" {
			t.Errorf("after a rewind the item has %q", got)
		}
	})
}

// After a failover that has lost epochs of the database, items have seen higher ones.
func TestNoMessageFailsBecauseAnItemHasSeenAHigherEpoch(t *testing.T) {
	t.Run("by a claim", func(t *testing.T) {
		loseEpochs(t, 0, func(r *rig, p *process, f epoch.Fence, item string) {
			if halted := seen[consumer.Halted](p); f.Next != 4 || f.Epoch <= 50 || len(halted) > 0 || item != "0 1 2 3 " {
				r.Errorf("the fence is %+v, the item has %q, halted: %+v", f, item, halted)
			}
		})
	})
	t.Run("by an operator", func(t *testing.T) {
		loseEpochs(t, 49, func(r *rig, p *process, f epoch.Fence, item string) {
			halted := seen[consumer.Halted](p)
			if f.Next != 1 || item != "0 1 " || len(halted) == 0 || !errors.Is(halted[0].Err, guard.ErrFenceLost) || halted[0].Reason != consumer.ReasonUnhealthy {
				r.Errorf("the fence is %+v, the item has %q, halted: %+v", f, item, halted)
			}
			r.acts(operate.ActPause, 0) // as the remedy says
			r.acts(operate.ActRewind, 0, to(0))
			r.acts(operate.ActRewind, 0, to(1))
			r.acts(operate.ActResume, 0)
			r.pass(2 * time.Minute)
			if f, err := epoch.FenceOf(r.Context(), r.sink, r.partition(0)); err != nil || f.Next != 4 {
				r.Errorf("after the remedy the fence is %+v, %v", f, err)
			}
		})
	})
}

// loseEpochs has a later owner, of which the fence does not know, apply the message at offset 1, and then
// this one go on.
func loseEpochs(t *testing.T, era epoch.Epoch, check func(r *rig, p *process, f epoch.Fence, item string)) {
	inBubble(t, 1, func(r *rig) {
		store, last := memstore.New(), guard.Stamp{}
		adds := func(word string) guard.Change {
			return func(old guard.State) (guard.State, []byte, error) {
				return guard.Text(string(old.Value) + word), nil, nil
			}
		}
		h := each(func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
			if _, err := guard.At(store, m).Update(ctx, "items", adds(fmt.Sprint(m.Offset, " "))); err != nil {
				return fmt.Errorf("items: %w", err)
			}
			last, _ = guard.StampOf(m)
			return record(ctx, tx, m, e)
		})
		r.fill(0, 1)
		p := r.start("a", h, options{MaxAttempts: 1})
		r.pass(time.Minute)
		p.end()
		lost := last
		lost.Epoch, lost.Era, lost.Offset, lost.Mark = 50, era, 1, epoch.NoMark
		if _, err := guard.New(store, lost).Update(r.Context(), "items", adds("1 ")); err != nil {
			r.Fatal(err)
		}
		r.fill(0, 3)
		p = r.start("b", h, options{MaxAttempts: 1})
		r.pass(time.Minute)
		f, err := epoch.FenceOf(r.Context(), r.sink, r.partition(0))
		if err != nil {
			r.Fatal(err)
		}
		state, err := guard.Read(r.Context(), store, "items")
		if err != nil {
			r.Fatal(err)
		}
		check(r, p, f, string(state.Value))
		p.end()
	})
}

func TestSkippingAMessageDoesNotRepeatWhatThoseBehindItHaveDoneToItems(t *testing.T) {
	inBubble(t, 1, func(r *rig) {
		store, rolledBack := memstore.New(), false
		h := each(func(ctx context.Context, tx tx, m consumer.Message, e epoch.Epoch) error {
			if m.Offset == 1 && rolledBack {
				return consumer.Permanent(errors.New("poison"))
			}
			_, err := guard.At(store, m).Update(ctx, "items", func(old guard.State) (guard.State, []byte, error) {
				return guard.Text(fmt.Sprint(string(old.Value), m.Offset, " ")), nil, nil
			})
			if err != nil && !errors.Is(err, guard.ErrPassed) {
				return err
			}
			if m.Offset == 3 && !rolledBack {
				rolledBack = true
				return errors.New("after the others have changed the item")
			}
			return record(ctx, tx, m, e)
		})
		values := r.fill(0, 5)
		p := r.start("a", h, options{})
		r.pass(time.Minute)
		f, err := epoch.FenceOf(r.Context(), r.sink, r.partition(0))
		if err != nil || f.Next != 1 {
			r.Fatalf("it halts at %+v, %v", f, err)
		}
		r.acts(operate.ActSkip, 0, to(2))
		r.pass(time.Minute)
		p.end()
		r.wantEffects(0, append(values[:1], values[2:]...)...)
		if state, err := guard.Read(r.Context(), store, "items"); err != nil || string(state.Value) != "0 1 2 3 4 " {
			r.Errorf("the item has %q, %v", state.Value, err)
		}
	})
}
