package dynamostore_test

import (
	"context"
	"log"
	"strconv"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/dynamodb"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/cas/dynamostore"
	"github.com/epochfence/epochfence/cas/guard"
	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/kafkasource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/cassink"
)

// Stock is kept in a table, and each order changes it once. DynamoDB loses no acknowledged write of a
// table in one region: Open refuses one with replicas in others. The partition key is the string
// "scope", the sort key the binary "key". Set no time-to-live.
func Example() {
	ctx := context.Background()
	var config aws.Config // from LoadDefaultConfig of aws-sdk-go-v2/config
	store, err := dynamostore.Open(ctx, dynamodb.NewFromConfig(config), dynamostore.Options{Table: "inventory"})
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
