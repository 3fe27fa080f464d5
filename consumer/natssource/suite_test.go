package natssource

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/sourcetest"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/natstest"
	"github.com/epochfence/epochfence/internal/suites/pulsetest"
)

// Most tests wait for something to run out, or for a server. The command line goes
// before this.
func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "8")
	os.Exit(m.Run())
}

// Neither suite runs beside other tests: one of their histories measures the heap.

func TestSuite(t *testing.T) {
	sourcetest.RunParallel(t, func(t testing.TB) sourcetest.Harness {
		s := natstest.Start(t)
		return newHarness(t, s.JetStream(t), 1, func(t testing.TB, l *link) jetstream.JetStream {
			return l.connect(t, s)
		})
	})
}

func TestClusterSuite(t *testing.T) {
	long(t)
	c := natstest.StartCluster(t, 3)
	sourcetest.RunParallel(t, func(t testing.TB) sourcetest.Harness {
		h := newHarness(t, c.JetStream(t), 3, func(t testing.TB, l *link) jetstream.JetStream {
			return l.connect(t, c)
		})
		return unbounded{h, h, h, h, h, h, h, h, h, h, h}
	})
}

// unbounded leaves out [sourcetest.Bounded]: that history looks at the heap, in
// which the three servers keep what they store.
type unbounded struct {
	sourcetest.Harness
	sourcetest.Freezer
	sourcetest.Retainer
	sourcetest.SharedLog
	sourcetest.Recreator
	sourcetest.Trimmer
	sourcetest.Deleter
	sourcetest.GroupDeleter
	sourcetest.Positions
	sourcetest.Carrier
	sourcetest.Stalling
}

// harness is what the public suite needs to know of JetStream. A topic is a
// stream, and partition n is the subject <topic>.<n>.
type harness struct {
	js       jetstream.JetStream
	replicas int
	connect  func(t testing.TB, l *link) jetstream.JetStream
	bucket   bucket
	pulse    *pulsetest.Pulse

	mu         sync.Mutex
	partitions map[string]int32 // of the topics
	links      map[consumer.Source]*link
}

const suiteBuffer = 1 << 20

// suiteTTL is longer where .ci/stall freezes all processes for up to 2 s.
var suiteTTL = func() time.Duration {
	if os.Getenv("EPOCHFENCE_STALLS") != "" {
		return 6 * time.Second
	}
	return 2 * time.Second
}()

// harnesses counts them: they may share a server.
var harnesses atomic.Int32

func newHarness(t testing.TB, js jetstream.JetStream, replicas int, connect func(testing.TB, *link) jetstream.JetStream) *harness {
	h := &harness{
		js: js, replicas: replicas, connect: connect, partitions: map[string]int32{}, links: map[consumer.Source]*link{},
		bucket: bucket{js, fmt.Sprint("leases", harnesses.Add(1))},
	}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		defer cancel()
		for topic := range h.partitions {
			_ = js.DeleteStream(ctx, topic)
		}
		_ = js.DeleteKeyValue(ctx, h.bucket.name)
	})
	h.pulse = startPulse(t, js, "pulse-"+h.bucket.name, replicas)
	return h
}

func (h *harness) NewTopic(t testing.TB, partitions int32) string {
	h.mu.Lock()
	name := fmt.Sprintf("%s-topic%d", h.bucket.name, len(h.partitions))
	h.partitions[name] = partitions
	h.mu.Unlock()
	h.create(t, name)
	return name
}

func (h *harness) create(t testing.TB, topic string) {
	insist(t, func(ctx context.Context) error {
		return second(h.js.CreateStream(ctx, jetstream.StreamConfig{
			Name: topic, Subjects: []string{topic + ".*"}, Replicas: h.replicas, Duplicates: time.Second,
		}))
	})
}

func subject(topic string, n int32) string { return fmt.Sprintf("%s.%d", topic, n) }

func (h *harness) Produce(t testing.TB, topic string, n int32, ms ...consumer.Message) {
	ctx := inTime(t)
	for _, m := range ms {
		out := &nats.Msg{Subject: subject(topic, n), Data: m.Value}
		for _, hd := range m.Headers {
			if out.Header == nil {
				out.Header = nats.Header{}
			}
			out.Header[hd.Key] = append(out.Header[hd.Key], string(hd.Value))
		}
		must(t, second(h.js.PublishMsg(ctx, out)))
	}
}

