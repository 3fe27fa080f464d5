package shardsink_test

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/memsink"
	"github.com/epochfence/epochfence/sinks/shardsink"
)

func orders(n int32) epoch.Partition {
	return epoch.Partition{Group: "billing", Topic: "orders", Number: n}
}

// start begins at 100 where the topic is unknown, and at 7 where it is known.
func start(p epoch.Partition) epoch.Start {
	return epoch.Start{
		Origin: epoch.Origin{Partition: p, Log: "log", Source: "broker"},
		Next:   epoch.Position{Offset: 100, Mark: 1100}, Earliest: epoch.Position{Offset: 7, Mark: 1007},
	}
}

func starts(ps ...epoch.Partition) []epoch.Start {
	var all []epoch.Start
	for _, p := range ps {
		all = append(all, start(p))
	}
	return all
}

func seed(t testing.TB, s epoch.Sink[*memsink.Tx], ps ...epoch.Partition) {
	t.Helper()
	if err := s.Seed(t.Context(), starts(ps...)); err != nil {
		t.Fatal(err)
	}
}

// claims is what consumer.Run does for a partition: read, seed if need be, check, swap.
func claims(ctx context.Context, s epoch.Sink[*memsink.Tx], from epoch.Start, others ...epoch.Start) (epoch.Fence, error) {
	seen, err := epoch.FenceOf(ctx, s, from.Partition)
	if errors.Is(err, epoch.ErrMissing) {
		if err := s.Seed(ctx, append(others, from)); err != nil {
			return epoch.Fence{}, err
		}
		seen, err = epoch.FenceOf(ctx, s, from.Partition)
	}
	if err != nil {
		return epoch.Fence{}, err
	}
	if err := seen.Check(from.Origin); err != nil {
		return epoch.Fence{}, err
	}
	return s.Claim(ctx, seen, epoch.NewClaim(epoch.Lease{Origin: from.Origin, Generation: 1}))
}

func claim(t testing.TB, s epoch.Sink[*memsink.Tx], p epoch.Partition) epoch.Fence {
	t.Helper()
	f, err := claims(t.Context(), s, start(p))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func advance(f epoch.Fence, messages epoch.Offset) epoch.Advance {
	return epoch.Advance{Partition: f.Partition, Claim: f.Claim, From: f.Next, To: f.Next + messages}
}

func write(value string) func(context.Context, *memsink.Tx) error {
	return func(_ context.Context, tx *memsink.Tx) error { tx.Append("effects", value); return nil }
}

func wantSays(t testing.TB, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Fatalf("no error; want one that says %q", words)
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("err = %v; want it to say %q", err, w)
		}
	}
}

func TestNewRefusesNoRouteNoShardsAndNilShards(t *testing.T) {
	if _, err := shardsink.New[*memsink.Tx](nil, memsink.New()); err == nil {
		t.Error("no route was accepted")
	}
	if _, err := shardsink.New[*memsink.Tx](shardsink.ByNumber); err == nil {
		t.Error("no shards were accepted")
	}
	_, err := shardsink.New(shardsink.ByNumber, memsink.New(), nil)
	wantSays(t, err, "shard 1 is nil")
}

func TestATransactionIsOneOfItsPartitionsShard(t *testing.T) {
	dbs := newDatabases(2)
	s := newSink(t, shardsink.ByNumber, dbs...)
	seed(t, s, orders(0), orders(1), orders(2), orders(3))
	zero, one, two, three := claim(t, s, orders(0)), claim(t, s, orders(1)), claim(t, s, orders(2)), claim(t, s, orders(3))
	if err := s.Commit(t.Context(), []epoch.Advance{advance(zero, 1), advance(two, 1)}, epoch.TxOptions{}, write("even")); err != nil {
		t.Fatal(err)
	}
	if err := s.Commit(t.Context(), []epoch.Advance{advance(three, 1), advance(one, 1)}, epoch.TxOptions{}, write("odd")); err != nil {
		t.Fatal(err)
	}
	if err := s.CommitHeld(t.Context(), epoch.Hold{Partition: orders(1), Claim: one.Claim}, epoch.TxOptions{}, write("held")); err != nil {
		t.Fatal(err)
	}
	for i, want := range []string{"even", "odd held"} {
		if got := strings.Join(dbs[i].List("effects"), " "); got != want {
			t.Errorf("shard %d has the effects %q, want %q", i, got, want)
		}
	}
	found, err := s.Look(t.Context(), []epoch.Partition{orders(0), orders(1), orders(2), orders(3), orders(4)})
	if err != nil || len(found) != 4 || found[orders(2)].Next != 101 || found[orders(3)].Next != 101 {
		t.Errorf("a look at all: %+v, %v", found, err)
	}
}

