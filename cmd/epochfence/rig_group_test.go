package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/kafkasource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// live is a group at work: Kafka with a topic that grows, and a consumer.
type live struct {
	*cli
	*place
	brokers  []string
	produced int // in each partition
	client   *kgo.Client
	stop     func()
}

const (
	partitions = 2
	maxBatch   = 4
)

// workers starts a broker and a producer, for processes that work on a place.
func workers(t *testing.T, p *place) *live {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.GroupMinSessionTimeout(time.Second), kfake.SeedTopics(partitions, "orders"))
	must(t, err)
	t.Cleanup(cluster.Close)
	return workersOf(t, p, cluster.ListenAddrs()...)
}

// workersOf is workers with a broker that is there.
func workersOf(t *testing.T, p *place, brokers ...string) *live {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.DefaultProduceTopic("orders"))
	must(t, err)
	t.Cleanup(client.Close)
	return &live{
		cli:   &cli{t, p.variables("EPOCHFENCE_KAFKA", strings.Join(brokers, ","))},
		place: p, brokers: brokers, client: client,
	}
}

// atWork is workers with a consumer in this process.
func atWork(t *testing.T, p *place) *live {
	t.Helper()
	l := workers(t, p)
	l.produce(50)
	l.work()
	return l
}

// work starts a consumer in this process.
func (l *live) work(options ...kgo.Opt) {
	l.t.Helper()
	t, p := l.t, l.place
	source, err := kafkasource.New(kafkasource.Options{Group: "billing", Topics: []string{"orders"}, Client: append(options, kgo.SeedBrokers(l.brokers...))})
	must(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() {
		ended <- p.consume(ctx, source, consumer.Options{MaxBatch: maxBatch, BatchTimeout: p.timeout, Observe: p.observe})
	}()
	var over bool
	l.stop = func() {
		if !over {
			over = true
			cancel()
			if err := <-ended; err != nil && !errors.Is(err, context.Canceled) {
				t.Errorf("the consumer ended with %v", err)
			}
		}
	}
	t.Cleanup(l.stop)
}

// produce appends so many messages to each partition.
func (l *live) produce(n int) {
	l.t.Helper()
	var rs []*kgo.Record
	for range n {
		for number := range int32(partitions) {
			rs = append(rs, &kgo.Record{Partition: number, Value: []byte(fmt.Sprintf("order %d", l.produced))})
		}
		l.produced++
	}
	must(l.t, l.client.ProduceSync(l.t.Context(), rs...).FirstErr())
}

// poison appends a message that no handler takes.
func (l *live) poison(n int32) {
	l.t.Helper()
	must(l.t, l.client.ProduceSync(l.t.Context(), &kgo.Record{Partition: n, Value: []byte("poison")}).FirstErr())
}

// growing has the topic grow while do runs, as fast as partition 0 is applied.
func (l *live) growing(do func()) {
	l.t.Helper()
	done := make(chan struct{})
	ended := make(chan error, 1)
	go func() {
		for n := 0; ; n++ {
			select {
			case <-done:
				l.produced += n
				ended <- nil
				return
			default:
			}
			if n%100 == 99 { // a consumer that cannot keep up would have to apply it all afterwards
				p, err := l.op.Partition(context.Background(), partition(0))
				if err == nil && l.produced+n > int(p.Next)+2000 {
					n--
					<-time.After(10 * time.Millisecond)
					continue
				}
			}
			for number := range int32(partitions) {
				r := &kgo.Record{Partition: number, Value: []byte("order")}
				if err := l.client.ProduceSync(context.Background(), r).FirstErr(); err != nil {
					ended <- err
					return
				}
			}
		}
	}()
	do()
	close(done)
	must(l.t, <-ended)
}

func partition(n int32) epoch.Partition {
	return epoch.Partition{Group: "billing", Topic: "orders", Number: n}
}

func (l *live) at(n int32) operate.Partition {
	l.t.Helper()
	p, err := l.op.Partition(l.t.Context(), partition(n))
	must(l.t, err)
	return p
}

// known reports whether there is a fence.
func (l *live) known(n int32) bool {
	_, err := l.op.Partition(l.t.Context(), partition(n))
	return err == nil
}

func (l *live) log(q operate.HistoryQuery) []operate.Decision {
	l.t.Helper()
	ds, err := l.op.History(l.t.Context(), q)
	must(l.t, err)
	return ds
}

// awaits waits until cond holds.
func (l *live) awaits(what string, cond func() bool) {
	l.t.Helper()
	late := time.After(60 * time.Second)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !cond() {
		select {
		case <-tick.C:
		case <-late:
			l.t.Fatalf("waited for a minute until %s\n%s", what, l.run("describe").out)
		}
	}
}

// through waits until everything is applied.
func (l *live) through() {
	l.t.Helper()
	l.awaits("all is applied", func() bool {
		ps, err := l.op.Partitions(l.t.Context(), operate.Filter{Group: "billing"})
		must(l.t, err)
		return len(ps) == partitions && !slices.ContainsFunc(ps, func(p operate.Partition) bool { return int(p.Next) != l.produced })
	})
}

// audit stops the consumer, and compares what was applied with the audit log: under each
// claim exactly the messages from its position up to that of the claim after it, in
// order, but for what failed.
func (l *live) audit(fails broken) {
	l.t.Helper()
	l.stop()
	ds, err := l.op.History(l.t.Context(), operate.HistoryQuery{Limit: 100_000})
	must(l.t, err)
	slices.Reverse(ds)
	rows := l.applied()
	for n := range int32(partitions) {
		var got, want []effect
		for _, r := range rows {
			if r.number == n {
				got = append(got, r)
			}
		}
		var swaps []operate.Decision
		for _, d := range ds {
			if d.Partition == partition(n) && d.Kind.ReplacesClaim() {
				swaps = append(swaps, d)
			}
		}
		for i, d := range swaps {
			end := l.at(n).Next
			if i+1 < len(swaps) {
				end = swaps[i+1].From
			}
			for o := d.To; o < end; o++ {
				if !fails(consumer.Message{Partition: partition(n), Offset: o}) {
					want = append(want, effect{n, o, d.Epoch})
				}
			}
		}
		if l.stored {
			l.wantInterrupted(got, want, swaps)
			got, want = uninterrupted(got, swaps), uninterrupted(want, swaps)
		}
		if !slices.Equal(got, want) {
			l.t.Errorf("partition %d: applied\n%v\nand the audit log says\n%v", n, got, want)
		}
	}
}

// A sink in a store writes items before the position, so of the messages of a transaction that a swap has
// interrupted some have taken effect, under the epoch before the swap, and are not applied again.
func interrupted(e effect, swaps []operate.Decision) bool {
	return slices.ContainsFunc(swaps, func(d operate.Decision) bool { return d.From >= 0 && e.offset >= d.From && e.offset < d.From+maxBatch })
}

// wantInterrupted wants of each message that a swap may have interrupted one effect at least, if the audit log
// has one, and none twice under one epoch.
func (l *live) wantInterrupted(got, want []effect, swaps []operate.Decision) {
	l.t.Helper()
	seen, applied := map[effect]bool{}, map[epoch.Offset]bool{}
	for _, e := range got {
		if seen[e] && interrupted(e, swaps) {
			l.t.Errorf("partition %d: offset %d was applied twice under epoch %d", e.number, e.offset, e.epoch)
		}
		seen[e], applied[e.offset] = true, true
	}
	for _, e := range want {
		if interrupted(e, swaps) && !applied[e.offset] {
			l.t.Errorf("partition %d: offset %d was not applied", e.number, e.offset)
		}
	}
}

// uninterrupted returns the effects that no swap may have interrupted, without epochs.
func uninterrupted(es []effect, swaps []operate.Decision) (left []effect) {
	for _, e := range es {
		if !interrupted(e, swaps) {
			left = append(left, effect{e.number, e.offset, 0})
		}
	}
	return left
}