func (h *harness) Carried(m consumer.Message) consumer.Message {
	m.Key, m.Time = []byte(subject(m.Partition.Topic, m.Partition.Number)), time.Time{}
	m.Value = append([]byte{}, m.Value...)
	m.Headers = slices.Clone(m.Headers)
	for i, hd := range m.Headers {
		m.Headers[i].Value = append([]byte{}, hd.Value...)
	}
	slices.SortStableFunc(m.Headers, func(a, b consumer.Header) int { return cmp.Compare(a.Key, b.Key) })
	return m
}

func (h *harness) NewSource(t testing.TB, group string, topics []string, member string) consumer.Source {
	l := newLink()
	o := Options{
		Group: group, JetStream: h.connect(t, l), Bucket: h.bucket.name, LeaseTTL: suiteTTL, BufferBytes: suiteBuffer,
		StartTimeout: time.Minute, Name: member, Logger: slog.New(slog.DiscardHandler),
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, topic := range topics {
		s := Stream{Name: topic}
		for n := range h.partitions[topic] {
			s.Filters = append(s.Filters, subject(topic, n))
		}
		o.Streams = append(o.Streams, s)
	}
	s, err := New(o)
	must(t, err)
	h.links[s] = l
	return s
}

func (h *harness) Freeze(_ testing.TB, s consumer.Source) (thaw func()) {
	h.mu.Lock()
	l := h.links[s]
	h.mu.Unlock()
	l.hold(true, true)
	return func() { l.hold(false, false) }
}

func (h *harness) Retains() {}

func (h *harness) SharesLog() {}

func (h *harness) Buffers() int { return suiteBuffer }

func (h *harness) RecreateTopic(t testing.TB, topic string, partitions int32) {
	insist(t, func(ctx context.Context) error { return h.js.DeleteStream(ctx, topic) })
	h.mu.Lock()
	h.partitions[topic] = partitions
	h.mu.Unlock()
	h.create(t, topic)
}

func (h *harness) stream(t testing.TB, topic string) jetstream.Stream {
	s, err := h.js.Stream(inTime(t), topic)
	must(t, err)
	return s
}

func (h *harness) Trim(t testing.TB, topic string, _ int32, begin epoch.Offset) {
	must(t, h.stream(t, topic).Purge(inTime(t), jetstream.WithPurgeSequence(uint64(begin))))
}

func (h *harness) Delete(t testing.TB, topic string, _ int32, offset epoch.Offset) {
	must(t, h.stream(t, topic).DeleteMsg(inTime(t), uint64(offset)))
}

// DeleteGroup deletes the bucket, in which there is no other group.
func (h *harness) DeleteGroup(t testing.TB, group string) {
	kv, err := h.js.KeyValue(inTime(t), h.bucket.name)
	must(t, err)
	eventually(t, "the group has no live member", func() bool {
		list, err := kv.ListKeysFiltered(inTime(t), cas.Escape(group)+".lease.member.>")
		must(t, err)
		live := 0
		for range list.Keys() {
			live++
		}
		return live == 0
	})
	insist(t, func(ctx context.Context) error { return h.js.DeleteKeyValue(ctx, h.bucket.name) })
}

func (h *harness) Position(t testing.TB, group, topic string, n int32) (epoch.Offset, bool) {
	e, err := h.bucket.get(inTime(t), positionInBucket(group, topic, n))
	if errors.Is(err, jetstream.ErrBucketNotFound) || errors.Is(err, jetstream.ErrStreamNotFound) {
		return 0, false
	}
	must(t, err)
	if !e.live {
		return 0, false
	}
	var m position
	must(t, json.Unmarshal(e.value, &m))
	return m.Next, true
}

func (h *harness) SetPosition(t testing.TB, group, topic string, n int32, at epoch.Offset) {
	must(t, h.bucket.create(inTime(t), h.replicas))
	data, err := json.Marshal(position{Next: at})
	must(t, err)
	must(t, second(h.bucket.write(inTime(t), positionInBucket(group, topic, n), data)))
}

func positionInBucket(group, topic string, n int32) string {
	return fmt.Sprintf("%s.position.%s.%d", cas.Escape(group), cas.Escape(topic), n)
}
