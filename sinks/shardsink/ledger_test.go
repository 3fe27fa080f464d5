package shardsink_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/sinks/memsink"
)

// While a partition is moved it is routed to no shard, and the others are operated as ever.
func TestAPartitionThatIsInNoShardHidesNoRequestsOfTheOthers(t *testing.T) {
	databases := newDatabases(2)
	s := newSink(t, func(p epoch.Partition, _ int) int { return int(p.Number) }, databases...)
	f := claim(t, s, orders(0))
	message := epoch.Message{Partition: orders(0), Offset: f.Next, Value: []byte("poison")}
	if err := s.Commit(t.Context(), []epoch.Advance{advance(f, 1)}, epoch.TxOptions{}, func(ctx context.Context, tx *memsink.Tx) error {
		return databases[0].DeadLetter(ctx, tx, message, f.Epoch, errors.New("no order"))
	}); err != nil {
		t.Fatal(err)
	}
	op := databases[0].Operator()
	ls, err := op.DeadLetters(t.Context(), operate.DeadLetterQuery{})
	if err != nil || len(ls) != 1 {
		t.Fatalf("%+v, %v", ls, err)
	}
	if _, err := op.DoDeadLetter(t.Context(), operate.DeadLetterAct{Kind: operate.Replay, Seen: ls[0], By: "anna", Reason: "fixed"}); err != nil {
		t.Fatal(err)
	}
	now, err := operate.RecordsIn[*memsink.Tx](s).Requests(t.Context(), []epoch.Partition{orders(7), orders(0)}) // there is no shard 7
	if err != nil || len(now.Replays) != 1 || now.Replays[0].ID != ls[0].ID {
		t.Errorf("%+v, %v; want the replay of a dead letter", now, err)
	}
}

// Nor does a shard that does not answer keep the decisions of others from their log.
func TestAShardThatHangsHoldsUpNoOthersDecisions(t *testing.T) {
	databases := newDatabases(2)
	s := newSink(t, func(p epoch.Partition, _ int) int { return int(p.Number) }, databases...)
	first, second := claim(t, s, orders(0)), claim(t, s, orders(1))
	databases[0].Script(memsink.Hooks{Record: func(ctx context.Context, _ []operate.Decision, _ func() error) error {
		<-ctx.Done()
		return ctx.Err()
	}})
	ctx, hung := context.WithCancel(t.Context())
	recorded := make(chan error, 1)
	halted := func(f epoch.Fence) operate.Decision {
		return operate.Decision{Kind: operate.DecidedHalt, Partition: f.Partition, Epoch: f.Epoch, Claim: f.Claim}
	}
	databases[1].Script(memsink.Hooks{Record: func(_ context.Context, _ []operate.Decision, do func() error) error {
		defer hung()
		return do()
	}})
	go func() {
		recorded <- operate.RecordsIn[*memsink.Tx](s).Record(ctx, []operate.Decision{halted(first), halted(second)})
	}()
	if err := <-recorded; !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v; want that of the shard which hangs", err)
	}
	ds, err := databases[1].Operator().History(t.Context(), operate.HistoryQuery{Kinds: []operate.DecisionKind{operate.DecidedHalt}})
	if err != nil || len(ds) != 1 || ds[0].Partition != orders(1) {
		t.Errorf("the other shard has %+v, %v", ds, err)
	}
}

// A group is in no shard, whatever the function says of it. Its processes see each other in the first one.
func TestASuspicionIsRecordedInTheFirstShard(t *testing.T) {
	databases := newDatabases(2)
	s := newSink(t, func(epoch.Partition, int) int { return 1 }, databases...)
	d := operate.Decision{Kind: operate.DecidedSuspected, Partition: epoch.Partition{Group: "billing"}, Owner: "a", From: -1, To: -1, Reason: "b is silent"}
	if err := operate.RecordsIn[*memsink.Tx](s).Record(t.Context(), []operate.Decision{d}); err != nil {
		t.Fatal(err)
	}
	for shard, want := range []int{1, 0} {
		if ds, err := databases[shard].Operator().History(t.Context(), operate.HistoryQuery{}); err != nil || len(ds) != want {
			t.Errorf("shard %d has %+v, %v", shard, ds, err)
		}
	}
}

func TestEachShardShowsWhoIsAliveThoughAnotherOneHangs(t *testing.T) {
	databases := newDatabases(2)
	s := newSink(t, func(p epoch.Partition, _ int) int { return int(p.Number) }, databases...)
	ctx, hung := context.WithCancel(t.Context())
	databases[0].Script(memsink.Hooks{Alive: func(ctx context.Context, _ operate.Process, _ func() error) error {
		<-ctx.Done()
		return ctx.Err()
	}})
	databases[1].Script(memsink.Hooks{Alive: func(_ context.Context, _ operate.Process, do func() error) error {
		defer hung()
		return do()
	}})
	process := operate.Process{Run: "run-1", Group: "billing", Name: "host-1", Every: time.Minute}
	if err := operate.RecordsIn[*memsink.Tx](s).Alive(ctx, process); !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v; want that of the shard which hangs", err)
	}
	databases[0].Script(memsink.Hooks{})
	listed := func(shard int) int {
		ps, err := databases[shard].Operator().Processes(t.Context(), "billing")
		if err != nil {
			t.Fatal(err)
		}
		return len(ps)
	}
	if listed(0) != 0 || listed(1) != 1 {
		t.Errorf("the shards list %d and %d processes, want 0 and 1", listed(0), listed(1))
	}
	if err := operate.RecordsIn[*memsink.Tx](s).Alive(t.Context(), process); err != nil || listed(0) != 1 {
		t.Errorf("%v, and the first shard lists %d processes, want 1", err, listed(0))
	}
	if err := operate.RecordsIn[*memsink.Tx](s).Gone(t.Context(), process); err != nil || listed(0)+listed(1) != 0 {
		t.Errorf("%v, and %d processes are left", err, listed(0)+listed(1))
	}
}

func TestWhatHungIsReadFromThePartitionsShard(t *testing.T) {
	databases := newDatabases(2)
	s := newSink(t, func(p epoch.Partition, _ int) int { return int(p.Number) }, databases...)
	f := claim(t, s, orders(1))
	hang := operate.Decision{Kind: operate.DecidedHang, Partition: f.Partition, Epoch: f.Epoch, Claim: f.Claim, From: 3, To: 4}
	if err := operate.RecordsIn[*memsink.Tx](databases[1]).Record(t.Context(), []operate.Decision{hang}); err != nil {
		t.Fatal(err)
	}
	for n, want := range []int{0, 1} {
		if ds, err := operate.RecordsIn[*memsink.Tx](s).Hangs(t.Context(), orders(int32(n))); err != nil || len(ds) != want {
			t.Errorf("of partition %d: %+v, %v; want %d hangs", n, ds, err, want)
		}
	}
	if _, err := operate.RecordsIn[*memsink.Tx](s).Hangs(t.Context(), orders(7)); err == nil {
		t.Error("a partition that is in no shard has an answer")
	}
}
