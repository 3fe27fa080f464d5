package pgoutbox_test

import (
	"context"
	"log"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/outbox/pgoutbox"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// An outbox in the database of the sink: what the handler writes and the request
// that it adds commit together.
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
	store, err := pgoutbox.Open[pgsink.Tx](ctx, pool, pgoutbox.Options{})
	if err != nil {
		log.Fatal(err)
	}
	box, err := outbox.New(store, outbox.Options[pgsink.Tx]{})
	if err != nil {
		log.Fatal(err)
	}

	pay := func(ctx context.Context, tx pgsink.Tx, m consumer.Message, _ epoch.Epoch) error {
		account := string(m.Key)
		if _, err := tx.Exec(ctx, "insert into payment (account, body) values ($1, $2)", account, m.Value); err != nil {
			return err
		}
		return box.Add(ctx, tx, m, outbox.Entry{Key: account, Scope: account, URL: "https://gateway.example/charges", Body: m.Value})
	}
	var source consumer.Source // of package kafkasource or natssource
	if err := consumer.Run(ctx, source, sink, consumer.Each(pay).Background(box.Relay), consumer.Options{}); err != nil {
		log.Fatal(err)
	}
}
