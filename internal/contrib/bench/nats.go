package main

import (
	"context"
	"fmt"
	"runtime"
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
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/memsink"
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

// The cost of an idle process.

func init() {
	variants["nats/idle-run"] = idleRun
	variants["nats/idle-pull"] = idlePull
}

const (
	// calming is how long a process is idle before it is measured: consumers poll less often after
	// an empty first request.
	calming = 20 * time.Second

	// resting is how long an idle process is measured: several lease renewals, and everything that
	// happens once a minute.
	resting = time.Minute
)

// rest measures an idle process. It leaves out everything that exists before anybody has joined.
type rest struct {
	conn       *nats.Conn
	goroutines int
	bytes      uint64
}

func beforeRest(conn *nats.Conn) rest {
	return rest{conn, runtime.NumGoroutine(), inUse()}
}

func inUse() uint64 {
	runtime.GC()
	runtime.GC() // frees what the first GC has left in pools
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc + m.StackInuse
}

// measure waits until the process is calm, and returns its cost from then on.
func (r rest) measure(ctx context.Context, j job) (o outcome, err error) {
	var before nats.Statistics
	for _, wait := range []time.Duration{calming, resting} {
		before = r.conn.Stats()
		select {
		case <-time.After(wait):
		case <-ctx.Done():
			return o, ctx.Err()
		}
	}
	after, each := r.conn.Stats(), float64(j.Partitions)
	return outcome{
		Messages: j.Messages, Timed: j.Messages, Took: resting,
		Traffic:    float64(after.InMsgs-before.InMsgs+after.OutMsgs-before.OutMsgs) / resting.Seconds(),
		Goroutines: float64(runtime.NumGoroutine()-r.goroutines) / each,
		KiB:        float64(int64(inUse())-int64(r.bytes)) / each / 1024,
	}, snapshot(j.Profile)
}

func idleRun(ctx context.Context, j job) (o outcome, err error) {
	nc, js, err := toNATS(j)
	if err != nil {
		return o, err
	}
	defer nc.Close()
	r := beforeRest(nc)
	stream := natssource.Stream{Name: j.Topic}
	for p := range j.Partitions {
		stream.Filters = append(stream.Filters, subject(j, p))
	}
	src, err := natssource.New(natssource.Options{Group: j.Group, JetStream: js, Streams: []natssource.Stream{stream}, Logger: quiet})
	if err != nil {
		return o, err
	}
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	var applied atomic.Int64
	measured := make(chan error, 1)
	handle := func(context.Context, *memsink.Tx, []consumer.Message, epoch.Epoch) error { return nil }
	err = consumer.Run(ctx, src, memsink.New(), consumer.Batches(handle), consumer.Options{
		Logger: quiet,
		Observe: func(e consumer.Event) {
			if e, ok := e.(consumer.Advanced); ok && e.Messages > 0 && applied.Add(int64(e.Messages)) == int64(j.Messages) {
				go func() {
					var err error
					o, err = r.measure(ctx, j)
					measured <- err
					stop()
				}()
			}
		},
	})
	if err != nil {
		return o, err
	}
	return o, <-measured
}

func idlePull(ctx context.Context, j job) (o outcome, err error) {
	nc, js, err := toNATS(j)
	if err != nil {
		return o, err
	}
	defer nc.Close()
	r := beforeRest(nc)
	for p := range j.Partitions {
		cons, err := js.CreateConsumer(ctx, j.Topic, jetstream.ConsumerConfig{FilterSubject: subject(j, p), AckPolicy: jetstream.AckNonePolicy})
		if err != nil {
			return o, err
		}
		consuming, err := cons.Consume(func(jetstream.Msg) {})
		if err != nil {
			return o, err
		}
		defer consuming.Stop()
	}
	return r.measure(ctx, j)
}
