package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"sync/atomic"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

func init() {
	variants["kafka/watermill"] = withWatermill
}

// withWatermill is the usual code with Watermill's router and pgx: a handler with a transaction for
// each message, which writes the message's id and its effect. Watermill has no table of ids, and
// its documentation says to build one. Its Deduplicator notes a message before the handler has run,
// and can therefore lose it.
//
// The settings are those of Watermill's example for Kafka, which commits offsets once a second.
// Watermill has one message of each partition in progress, so there is a connection for each
// partition.
func withWatermill(ctx context.Context, j job) (o outcome, err error) {
	config, err := pgxpool.ParseConfig(j.Database)
	if err != nil {
		return o, err
	}
	config.MaxConns = int32(j.Partitions)
	pool, err := pgxpool.NewWithConfig(ctx, config)
	if err != nil {
		return o, err
	}
	defer pool.Close()
	logger := &watermill.StdLoggerAdapter{ErrorLogger: log.New(os.Stderr, "watermill: ", 0)}
	fromStart := kafka.DefaultSaramaSubscriberConfig()
	fromStart.Consumer.Offsets.Initial = sarama.OffsetOldest
	sub, err := kafka.NewSubscriber(kafka.SubscriberConfig{
		Brokers: []string{j.Kafka}, ConsumerGroup: j.Group, OverwriteSaramaConfig: fromStart,
	}, logger)
	if err != nil {
		return o, err
	}
	defer func() { _ = sub.Close() }()
	router, err := message.NewRouter(message.RouterConfig{}, logger)
	if err != nil {
		return o, err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var (
		c       clock
		applied atomic.Int64
	)
	router.AddConsumerHandler("bench", j.Topic, sub, func(m *message.Message) error {
		c.start(0)
		unseen := false
		err := pgx.BeginFunc(m.Context(), pool, func(tx pgx.Tx) (err error) {
			unseen, err = insertOneUnseen(m.Context(), tx, j.Table, m.Payload)
			return err
		})
		if err != nil || !unseen {
			return err
		}
		if n := applied.Add(1); n == int64(j.Messages) {
			o = c.stop(int(n))
			stop()
		}
		return nil
	})
	err = router.Run(ctx)
	if err == nil && o.Messages == 0 {
		err = fmt.Errorf("%d of %d messages were applied", applied.Load(), j.Messages)
	}
	return o, err
}
