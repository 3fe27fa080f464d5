package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/kafkasource"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// From Kafka to PostgreSQL. A member of a group reads all partitions of a topic from beginning to
// end.

func init() {
	for name, apply := range map[string]apply{
		"kafka/set": func(ctx context.Context, tx pgx.Tx, table string, s *set, _ []*kgo.Record) error {
			return s.insert(ctx, tx, table)
		},
		"kafka/set-dedupe": func(ctx context.Context, tx pgx.Tx, table string, s *set, _ []*kgo.Record) error {
			return s.insertUnseen(ctx, tx, table)
		},
		"kafka/each": func(ctx context.Context, tx pgx.Tx, table string, _ *set, rs []*kgo.Record) error {
			for _, r := range rs {
				if err := insertOne(ctx, tx, table, r.Value); err != nil {
					return err
				}
			}
			return nil
		},
		"kafka/piped": func(ctx context.Context, tx pgx.Tx, table string, s *set, _ []*kgo.Record) error {
			var b pgx.Batch
			for i := range s.ids {
				b.Queue(insertRow(table), s.ids[i], s.accounts[i], s.amounts[i])
			}
			return tx.SendBatch(ctx, &b).Close()
		},
	} {
		variants[name] = byHand(apply, eachTime)
		variants[name+background] = byHand(apply, inBackground)
	}
	variants["kafka/run-batches"] = consume(fromKafka, ordinary, func(table string) consumer.Handlers[pgsink.Tx] {
		return consumer.Batches(applySet[pgsink.Tx](table))
	})
	variants["kafka/run-batches-queued"] = consume(fromKafka, (*pgsink.Sink).Queued, func(table string) consumer.Handlers[*pgsink.Queue] {
		return consumer.Batches(applySet[*pgsink.Queue](table))
	})
	variants["kafka/run-sets"] = consume(fromKafka, ordinary, func(table string) consumer.Handlers[pgsink.Tx] {
		apply := applySet[pgsink.Tx](table)
		return consumer.EachTransaction(func(ctx context.Context, tx pgsink.Tx, ms []consumer.Message) error {
			return apply(ctx, tx, ms, 0)
		})
	})
	variants["kafka/run-each"] = consume(fromKafka, ordinary, func(table string) consumer.Handlers[pgsink.Tx] {
		return consumer.Each(applyOne[pgsink.Tx](table))
	})
	variants["kafka/run-queued"] = consume(fromKafka, (*pgsink.Sink).Queued, func(table string) consumer.Handlers[*pgsink.Queue] {
		return consumer.Each(applyOne[*pgsink.Queue](table))
	})
	variants["kafka/read"] = readByHand
	variants["kafka/source"] = read(fromKafka)
}

// produceKafka fills a new topic. Message i has the value i and is in partition i modulo the number
// of partitions.
func produceKafka(ctx context.Context, broker string, j job) error {
	cl, err := kgo.NewClient(kgo.SeedBrokers(broker), kgo.DefaultProduceTopic(j.Topic), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.MaxBufferedRecords(100_000), kgo.DisableIdempotentWrite(), kgo.RequiredAcks(kgo.LeaderAck()))
	if err != nil {
		return err
	}
	defer cl.Close()
	if _, err := kadm.NewClient(cl).CreateTopic(ctx, int32(j.Partitions), 1, nil, j.Topic); err != nil {
		return err
	}
	if j.Rate > 0 { // it is filled while it is consumed
		return nil
	}
	var failed atomic.Pointer[error]
	for i := range j.Messages {
		cl.Produce(ctx, &kgo.Record{Partition: partition(j, i), Value: strconv.AppendInt(nil, int64(i), 10)}, func(_ *kgo.Record, err error) {
			if err != nil {
				failed.Store(&err)
			}
		})
	}
	if err := cl.Flush(ctx); err != nil {
		return err
	}
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}

func partition(j job, i int) int32 { return int32(i % j.Partitions) }

func client(j job, opts ...kgo.Opt) (*kgo.Client, error) {
	return kgo.NewClient(append(opts, kgo.SeedBrokers(j.Kafka), kgo.ConsumerGroup(j.Group), kgo.ConsumeTopics(j.Topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))...)
}

