package redisstore_test

import (
	"context"
	"log"
	"strconv"

	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/cas/guard"
	"github.com/epochfence/epochfence/cas/redisstore"
	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/kafkasource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/cassink"
)

// Stock is kept in Redis, and each order changes it once, as long as Redis loses no acknowledged
// write. Set appendonly yes and appendfsync always, so that a crash of the server loses none. A
// failover to a replica may still lose the last ones. Then their effects are lost, or happen again.
// Set maxmemory-policy noeviction: Open refuses a policy that evicts any key.
func Example() {
	ctx := context.Background()
	client := redis.NewClient(&redis.Options{Addr: "redis-1:6379", MaxRetries: -1}) // no command is sent twice
	store, err := redisstore.Open(ctx, client, redisstore.Options{Prefix: "inventory"})
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
