package pgsink_test

import (
	"context"
	"fmt"
	"log"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// A handler takes stock in SQL, and records who did it under which epoch.
func Example() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	defer pool.Close()
	if err := pgsink.Migrate(ctx, pool, pgsink.Options{}); err != nil {
		log.Fatal(err)
	}
	sink, err := pgsink.Open(ctx, pool, pgsink.Options{})
	if err != nil {
		log.Fatal(err)
	}

	handle := func(ctx context.Context, tx pgsink.Tx, m consumer.Message, e epoch.Epoch) error {
		_, err := tx.Exec(ctx, "insert into reservation (id, item, epoch) values ($1, $2, $3)", m.Key, m.Value, e)
		return err
	}

	var source consumer.Source // of package kafkasource or natssource
	err = consumer.Run(ctx, source, sink, consumer.Each(handle).OnFailure(sink.DeadLetter), consumer.Options{})
	if err != nil {
		log.Fatal(err)
	}
}

// A handler that only writes can queue its statements: the whole transaction
// is then one round trip.
func ExampleSink_Queued() {
	var sink *pgsink.Sink // from Open
	var source consumer.Source

	queued := sink.Queued()
	handle := func(ctx context.Context, q *pgsink.Queue, m consumer.Message, e epoch.Epoch) error {
		_, err := q.Exec(ctx, "insert into reservation (id, item, epoch) values ($1, $2, $3)", m.Key, m.Value, e)
		return err
	}
	err := consumer.Run(context.Background(), source, queued, consumer.Each(handle).OnFailure(queued.DeadLetter),
		consumer.Options{})
	if err != nil {
		log.Fatal(err)
	}
}

// The schema's SQL for a migration tool of your own.
func ExampleMigrations() {
	steps, err := pgsink.Migrations(pgsink.Options{Schema: "fences"})
	if err != nil {
		log.Fatal(err)
	}
	for _, m := range steps {
		fmt.Printf("%04d_%s.sql\n", m.Version, m.Name)
	}
	// Output:
	// 0001_fence.sql
	// 0002_ledger.sql
	// 0003_operate.sql
	// 0004_outside.sql
	// 0005_outbox.sql
	// 0006_items.sql
	// 0007_outbox_offset.sql
	// 0008_observe.sql
	// 0009_retry.sql
	// 0010_peers.sql
	// 0011_suspected.sql
}

// What the schema's owner runs so that a role may use it.
func ExampleGrantSQL() {
	sql, err := pgsink.GrantSQL("shop", pgsink.Options{Schema: "fences"})
	if err != nil {
		log.Fatal(err)
	}
	fmt.Print(sql)
	// Output:
	// grant usage on schema "fences" to "shop";
	// grant execute on function
	//     "fences".schema_version,
	//     "fences".read_fence,
	//     "fences".read_fences,
	//     "fences".server,
	//     "fences".seed,
	//     "fences".claim,
	//     "fences".look_early,
	//     "fences".advance,
	//     "fences".advance_one,
	//     "fences".hold,
	//     "fences".write_row,
	//     "fences".rows,
	//     "fences".requests,
	//     "fences".identity_behind,
	//     "fences".cas_place,
	//     "fences".look_at_peers,
	//     "fences".suspect_peer,
	//     "fences".leave_peers
	// to "shop";
	// grant usage on sequence "fences".cas_number to "shop";
	// grant select on "fences".cas_source to "shop";
	// grant select, insert, update, delete on "fences".cas_item to "shop";
	// grant select, insert, delete, update (retry_requested) on "fences".outbox_entry to "shop";
}
