package memsink_test

import (
	"context"
	"fmt"
	"log/slog"

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

// A unit test of a handler: run it until everything is applied, and look.
func Example() {
	log := memsource.New("orders", 1)
	log.Append(0, "a chair", "a table")
	sink := memsink.New()
	err := consumer.Run(log.UntilApplied(context.Background()), log.Member("a"), sink, consumer.Each(reserve), quiet)
	fmt.Println(sink.List("reserved"), err)
	// Output: [a chair a table] <nil>
}

// A fault, scripted: the first transaction commits, and its acknowledgement is
// lost. The consumer claims the partition again, and applies nothing twice.
func ExampleSink_Script() {
	log := memsource.New("orders", 1)
	log.Append(0, "a chair", "a table")
	sink := memsink.New()
	lost := 0
	sink.Script(memsink.Hooks{
		Commit: func(_ context.Context, _ []epoch.Advance, do func() error) error {
			if err := do(); err != nil || lost > 0 {
				return err
			}
			lost++
			return epoch.ErrInDoubt
		},
	})
	err := consumer.Run(log.UntilApplied(context.Background()), log.Member("a"), sink, consumer.Each(reserve), quiet)
	fmt.Println(sink.List("reserved"), lost, err)
	// Output: [a chair a table] 1 <nil>
}

// What consumer.Run does for each partition and each transaction, by hand.
func ExampleSink_Commit() {
	sink := memsink.New()
	partition := epoch.Partition{Group: "billing", Topic: "orders"}
	origin := epoch.Origin{Partition: partition, Log: "log", Source: "broker"}

	// What consumer.Run does for each partition:
	ctx := context.Background()
	_ = sink.Seed(ctx, []epoch.Start{{Origin: origin}})
	seen, _ := epoch.FenceOf(ctx, sink, partition)
	ours, _ := sink.Claim(ctx, seen, epoch.NewClaim(epoch.Lease{Origin: origin, Generation: 4}))

	// And for each transaction:
	err := sink.Commit(ctx, []epoch.Advance{{Partition: partition, Claim: ours.Claim, From: 0, To: 1}}, epoch.TxOptions{},
		func(_ context.Context, tx *memsink.Tx) error {
			tx.Put("order-1", "paid")
			return nil
		})
	v, _ := sink.Get("order-1")
	fmt.Println(v, err, ours.Epoch)
	// Output: paid <nil> 4
}
