package shardsink_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/memsink"
	"github.com/epochfence/epochfence/sinks/shardsink"
)

var errCrash = errors.New("the process died here")

func wantBegin(t testing.TB, s epoch.Sink[*memsink.Tx], p epoch.Partition, at epoch.Offset) {
	t.Helper()
	f, err := epoch.FenceOf(t.Context(), s, p)
	if want := start(p).Origin; err != nil || f.Origin != want || f.Next != at || f.Mark != epoch.Mark(at)+1000 || f.Epoch != 0 {
		t.Errorf("the fence of %s is %+v, %v; want one of %+v that begins at %d", p, f, err, want, at)
	}
}

func TestATopicThatNoShardKnowsBeginsAtNextInAllOfThem(t *testing.T) {
	s := newSink(t, shardsink.ByNumber, newDatabases(3)...)
	seed(t, s, orders(0), orders(1), orders(2), orders(3))
	for n := range int32(4) {
		wantBegin(t, s, orders(n), 100)
	}
}

func TestATopicThatAnyShardKnowsBeginsAtTheEarliestInAllOthers(t *testing.T) {
	for known := range int32(3) {
		s := newSink(t, shardsink.ByNumber, newDatabases(3)...)
		seed(t, s, orders(known))
		seed(t, s, orders(0), orders(1), orders(2), orders(3))
		for n := range int32(4) {
			want := epoch.Offset(7)
			if n == known {
				want = 100
			}
			wantBegin(t, s, orders(n), want)
		}
	}
}

func TestATopicThatAShardKnewBeforeThereWereShardsIsKnown(t *testing.T) {
	for before := range int32(2) {
		dbs := newDatabases(2)
		seed(t, dbs[before], orders(before))
		s := newSink(t, shardsink.ByNumber, dbs...)
		seed(t, s, orders(0), orders(1))
		wantBegin(t, s, orders(before), 100)
		wantBegin(t, s, orders(1-before), 7)
	}
}

// The process dies before or after each step of Seed, and the next one, which starts
// later and would begin later, continues.
func TestASeedThatWasCutShortIsFinishedByTheNextWithItsBeginnings(t *testing.T) {
	for crash := 1; ; crash++ {
		dbs, steps := newDatabases(3), 0
		var dying []*memsink.Sink
		for _, db := range dbs {
			die := db.Open()
			die.Script(memsink.Hooks{Seed: func(_ context.Context, _ []epoch.Start, do func() error) error {
				if steps++; steps == crash {
					return errCrash // before it
				}
				if err := do(); err != nil || steps+1 < crash {
					return err
				}
				steps++
				return errCrash // after it
			}})
			dying = append(dying, die)
		}
		err := newSink(t, shardsink.ByNumber, dying...).Seed(t.Context(), starts(orders(0), orders(1), orders(2)))
		written := len(dbs[0].Fences()) > 0
		s := newSink(t, shardsink.ByNumber, dbs...)
		later := starts(orders(0), orders(1), orders(2))
		for i := range later {
			later[i].Next = epoch.Position{Offset: 500, Mark: 1500}
		}
		if err := s.Seed(t.Context(), later); err != nil {
			t.Fatal(err)
		}
		want := epoch.Offset(100)
		if !written {
			want = 500
		}
		for n := range int32(3) {
			wantBegin(t, s, orders(n), want)
			claim(t, s, orders(n))
		}
		if err == nil {
			if crash < 4 {
				t.Fatalf("it took %d steps only", crash-1)
			}
			return
		}
	}
}

func TestNoPartitionIsAddedWhileOneOfAnotherShardIsOfAnotherLog(t *testing.T) {
	dbs := newDatabases(2)
	s := newSink(t, shardsink.ByNumber, dbs...)
	seed(t, s, orders(1))
	recreated := starts(orders(0), orders(1))
	recreated[0].Log, recreated[1].Log = "another log", "another log"
	if err := s.Seed(t.Context(), recreated); !errors.Is(err, epoch.ErrLogChanged) {
		t.Errorf("err = %v", err)
	}
	if _, err := epoch.FenceOf(t.Context(), s, orders(0)); !errors.Is(err, epoch.ErrMissing) {
		t.Errorf("a fence was added: %v", err)
	}
	seen, err := epoch.FenceOf(t.Context(), dbs[1], orders(1))
	if err != nil {
		t.Fatal(err)
	}
	rebase := operate.NewAct(operate.ActRebase, seen, "anna", "it was recreated")
	rebase.Log, rebase.To = "another log", &epoch.Position{Mark: epoch.NoMark}
	if _, err := dbs[1].Operator().Act(t.Context(), rebase); err != nil {
		t.Fatal(err)
	}
	if err := s.Seed(t.Context(), recreated); err != nil {
		t.Fatal(err)
	}
	if f, err := epoch.FenceOf(t.Context(), s, orders(0)); err != nil || f.Log != "another log" || f.Next != 7 {
		t.Errorf("the new fence is %+v, %v", f, err)
	}
}

func TestAFenceThatIsLostBeginsAgainWhereThePartitionBegan(t *testing.T) {
	dbs := newDatabases(2)
	s := newSink(t, shardsink.ByNumber, dbs...)
	empty := dbs[1].Snapshot()
	seed(t, s, orders(0), orders(1))
	f := claim(t, s, orders(1))
	if err := s.Commit(t.Context(), []epoch.Advance{advance(f, 50)}, epoch.TxOptions{}, write("once")); err != nil {
		t.Fatal(err)
	}
	dbs[1].Restore(empty)
	seed(t, s, orders(0), orders(1))
	wantBegin(t, s, orders(1), 100)
}

func TestAFenceThatIsLostIsOneOfTheLogItWas(t *testing.T) {
	dbs := newDatabases(2)
	s := newSink(t, shardsink.ByNumber, dbs...)
	empty := dbs[1].Snapshot()
	seed(t, s, orders(1))
	dbs[1].Restore(empty)
	recreated := start(orders(1))
	recreated.Log = "another log"
	if _, err := claims(t.Context(), s, recreated); !errors.Is(err, epoch.ErrLogChanged) || !strings.Contains(err.Error(), `of log "log"`) {
		t.Errorf("the topic was recreated, and its fence lost: %v", err)
	}
}

func TestNothingIsSeededWhileAShardIsDown(t *testing.T) {
	dbs := newDatabases(2)
	down := dbs[1].Open()
	down.Script(memsink.Hooks{Look: func(context.Context, []epoch.Partition, func() error) error { return errCrash }})
	err := newSink(t, shardsink.ByNumber, dbs[0], down).Seed(t.Context(), starts(orders(0), orders(1)))
	if !errors.Is(err, errCrash) || len(dbs[0].Fences()) > 0 {
		t.Errorf("err = %v, fences %v", err, dbs[0].Fences())
	}
	wantSays(t, err, "shardsink: seed: look into shard 1: ")
}
