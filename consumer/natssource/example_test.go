package natssource_test

import (
	"context"
	"log"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/natssource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// A stream is split into partitions by its subject transform, which belongs to
// whoever makes the stream. The source only looks whether it is there.
func Example() {
	ctx := context.Background()
	conn, err := nats.Connect("nats://nats-1:4222,nats://nats-2:4222", nats.MaxReconnects(-1), nats.RetryOnFailedConnect(true))
	if err != nil {
		log.Fatal(err)
	}
	js, err := jetstream.New(conn)
	if err != nil {
		log.Fatal(err)
	}
	byAccount := natssource.Transform{Source: "pay.*", Destination: "pay.{{partition(16,1)}}.{{wildcard(1)}}"}
	if err := natssource.EnsureTransform(ctx, js, "PAYMENTS", byAccount); err != nil {
		log.Fatal(err)
	}
	source, err := natssource.New(natssource.Options{
		Group: "payments", JetStream: js,
		Streams: []natssource.Stream{{Name: "PAYMENTS", Transform: &byAccount}},
	})
	if err != nil {
		log.Fatal(err)
	}

	var sink *sqlsink.Sink // from sqlsink.Open
	handle := func(ctx context.Context, tx *sqlsink.Tx, m consumer.Message, e epoch.Epoch) error {
		_, err := tx.ExecContext(ctx, "INSERT INTO payments (subject, body) VALUES (?, ?)", m.Key, m.Value)
		return err
	}
	if err := consumer.Run(ctx, source, sink, consumer.Each(handle), consumer.Options{}); err != nil {
		log.Fatal(err)
	}
}
