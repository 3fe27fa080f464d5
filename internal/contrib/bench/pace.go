package main

import (
	"context"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

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
