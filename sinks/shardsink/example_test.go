package shardsink_test

import (
	"context"
	"fmt"
	"log/slog"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/memsink"
	"github.com/epochfence/epochfence/sinks/shardsink"
)

// Four partitions in two databases. With pgsink or sqlsink it is the same line.
func Example() {
	log := memsource.New("orders", 4)
	for n := range int32(4) {
		log.Append(n, fmt.Sprint("order of ", n))
	}
	a, b := memsink.New(), memsink.New()
	sink, err := shardsink.New(shardsink.ByNumber, a, b)
	if err != nil {
		fmt.Println(err)
		return
	}
	reserve := func(_ context.Context, tx *memsink.Tx, m consumer.Message, _ epoch.Epoch) error {
		tx.Put(string(m.Value), "reserved") // in the database of m.Partition
		return nil
	}
	err = consumer.Run(log.UntilApplied(context.Background()), log.Member("worker"), sink,
		consumer.Each(reserve).OnFailure(a.DeadLetter), consumer.Options{Logger: slog.New(slog.DiscardHandler)})
	fmt.Println(a.Values(), b.Values(), err)
	// Output: map[order of 0:reserved order of 2:reserved] map[order of 1:reserved order of 3:reserved] <nil>
}
