package guard_test

import (
	"context"
	"fmt"
	"log/slog"
	"os"

	"github.com/epochfence/epochfence/cas/guard"
	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/epoch"
)

// audit logs the decision about each change of an item: the resource, the token, and what was decided.
func audit(log *slog.Logger) func(guard.Event) {
	return func(e guard.Event) {
		log.Info("item", "resource", e.Key, "partition", e.Stamp.Partition.String(), "offset", int64(e.Stamp.Offset),
			"token", int64(e.Stamp.Epoch), "decision", e.Decision.String(), "seen", int64(e.Seen))
	}
}

// Two owners of a partition change an item. The first one was paused, and wakes up.
func ExampleMessage_Observe() {
	log := slog.New(slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}}))
	store := memstore.New()
	handle := func(m epoch.Message) { // as a handler does
		_, err := guard.At(store, m).Observe(audit(log)).Update(context.Background(), "stock/apples", add("sold"))
		if err != nil {
			fmt.Println(err)
		}
	}
	of := func(owner epoch.Epoch, offset epoch.Offset) epoch.Message {
		return epoch.Message{Partition: orders, Offset: offset, Mark: epoch.NoMark, Under: &epoch.Fence{Epoch: owner}}
	}
	handle(of(7, 10))
	handle(of(8, 10)) // the next owner does not know whether the first one has applied it
	handle(of(8, 11))
	handle(of(7, 11)) // the first one wakes up
	// Output:
	// level=INFO msg=item resource=stock/apples partition=billing/orders/3 offset=10 token=7 decision=changed seen=0
	// level=INFO msg=item resource=stock/apples partition=billing/orders/3 offset=10 token=8 decision=repeated seen=7
	// level=INFO msg=item resource=stock/apples partition=billing/orders/3 offset=11 token=8 decision=changed seen=7
	// level=INFO msg=item resource=stock/apples partition=billing/orders/3 offset=11 token=7 decision=stale seen=8
	// guard: apply billing/orders/3@11 to "stock/apples": a later owner of the partition has changed the item: epoch 7, after 8
}
