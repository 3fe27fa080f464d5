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

// kafka-go hands messages out one by one, and does not say whether it has more. So a
// transaction has as many as come within a while, and at most as many as one of ours.
const (
	gathered  = 4096
	gathering = 10 * time.Millisecond
)

// withKafkaGo is what people write with kafka-go and pgx: a transaction with one statement
// for what there is, and then a commit to the group. It has no guard: where the broker
// is starved, the group is made anew and the check finds what was applied twice.
//
// The reader has the settings of kafka-go's README, with its faster way to commit, which is
// once a second, and a queue as long as a transaction. It closes when it has waited for the
// last fetch, for which its own ten seconds would be long.
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

// gather waits for a message, and takes those that come soon after it.
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
