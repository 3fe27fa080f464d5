package e2e_test

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/kafkasource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/suites/bubble"
	"github.com/epochfence/epochfence/sinks/memsink"
)

// TestScaleKafka counts the requests of a group at its brokers, in virtual time: while it
// starts, while nobody produces, and while each partition gets messages.
func TestScaleKafka(t *testing.T) {
	t.Parallel()
	partitions, members := *scalePartitions, *scaleMembers
	const brokers = 3
	bubble.Test(t, func(t *testing.T) {
		net := &kfake.VirtualNetwork{}
		cluster, err := kfake.NewCluster(kfake.ListenFn(net.Listen), kfake.Ports(9001, 9002, 9003), kfake.SeedTopics(int32(partitions), topic))
		if err != nil {
			t.Fatal(err)
		}
		defer cluster.Close()
		var requests tally
		cluster.Control(func(r kmsg.Request) (kmsg.Response, error, bool) {
			cluster.KeepControl()
			requests.add(kmsg.NameForKey(r.Key()), 1)
			if r, ok := r.(*kmsg.OffsetCommitRequest); ok {
				for _, t := range r.Topics {
					requests.add("positions in OffsetCommit", len(t.Partitions))
				}
			}
			return nil, nil, false
		})
		reachable := []kgo.Opt{kgo.SeedBrokers("127.0.0.1:9001"), kgo.Dialer(net.DialContext)}

		ctx, stop := context.WithCancel(t.Context())
		var running sync.WaitGroup
		defer func() { stop(); running.Wait() }()
		sink := memsink.New()
		var (
			mu      sync.Mutex
			claimed = map[epoch.Partition]bool{}
			applied atomic.Int64 // messages
		)
		changed := make(chan struct{}, 1)
		observe := func(e consumer.Event) {
			switch e := e.(type) {
			case consumer.Claimed:
				mu.Lock()
				claimed[e.Fence.Partition] = true
				mu.Unlock()
			case consumer.Advanced:
				applied.Add(int64(e.Messages))
			}
			select {
			case changed <- struct{}{}:
			default:
			}
		}
		until := func(what string, holds func() bool) {
			t.Helper()
			limit := time.After(10 * time.Minute) // virtual ones
			for !holds() {
				select {
				case <-changed:
				case <-limit:
					t.Fatalf("10 minutes have passed before %s", what)
				}
			}
		}
		handle := func(context.Context, *memsink.Tx, []consumer.Message, epoch.Epoch) error { return nil }
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		goroutines := runtime.NumGoroutine()
		began := time.Now()
		for range members {
			source, err := kafkasource.New(kafkasource.Options{Group: group, Topics: []string{topic}, Client: reachable, Logger: quiet()})
			if err != nil {
				t.Fatal(err)
			}
			running.Go(func() {
				if err := consumer.Run(ctx, source, sink, consumer.Batches(handle), consumer.Options{Logger: quiet(), Observe: observe}); err != nil {
					t.Errorf("Run: %v", err)
				}
			})
		}
		until("all partitions were claimed", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(claimed) == partitions
		})
		took := time.Since(began)
		<-time.After(time.Minute) // the last member has joined
		p, n := float64(partitions), float64(members)
		title := fmt.Sprintf("%d partitions, %d members, %d brokers", partitions, members, brokers)
		holds(t, title+": all requests of the start, and of a minute after it", requests.take(), 0)
		t.Logf("all partitions were claimed after %v of virtual time", took)

		<-time.After(time.Minute)
		holds(t, title+": requests a second while nobody produces", requests.take(), time.Minute,
			expectation{"Heartbeat", n / 3, "N / heartbeat interval"},
			expectation{"Fetch", n * min(brokers, p/n) * 4, "N · brokers / FetchMaxWait"},
			expectation{"OffsetCommit", 0, "nothing to mirror"},
			expectation{"Metadata", n / 10, "N / 10 s: does the topic exist still"},
		)

		runtime.GC()
		runtime.ReadMemStats(&after)
		t.Logf("%s: %d goroutines and %d kB of heap more than before, those of the connections' other ends with them",
			title, runtime.NumGoroutine()-goroutines, (int64(after.HeapAlloc)-int64(before.HeapAlloc))/1024)

		producer, err := kgo.NewClient(append(reachable, kgo.DefaultProduceTopic(topic), kgo.RecordPartitioner(kgo.ManualPartitioner()))...)
		if err != nil {
			t.Fatal(err)
		}
		defer producer.Close()
		const rounds, every = 6, 5 * time.Second
		produced := time.Now()
		for round := range rounds {
			for i := range partitions {
				producer.Produce(ctx, &kgo.Record{Partition: int32(i), Value: []byte("x")}, nil)
			}
			if err := producer.Flush(ctx); err != nil {
				t.Fatal(err)
			}
			<-time.After(time.Until(produced.Add(time.Duration(round+1) * every)))
		}
		until("all is applied", func() bool { return applied.Load() == int64(rounds*partitions) })
		holds(t, title+": requests a second while each partition gets a message every 5 s", requests.take(), rounds*every,
			expectation{"Heartbeat", n / 3, "N / heartbeat interval"},
			expectation{"OffsetCommit", n / 5, "N / MirrorInterval"},
			expectation{"positions in OffsetCommit", p / 5, "P / MirrorInterval"},
		)
	})
}
