package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/guard"
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
		f, err := r.sink.Fence(t.Context(), r.partition(0))
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
