package kafkasource

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/internal/suites/bubble"
)

const (
	testGroup = "billing"
	testTopic = "orders"

	// patience is how long a test waits for what must happen, in virtual time.
	patience = 5 * time.Minute
)

// rig is a cluster on a network in memory, and a sink.
type rig struct {
	*testing.T
	net     *kfake.VirtualNetwork
	cluster *kfake.Cluster
	admin   *kadm.Client
	kafka   *kgo.Client // produces, and asks
	sink    *sink
}

// virtually runs a test against a cluster in a bubble of virtual time.
func virtually(t *testing.T, partitions int32, f func(*rig), opts ...kfake.Opt) {
	t.Helper()
	bubble.Test(t, func(t *testing.T) { f(newRig(t, partitions, opts...)) })
}

func newRig(t *testing.T, partitions int32, opts ...kfake.Opt) *rig {
	t.Helper()
	r := &rig{T: t, net: &kfake.VirtualNetwork{}, sink: newSink()}
	opts = append([]kfake.Opt{
		kfake.ListenFn(r.net.Listen), kfake.Ports(9001, 9002), kfake.ClusterID("one"),
		kfake.SeedTopics(partitions, testTopic), kfake.GroupMinSessionTimeout(time.Second),
		kfake.BrokerConfigs(map[string]string{"group.consumer.heartbeat.interval.ms": "5000"}),
	}, opts...)
	var err error
	if r.cluster, err = kfake.NewCluster(opts...); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.cluster.Close)
	r.kafka = r.client(kgo.RecordPartitioner(kgo.ManualPartitioner()))
	r.admin = kadm.NewClient(r.kafka)
	return r
}

func (r *rig) reachable() []kgo.Opt {
	return []kgo.Opt{kgo.SeedBrokers("127.0.0.1:9001"), kgo.Dialer(r.net.DialContext)}
}

func (r *rig) client(opts ...kgo.Opt) *kgo.Client {
	r.Helper()
	cl, err := kgo.NewClient(append(r.reachable(), opts...)...)
	if err != nil {
		r.Fatal(err)
	}
	r.Cleanup(cl.Close)
	return cl
}

// produce appends n messages to a partition, whose values count on.
func (r *rig) produce(partition int32, n int) {
	r.Helper()
	r.produceTo(testTopic, partition, n)
}

func (r *rig) produceTo(topic string, partition int32, n int) {
	r.Helper()
	var records []*kgo.Record
	for i := range n {
		records = append(records, &kgo.Record{
			Topic: topic, Partition: partition, Key: []byte("key"), Value: fmt.Append(nil, i),
			Headers: []kgo.RecordHeader{{Key: "h", Value: []byte("v")}},
		})
	}
	if err := r.kafka.ProduceSync(r.Context(), records...).FirstErr(); err != nil {
		r.Fatal(err)
	}
}

func (r *rig) source(mod ...func(*Options)) *Source {
	r.Helper()
	o := Options{
		Group: testGroup, Topics: []string{testTopic}, Client: r.reachable(),
		Logger: slog.New(slog.NewTextHandler(r.Output(), &slog.HandlerOptions{Level: slog.LevelDebug})),
	}
	for _, m := range mod {
		m(&o)
	}
	s, err := New(o)
	if err != nil {
		r.Fatal(err)
	}
	return s
}

func with(opts ...kgo.Opt) func(*Options) {
	return func(o *Options) { o.Client = append(slices.Clone(o.Client), opts...) }
}

// running is one Run under way.
type running struct {
	*rig
	cancel context.CancelFunc
	done   chan struct{}
	err    error
}

func (r *rig) run(s *Source, own func(context.Context, consumer.Tenure)) *running {
	r.Helper()
	ctx, cancel := context.WithCancel(r.Context())
	p := &running{rig: r, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(p.done)
		p.err = s.Run(ctx, func(error) {}, own)
	}()
	r.Cleanup(func() {
		cancel()
		<-p.done
	})
	return p
}

// stop ends a Run as SIGTERM would, and returns what it returned.
func (p *running) stop() error {
	p.Helper()
	p.cancel()
	return p.wait()
}

func (p *running) wait() error {
	p.Helper()
	select {
	case <-p.done:
		return p.err
	case <-time.After(patience):
		p.Fatal("Run did not return")
		return nil
	}
}

// committed is what the group has for a partition.
func (r *rig) committed(n int32) int64 {
	r.Helper()
	os, err := r.admin.FetchOffsets(r.Context(), testGroup)
	if err != nil {
		r.Fatal(err)
	}
	o, ok := os.Lookup(testTopic, n)
	if !ok {
		return -1
	}
	return o.At
}
