package shardsink_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/memsink"
	"github.com/epochfence/epochfence/sinks/shardsink"
)

// wantElsewhere fails the test unless the partition cannot be had, for the reason that
// the routing is not the one it was.
func wantElsewhere(t testing.TB, s epoch.Sink[*memsink.Tx], p epoch.Partition, words ...string) {
	t.Helper()
	for range 2 { // and so it stays
		_, err := claims(t.Context(), s, start(p))
		if !errors.Is(err, epoch.ErrElsewhere) {
			t.Fatalf("%s was claimed, or not for that reason: %v", p, err)
		}
		wantSays(t, err, append(words, p.String(), "the routing", "differs between processes", "route the partition back, or move its fence and its effects")...)
	}
}

func TestARoutingThatWasChangedIsRefusedAndBothShardsAreNamed(t *testing.T) {
	for _, claimed := range []bool{false, true} {
		dbs := newDatabases(3)
		before := newSink(t, toThe(1), dbs...)
		seed(t, before, orders(0))
		if claimed {
			claim(t, before, orders(0))
		}
		for _, to := range []int{0, 2} {
			wantElsewhere(t, newSink(t, toThe(to), dbs...), orders(0), "shard 1", fmt.Sprintf("routed to shard %d", to))
		}
		claim(t, before, orders(0))
	}
}

func TestAPartitionThatWasInOneDatabaseBeforeThereWereShardsStaysThere(t *testing.T) {
	for _, claimed := range []bool{false, true} {
		for was := range 2 {
			dbs := newDatabases(2)
			seed(t, dbs[was], orders(0))
			if claimed {
				claim(t, dbs[was], orders(0))
			}
			wrong := newSink(t, toThe(1-was), dbs...)
			wantElsewhere(t, wrong, orders(0), fmt.Sprintf("shard %d has its fence, at offset 100", was), fmt.Sprintf("routed to shard %d", 1-was))
			seed(t, wrong, orders(0), orders(1)) // which changes nothing of that
			claim(t, newSink(t, toThe(was), dbs...), orders(0))
		}
	}
}

// Both have looked for a fence, and found none, when they seed.
func TestOfTwoProcessesThatRouteDifferentlyOneAtMostClaims(t *testing.T) {
	for _, between := range []string{"look", "seed"} {
		dbs := newDatabases(2)
		other := newSink(t, toThe(1), dbs[0].Open(), dbs[1].Open())
		var theirs error
		met := false
		meet := func(do func() error) error {
			if met {
				return do()
			}
			met = true
			_, theirs = claims(t.Context(), other, start(orders(0)))
			return do()
		}
		first := dbs[0].Open()
		switch between {
		case "look":
			first.Script(memsink.Hooks{Look: func(_ context.Context, _ []epoch.Partition, do func() error) error { return meet(do) }})
		case "seed":
			first.Script(memsink.Hooks{Seed: func(_ context.Context, _ []epoch.Start, do func() error) error { return meet(do) }})
		}
		_, ours := claims(t.Context(), newSink(t, toThe(0), first, dbs[1].Open()), start(orders(0)))
		if !met || ours == nil == (theirs == nil) {
			t.Errorf("one claims at the other's %s: %v, %v", between, ours, theirs)
		}
	}
}

// A deploy adds a database: a process that does not know of it yet must not claim
// what is there, nor the other way round.
func TestAProcessThatKnowsFewerShardsClaimsNothingThatIsInTheOthers(t *testing.T) {
	for name, few := range map[string]func(t *testing.T, dbs []*memsink.Sink) epoch.Sink[*memsink.Tx]{
		"one of two": func(t *testing.T, dbs []*memsink.Sink) epoch.Sink[*memsink.Tx] {
			return newSink(t, toThe(1), dbs[:2]...)
		},
		"the only one": func(t *testing.T, dbs []*memsink.Sink) epoch.Sink[*memsink.Tx] { return newSink(t, toThe(0), dbs[0]) },
		"no shards":    func(_ *testing.T, dbs []*memsink.Sink) epoch.Sink[*memsink.Tx] { return dbs[0] },
	} {
		t.Run(name, func(t *testing.T) {
			dbs := newDatabases(3)
			many := newSink(t, toThe(2), dbs...)
			claim(t, many, orders(0))
			if f, err := claims(t.Context(), few(t, dbs), start(orders(0))); err == nil {
				t.Errorf("it was claimed twice: %+v", f)
			} else {
				wantSays(t, err, "in shard 2")
			}
			claim(t, few(t, dbs), orders(1))
			wantElsewhere(t, many, orders(1), "routed to shard 2")
		})
	}
}

