package memsource_test

import (
	"context"
	"fmt"
	"log/slog"
	"testing"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/memsink"
)

var quiet = consumer.Options{Logger: slog.New(slog.DiscardHandler)}

// reserve is a handler to test.
func reserve(_ context.Context, tx *memsink.Tx, m consumer.Message, _ epoch.Epoch) error {
	tx.Append("reserved", string(m.Value))
	return nil
}

// A unit test of a handler: append, run until everything is applied, look.
func Example() {
	log := memsource.New("orders", 4)
	log.Append(0, "a chair", "a table")

	sink := memsink.New()
	err := memsource.Apply(context.Background(), log, sink, consumer.Each(reserve))
	fmt.Println(err, sink.List("reserved"))
	// Output: <nil> [a chair a table]
}

// A takeover, scripted: the group gives a's partition to b without a knowing.
func ExampleGroup_Grant() {
	log := memsource.New("orders", 1)
	group := log.Group(memsource.DefaultGroup)
	group.Script()
	group.SetGeneration(7)
	sink := memsink.New()
	a, b := log.Member("a"), log.Member("b")
	group.Grant(a, "orders", 0)

	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 2)
	for _, m := range []*memsource.Member{a, b} {
		go func() { ended <- consumer.Run(ctx, m, sink.Open(), consumer.Each(reserve), quiet) }()
	}
	log.Append(0, "a chair")
	<-log.UntilApplied(ctx).Done()
	group.Grant(b, "orders", 0)
	log.Append(0, "a table")
	<-log.UntilApplied(ctx).Done()

	f := sink.Fences()[epoch.Partition{Group: group.Name(), Topic: "orders"}]
	fmt.Println(sink.List("reserved"), f.Next, f.Generation)
	stop()
	fmt.Println(<-ended, <-ended)
	// Output:
	// [a chair a table] 2 7
	// <nil> <nil>
}

func TestSendPutsEqualKeysInOnePartition(t *testing.T) {
	log := memsource.New("orders", 8)
	used := map[int32]bool{}
	for i := range 100 {
		key := fmt.Sprint("key", i%20)
		n, at := log.Send(key, "x")
		if again, next := log.Send(key, "y"); again != n || next != at+1 {
			t.Fatalf("%s went to %d@%d, then to %d@%d", key, n, at, again, next)
		}
		used[n] = true
	}
	if len(used) < 4 {
		t.Errorf("20 keys in %d of 8 partitions", len(used))
	}
}
