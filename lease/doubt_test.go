package lease

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/suites/bubble"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/memsink"
)

func TestAnAnswerThatWasLostIsFoundOut(t *testing.T) {
	for name, commits := range map[string]bool{"committed": true, "not committed": false} {
		bubble.Test(t, func(t *testing.T) {
			store, sink := memstore.New(), memsink.New()
			tries := 0
			doubtful := scripted(sink, memsink.Hooks{Commit: func(_ context.Context, _ []epoch.Advance, do func() error) error {
				if tries++; tries > 1 {
					return do()
				}
				if commits {
					if err := do(); err != nil {
						return err
					}
				}
				return epoch.ErrInDoubt
			}})
			does(t, join(t, store), doubtful, writes("once"))
			reports(t, sink, "once")
			if want := map[bool]int{true: 1, false: 2}[commits]; tries != want {
				t.Errorf("%s: %d transactions, want %d", name, tries, want)
			}
		})
	}
}

// The transaction is still under way when its answer is given up.
func TestAnAnswerThatComesAfterTheNextClaimChangesNothing(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		store, sink := memstore.New(), memsink.New()
		var late func() error
		doubtful := scripted(sink, memsink.Hooks{Commit: func(_ context.Context, _ []epoch.Advance, do func() error) error {
			if late != nil {
				return do()
			}
			late = do
			return epoch.ErrInDoubt
		}})
		does(t, join(t, store), doubtful, writes("once"))
		if err := late(); !errors.Is(err, epoch.ErrStale) {
			t.Errorf("the late one: %v", err)
		}
		reports(t, sink, "once")
	})
}

func TestADoubtThatCannotBeResolvedIsReturned(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		m, sink := join(t, memstore.New()), memsink.New()
		doubtful := scripted(sink, memsink.Hooks{Commit: func(context.Context, []epoch.Advance, func() error) error {
			m.has(swallow)
			return epoch.ErrInDoubt
		}})
		if err := Do(t.Context(), m.Member, doubtful, nightly, writes("perhaps")); !errors.Is(err, epoch.ErrInDoubt) || !errors.Is(err, ErrLost) {
			t.Errorf("%v", err)
		}
	})
}

// The connection is lost, and before this process has claimed again, another claim has worked.
func TestTheWorkOfAnotherIsNotTakenForOurs(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		store, sink := memstore.New(), memsink.New()
		h := join(t, store).locks(nightly)
		loses := scripted(sink, memsink.Hooks{Commit: func(context.Context, []epoch.Advance, func() error) error {
			other, err := Claim(t.Context(), h, sink)
			if err == nil {
				err = other.Do(t.Context(), writes("another's"))
			}
			return errors.Join(err, epoch.ErrInDoubt)
		}})
		c, err := Claim(t.Context(), h, loses)
		if err != nil {
			t.Fatal(err)
		}
		if err := c.Do(t.Context(), writes("ours")); !errors.Is(err, epoch.ErrInDoubt) || !strings.Contains(err.Error(), "another process has claimed") {
			t.Errorf("%v", err)
		}
		reports(t, sink, "another's")
	})
}

// An operator's action ends the transaction.
func TestAPauseDuringTheWorkLeavesNoDoubt(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		store, sink := memstore.New(), memsink.New()
		loses := scripted(sink, memsink.Hooks{Commit: func(ctx context.Context, as []epoch.Advance, do func() error) error {
			seen, err := epoch.FenceOf(ctx, sink, as[0].Partition)
			if seen.Pause.Mode == epoch.Paused {
				return do()
			}
			if err == nil {
				_, err = sink.Operator().Act(ctx, operate.NewAct(operate.ActPause, seen, "anna", "stocktaking"))
			}
			return errors.Join(err, epoch.ErrInDoubt)
		}})
		if err := Do(t.Context(), join(t, store).Member, loses, nightly, writes("ours")); !errors.Is(err, epoch.ErrPaused) || errors.Is(err, epoch.ErrInDoubt) {
			t.Errorf("%v", err)
		}
		reports(t, sink)
	})
}

func TestWorkThatLosesItsConnectionEachTimeEnds(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		sink, calls := memsink.New(), 0
		loses := scripted(sink, memsink.Hooks{Commit: func(context.Context, []epoch.Advance, func() error) error { return epoch.ErrInDoubt }})
		err := Do(t.Context(), join(t, memstore.New()).Member, loses, nightly, func(context.Context, *memsink.Tx, epoch.Epoch) error {
			calls++
			return nil
		})
		if errors.Is(err, epoch.ErrInDoubt) || !errors.Is(err, epoch.ErrTransient) || calls != enoughLost {
			t.Errorf("%d calls, %v", calls, err)
		}
	})
}
