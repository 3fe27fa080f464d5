// Command kafka is epochfence from Kafka to PostgreSQL in one file, to be copied.
package main

import (
	"context"
	"encoding/json"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/kafkasource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// reserve applies one message: {"item": "chair", "quantity": 2}. Its writes through tx commit
// together with the position, or not at all.
func reserve(ctx context.Context, tx pgsink.Tx, m consumer.Message, e epoch.Epoch) error {
	var r struct {
		Item     string
		Quantity int
	}
	if err := json.Unmarshal(m.Value, &r); err != nil {
		return consumer.Permanent(err) // a retry cannot help
	}
	_, err := tx.Exec(ctx, `insert into reserved (item, quantity) values ($1, $2)
		on conflict (item) do update set quantity = reserved.quantity + $2`, r.Item, r.Quantity)
	return err
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	fatal(err)
	fatal(pgsink.Migrate(ctx, pool, pgsink.Options{})) // or take its SQL into your own migrations
	_, err = pool.Exec(ctx, `create table if not exists reserved (item text primary key, quantity bigint not null)`)
	fatal(err)
	sink, err := pgsink.Open(ctx, pool, pgsink.Options{})
	fatal(err)
	source, err := kafkasource.New(kafkasource.Options{Group: "inventory", Topics: []string{"reservations"},
		Client: []kgo.Opt{kgo.SeedBrokers(os.Getenv("KAFKA"))}})
	fatal(err)
	fatal(consumer.Run(ctx, source, sink, consumer.Each(reserve).OnFailure(sink.DeadLetter), consumer.Options{}))
}

func fatal(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
