package kafkasource

import (
	"context"
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
)

// short makes leases short.
func short(p membership) func(*Options) {
	return with(append(p.opts, kgo.SessionTimeout(6*time.Second), kgo.HeartbeatInterval(time.Second), kgo.RebalanceTimeout(10*time.Second))...)
}

var shortNextGen = kfake.BrokerConfigs(map[string]string{
	"group.consumer.heartbeat.interval.ms": "1000", "group.consumer.session.timeout.ms": "6000",
})

// holder keeps tenures, and lets the test act on them.
type holder struct {
	*sink
	granted []*held
	over    chan struct{} // closed when the test ends
}

type held struct {
	consumer.Tenure
	ctx     context.Context
	release chan struct{}
}

func (h *holder) own(ctx context.Context, t consumer.Tenure) {
	one := &held{Tenure: t, ctx: ctx, release: make(chan struct{})}
	h.do(func() { h.granted = append(h.granted, one) })
	select {
	case <-one.release:
	case <-h.over:
	}
	h.do(func() { h.ended[t.Origin().Partition]++ })
}

// count is how many grants there were.
func (h *holder) count() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return len(h.granted)
}

// nth returns a grant, from 0.
func (h *holder) nth(n int) *held {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.granted[n]
}

// hold starts a source whose first grant is returned.
func (r *rig) hold(mod ...func(*Options)) (*holder, *held, *running) {
	r.Helper()
	h := &holder{sink: r.sink, over: make(chan struct{})}
	run := r.run(r.source(mod...), h.own)
	r.Cleanup(func() { close(h.over) })
	r.until("granted", func() bool { return len(h.granted) > 0 })
	return h, h.nth(0), run
}

func (r *rig) fence(t consumer.Tenure, next epoch.Offset) epoch.Fence {
	return epoch.Fence{Origin: t.Origin(), Next: next, Mark: epoch.NoMark, Applied: true}
}

// link is a network that can be cut off.
func (r *rig) link() *link {
	l := &link{net: r.net}
	r.Cleanup(l.thaw)
	return l
}

// groupHas waits until the group has so many members.
func (r *rig) groupHas(members int) {
	r.Helper()
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	if _, err := r.cluster.WaitGroupInfo(ctx, testGroup, func(g *kfake.GroupInfo) bool { return len(g.Members) == members }); err != nil {
		r.Fatal(err)
	}
}

// lostWithin waits for the tenure to be lost and returns how long it took.
func (r *rig) lostWithin(one *held, d time.Duration) time.Duration {
	r.Helper()
	began := time.Now()
	select {
	case <-one.ctx.Done():
	case <-time.After(d):
		r.Fatalf("not lost within %v", d)
	}
	if err := context.Cause(one.ctx); !errors.Is(err, consumer.ErrLost) {
		r.Errorf("the cause is %v, want ErrLost", err)
	}
	return time.Since(began)
}
