package main

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/segmentio/kafka-go"
)

func init() {
	variants["kafka/kafka-go"] = withKafkaGo
}

// kafka-go returns messages one by one and does not say whether it has more. A transaction
// therefore has the messages of 10 ms, but no more than an epochfence transaction.
const (
	gathered  = 4096
	gathering = 10 * time.Millisecond
)

// withKafkaGo is the usual code with kafka-go and pgx: a transaction with one statement for the
// gathered messages, then a commit to the group. It has no guard: if the broker is starved, the
// group rebalances and the check finds messages that were applied twice.
//
// The reader has the settings of kafka-go's README, its faster way to commit (once a second), and a
// queue as long as a transaction. Closing the reader waits for its last fetch, for which kafka-go's
// default of ten seconds would be long.
func withKafkaGo(ctx context.Context, j job) (o outcome, err error) {
	pool, err := pgxpool.New(ctx, j.Database)
	if err != nil {
		return o, err
	}
	defer pool.Close()
	r := kafka.NewReader(kafka.ReaderConfig{
		Brokers: []string{j.Kafka}, GroupID: j.Group, Topic: j.Topic, MaxBytes: 10e6, QueueCapacity: gathered,
		CommitInterval: time.Second, MaxWait: time.Second,
	})
	defer func() { err = errors.Join(err, r.Close()) }()
	var c clock
	applied := 0
	for applied < j.Messages {
		ms, err := gather(ctx, r, &c)
		if err != nil {
			return o, err
		}
		s := sized(len(ms))
		for _, m := range ms {
			if err := s.addValue(m.Value); err != nil {
				return o, err
			}
		}
		if err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return s.insert(ctx, tx, j.Table) }); err != nil {
			return o, err
		}
		if err := r.CommitMessages(ctx, ms...); err != nil {
			return o, err
		}
		applied += len(ms)
	}
	return c.stop(applied), nil
}

func gather(ctx context.Context, r *kafka.Reader, c *clock) ([]kafka.Message, error) {
	m, err := r.FetchMessage(ctx)
	if err != nil {
		return nil, err
	}
	c.start(0)
	ms := append(make([]kafka.Message, 0, gathered), m)
	soon, cancel := context.WithTimeout(ctx, gathering)
	defer cancel()
	for len(ms) < gathered {
		m, err := r.FetchMessage(soon)
		if errors.Is(err, context.DeadlineExceeded) {
			break
		}
		if err != nil {
			return nil, err
		}
		ms = append(ms, m)
	}
	return ms, nil
}
