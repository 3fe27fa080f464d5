// Command onward is epochfence from Kafka through PostgreSQL into Kafka in one file, to be copied.
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
	"github.com/epochfence/epochfence/outbox/kafkaoutbox"
	"github.com/epochfence/epochfence/outbox/pgoutbox"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// reserving applies one message, {"item": "chair", "quantity": 2}, and says in the topic stock how much of the
// item is reserved now. The row, the record and the position commit together, or not at all.
func reserving(box *kafkaoutbox.Box[pgsink.Tx]) consumer.Handler[pgsink.Tx] {
	return func(ctx context.Context, tx pgsink.Tx, m consumer.Message, e epoch.Epoch) error {
		var r struct {
			Item     string `json:"item"`
			Quantity int    `json:"quantity"`
		}
		if err := json.Unmarshal(m.Value, &r); err != nil {
			return consumer.Permanent(err) // a retry cannot help
		}
		err := tx.QueryRow(ctx, `insert into reserved (item, quantity) values ($1, $2)
			on conflict (item) do update set quantity = reserved.quantity + $2 returning quantity`, r.Item, r.Quantity).Scan(&r.Quantity)
		if err != nil {
			return err
		}
		value, err := json.Marshal(r)
		if err != nil {
			return err
		}
		return box.Add(ctx, tx, m, kafkaoutbox.Record{Topic: "stock", Key: []byte(r.Item), Value: value})
	}
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	kafka := []kgo.Opt{kgo.SeedBrokers(os.Getenv("KAFKA"))}
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	fatal(err)
	fatal(pgsink.Migrate(ctx, pool, pgsink.Options{})) // or take its SQL into your own migrations
	_, err = pool.Exec(ctx, `create table if not exists reserved (item text primary key, quantity bigint not null)`)
	fatal(err)
	sink, err := pgsink.Open(ctx, pool, pgsink.Options{})
	fatal(err)
	store, err := pgoutbox.Open[pgsink.Tx](ctx, pool, pgoutbox.Options{})
	fatal(err)
	box, err := kafkaoutbox.New(store, kafkaoutbox.Options{Client: kafka}) // its topic epochfence-positions must exist
	fatal(err)
	source, err := kafkasource.New(kafkasource.Options{Group: "inventory", Topics: []string{"reservations"}, Client: kafka})
	fatal(err)
	handlers := consumer.Each(reserving(box)).Background(box.Relay).OnFailure(sink.DeadLetter)
	fatal(consumer.Run(ctx, source, sink, handlers, consumer.Options{}))
}

func fatal(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
