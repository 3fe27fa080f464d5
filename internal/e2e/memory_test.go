package e2e_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"runtime"
	"runtime/metrics"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/kafkasource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/kafkatest"
	"github.com/epochfence/epochfence/sinks/memsink"
)

var messages = flag.Int("messages", 200_000, "how many messages the memory tests consume")

const (
	memoryPartitions = 8
	memoryBuffer     = 32 << 20 // kafkasource.Options.BufferBytes
)

// The broker is a process of its own: what it holds is not ours.
func TestTheHeapStaysWithinTheBufferBoundThoughTheSinkIsSlow(t *testing.T) {
	if testing.Short() {
		t.Skip("-short: it takes seconds")
	}
	measureHeap(t, endlessBroker(t, memoryPartitions), topic)
}

func TestRealTheHeapStaysWithinTheBufferBoundThoughTheSinkIsSlow(t *testing.T) {
	addr := kafkatest.Shared(t)
	topic := fmt.Sprintf("memory-%d", time.Now().UnixNano())
	produceMany(t, addr, topic)
	measureHeap(t, addr, topic)
}

func measureHeap(t *testing.T, addr, topic string) {
	for range 3 { // pools of a producer's live through two
		runtime.GC()
	}
	before := liveHeap()
	g := newGauge()
	s := newSlowSink(memoryPartitions, int64(*messages))
	source := newSource(t, func(o *kafkasource.Options) {
		o.Topics, o.BufferBytes = []string{topic}, memoryBuffer
		o.Client = []kgo.Opt{kgo.SeedBrokers(addr)}
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() {
		select {
		case <-s.enough:
		case <-ctx.Done():
		}
		cancel()
	}()
	began := time.Now()
	err := consumer.Run(ctx, source, s.sink, consumer.Each(s.handle), consumer.Options{
		Logger: quiet(),
		Observe: func(e consumer.Event) {
			switch e := e.(type) {
			case consumer.Joined, consumer.Left, consumer.Granted, consumer.Claimed, consumer.Advanced, consumer.Drained, consumer.Deferring:
			case consumer.Transacted:
				if e.Outcome != consumer.OutcomeCommitted {
					t.Errorf("%+v", e)
				}
			default:
				t.Errorf("%T%+v", e, e)
			}
		},
	})
	took := time.Since(began)
	live, inUse, collections := g.stop()
	if err != nil {
		t.Fatal(err)
	}

	// HeapInuse holds what the collector has not come to yet, as much again as
	// is live with GOGC=100; live is what somebody still holds.
	grown := int64(live) - int64(before)
	t.Logf("%d messages in %v: live heap before %s, at most %s (%s of the %s of BufferBytes); heap in use at most %s; %d collections",
		s.applied.Load(), took.Round(10*time.Millisecond), mib(int64(before)), mib(int64(live)), mib(grown), mib(memoryBuffer), mib(int64(inUse)), collections)
	if grown > memoryBuffer {
		t.Errorf("the live heap grew by %s, above BufferBytes of %s", mib(grown), mib(memoryBuffer))
	}
	if most := 2*(int64(before)+memoryBuffer) + 8<<20; int64(inUse) > most {
		t.Errorf("the heap in use came to %s, above %s", mib(int64(inUse)), mib(most))
	}
	if grown < memoryBuffer/8 {
		t.Errorf("the live heap grew by %s alone: the sink is not slower than the reading, and the test shows nothing", mib(grown))
	}
	if collections == 0 {
		t.Error("nothing was collected, so nothing was measured")
	}
	s.check(t)
}

// slowSink counts instead of storing, checks the order, and takes its time for
// every transaction.
type slowSink struct {
	sink    *memsink.Sink
	next    []epoch.Offset // by partition; each is used by one transaction at a time
	applied atomic.Int64
	want    int64
	enough  chan struct{} // closed when want messages are applied
}

// slowness makes the sink take up to 2048 messages, what one transaction takes
// of eight partitions, in the time in which a source reads several times as
// many.
const slowness = 20 * time.Millisecond

func newSlowSink(partitions int, want int64) *slowSink {
	s := &slowSink{sink: memsink.New(), next: make([]epoch.Offset, partitions), want: want, enough: make(chan struct{})}
	s.sink.Script(memsink.Hooks{Commit: func(_ context.Context, as []epoch.Advance, do func() error) error {
		<-time.After(slowness)
		if err := do(); err != nil {
			return err
		}
		var n int64
		for _, a := range as {
			n += int64(a.To - a.From)
		}
		if after := s.applied.Add(n); after >= want && after-n < want {
			close(s.enough)
		}
		return nil
	}})
	return s
}

var errOrder = errors.New("out of order")

func (s *slowSink) handle(_ context.Context, _ *memsink.Tx, m consumer.Message, _ epoch.Epoch) error {
	if m.Offset != s.next[m.Partition.Number] || len(m.Value) != 100 {
		return consumer.Permanent(fmt.Errorf("%w: offset %d of partition %d, want %d; %d bytes", errOrder, m.Offset, m.Partition.Number, s.next[m.Partition.Number], len(m.Value)))
	}
	s.next[m.Partition.Number]++
	return nil
}

func (s *slowSink) check(t *testing.T) {
	t.Helper()
	if n := s.applied.Load(); n < s.want {
		t.Errorf("%d messages were applied, want %d", n, s.want)
	}
	for p, f := range s.sink.Fences() {
		if f.Next != s.next[p.Number] {
			t.Errorf("%s: the fence is at %d, %d messages were handled", p, f.Next, s.next[p.Number])
		}
	}
}

// gauge samples the heap until it is stopped.
type gauge struct {
	done, ended chan struct{}
	from        uint64
	live, inUse uint64
	cycles      uint64
}

const (
	liveMetric    = "/gc/heap/live:bytes" // marked by the last collection
	objectsMetric = "/memory/classes/heap/objects:bytes"
	unusedMetric  = "/memory/classes/heap/unused:bytes" // with the objects: HeapInuse
	cyclesMetric  = "/gc/cycles/total:gc-cycles"
)

func newGauge() *gauge {
	g := &gauge{done: make(chan struct{}), ended: make(chan struct{})}
	g.sample()
	g.from = g.cycles
	g.live = 0 // that was the last collection of before
	go func() {
		defer close(g.ended)
		look := time.NewTicker(10 * time.Millisecond)
		defer look.Stop()
		for {
			select {
			case <-look.C:
				g.sample()
			case <-g.done:
				return
			}
		}
	}()
	return g
}

func (g *gauge) sample() {
	s := []metrics.Sample{{Name: liveMetric}, {Name: objectsMetric}, {Name: unusedMetric}, {Name: cyclesMetric}}
	metrics.Read(s)
	g.live = max(g.live, s[0].Value.Uint64())
	g.inUse = max(g.inUse, s[1].Value.Uint64()+s[2].Value.Uint64())
	g.cycles = s[3].Value.Uint64()
}

func (g *gauge) stop() (live, inUse, collections uint64) {
	close(g.done)
	<-g.ended
	return g.live, g.inUse, g.cycles - g.from
}

func liveHeap() uint64 {
	s := []metrics.Sample{{Name: liveMetric}}
	metrics.Read(s)
	return s[0].Value.Uint64()
}

func mib(bytes int64) string { return fmt.Sprintf("%.1f MiB", float64(bytes)/(1<<20)) }

// produceMany fills a topic of its own with as many messages as are consumed.
func produceMany(t *testing.T, addr, topic string) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(addr), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerLinger(5*time.Millisecond), kgo.MaxBufferedRecords(50_000))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if _, err := kadm.NewClient(client).CreateTopic(t.Context(), memoryPartitions, 1, nil, topic); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { deleteTopic(t, addr, topic) })
	value := bytes.Repeat([]byte("0123456789"), 10)
	var failed atomic.Pointer[error]
	for i := range *messages {
		client.Produce(t.Context(), &kgo.Record{Topic: topic, Partition: int32(i % memoryPartitions), Value: value}, func(_ *kgo.Record, err error) {
			if err != nil {
				failed.CompareAndSwap(nil, &err)
			}
		})
	}
	if err := client.Flush(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := failed.Load(); err != nil {
		t.Fatal(*err)
	}
}

func deleteTopic(t *testing.T, addr, topic string) {
	client, err := kgo.NewClient(kgo.SeedBrokers(addr))
	if err != nil {
		t.Error(err)
		return
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if _, err := kadm.NewClient(client).DeleteTopic(ctx, topic); err != nil {
		t.Errorf("delete topic %s: %v", topic, err)
	}
}
