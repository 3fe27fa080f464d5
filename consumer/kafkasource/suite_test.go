package kafkasource

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/sourcetest"
	"github.com/epochfence/epochfence/epoch"
)

func TestSuite(t *testing.T) {
	for _, p := range protocols {
		t.Run(p.name, func(t *testing.T) {
			sourcetest.RunInBubble(t, func(t testing.TB) sourcetest.Harness {
				h := newHarness(t, p)
				switch {
				case p.nextGen:
					return nextGen{h, retains{}}
				case p.retains:
					return cooperative{h, retains{}, statics{h}}
				}
				return eager{h, statics{h}}
			})
		})
	}
}

// harness is what the public suite needs to know of kfake.
type harness struct {
	p       membership
	net     *kfake.VirtualNetwork
	cluster *kfake.Cluster
	kafka   *kgo.Client
	admin   *kadm.Client
	names   atomic.Int32

	mu    sync.Mutex
	links map[consumer.Source]*link
}

// What a protocol can do.
type (
	retains struct{}
	statics struct{ h *harness } // under KIP-848 nobody can take the place of a static member that lives

	eager struct {
		*harness
		statics
	}
	cooperative struct {
		*harness
		retains
		statics
	}
	nextGen struct {
		*harness
		retains
	}
)

func (retains) Retains() {}

func (s statics) NewStatic(t testing.TB, group string, topics []string, instance string) consumer.Source {
	return s.h.source(t, group, topics, kgo.InstanceID(instance))
}

func newHarness(t testing.TB, p membership) *harness {
	h := &harness{p: p, net: &kfake.VirtualNetwork{}, links: map[consumer.Source]*link{}}
	var err error
	h.cluster, err = kfake.NewCluster(
		kfake.ListenFn(h.net.Listen), kfake.Ports(9001, 9002, 9003), kfake.GroupMinSessionTimeout(time.Second),
		kfake.BrokerConfigs(map[string]string{
			"group.consumer.heartbeat.interval.ms": "1000", "group.consumer.session.timeout.ms": "6000",
		}),
	)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.cluster.Close)
	h.kafka, err = kgo.NewClient(kgo.SeedBrokers("127.0.0.1:9001"), kgo.Dialer(h.net.DialContext),
		kgo.RecordPartitioner(kgo.ManualPartitioner()), kgo.MetadataMinAge(10*time.Millisecond))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(h.kafka.Close)
	h.admin = kadm.NewClient(h.kafka)
	return h
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func (h *harness) NewTopic(t testing.TB, partitions int32) string {
	name := fmt.Sprint("topic-", h.names.Add(1))
	must(t, h.cluster.CreateTopic(name, partitions, nil))
	return name
}

func (h *harness) Produce(t testing.TB, topic string, partition int32, ms ...consumer.Message) {
	var rs []*kgo.Record
	for _, m := range ms {
		r := &kgo.Record{Topic: topic, Partition: partition, Key: m.Key, Value: m.Value, Timestamp: m.Time}
		for _, hd := range m.Headers {
			r.Headers = append(r.Headers, kgo.RecordHeader{Key: hd.Key, Value: hd.Value})
		}
		rs = append(rs, r)
	}
	must(t, h.kafka.ProduceSync(context.Background(), rs...).FirstErr())
}

func (h *harness) NewSource(t testing.TB, group string, topics []string, member string) consumer.Source {
	return h.source(t, group, topics, kgo.ClientID(member))
}

func (h *harness) source(t testing.TB, group string, topics []string, opts ...kgo.Opt) consumer.Source {
	l := &link{net: h.net}
	t.Cleanup(l.thaw)
	opts = append(opts, kgo.SeedBrokers("127.0.0.1:9001"), kgo.Dialer(l.dial),
		kgo.SessionTimeout(6*time.Second), kgo.HeartbeatInterval(time.Second), kgo.RebalanceTimeout(8*time.Second),
		kgo.MetadataMinAge(100*time.Millisecond), kgo.MetadataMaxAge(2*time.Second))
	s, err := New(Options{
		Group: group, Topics: topics, Client: append(opts, h.p.opts...), MirrorInterval: time.Second, BufferBytes: 1 << 20,
	})
	must(t, err)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.links[s] = l
	return s
}

func (h *harness) Buffers() int { return 1 << 20 }

func (h *harness) Freeze(_ testing.TB, s consumer.Source) (thaw func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	l := h.links[s]
	l.freeze()
	return l.thaw
}

func (h *harness) RecreateTopic(t testing.TB, topic string, partitions int32) {
	must(t, h.cluster.DeleteTopic(topic))
	must(t, h.cluster.CreateTopic(topic, partitions, nil))
	h.kafka.PurgeTopicsFromClient(topic)
}

func (h *harness) AddPartitions(t testing.TB, topic string, total int32) {
	_, err := h.admin.UpdatePartitions(context.Background(), int(total), topic)
	must(t, err)
	h.kafka.ForceMetadataRefresh()
}

func (h *harness) Trim(t testing.TB, topic string, partition int32, begin epoch.Offset) {
	must(t, h.cluster.DeleteRecords(topic, partition, int64(begin)))
}

func (h *harness) DeleteGroup(t testing.TB, group string) {
	// Members that are gone without a word are members until they are missed.
	for retry := time.NewTicker(time.Second); ; <-retry.C {
		_, err := h.admin.DeleteGroup(context.Background(), group)
		if errors.Is(err, kerr.NonEmptyGroup) {
			continue
		}
		must(t, err)
		return
	}
}

func (h *harness) Position(t testing.TB, group, topic string, partition int32) (epoch.Offset, bool) {
	os, err := h.admin.FetchOffsets(context.Background(), group)
	must(t, err)
	o, ok := os.Lookup(topic, partition)
	return epoch.Offset(o.At), ok
}

func (h *harness) SetPosition(t testing.TB, group, topic string, partition int32, at epoch.Offset) {
	h.mu.Lock()
	defer h.mu.Unlock()
	CommitAsOthers(t, h.admin, h.links, group, topic, partition, at)
}
