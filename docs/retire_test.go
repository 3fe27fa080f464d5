package docs

import (
	"context"
	"log/slog"
	"strconv"
	"testing"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/outbox/pgoutbox"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// A group whose rows were removed leaves its audit log. If it runs again, it begins anew.
func TestAGroupIsRetiredAsTheGuideSays(t *testing.T) {
	pool := database(t, "dedupe.sql")
	sink, err := pgsink.Open(t.Context(), pool, pgsink.Options{})
	if err != nil {
		t.Fatal(err)
	}
	store, err := pgoutbox.Open[pgsink.Tx](t.Context(), pool, pgoutbox.Options{})
	if err != nil {
		t.Fatal(err)
	}
	box, err := outbox.New(store, outbox.Options[pgsink.Tx]{})
	if err != nil {
		t.Fatal(err)
	}
	log := memsource.New("orders", 1)
	log.Append(0, "a chair", "")
	group := log.Group("billing")
	handlers := consumer.Each(func(ctx context.Context, tx pgsink.Tx, m consumer.Message, _ epoch.Epoch) error {
		if len(m.Value) == 0 {
			return consumer.Permanent(errOutOfStock)
		}
		if err := box.Add(ctx, tx, m, outbox.Entry{Scope: "orders", URL: "http://127.0.0.1:1/"}); err != nil {
			return err
		}
		return ship(ctx, tx, string(m.Value))
	}).OnFailure(sink.DeadLetter)
	run := func(shipments int) {
		t.Helper()
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		err := consumer.Run(ctx, group.Member("a"), sink, handlers, consumer.Options{
			Logger: slog.New(slog.DiscardHandler),
			Observe: func(e consumer.Event) {
				switch e := e.(type) {
				case consumer.Claimed:
					if e.Fence.Next == 2 {
						stop()
					}
				case consumer.Advanced:
					if e.To == 2 {
						stop()
					}
				}
			},
		})
		if err != nil {
			t.Fatal(err)
		}
		await(t, pool, "select count(*)::text from shipment", strconv.Itoa(shipments))
	}
	run(1)
	run(1) // the fence says that both are applied
	if _, err := pool.Exec(t.Context(), script(t, "retire.sql")); err != nil {
		t.Fatal(err)
	}
	var left, entries int
	err = pool.QueryRow(t.Context(), `select (select count(*) from epochfence.fence) + (select count(*) from epochfence.fence_ledger where kind <> 'entry')
		+ (select count(*) from epochfence.outbox_entry), (select count(*) from epochfence.fence_ledger)`).Scan(&left, &entries)
	if err != nil || left != 0 || entries == 0 {
		t.Errorf("%d rows are left, and %d entries of the audit log, %v; want none, and some", left, entries, err)
	}
	run(2) // too early: the log still has the message
}
