package sourcetest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/sourcetest"
	"github.com/epochfence/epochfence/epoch"
)

// stalling is a harness on a machine that stood still.
type stalling struct {
	*broken
	stood time.Duration
}

func (s stalling) Stalled() time.Duration { return s.stood }

// losing makes a tenure end when a position is mirrored, or at once; Run returns err.
func losing(b *broken, atOnce bool, err error) {
	b.run = func(ctx context.Context, s consumer.Source, joined func(error), own func(context.Context, consumer.Tenure)) error {
		_ = s.Run(ctx, joined, func(ctx context.Context, t consumer.Tenure) {
			ctx, lose := context.WithCancelCause(ctx)
			defer lose(nil)
			if atOnce {
				lose(fmt.Errorf("%w: it ran out", consumer.ErrLost))
			}
			own(ctx, &tenure{Tenure: t, mirror: func(epoch.Fence) { lose(fmt.Errorf("%w: it ran out", consumer.ErrLost)) }})
		})
		return err
	}
}

func TestAHistoryIsPlayedAgainOnlyIfTheMachineStoodStillWhenATenureWasLost(t *testing.T) {
	const term = 200 * time.Millisecond // of broken
	for _, c := range []struct {
		name   string
		stood  time.Duration
		losses int  // plays in which a tenure is lost
		atOnce bool // before the story has seen it
		ends   error
		plays  int
		ok     bool
	}{
		{name: "lost once while it stood still", stood: term, losses: 1, plays: 2, ok: true},
		{name: "lost each time while it stood still", stood: term, losses: 1000, plays: sourcetest.Attempts},
		{name: "lost while it ran", stood: term / 10, losses: 1, plays: 1},
		{name: "lost while it stood still, and something else was waited for", stood: term, losses: 1, atOnce: true, plays: 2, ok: true},
		{name: "lost while it ran, and something else was waited for", stood: term / 10, losses: 1, atOnce: true, plays: 1},
		{name: "something else is wrong, too", stood: term, losses: 1, ends: errors.New("broken"), plays: 1},
		{name: "nothing is lost while it stood still", stood: term, plays: 1, ok: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			plays := 0
			create := func(t testing.TB) sourcetest.Harness {
				plays++
				b := newBroken(t, fault{world: func(b *broken) {
					if plays <= c.losses {
						losing(b, c.atOnce, c.ends)
					}
				}})
				return stalling{b, c.stood}
			}
			err := sourcetest.PlayAgain(t, "a mirrored position is published", create, toothPatience)
			if plays != c.plays || (err == nil) != c.ok {
				t.Errorf("played %d times, with %v at last; want %d times, ok = %v", plays, err, c.plays, c.ok)
			}
		})
	}
}
