package zkstore_test

import (
	"context"
	"log"
	"strconv"
	"time"

	"github.com/go-zookeeper/zk"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/cas/guard"
	"github.com/epochfence/epochfence/cas/zkstore"
	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/kafkasource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/cassink"
)

// Stock is kept in ZooKeeper, and each order changes it once. Run three servers: a write that
// ZooKeeper has acknowledged is then on the disks of two. Leave forceSync at yes.
func Example() {
	ctx := context.Background()
	conn, _, err := zk.Connect([]string{"zk-1:2181", "zk-2:2181", "zk-3:2181"}, 10*time.Second)
	if err != nil {
		log.Fatal(err)
	}
	store, err := zkstore.Open(ctx, conn, zkstore.Options{Root: "/inventory"})
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