func TestATransactionOfTwoShardsIsRefusedBeforeTheHandlerIsCalled(t *testing.T) {
	dbs := newDatabases(2)
	s := newSink(t, shardsink.ByNumber, dbs...)
	seed(t, s, orders(0), orders(1))
	as := []epoch.Advance{advance(claim(t, s, orders(0)), 1), advance(claim(t, s, orders(1)), 1)}
	err := s.Commit(t.Context(), as, epoch.TxOptions{}, func(context.Context, *memsink.Tx) error {
		t.Error("the handler was called")
		return nil
	})
	wantSays(t, err, "shardsink: commit billing/orders/0, which is in shard 0, together with billing/orders/1, which is in shard 1", "epoch.Sharded")
	for n, db := range dbs {
		if f := db.Fences()[orders(int32(n))]; f.Next != 100 {
			t.Errorf("the fence of %s was moved to %d", f.Partition, f.Next)
		}
	}
}

func TestADeadLetterIsInTheDatabaseOfItsPartitionWhicheverShardsFunctionWritesIt(t *testing.T) {
	dbs := newDatabases(2)
	s := newSink(t, shardsink.ByNumber, dbs...)
	seed(t, s, orders(1))
	f := claim(t, s, orders(1))
	err := s.Commit(t.Context(), []epoch.Advance{advance(f, 1)}, epoch.TxOptions{}, func(ctx context.Context, tx *memsink.Tx) error {
		return dbs[0].DeadLetter(ctx, tx, epoch.Message{Partition: orders(1), Offset: f.Next}, f.Epoch, errors.New("poison"))
	})
	if err != nil || len(dbs[0].DeadLetters()) != 0 || len(dbs[1].DeadLetters()) != 1 {
		t.Errorf("%v; dead letters: %v and %v", err, dbs[0].DeadLetters(), dbs[1].DeadLetters())
	}
}

// weak gives less than the shard it is.
type weak struct{ epoch.Sink[*memsink.Tx] }

func (weak) Facts() epoch.Facts { return epoch.Facts{Guarantee: epoch.PerItem, Partitions: 1} }

func TestTheGuaranteeIsTheLeastOfTheShards(t *testing.T) {
	for _, shards := range [][]epoch.Sink[*memsink.Tx]{
		{memsink.New(), weak{Sink: memsink.New()}, memsink.New()}, {weak{Sink: memsink.New()}, memsink.New()},
	} {
		s, err := shardsink.New(shardsink.ByNumber, shards...)
		if err != nil {
			t.Fatal(err)
		}
		if f := s.Facts(); f != (epoch.Facts{Guarantee: epoch.PerItem, Partitions: 1}) {
			t.Errorf("the facts are %+v", f)
		}
	}
	if g := newSink(t, shardsink.ByNumber, newDatabases(2)...).Facts().Guarantee; g != epoch.Transactional {
		t.Errorf("the guarantee of two that are transactional is %v", g)
	}
}

func TestARouteThatIsWrongIsAnErrorOfWhateverWasAsked(t *testing.T) {
	p := orders(0)
	for what, r := range map[string]route{
		"shard 2": toThe(2), "shard -1": toThe(-1), "panicked: no such tenant": func(epoch.Partition, int) int { panic("no such tenant") },
	} {
		s := newSink(t, r, newDatabases(2)...)
		_, fence := epoch.FenceOf(t.Context(), s, p)
		_, look := s.Look(t.Context(), []epoch.Partition{p})
		_, swap := s.Claim(t.Context(), epoch.Fence{Origin: start(p).Origin}, epoch.NewClaim(epoch.Lease{Origin: start(p).Origin, Generation: 1}))
		for call, err := range map[string]error{
			"Fence": fence, "Look": look, "Claim": swap, "Seed": s.Seed(t.Context(), starts(p)),
			"Commit":     s.Commit(t.Context(), []epoch.Advance{{Partition: p, To: 1}}, epoch.TxOptions{}, write("never")),
			"CommitHeld": s.CommitHeld(t.Context(), epoch.Hold{Partition: p}, epoch.TxOptions{}, write("never")),
		} {
			t.Run(what+"/"+call, func(t *testing.T) { wantSays(t, err, "shardsink: ", "billing/orders/0", what) })
		}
		if n := s.Shard(p); n != -1 {
			t.Errorf("Shard says %d", n)
		}
	}
}

func TestAPartitionThatIsRoutedWrongHoldsUpNoOther(t *testing.T) {
	s := newSink(t, func(p epoch.Partition, _ int) int { return int(p.Number) }, newDatabases(2)...)
	wantSays(t, s.Seed(t.Context(), starts(orders(0), orders(2), orders(1))), "billing/orders/2", "shard 2")
	claim(t, s, orders(0))
	claim(t, s, orders(1))
}
