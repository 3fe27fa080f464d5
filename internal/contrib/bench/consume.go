package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

var quiet = slog.New(slog.DiscardHandler)

// total keeps the compiler from optimising the reads away.
var total atomic.Int64

func ordinary(s *pgsink.Sink) epoch.Sink[pgsink.Tx] { return s }

// source makes a source, and a function that ends its clients.
type source func(job) (consumer.Source, func(), error)

// consume runs a consumer with the zero options until all messages are applied.
func consume[TX any, S epoch.Sink[TX]](from source, form func(*pgsink.Sink) S, handlers func(table string) consumer.Handlers[TX]) func(context.Context, job) (outcome, error) {
	return func(ctx context.Context, j job) (outcome, error) {
		config, err := pgxpool.ParseConfig(j.Database)
		if err != nil {
			return outcome{}, err
		}
		config.MaxConns = max(config.MaxConns, 10) // for four transactions at a time
		pool, err := pgxpool.NewWithConfig(ctx, config)
		if err != nil {
			return outcome{}, err
		}
		defer pool.Close()
		sink, err := pgsink.Open(ctx, pool, pgsink.Options{})
		if err != nil {
			return outcome{}, err
		}
		return consumeInto[TX](ctx, j, from, form(sink), handlers(j.Table))
	}
}

func consumeInto[TX any](ctx context.Context, j job, from source, sink epoch.Sink[TX], handlers consumer.Handlers[TX]) (outcome, error) {
	src, end, err := from(j)
	if err != nil {
		return outcome{}, err
	}
	defer end()
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	pace, err := atPace(ctx, j)
	if err != nil {
		return outcome{}, err
	}
	var (
		c       clock
		applied atomic.Int64
		result  outcome
	)
	err = consumer.Run(ctx, src, timed(sink, &c), handlers, consumer.Options{
		Logger: quiet,
		Observe: func(e consumer.Event) {
			switch e := e.(type) {
			case consumer.Advanced:
				pace.appliedAt(e.Partition.Number, int64(e.From), int64(e.To))
				if n := applied.Add(int64(e.Messages)); n == int64(j.Messages) {
					result = c.stop(int(n))
					stop()
				}
			case consumer.Halted:
				fmt.Fprintln(os.Stderr, "halted:", e.Err)
			}
		},
	})
	if err == nil && result.Messages == 0 {
		err = fmt.Errorf("%d of %d messages were applied", applied.Load(), j.Messages)
	}
	return pace.in(result), err
}

// timed makes sink start the clock with the first transaction.
func timed[TX any](sink epoch.Sink[TX], c *clock) epoch.Sink[TX] {
	return timing[TX]{sink, c}
}

type timing[TX any] struct {
	epoch.Sink[TX]
	clock *clock
}

func (s timing[TX]) Unwrap() epoch.Sink[TX] { return s.Sink }

func (s timing[TX]) Commit(ctx context.Context, as []epoch.Advance, o epoch.TxOptions, calls ...func(context.Context, TX) error) error {
	s.clock.start(0)
	return s.Sink.Commit(ctx, as, o, calls...)
}

func applySet[TX execer](table string) consumer.BatchHandler[TX] {
	return func(ctx context.Context, tx TX, ms []consumer.Message, _ epoch.Epoch) error {
		s := sized(len(ms))
		for _, m := range ms {
			if err := s.addValue(m.Value); err != nil {
				return consumer.Permanent(err)
			}
		}
		return s.insert(ctx, tx, table)
	}
}

func applyOne[TX execer](table string) consumer.Handler[TX] {
	return func(ctx context.Context, tx TX, m consumer.Message, _ epoch.Epoch) error {
		return insertOne(ctx, tx, table, m.Value)
	}
}

func read(from source) func(context.Context, job) (outcome, error) {
	return func(ctx context.Context, j job) (outcome, error) {
		src, end, err := from(j)
		if err != nil {
			return outcome{}, err
		}
		defer end()
		ctx, stop := context.WithCancel(ctx)
		defer stop()
		var (
			c      clock
			taken  atomic.Int64
			result outcome
		)
		err = src.Run(ctx, func(error) {}, func(ctx context.Context, t consumer.Tenure) {
			starts, err := t.Starts(ctx, consumer.StartEarliest)
			if err != nil {
				return
			}
			for _, s := range starts {
				if s.Partition != t.Origin().Partition {
					continue
				}
				fence := epoch.Fence{Origin: s.Origin, Next: s.Earliest.Offset, Mark: s.Earliest.Mark}
				for b, err := range t.Read(ctx, fence) {
					if err != nil {
						return
					}
					c.start(0)
					size := 0
					for _, m := range b.Messages {
						size += len(m.Value)
					}
					total.Add(int64(size))
					if n := taken.Add(int64(len(b.Messages))); n == int64(j.Messages) {
						result = c.stop(int(n))
						stop()
					}
				}
			}
		})
		if err == nil && result.Messages == 0 {
			err = fmt.Errorf("%d of %d messages were read", taken.Load(), j.Messages)
		}
		return result, err
	}
}

// settling is how long messages are produced before their latency counts, so that the group can
// assign its partitions.
const settling = 3 * time.Second

// pace produces a job's messages at its rate, and measures the time from production until
// application.
type pace struct {
	job     job
	sent    []atomic.Int64 // by id, since began
	began   time.Time
	counted int // the first id that counts

	mu   sync.Mutex
	took []time.Duration
}

// atPace begins to produce. Without a rate, it and the returned pace do nothing.
func atPace(ctx context.Context, j job) (*pace, error) {
	p := &pace{job: j, began: time.Now(), counted: int(settling.Seconds()) * j.Rate}
	if j.Rate == 0 {
		return p, nil
	}
	p.sent = make([]atomic.Int64, j.Messages)
	cl, err := kgo.NewClient(kgo.SeedBrokers(j.Kafka), kgo.DefaultProduceTopic(j.Topic), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerLinger(0))
	if err != nil {
		return nil, err
	}
	go func() {
		defer cl.Close()
		tick := time.NewTicker(time.Millisecond)
		defer tick.Stop()
		for next := 0; next < j.Messages; {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			due := min(int(time.Since(p.began).Seconds()*float64(j.Rate)), j.Messages)
			for ; next < due; next++ {
				p.sent[next].Store(int64(time.Since(p.began)))
				cl.Produce(ctx, &kgo.Record{Partition: partition(j, next), Value: strconv.AppendInt(nil, int64(next), 10)}, nil)
			}
		}
		_ = cl.Flush(ctx)
	}()
	return p, nil
}

func (p *pace) applied(ids []int64) {
	if p.job.Rate == 0 {
		return
	}
	now := time.Since(p.began)
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, id := range ids {
		if id >= int64(p.counted) {
			p.took = append(p.took, now-time.Duration(p.sent[id].Load()))
		}
	}
}

// appliedAt is applied for offsets of a partition, which has every n-th message.
func (p *pace) appliedAt(partition int32, from, to int64) {
	if p.job.Rate == 0 {
		return
	}
	var ids []int64
	for at := from; at < to; at++ {
		ids = append(ids, at*int64(p.job.Partitions)+int64(partition))
	}
	p.applied(ids)
}

func (p *pace) in(o outcome) outcome {
	p.mu.Lock()
	defer p.mu.Unlock()
	slices.Sort(p.took)
	if len(p.took) > 0 {
		o.P50, o.P99 = quantile(p.took, 0.5), quantile(p.took, 0.99)
	}
	return o
}