// Seed died before it, or the database is new.
func TestAFirstClaimPutsUpTheRedirectRowsThatAreMissing(t *testing.T) {
	dbs := newDatabases(2)
	seed(t, dbs[0], orders(0))
	claim(t, newSink(t, toThe(0), dbs...), orders(0))
	if f, err := claims(t.Context(), dbs[1], start(orders(0))); !errors.Is(err, epoch.ErrLogChanged) {
		t.Errorf("a process that knows the other database alone has claimed %+v, %v", f, err)
	}
}

func TestShardsInAnotherOrderAreRefused(t *testing.T) {
	dbs := newDatabases(2)
	s := newSink(t, shardsink.ByNumber, dbs...)
	seed(t, s, orders(0), orders(1))
	claim(t, s, orders(0))
	swapped := newSink(t, shardsink.ByNumber, dbs[1], dbs[0])
	wantElsewhere(t, swapped, orders(0), "the order of the shards")
	wantElsewhere(t, swapped, orders(1), "the order of the shards")
}

func TestADatabaseIsAddedWhereWhatThereIsStays(t *testing.T) {
	dbs := newDatabases(3)
	before := newSink(t, shardsink.ByNumber, dbs[:2]...)
	seed(t, before, orders(0), orders(1), orders(2), orders(3))
	claim(t, before, orders(0))
	after := newSink(t, func(p epoch.Partition, _ int) int {
		if p.Number < 4 {
			return int(p.Number) % 2
		}
		return 2
	}, dbs...)
	for n := range int32(4) { // of which three have never been claimed
		claim(t, after, orders(n))
	}
	claim(t, after, orders(4))
	if f := dbs[2].Fences()[orders(4)]; f.Epoch != 1 || f.Next != 7 {
		t.Errorf("the new partition's fence in the new database is %+v", f)
	}
}

func TestAShardThatIsDownHoldsUpFirstClaimsAndNoOthers(t *testing.T) {
	dbs := newDatabases(2)
	s := newSink(t, shardsink.ByNumber, dbs...)
	seed(t, s, orders(0), orders(1), orders(2))
	claim(t, s, orders(0))
	no := func(context.Context, []epoch.Partition, func() error) error { return errCrash }
	dbs[1].Script(memsink.Hooks{
		Look: no, Fence: func(context.Context, epoch.Partition, func() error) error { return errCrash },
		Seed: func(context.Context, []epoch.Start, func() error) error { return errCrash },
	})
	f := claim(t, s, orders(0))
	if err := s.Commit(t.Context(), []epoch.Advance{advance(f, 1)}, epoch.TxOptions{}, write("one")); err != nil {
		t.Error(err)
	}
	if _, err := s.Look(t.Context(), []epoch.Partition{orders(0), orders(2)}); err != nil {
		t.Error(err)
	}
	_, err := claims(t.Context(), s, start(orders(2)))
	if !errors.Is(err, errCrash) {
		t.Errorf("a first claim, with a shard down: %v", err)
	}
	wantSays(t, err, "shardsink: claim billing/orders/2: look into shard 1: ")
	dbs[1].Script(memsink.Hooks{})
	claim(t, s, orders(2))
}

func TestRedirectRowsAreNoFences(t *testing.T) {
	dbs := newDatabases(2)
	seed(t, newSink(t, toThe(0), dbs...), orders(0))
	s := newSink(t, toThe(1), dbs...)
	if found, err := s.Look(t.Context(), []epoch.Partition{orders(0), orders(1)}); err != nil || len(found) > 0 {
		t.Errorf("a look shows %+v, %v", found, err)
	}
	if found, err := s.Look(t.Context(), []epoch.Partition{orders(0)}); !errors.Is(err, epoch.ErrElsewhere) {
		t.Errorf("a look at it alone shows %+v, %v", found, err)
	}
}
