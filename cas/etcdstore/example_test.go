package etcdstore_test

import (
	"context"
	"log"
	"strconv"

	"github.com/twmb/franz-go/pkg/kgo"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/epochfence/epochfence/cas/etcdstore"
	"github.com/epochfence/epochfence/cas/guard"
	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/kafkasource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/cassink"
)

// Stock is kept in etcd, and each order changes it once. Run three servers: a write that etcd has
// acknowledged is then on the disks of two. Do not set --unsafe-no-fsync.
func Example() {
	ctx := context.Background()
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"etcd-1:2379", "etcd-2:2379", "etcd-3:2379"}})
	if err != nil {
		log.Fatal(err)
	}
	store, err := etcdstore.Open(client, etcdstore.Options{Prefix: "inventory"})
	if err != nil {
		log.Fatal(err)
	}
	sink, err := cassink.Open(ctx, store, cassink.Options{})
	if err != nil {
		log.Fatal(err)
	}
	source, err := kafkasource.New(kafkasource.Options{
		Group: "stock", Topics: []string{"orders"}, Client: []kgo.Opt{kgo.SeedBrokers("kafka-1:9092")},
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
