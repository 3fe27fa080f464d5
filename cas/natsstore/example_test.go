package natsstore_test

import (
	"context"
	"log"
	"strconv"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/cas/guard"
	"github.com/epochfence/epochfence/cas/natsstore"
	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/natssource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/cassink"
)

// Stock is kept in a bucket, and each order changes it once. With three replicas, two servers have a
// write before NATS acknowledges it, and write it to their disks later. Set sync_interval: always if
// they may lose power together, or with one replica. The stream has the transform already.
func Example() {
	ctx := context.Background()
	conn, err := nats.Connect("nats://nats-1:4222,nats://nats-2:4222,nats://nats-3:4222", nats.MaxReconnects(-1))
	if err != nil {
		log.Fatal(err)
	}
	js, err := jetstream.New(conn)
	if err != nil {
		log.Fatal(err)
	}
	store, err := natsstore.Open(ctx, js, natsstore.Options{Bucket: "inventory", Replicas: 3})
	if err != nil {
		log.Fatal(err)
	}
	sink, err := cassink.Open(ctx, store, cassink.Options{})
	if err != nil {
		log.Fatal(err)
	}
	byOrder := natssource.Transform{Source: "orders.*", Destination: "orders.{{partition(16,1)}}.{{wildcard(1)}}"}
	source, err := natssource.New(natssource.Options{
		Group: "stock", JetStream: js, Streams: []natssource.Stream{{Name: "ORDERS", Transform: &byOrder}},
	})
	if err != nil {
		log.Fatal(err)
	}
	reserve := func(ctx context.Context, tx *cassink.Tx, m consumer.Message, _ epoch.Epoch) error {
		_, err := tx.Update(ctx, m, "stock/"+string(m.Key), func(old guard.State) (guard.State, []byte, error) {
			n, err := strconv.Atoi(string(old.Value))
			return guard.Text(strconv.Itoa(n - 1)), nil, err
		})
		return err
	}
	options := consumer.Options{Guarantee: epoch.PerItem, Committers: 8}
	err = consumer.Run(ctx, source, sink, consumer.Each(reserve).OnFailure(sink.DeadLetter), options)
	if err != nil {
		log.Fatal(err)
	}
}
