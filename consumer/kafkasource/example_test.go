package kafkasource_test

import (
	"context"
	"crypto/tls"
	"log"
	"os"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sasl/scram"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/kafkasource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// TLS, SASL, the client's id and the like are options of franz-go.
func Example() {
	login := scram.Auth{User: "billing", Pass: os.Getenv("KAFKA_PASSWORD")}
	source, err := kafkasource.New(kafkasource.Options{
		Group:  "billing",
		Topics: []string{"orders"},
		Client: []kgo.Opt{
			kgo.SeedBrokers("kafka-1:9093", "kafka-2:9093"),
			kgo.DialTLSConfig(&tls.Config{MinVersion: tls.VersionTLS13}),
			kgo.SASL(login.AsSha512Mechanism()),
			kgo.InstanceID("billing-0"), // a static member
		},
	})
	if err != nil {
		log.Fatal(err)
	}

	var sink *pgsink.Sink // from pgsink.Open
	handle := func(ctx context.Context, tx pgsink.Tx, m consumer.Message, e epoch.Epoch) error {
		_, err := tx.Exec(ctx, "insert into orders (id, body) values ($1, $2)", m.Key, m.Value)
		return err
	}
	if err := consumer.Run(context.Background(), source, sink, consumer.Each(handle), consumer.Options{}); err != nil {
		log.Fatal(err)
	}
}
