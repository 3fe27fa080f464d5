package sinktest

import (
	"context"
	"flag"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// toyPatience ends a history on a broken sink that goes in circles.
const toyPatience = 5 * time.Second

func TestMain(m *testing.M) {
	flag.Parse()
	// Histories are made to fail here: nothing to keep, and no need for the
	// shortest of each.
	for name, value := range map[string]string{"rapid.nofailfile": "true", "rapid.shrinktime": "10ms"} {
		if err := flag.Set(name, value); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

// played are the histories of sets that a sink of some abilities plays.
func played(sets []set, can abilities) (hs []history) {
	for _, s := range sets {
		if s.has(can) {
			hs = append(hs, s.histories...)
		}
	}
	return hs
}

// all are the histories of a sink that can do everything.
func all() []history {
	return played(sets(), abilitiesOf[*toyTx](toySink{newToy()}))
}

func allUnblocked() []history {
	return played(unblockedSets(), abilitiesOf[*toyTx](toySink{newToy()}))
}

// narrow is a sound sink of the five methods, whose transactions have one partition.
type narrow struct{ toySink }

func (narrow) CommitHeld() {} // it has none of what a consumer asks for
func (narrow) Facts() epoch.Facts {
	return epoch.Facts{Guarantee: epoch.Transactional, Partitions: 1}
}

func (s narrow) Commit(ctx context.Context, as []epoch.Advance, o epoch.TxOptions, calls ...func(context.Context, *toyTx) error) error {
	if len(as) > 1 && as[0].Partition != as[1].Partition {
		return fmt.Errorf("narrow: %d partitions: %w", len(as), epoch.ErrTooLarge)
	}
	return s.toySink.Commit(ctx, as, o, calls...)
}

// boastful takes more partitions than it says, and moves the first one.
type boastful struct{ narrow }

func (s boastful) Commit(ctx context.Context, as []epoch.Advance, o epoch.TxOptions, calls ...func(context.Context, *toyTx) error) error {
	if len(as) > 1 && as[0].Partition != as[1].Partition {
		as = as[:1]
	}
	return s.toySink.Commit(ctx, as, o, calls...)
}

func opening(sink func(*toy) epoch.Sink[*toyTx]) func() *toy {
	return func() *toy {
		db := newToy()
		db.open = func() epoch.Sink[*toyTx] { return sink(db) }
		return db
	}
}

func TestASinkOfFiveMethodsAndOnePartitionPassesWhatItIsAskedFor(t *testing.T) {
	asked := played(sets(), abilitiesOf[*toyTx](narrow{toySink{newToy()}}))
	if len(asked) >= len(all())-len(together) {
		t.Errorf("%d histories are asked for, of %d", len(asked), len(all()))
	}
	for _, h := range asked {
		if failed, said := outcome(t, h, patience, opening(func(db *toy) epoch.Sink[*toyTx] { return narrow{toySink{db}} })); failed {
			t.Errorf("%s:\n%s", h.claim, said)
		}
	}
}

func TestASinkThatTakesMoreThanItsBoundIsCaught(t *testing.T) {
	for _, h := range bounded {
		if failed, _ := outcome(t, h, toyPatience, opening(func(db *toy) epoch.Sink[*toyTx] { return boastful{narrow{toySink{db}}} })); !failed {
			t.Errorf("%s: not caught", h.claim)
		}
	}
}

func TestASoundSinkPassesEverything(t *testing.T) {
	for _, h := range concat(all(), allUnblocked()) {
		if failed, said := outcome(t, h, patience, func() *toy { db := newToy(); db.lockable = true; return db }); failed {
			t.Errorf("%s:\n%s", h.claim, said)
		}
	}
}

func TestEveryBrokenSinkIsCaught(t *testing.T) {
	for _, b := range broken {
		t.Run(b.rule+": "+b.name, func(t *testing.T) {
			t.Parallel()
			var caught []string
			byName, how := false, ""
			for _, h := range all() {
				failed, said := outcome(t, h, toyPatience, func() *toy {
					db := newToy()
					b.take(db)
					return db
				})
				if failed {
					caught = append(caught, h.claim)
					if strings.HasPrefix(h.claim, b.caught) {
						byName, how = true, h.claim+":\n"+said
					}
				}
			}
			if !byName {
				t.Errorf("not caught by %q; caught by %q", b.caught, caught)
			}
			t.Logf("caught by %d of %d histories, as by this one:\n%s", len(caught), len(all()), how)
		})
	}
}

func TestASinkThatLocksTheFenceFirstIsCaughtByTheUnblockedHistories(t *testing.T) {
	for _, h := range allUnblocked() {
		failed, said := outcome(t, h, toyPatience, func() *toy {
			db := newToy()
			lock := make(chan struct{}, 1)
			enter := func(ctx context.Context) error {
				// Bounded, as a database's lock timeout bounds it.
				ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
				defer cancel()
				select {
				case lock <- struct{}{}:
					return nil
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			commit, held, claim := db.commit, db.held, db.claim
			db.commit = func(ctx context.Context, as []epoch.Advance, o epoch.TxOptions, apply func(context.Context, *toyTx) error) error {
				if err := enter(ctx); err != nil {
					return err
				}
				defer func() { <-lock }()
				return commit(ctx, as, o, apply)
			}
			db.held = func(ctx context.Context, h epoch.Hold, o epoch.TxOptions, apply func(context.Context, *toyTx) error) error {
				if err := enter(ctx); err != nil {
					return err
				}
				defer func() { <-lock }()
				return held(ctx, h, o, apply)
			}
			db.claim = func(fs epoch.Fences, seen epoch.Fence, c epoch.Claim) (epoch.Fence, error) {
				if err := enter(t.Context()); err != nil {
					return epoch.Fence{}, err
				}
				defer func() { <-lock }()
				return claim(fs, seen, c)
			}
			return db
		})
		if !failed {
			t.Errorf("%s: not caught; it said:\n%s", h.claim, said)
		}
	}
}

func TestEveryRuleThatASinkKeepsHasABrokenSinkAndAHistory(t *testing.T) {
	for _, rule := range []string{"R1", "R2", "R3", "R4", "R5", "R7", "R9", "R10", "R12"} {
		if !slices.ContainsFunc(concat(all(), allUnblocked()), func(h history) bool {
			return slices.Contains(strings.Fields(h.rules), rule)
		}) {
			t.Errorf("no history bears on %s", rule)
		}
		found := false
		for _, b := range broken {
			found = found || b.rule == rule
		}
		if !found {
			t.Errorf("no broken sink breaks %s", rule)
		}
	}
}
