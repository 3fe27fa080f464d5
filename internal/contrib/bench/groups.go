package main

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/memsink"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// The cost of a group with many partitions, and of a group with a hot partition.

func init() {
	variants["kafka/join"] = join
	variants["kafka/claim-first"] = claimAll(1)
	variants["kafka/claim-again"] = claimAll(2)
	variants["kafka/even"] = spread(func(j job) string { return j.Topic })
	variants["kafka/hot"] = spread(hotTopic)
}

// join is a plain client that becomes the only member of a group. It ends when it has its
// partitions. The figures count partitions.
func join(ctx context.Context, j job) (outcome, error) {
	assigned := make(chan int, j.Partitions)
	var c clock
	c.start(0)
	cl, err := kgo.NewClient(kgo.SeedBrokers(j.Kafka), kgo.ConsumerGroup(j.Group), kgo.ConsumeTopics(j.Topic), kgo.DisableAutoCommit(),
		kgo.OnPartitionsAssigned(func(_ context.Context, _ *kgo.Client, added map[string][]int32) { assigned <- len(added[j.Topic]) }))
	if err != nil {
		return outcome{}, err
	}
	defer cl.Close()
	for n := 0; n < j.Partitions; {
		select {
		case more := <-assigned:
			n += more
		case <-ctx.Done():
			return outcome{}, ctx.Err()
		}
	}
	return c.stop(j.Partitions), nil
}

// claimAll is a consumer that becomes the only member of a group, so many times in a row. It ends
// when it has claimed all partitions for the last time.
func claimAll(times int) func(context.Context, job) (outcome, error) {
	return func(ctx context.Context, j job) (o outcome, err error) {
		pool, err := pgxpool.New(ctx, j.Database)
		if err != nil {
			return o, err
		}
		defer pool.Close()
		sink, err := pgsink.Open(ctx, pool, pgsink.Options{})
		if err != nil {
			return o, err
		}
		for range times {
			if o, err = claimOnce(ctx, j, sink); err != nil {
				return o, err
			}
		}
		return o, nil
	}
}

func claimOnce(ctx context.Context, j job, sink *pgsink.Sink) (o outcome, err error) {
	src, end, err := fromKafka(j)
	if err != nil {
		return o, err
	}
	defer end()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var (
		c       clock
		claimed atomic.Int64
	)
	c.start(0)
	err = consumer.Run(ctx, src, sink, consumer.Batches(applySet[pgsink.Tx](j.Table)), consumer.Options{
		Logger: quiet,
		Observe: func(e consumer.Event) {
			if _, ok := e.(consumer.Claimed); ok && claimed.Add(1) == int64(j.Partitions) {
				o = c.stop(j.Partitions)
				stop()
			}
		},
	})
	if err == nil && o.Messages == 0 {
		err = fmt.Errorf("%d of %d partitions were claimed", claimed.Load(), j.Partitions)
	}
	return o, err
}

// hotTopic is a topic with as many messages, nearly all of them in one partition.
func hotTopic(j job) string { return j.Topic + "-hot" }

const toil = 2 * time.Microsecond

// spread consumes a topic into memory, with a handler that only uses the processor.
func spread(topic func(job) string) func(context.Context, job) (outcome, error) {
	return func(ctx context.Context, j job) (outcome, error) {
		j.Topic, j.MaxBatch = topic(j), 1024
		handle := func(_ context.Context, _ *memsink.Tx, ms []consumer.Message, _ epoch.Epoch) error {
			for until := time.Now().Add(time.Duration(len(ms)) * toil); time.Now().Before(until); {
			}
			return nil
		}
		return consumeInto[*memsink.Tx](ctx, j, fromKafka, memsink.New(), consumer.Batches(handle), unobserved(ctx))
	}
}
