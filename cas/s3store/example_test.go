package s3store_test

import (
	"context"
	"log"
	"strconv"

	"github.com/aws/aws-sdk-go-v2/aws"
	"github.com/aws/aws-sdk-go-v2/service/s3"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/cas/guard"
	"github.com/epochfence/epochfence/cas/s3store"
	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/kafkasource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/cassink"
)

// Stock is kept in a bucket, and each order changes it once. S3 loses no acknowledged write. Let no
// lifecycle rule delete or expire objects below the prefix, and no replication write to them. The
// store needs s3:GetObject, PutObject, DeleteObject and ListBucket.
func Example() {
	ctx := context.Background()
	var config aws.Config // from LoadDefaultConfig of aws-sdk-go-v2/config
	store, err := s3store.Open(ctx, s3.NewFromConfig(config), s3store.Options{Bucket: "inventory", Prefix: "items/"})
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
