package main

import (
	"context"
	"runtime"
	"sync/atomic"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/natssource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/memsink"
)

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
