package natssource

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/natstest"
)

// groupRig is a stream with partitions, and the members of a group that leases
// them.
type groupRig struct {
	t       testing.TB
	servers servers
	server  *natstest.Server    // if it is one
	js      jetstream.JetStream // the test's own
	ttl     time.Duration
	stream  Stream
	quiet   bool                        // about what members log
	logger  *slog.Logger                // of members, if not the test's
	ready   func(context.Context) error // of members that are started from now on

	mu     sync.Mutex
	grants []*grant // in order
}

func newGroupRig(t testing.TB, partitions int, ttl time.Duration) *groupRig {
	t.Helper()
	s := natstest.Start(t)
	r := newGroupRigOn(t, s, 1, partitions, ttl)
	r.server = s
	return r
}

// newClusterRig is a group on three nodes.
func newClusterRig(t testing.TB, partitions int, ttl time.Duration) (*groupRig, *natstest.Cluster) {
	t.Helper()
	c := natstest.StartCluster(t, 3)
	return newGroupRigOn(t, c, 3, partitions, ttl), c
}

func newGroupRigOn(t testing.TB, on servers, replicas, partitions int, ttl time.Duration) *groupRig {
	t.Helper()
	r := &groupRig{t: t, servers: on, ttl: ttl, stream: Stream{Name: "orders"}}
	for n := range partitions {
		r.stream.Filters = append(r.stream.Filters, fmt.Sprintf("orders.%d", n))
	}
	r.js = on.JetStream(t)
	insist(t, func(ctx context.Context) error {
		return second(r.js.CreateStream(ctx, jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders.*"}, Replicas: replicas}))
	})
	return r
}

// testMember is one process of the group. What it owns it holds until it is
// asked for it or has lost it.
type testMember struct {
	rig    *groupRig
	name   string
	source *Source
	wires  *link
	stop   context.CancelFunc
	ended  chan struct{}
	err    error // of Run

	own func(*grant) // nil for one that holds
}

// grant is one tenure as own sees it.
type grant struct {
	consumer.Tenure
	member *testMember
	ctx    context.Context
	at     time.Time
	over   chan struct{} // closed when own returns
	give   chan struct{} // closed to have own return
}

func (r *groupRig) options() Options {
	return Options{
		Group: "billing", JetStream: r.js, Streams: []Stream{r.stream}, Bucket: "leases", LeaseTTL: r.ttl,
		Logger: slog.New(slog.DiscardHandler),
	}
}

func (r *groupRig) start(name string) *testMember {
	r.t.Helper()
	return r.startWith(name, nil)
}

func (r *groupRig) startWith(name string, own func(*grant)) *testMember {
	r.t.Helper()
	m := &testMember{rig: r, name: name, wires: newLink(), ended: make(chan struct{}), own: own}
	o := r.options()
	o.JetStream, o.Name = m.wires.connect(r.t, r.servers), name
	if !r.quiet {
		o.Logger = slog.New(slog.NewTextHandler(r.t.Output(), &slog.HandlerOptions{Level: slog.LevelWarn})) // shown if the test fails
	}
	if r.logger != nil {
		o.Logger = r.logger
	}
	source, err := New(o)
	if err != nil {
		r.t.Fatal(err)
	}
	m.source = source
	source.RejoinWhen(r.ready)
	ctx, stop := context.WithCancel(context.WithoutCancel(r.t.Context()))
	m.stop = stop
	go func() {
		defer close(m.ended)
		m.err = source.Run(ctx, func(error) {}, m.hold)
	}()
	r.t.Cleanup(func() {
		m.wires.hold(false, false)
		m.stop()
		select {
		case <-m.ended:
		case <-time.After(patience):
			r.t.Errorf("Run of %s has not returned", name)
		}
	})
	return m
}

func (m *testMember) hold(ctx context.Context, t consumer.Tenure) {
	g := &grant{Tenure: t, member: m, ctx: ctx, at: time.Now(), over: make(chan struct{}), give: make(chan struct{})}
	defer close(g.over)
	m.rig.mu.Lock()
	m.rig.grants = append(m.rig.grants, g)
	m.rig.mu.Unlock()
	if m.own != nil {
		m.own(g)
		return
	}
	g.wait()
}

// wait returns when the partition is to be given up.
func (g *grant) wait() {
	select {
	case <-g.Draining():
	case <-g.ctx.Done():
	case <-g.give:
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func (g *grant) isOver() bool { return isClosed(g.over) }

func (g *grant) fence(next epoch.Offset) epoch.Fence {
	return epoch.Fence{Origin: g.Origin(), Next: next, Mark: epoch.NoMark}
}

func (g *grant) confirm(t testing.TB, next epoch.Offset) epoch.Lease {
	t.Helper()
	return g.confirmFence(t, g.fence(next))
}

func (g *grant) confirmFence(t testing.TB, f epoch.Fence) epoch.Lease {
	t.Helper()
	var lease epoch.Lease
	err := answered(func() (err error) { lease, err = g.Confirm(inTime(t), f); return err })
	if err != nil {
		t.Fatalf("Confirm: %v", err)
	}
	return lease
}

// wantLost checks that Confirm says so.
func (g *grant) wantLost(t testing.TB) {
	t.Helper()
	err := answered(func() error { return second(g.Confirm(inTime(t), g.fence(1))) })
	if !errors.Is(err, consumer.ErrLost) {
		t.Errorf("Confirm: %v, want ErrLost", err)
	}
}

// lost waits until the tenure is, and returns why.
func (g *grant) lost(t testing.TB) error {
	t.Helper()
	select {
	case <-g.ctx.Done():
	case <-time.After(patience):
		t.Fatalf("%s has not lost %s", g.member.name, g.Origin().Partition)
	}
	err := context.Cause(g.ctx)
	if !errors.Is(err, consumer.ErrLost) {
		t.Errorf("the cause is %v, want ErrLost", err)
	}
	return err
}

// leave ends Run and waits for it.
func (m *testMember) leave() {
	m.rig.t.Helper()
	m.stop()
	select {
	case <-m.ended:
	case <-time.After(patience):
		m.rig.t.Fatalf("Run of %s has not returned", m.name)
	}
	if m.err != nil {
		m.rig.t.Errorf("Run of %s: %v", m.name, m.err)
	}
}

// holding lists the tenures of m that are running.
func (m *testMember) holding() []*grant {
	m.rig.mu.Lock()
	defer m.rig.mu.Unlock()
	var gs []*grant
	for _, g := range m.rig.grants {
		if g.member == m && !g.isOver() && g.ctx.Err() == nil {
			gs = append(gs, g)
		}
	}
	return gs
}

// granted waits for a tenure of a partition that m runs.
func (m *testMember) granted(n int32) *grant {
	m.rig.t.Helper()
	var got *grant
	eventually(m.rig.t, fmt.Sprintf("%s is granted partition %d", m.name, n), func() bool {
		held := m.holding()
		i := slices.IndexFunc(held, func(g *grant) bool { return g.Origin().Partition.Number == n })
		if i >= 0 {
			got = held[i]
		}
		return got != nil
	})
	return got
}

// shared waits until each member holds as many as the numbers say, in any order.
func (r *groupRig) shared(ms []*testMember, want ...int) {
	r.t.Helper()
	slices.Sort(want)
	var now []int
	eventually(r.t, fmt.Sprintf("the partitions are shared out as %v", want), func() bool {
		now = nil
		for _, m := range ms {
			now = append(now, len(m.holding()))
		}
		slices.Sort(now)
		return slices.Equal(now, want)
	})
}
