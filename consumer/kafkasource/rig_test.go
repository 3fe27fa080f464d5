package kafkasource

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
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
	synctest.Test(t, func(t *testing.T) { f(newRig(t, partitions, opts...)) })
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
		p.err = s.Run(ctx, own)
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

// sink keeps fences and what was applied, as a database would.
type sink struct {
	mu      sync.Mutex
	changed chan struct{}
	fences  epoch.Fences
	applied map[epoch.Partition][]epoch.Offset
	claims  map[epoch.Partition][]epoch.Fence
	errs    map[epoch.Partition][]error
	ended   map[epoch.Partition]int
}

func newSink() *sink {
	return &sink{
		changed: make(chan struct{}), fences: epoch.Fences{},
		applied: map[epoch.Partition][]epoch.Offset{}, claims: map[epoch.Partition][]epoch.Fence{},
		errs: map[epoch.Partition][]error{}, ended: map[epoch.Partition]int{},
	}
}

// do changes the sink, and tells those who wait.
func (s *sink) do(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
	close(s.changed)
	s.changed = make(chan struct{})
}

// until waits for cond, which is called with the sink locked.
func (r *rig) until(what string, cond func() bool) {
	r.Helper()
	limit := time.After(patience)
	for {
		r.sink.mu.Lock()
		ok, changed := cond(), r.sink.changed
		r.sink.mu.Unlock()
		if ok {
			return
		}
		select {
		case <-changed:
		case <-limit:
			r.Fatalf("timed out waiting until %s", what)
		}
	}
}

func part(n int32) epoch.Partition {
	return epoch.Partition{Group: testGroup, Topic: testTopic, Number: n}
}

// worker is what consumer.Run does, without what these tests do not need.
type worker struct {
	*sink
	name  string
	start consumer.StartPolicy
	gate  func(ctx context.Context, p epoch.Partition) // before a claim; may wait
	apply func(ctx context.Context, ms []consumer.Message) error
	pause time.Duration // after an error
}

func (w *worker) own(ctx context.Context, t consumer.Tenure) {
	p := t.Origin().Partition
	defer w.do(func() { w.ended[p]++ })
	for {
		err := w.claimAndConsume(ctx, t)
		if err == nil {
			return
		}
		w.do(func() { w.errs[p] = append(w.errs[p], err) })
		if errors.Is(err, consumer.ErrLost) {
			return
		}
		pause := w.pause
		if pause == 0 {
			pause = 100 * time.Millisecond
		}
		select {
		case <-time.After(pause):
		case <-t.Draining():
			return
		case <-ctx.Done():
			return
		}
	}
}

func (w *worker) claimAndConsume(ctx context.Context, t consumer.Tenure) error {
	f, err := w.claim(ctx, t)
	if err != nil {
		return err
	}
	for ms, err := range t.Read(ctx, f) {
		if err != nil {
			return err
		}
		if w.apply != nil {
			if err := w.apply(ctx, ms); err != nil {
				return err
			}
		}
		if f, err = w.advance(f, ms); err != nil {
			return err
		}
		t.Mirror(f)
	}
	return nil
}

func (w *worker) claim(ctx context.Context, t consumer.Tenure) (epoch.Fence, error) {
	p := t.Origin().Partition
	if w.gate != nil {
		w.gate(ctx, p)
	}
	w.mu.Lock()
	seen, err := w.fences.Read(p)
	w.mu.Unlock()
	if errors.Is(err, epoch.ErrMissing) {
		starts, err := t.Starts(ctx, w.start)
		if err != nil {
			return seen, err
		}
		w.mu.Lock()
		err = w.fences.Seed(starts)
		if err == nil {
			seen, err = w.fences.Read(p)
		}
		w.mu.Unlock()
		if err != nil {
			return seen, err
		}
	}
	if err := seen.Check(t.Origin()); err != nil {
		return seen, err
	}
	lease, err := t.Confirm(ctx, seen)
	if err != nil {
		return seen, err
	}
	var got epoch.Fence
	w.do(func() {
		if got, err = w.fences.Claim(seen, epoch.NewClaim(lease)); err == nil {
			w.claims[p] = append(w.claims[p], got)
		}
	})
	return got, err
}

func (w *worker) advance(f epoch.Fence, ms []consumer.Message) (epoch.Fence, error) {
	last := ms[len(ms)-1]
	a := epoch.Advance{Partition: f.Partition, Claim: f.Claim, From: f.Next, To: last.Offset + 1, LeaderEpoch: last.LeaderEpoch}
	next, err := f.Advanced(a)
	if err != nil {
		return f, err
	}
	w.do(func() {
		if err = w.fences.Advance([]epoch.Advance{a}); err == nil {
			for _, m := range ms {
				w.applied[f.Partition] = append(w.applied[f.Partition], m.Offset)
			}
		}
	})
	return next, err
}

// fence, errors and others look at the sink while workers run.
func (s *sink) fence(p epoch.Partition) epoch.Fence {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fences[p]
}

func (s *sink) errors(p epoch.Partition) []error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.errs[p])
}

func (s *sink) offsets(p epoch.Partition) []epoch.Offset {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.applied[p])
}

func (s *sink) count(p epoch.Partition) (claims, ended int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.claims[p]), s.ended[p]
}

// exactly reports whether the offsets 0 to n-1 were applied, once each and in
// order.
func (s *sink) exactly(p epoch.Partition, n int) bool {
	if len(s.applied[p]) != n {
		return false
	}
	for i, o := range s.applied[p] {
		if o != epoch.Offset(i) {
			return false
		}
	}
	return true
}

func (s *sink) owners() []string {
	owners := map[string]bool{}
	for _, f := range s.fences {
		owners[f.Owner] = true
	}
	return slices.Sorted(maps.Keys(owners))
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
