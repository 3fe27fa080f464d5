package main

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/natssource"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// From NATS JetStream to PostgreSQL. A partition is a subject of the stream.

func init() {
	variants["nats/read"] = pullByHand
	variants["nats/source"] = read(fromNATS)
	variants["nats/run-batches"] = consume(fromNATS, ordinary, func(table string) consumer.Handlers[pgsink.Tx] {
		return consumer.Batches(applySet[pgsink.Tx](table))
	})
	variants["nats/set"] = setFromNATS
}

func subject(j job, partition int) string { return j.Topic + "." + strconv.Itoa(partition) }

func produceNATS(ctx context.Context, url string, j job) error {
	nc, err := nats.Connect(url)
	if err != nil {
		return err
	}
	defer nc.Close()
	js, err := jetstream.New(nc, jetstream.WithPublishAsyncMaxPending(4096))
	if err != nil {
		return err
	}
	if _, err := js.CreateStream(ctx, jetstream.StreamConfig{Name: j.Topic, Subjects: []string{j.Topic + ".*"}}); err != nil {
		return err
	}
	for i := range j.Messages {
		if _, err := js.PublishAsync(subject(j, int(partition(j, i))), strconv.AppendInt(nil, int64(i), 10), jetstream.WithStallWait(time.Minute)); err != nil {
			return err
		}
	}
	select {
	case <-js.PublishAsyncComplete():
	case <-ctx.Done():
		return ctx.Err()
	}
	s, err := js.Stream(ctx, j.Topic)
	if err != nil {
		return err
	}
	if n := s.CachedInfo().State.Msgs; n != uint64(j.Messages) {
		return fmt.Errorf("the stream has %d messages, want %d", n, j.Messages)
	}
	return nil
}

func fromNATS(j job) (consumer.Source, func(), error) {
	nc, js, err := toNATS(j)
	if err != nil {
		return nil, nil, err
	}
	stream := natssource.Stream{Name: j.Topic}
	for p := range j.Partitions {
		stream.Filters = append(stream.Filters, subject(j, p))
	}
	s, err := natssource.New(natssource.Options{Group: j.Group, JetStream: js, Streams: []natssource.Stream{stream}, Logger: quiet})
	return s, nc.Close, err
}

func toNATS(j job) (*nats.Conn, jetstream.JetStream, error) {
	nc, err := nats.Connect(j.NATS)
	if err != nil {
		return nil, nil, err
	}
	js, err := jetstream.New(nc)
	return nc, js, err
}

// pullEach runs a pull consumer and a goroutine for each partition. It calls take for each message
// until all messages are taken.
func pullEach(ctx context.Context, j job, c *clock, take func(partition int, m jetstream.Msg) error) (outcome, error) {
	nc, js, err := toNATS(j)
	if err != nil {
		return outcome{}, err
	}
	defer nc.Close()
	var (
		taken   atomic.Int64
		result  outcome
		failed  atomic.Pointer[error]
		pulling sync.WaitGroup
		all     = make(chan struct{})
	)
	for p := range j.Partitions {
		cons, err := js.CreateConsumer(ctx, j.Topic, jetstream.ConsumerConfig{FilterSubject: subject(j, p), AckPolicy: jetstream.AckNonePolicy})
		if err != nil {
			return outcome{}, err
		}
		messages, err := cons.Messages(jetstream.PullMaxMessages(4096))
		if err != nil {
			return outcome{}, err
		}
		pulling.Go(func() {
			for {
				m, err := messages.Next()
				if err != nil {
					return
				}
				c.start(0)
				if err := take(p, m); err != nil {
					failed.Store(&err)
					close(all)
					return
				}
				if n := taken.Add(1); n == int64(j.Messages) {
					result = c.stop(int(n))
					close(all)
				}
			}
		})
		defer messages.Stop()
	}
	select {
	case <-all:
	case <-ctx.Done():
		return outcome{}, ctx.Err()
	}
	if err := failed.Load(); err != nil {
		return outcome{}, *err
	}
	return result, nil
}

func pullByHand(ctx context.Context, j job) (outcome, error) {
	sizes := make([]struct { // by partition
		bytes int64
		_     [56]byte // keeps them in different cache lines
	}, j.Partitions)
	o, err := pullEach(ctx, j, &clock{}, func(p int, m jetstream.Msg) error {
		sizes[p].bytes += int64(len(m.Data()))
		return nil
	})
	for _, s := range sizes {
		total.Add(s.bytes)
	}
	return o, err
}

func setFromNATS(ctx context.Context, j job) (outcome, error) {
	pool, err := pgxpool.New(ctx, j.Database)
	if err != nil {
		return outcome{}, err
	}
	defer pool.Close()
	nc, js, err := toNATS(j)
	if err != nil {
		return outcome{}, err
	}
	defer nc.Close()
	cons, err := js.CreateConsumer(ctx, j.Topic, jetstream.ConsumerConfig{Durable: j.Group, AckPolicy: jetstream.AckAllPolicy, MaxAckPending: 8192})
	if err != nil {
		return outcome{}, err
	}
	var c clock
	applied := 0
	for applied < j.Messages {
		batch, err := cons.FetchNoWait(4096)
		if err != nil {
			return outcome{}, err
		}
		s, last := sized(4096), jetstream.Msg(nil)
		for m := range batch.Messages() {
			c.start(applied)
			if err := s.addValue(m.Data()); err != nil {
				return outcome{}, err
			}
			last = m
		}
		if err := batch.Error(); err != nil {
			return outcome{}, err
		}
		if last == nil {
			continue
		}
		if err := pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error { return s.insert(ctx, tx, j.Table) }); err != nil {
			return outcome{}, err
		}
		if err := last.Ack(); err != nil {
			return outcome{}, err
		}
		applied += len(s.ids)
	}
	return c.stop(applied), nil
}
