package kafkasource_test

import (
	"context"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/kafkasource"
	"github.com/epochfence/epochfence/consumer/sourcetest"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/kafkatest"
	"github.com/epochfence/epochfence/internal/suites/pulsetest"
)

// The suite that every source must pass, in each of the ways in which Kafka
// assigns partitions.
func TestRealSuite(t *testing.T) {
	for name, as := range map[string]struct {
		member kgo.Opt
		of     func(*suiteHarness) sourcetest.Harness
	}{
		"eager": {
			kgo.Balancers(kgo.RangeBalancer()),
			func(h *suiteHarness) sourcetest.Harness { return struct{ static }{static{h}} },
		},
		"cooperative": {
			kgo.Balancers(kgo.CooperativeStickyBalancer()),
			func(h *suiteHarness) sourcetest.Harness {
				return struct {
					static
					retaining
				}{static: static{h}}
			},
		},
		"KIP-848": {
			kgo.ServerSideBalancer(),
			func(h *suiteHarness) sourcetest.Harness {
				return struct {
					*suiteHarness
					retaining
				}{suiteHarness: h}
			},
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			addr := kafkatest.Shared(t)
			sourcetest.Run(t, func(t testing.TB) sourcetest.Harness {
				return as.of(newSuiteHarness(t, addr, as.member))
			})
		})
	}
}

// suiteHarness is what the histories of the suite work with. It does not
// truncate: the restart that this takes costs the members their leases.
type suiteHarness struct {
	addr   string
	member kgo.Opt
	admin  *kadm.Client
	pulse  *pulsetest.Pulse

	mu    sync.Mutex
	links map[consumer.Source]*link
}

// retaining is had by the assignments that move only what has to move.
type retaining struct{}

func (retaining) Retains() {}

// static is had by the classic protocol. Under KIP-848 the group does not take a
// member in that comes in the place of a live one.
type static struct{ *suiteHarness }

func (h static) NewStatic(t testing.TB, group string, topics []string, instance string) consumer.Source {
	t.Helper()
	// No history waits for the session of a static member to end.
	return h.source(t, group, topics, kgo.InstanceID(instance), kgo.SessionTimeout(30*time.Second), kgo.HeartbeatInterval(time.Second))
}

func newSuiteHarness(t testing.TB, addr string, member kgo.Opt) *suiteHarness {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(addr))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	admin := kadm.NewClient(client)
	// What is asked for comes from where heartbeats are answered.
	beat := pulsetest.Start(t, func(ctx context.Context) error {
		_, err := admin.FetchOffsets(ctx, "pulse")
		return err
	})
	return &suiteHarness{addr: addr, member: member, admin: admin, pulse: beat, links: map[consumer.Source]*link{}}
}

// Stalled implements [sourcetest.Stalling].
func (h *suiteHarness) Stalled() time.Duration { return h.pulse.Stalled() }

func (h *suiteHarness) NewTopic(t testing.TB, partitions int32) string {
	t.Helper()
	topic := unique("suite")
	createTopic(t, h.admin, topic, partitions)
	return topic
}

func (h *suiteHarness) Produce(t testing.TB, topic string, partition int32, ms ...consumer.Message) {
	t.Helper()
	records := make([]*kgo.Record, len(ms))
	for i, m := range ms {
		records[i] = &kgo.Record{Topic: topic, Partition: partition, Key: m.Key, Value: m.Value, Timestamp: m.Time}
		for _, header := range m.Headers {
			records[i].Headers = append(records[i].Headers, kgo.RecordHeader{Key: header.Key, Value: header.Value})
		}
	}
	// A client of its own: a topic created again has another id.
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	client, err := kgo.NewClient(kgo.SeedBrokers(h.addr), kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.MaxBufferedRecords(1<<20), kgo.ProducerBatchMaxBytes(1<<20))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	if err := client.ProduceSync(ctx, records...).FirstErr(); err != nil {
		t.Fatal(err)
	}
}

func (h *suiteHarness) NewSource(t testing.TB, group string, topics []string, member string) consumer.Source {
	t.Helper()
	return h.source(t, group, topics, kgo.ClientID(member))
}

func (h *suiteHarness) source(t testing.TB, group string, topics []string, opts ...kgo.Opt) consumer.Source {
	t.Helper()
	l := newLink()
	s, err := kafkasource.New(kafkasource.Options{
		Group: group, Topics: topics,
		Client: slices.Concat([]kgo.Opt{
			kgo.SeedBrokers(h.addr), kgo.Dialer(l.dial), h.member,
			kgo.SessionTimeout(session), kgo.HeartbeatInterval(session / 10), kgo.RebalanceTimeout(10 * time.Second),
			kgo.MetadataMinAge(100 * time.Millisecond), kgo.MetadataMaxAge(time.Second),
		}, opts),
		MirrorInterval: 100 * time.Millisecond,
		StartTimeout:   time.Minute,
		Logger:         slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.thaw)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.links[s] = l
	return s
}

func (h *suiteHarness) Freeze(_ testing.TB, s consumer.Source) (thaw func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.links[s]
	l.freeze()
	return l.thaw
}

func (h *suiteHarness) RecreateTopic(t testing.TB, topic string, partitions int32) {
	t.Helper()
	deleteTopic(t, h.admin, topic)
	createTopic(t, h.admin, topic, partitions)
}

func (h *suiteHarness) AddPartitions(t testing.TB, topic string, total int32) {
	t.Helper()
	if resp, err := h.admin.UpdatePartitions(t.Context(), int(total), topic); err != nil || resp.Error() != nil {
		t.Fatal(err, resp.Error())
	}
	awaitPartitions(t, h.admin, topic, int(total))
}

func (h *suiteHarness) Trim(t testing.TB, topic string, partition int32, begin epoch.Offset) {
	t.Helper()
	offsets := kadm.Offsets{}
	offsets.AddOffset(topic, partition, int64(begin), -1)
	if resp, err := h.admin.DeleteRecords(t.Context(), offsets); err != nil || resp.Error() != nil {
		t.Fatal(err, resp.Error())
	}
}

func (h *suiteHarness) DeleteGroup(t testing.TB, group string) {
	t.Helper()
	// A member that was not heard of for its session is still one.
	deadline := time.After(patience)
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for {
		resp, err := h.admin.DeleteGroup(t.Context(), group)
		if err == nil {
			err = resp.Err
		}
		if err == nil {
			return
		}
		select {
		case <-again.C:
		case <-deadline:
			t.Fatalf("delete group %s: %v", group, err)
		}
	}
}

func (h *suiteHarness) Position(t testing.TB, group, topic string, partition int32) (epoch.Offset, bool) {
	t.Helper()
	offsets, err := h.admin.FetchOffsets(t.Context(), group)
	if err != nil {
		t.Fatal(err)
	}
	o, ok := offsets.Lookup(topic, partition)
	return epoch.Offset(o.At), ok && o.At >= 0
}

func (h *suiteHarness) SetPosition(t testing.TB, group, topic string, partition int32, at epoch.Offset) {
	t.Helper()
	h.mu.Lock()
	defer h.mu.Unlock()
	kafkasource.CommitAsOthers(t, h.admin, h.links, group, topic, partition, at)
}
