package peers

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"

	"github.com/IBM/sarama"
	"github.com/ThreeDotsLabs/watermill"
	"github.com/ThreeDotsLabs/watermill-kafka/v3/pkg/kafka"
	"github.com/ThreeDotsLabs/watermill-sql/v4/pkg/sql"
	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/message/router/middleware"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// runWatermill has its router on Kafka, which commits each message's offset after its handler.
func runWatermill(ctx context.Context, p *pod) error {
	return p.watermillKafka(ctx, p.watermillHandler)
}

// runWatermillDeduplicator has its Deduplicator with the default repository, that in memory.
func runWatermillDeduplicator(ctx context.Context, p *pod) error {
	d := &middleware.Deduplicator{KeyFactory: middleware.NewMessageHasherSHA256(middleware.MessageHasherReadLimitMinimum)}
	return p.watermillKafka(ctx, p.watermillHandler, d.Middleware)
}

func (p *pod) watermillHandler(m *message.Message) error {
	return p.message(m.Context(), string(m.Payload), func(ctx context.Context, item int32) error {
		return pgx.BeginFunc(ctx, p.db, func(tx pgx.Tx) error { return p.applied(ctx, in(tx), item, nil) })
	})
}

func runWatermillDedupe(ctx context.Context, p *pod) error {
	return p.watermillKafka(ctx, func(m *message.Message) error {
		return p.message(m.Context(), string(m.Payload), p.appliedOnce)
	})
}

func (p *pod) watermillKafka(ctx context.Context, handle message.NoPublishHandlerFunc, with ...message.HandlerMiddleware) error {
	c := kafka.DefaultSaramaSubscriberConfig()
	c.Consumer.Offsets.Initial = sarama.OffsetOldest
	c.Consumer.Offsets.AutoCommit.Enable = false
	c.Consumer.Group.Session.Timeout, c.Consumer.Group.Heartbeat.Interval = sessionTimeout, heartbeatInterval
	sub, err := kafka.NewSubscriber(kafka.SubscriberConfig{
		Brokers: []string{p.Kafka}, Unmarshaler: kafka.DefaultMarshaler{}, ConsumerGroup: p.ID, OverwriteSaramaConfig: c,
	}, watermill.NewSlogLogger(slog.Default()))
	if err != nil {
		return err
	}
	return p.route(ctx, sub, handle, with...)
}

func (p *pod) route(ctx context.Context, sub message.Subscriber, handle message.NoPublishHandlerFunc, with ...message.HandlerMiddleware) error {
	router, err := message.NewRouter(message.RouterConfig{}, watermill.NewSlogLogger(slog.Default()))
	if err != nil {
		return err
	}
	router.AddMiddleware(with...)
	router.AddConsumerHandler("orders", p.ID, sub, handle)
	return router.Run(ctx)
}

func (c config) watermillSQL(pool *pgxpool.Pool) (*sql.Subscriber, error) {
	return sql.NewSubscriber(sql.BeginnerFromPgx(pool), sql.SubscriberConfig{
		ConsumerGroup: c.ID, SchemaAdapter: sql.DefaultPostgreSQLSchema{}, OffsetsAdapter: sql.DefaultPostgreSQLOffsetsAdapter{},
	}, watermill.NewSlogLogger(slog.Default()))
}

func setUpWatermillSQL(ctx context.Context, c config) error {
	pool, err := pgxpool.New(ctx, c.Database)
	if err != nil {
		return err
	}
	defer pool.Close()
	pub, err := sql.NewPublisher(sql.BeginnerFromPgx(pool), sql.PublisherConfig{SchemaAdapter: sql.DefaultPostgreSQLSchema{}, AutoInitializeSchema: true}, watermill.NopLogger{})
	if err != nil {
		return err
	}
	var messages []*message.Message
	for item := 1; item <= 20; item++ {
		messages = append(messages, message.NewMessage(watermill.NewUUID(), []byte(strconv.Itoa(item))))
	}
	sub, err := c.watermillSQL(pool)
	if err != nil {
		return err
	}
	return errors.Join(pub.Publish(c.ID, messages...), sub.SubscribeInitialize(c.ID))
}

// runWatermillSQL has its effects in the transaction that holds the offset's row.
func runWatermillSQL(ctx context.Context, p *pod) error {
	sub, err := p.watermillSQL(p.db)
	if err != nil {
		return err
	}
	return p.route(ctx, sub, func(m *message.Message) error {
		return p.message(m.Context(), string(m.Payload), func(ctx context.Context, item int32) error {
			tx, ok := sql.TxFromContext(ctx)
			if !ok {
				return fmt.Errorf("message %d has no transaction", item)
			}
			return p.applied(ctx, func(ctx context.Context, sql string, args ...any) error {
				_, err := tx.ExecContext(ctx, sql, args...)
				return err
			}, item, nil)
		})
	})
}
