package consumer_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strconv"
	"strings"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/memsink"
)

var noLog = slog.New(slog.DiscardHandler)

// A handler is called for each message, with the transaction that its writes
// belong to.
func ExampleRun() {
	log := memsource.New("orders", 1)
	log.Append(0, "a chair", "a table")
	sink := memsink.New()

	handle := func(_ context.Context, tx *memsink.Tx, m consumer.Message, _ epoch.Epoch) error {
		tx.Append("reserved", string(m.Value))
		return nil
	}
	ctx := log.UntilApplied(context.Background()) // a program's context ends with a signal
	err := consumer.Run(ctx, log.Member("a"), sink, consumer.Each(handle), consumer.Options{Logger: noLog})
	fmt.Println(sink.List("reserved"), err)
	// Output: [a chair a table] <nil>
}

// A batch handler gets what one transaction takes of a partition, at most
// MaxBatch messages: for one statement that applies them all.
func ExampleBatches() {
	log := memsource.New("orders", 1)
	log.Append(0, "a", "b", "c", "d", "e")
	sink := memsink.New()

	handle := func(_ context.Context, tx *memsink.Tx, ms []consumer.Message, _ epoch.Epoch) error {
		var all []string
		for _, m := range ms {
			all = append(all, string(m.Value))
		}
		tx.Append("batches", strings.Join(all, "+"))
		return nil
	}
	err := consumer.Run(log.UntilApplied(context.Background()), log.Member("a"), sink, consumer.Batches(handle),
		consumer.Options{MaxBatch: 3, Logger: noLog})
	fmt.Println(sink.List("batches"), err)
	// Output: [a+b+c d+e] <nil>
}

// A readiness probe: the process is a member of its group and has claimed what it
// was granted, which may be nothing.
func ExampleStatus() {
	log := memsource.New("orders", 1)
	log.Append(0, "a chair")
	var status consumer.Status
	http.HandleFunc("/readyz", func(w http.ResponseWriter, _ *http.Request) {
		if err := status.Ready(); err != nil {
			http.Error(w, err.Error(), http.StatusServiceUnavailable)
		}
	})
	handle := func(context.Context, *memsink.Tx, consumer.Message, epoch.Epoch) error {
		fmt.Println(status.Ready())
		return nil
	}
	fmt.Println(status.Ready())
	err := consumer.Run(log.UntilApplied(context.Background()), log.Member("a"), memsink.New(), consumer.Each(handle),
		consumer.Options{Observe: status.Observe, Logger: noLog})
	fmt.Println(err)
	// Output:
	// consumer: not a member of the group
	// <nil>
	// <nil>
}

// A message that no retry will help goes to OnFailure, in a fenced transaction
// that moves past it. Without OnFailure the partition halts at it.
func ExamplePermanent() {
	log := memsource.New("orders", 1)
	log.Append(0, "a chair", "???", "a table")
	sink := memsink.New()

	handle := func(_ context.Context, tx *memsink.Tx, m consumer.Message, _ epoch.Epoch) error {
		if string(m.Value) == "???" {
			return consumer.Permanent(errors.New("not an order"))
		}
		tx.Append("reserved", string(m.Value))
		return nil
	}
	err := consumer.Run(log.UntilApplied(context.Background()), log.Member("a"), sink, consumer.Each(handle).OnFailure(sink.DeadLetter),
		consumer.Options{Logger: noLog})
	fmt.Println(sink.List("reserved"), len(sink.DeadLetters()), err)
	// Output: [a chair a table] 1 <nil>
}

// Background work goes with a partition and not with a message. It is called under
// each claim, and what it does through Do commits only while the claim holds.
func ExampleHandlers_Background() {
	log := memsource.New("orders", 1)
	log.Append(0, "a chair", "a table")
	sink := memsink.New()
	ctx, stop := context.WithCancel(context.Background()) // a program's context ends with a signal

	reserve := func(_ context.Context, tx *memsink.Tx, m consumer.Message, _ epoch.Epoch) error {
		tx.Append("reserved", string(m.Value))
		return nil
	}
	count := func(ctx context.Context, b consumer.Background[*memsink.Tx]) {
		for {
			select {
			case <-b.Applied(): // messages have been applied
			case <-ctx.Done(): // the partition was lost or revoked, or the claim has ended
				return
			}
			err := b.Do(ctx, func(_ context.Context, tx *memsink.Tx) error {
				tx.Put("count", strconv.Itoa(len(tx.List("reserved"))))
				return nil
			})
			if err == nil {
				stop()
			}
		}
	}
	err := consumer.Run(ctx, log.Member("a"), sink, consumer.Each(reserve).Background(count), consumer.Options{Logger: noLog})
	n, _ := sink.Get("count")
	fmt.Println(n, err)
	// Output: 2 <nil>
}