// apply writes the records of a poll.
type apply func(ctx context.Context, tx pgx.Tx, table string, s *set, rs []*kgo.Record) error

// committing is the way in which a consumer by hand commits its offsets.
type committing struct {
	opts   []kgo.Opt
	commit func(context.Context, *kgo.Client, kgo.Fetches) error // after each transaction
}

// eachTime waits for a commit after each transaction.
var eachTime = committing{
	opts: []kgo.Opt{kgo.DisableAutoCommit()},
	commit: func(ctx context.Context, cl *kgo.Client, _ kgo.Fetches) error {
		return cl.CommitUncommittedOffsets(ctx)
	},
}

// background is the suffix of the variants that commit inBackground.
const background = "-background"

// inBackground marks the records of each transaction, and franz-go commits the marks once a second.
// As in franz-go's example for AutoCommitMarks, rebalances wait until a transaction has ended, and
// the marks of revoked partitions are committed first. The interval is shorter than franz-go's
// default of five seconds, because some rows last no longer.
var inBackground = committing{
	opts: []kgo.Opt{
		kgo.AutoCommitMarks(), kgo.AutoCommitInterval(time.Second), kgo.BlockRebalanceOnPoll(),
		kgo.OnPartitionsRevoked(func(ctx context.Context, cl *kgo.Client, _ map[string][]int32) {
			if err := cl.CommitMarkedOffsets(ctx); err != nil {
				fmt.Fprintln(os.Stderr, "commit of revoked partitions:", err)
			}
		}),
	},
	commit: func(_ context.Context, cl *kgo.Client, fetches kgo.Fetches) error {
		fetches.EachPartition(func(p kgo.FetchTopicPartition) {
			if n := len(p.Records); n > 0 {
				cl.MarkCommitRecords(p.Records[n-1])
			}
		})
		cl.AllowRebalance()
		return nil
	},
}

// byHand is the usual code with franz-go and pgx: a transaction for each poll.
func byHand(apply apply, committing committing) func(context.Context, job) (outcome, error) {
	return func(ctx context.Context, j job) (outcome, error) {
		pool, err := pgxpool.New(ctx, j.Database)
		if err != nil {
			return outcome{}, err
		}
		defer pool.Close()
		cl, err := client(j, committing.opts...)
		if err != nil {
			return outcome{}, err
		}
		defer cl.CloseAllowingRebalance()
		pace, err := atPace(ctx, j)
		if err != nil {
			return outcome{}, err
		}
		var c clock
		applied := 0
		for applied < j.Messages {
			fetches := cl.PollFetches(ctx)
			if err := fetches.Err(); err != nil {
				return outcome{}, err
			}
			rs := fetches.Records()
			if len(rs) == 0 {
				continue
			}
			c.start(applied)
			s := sized(len(rs))
			err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
				for _, r := range rs {
					if err := s.addValue(r.Value); err != nil {
						return err
					}
				}
				return apply(ctx, tx, j.Table, s, rs)
			})
			if err != nil {
				return outcome{}, err
			}
			pace.applied(s.ids)
			if err := committing.commit(ctx, cl, fetches); err != nil {
				return outcome{}, err
			}
			applied += len(rs)
		}
		return pace.in(c.stop(applied)), nil
	}
}

func readByHand(ctx context.Context, j job) (outcome, error) {
	cl, err := client(j, kgo.DisableAutoCommit())
	if err != nil {
		return outcome{}, err
	}
	defer cl.Close()
	var c clock
	read := 0
	for read < j.Messages {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return outcome{}, err
		}
		if n := fetches.NumRecords(); n > 0 {
			c.start(read)
			size := 0
			fetches.EachRecord(func(r *kgo.Record) { size += len(r.Value) })
			total.Add(int64(size))
			read += n
		}
	}
	return c.stop(read), nil
}

func fromKafka(j job) (consumer.Source, func(), error) {
	s, err := kafkasource.New(kafkasource.Options{
		Group: j.Group, Topics: []string{j.Topic}, Client: []kgo.Opt{kgo.SeedBrokers(j.Kafka)}, Logger: quiet,
	})
	return s, func() {}, err
}
