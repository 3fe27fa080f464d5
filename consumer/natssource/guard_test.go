package natssource

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/natstest"
)

func TestAConfirmationThatComesAfterTheTenureCountsAsLost(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 1, 10*time.Second)
	m := r.start("a")
	g := m.granted(0)
	tn := m.source.running()[0]
	m.wires.hold(false, true) // so that it waits for the answer
	answer := make(chan error, 1)
	go func() {
		_, err := g.Confirm(inTime(t), g.fence(5))
		answer <- err
	}()
	eventually(t, "Confirm is under way", func() bool {
		_, known := tn.Newest()
		return known
	})
	tn.Lose(errOtherStream)
	m.wires.hold(false, false)
	err := <-answer
	if !errors.Is(err, consumer.ErrLost) {
		t.Errorf("Confirm: %v, want ErrLost", err)
	}
}

func TestPartitionsAreGivenBackOneAfterTheOther(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 4, 20*time.Second)
	slow := make(chan struct{})
	a := r.startWith("a", func(g *grant) { g.wait(); <-slow })
	r.shared([]*testMember{a}, 4)
	_ = r.start("b")
	drained := func() int {
		n := 0
		for _, g := range a.holding() {
			if isClosed(g.Draining()) {
				n++
			}
		}
		return n
	}
	eventually(t, "one is revoked", func() bool { return drained() > 0 })
	limit := time.NewTimer(3 * time.Second) // in which it balances three times
	defer limit.Stop()
	<-limit.C
	if n := drained(); n != 1 {
		t.Errorf("%d are revoked at a time", n)
	}
	close(slow)
}

func TestALeaseThatSomebodyDeletesIsLostWhenItIsConfirmed(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 1, 20*time.Second)
	g := r.start("a").granted(0)
	must(t, r.bucket().remove(inTime(t), leaseKey(0)))
	g.wantLost(t)
	select {
	case <-g.ctx.Done():
	default:
		t.Error("the tenure continues")
	}
}

func TestNoTenureBeginsBeforeTheOneBeforeItHasReturned(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 1, time.Second)
	stuck := make(chan struct{})
	m := r.startWith("a", func(g *grant) { g.wait(); <-stuck })
	g := m.granted(0)
	must(t, r.bucket().remove(inTime(t), leaseKey(0)))
	_ = g.lost(t)
	limit := time.NewTimer(3 * r.ttl)
	defer limit.Stop()
	<-limit.C
	if n := r.granted(); n != 1 {
		t.Errorf("%d tenures while the first has not returned", n)
	}
	close(stuck)
	eventually(t, "the next tenure is confirmed", func() bool { // a stall may end one
		g := m.granted(0)
		return second(g.Confirm(inASecond(t), g.fence(1))) == nil
	})
}

// Its messages follow one another as if nothing had happened.
func TestAConsumerOfARecreatedStreamIsNotBelieved(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	r := newLogRig(t, js)
	r.log.skipEvery = time.Hour
	r.publish(0, "a")
	from := r.fence(0, 2)
	must(t, js.DeleteStream(r.ctx, r.Name))
	r.create()
	r.publish(0, "x", "y", "z")
	if err := r.read(from).fails(); !errors.Is(err, epoch.ErrLogChanged) {
		t.Errorf("Read has ended with %v", err)
	}
}

// after changes what the leader says, from the second answer on.
func (r *logRig) after(first func(), change func(*jetstream.StreamInfo)) {
	answers := 0
	r.log.asking.ask = func(ctx context.Context) (*jetstream.StreamInfo, error) {
		info, err := r.log.request(ctx)
		if answers++; answers == 1 {
			first()
		} else if err == nil {
			changed := *info
			change(&changed)
			info = &changed
		}
		return info, err
	}
}

func TestWhatIsLostWhileAPartitionSettlesIsNotPassed(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	r := newLogRig(t, js)
	r.publish(0, "lost")
	last := r.publish(1, "other", "other")
	r.after(func() { must(t, r.stream().Purge(r.ctx, jetstream.WithPurgeSequence(last))) }, func(*jetstream.StreamInfo) {})
	rd := r.reader(0, 1, -1)
	wantMisfit(t, rd.skip(r.ctx, true), consumer.ErrOffsetExpired, 1, last)
	if rd.at != 1 {
		t.Errorf("the position is %d", rd.at)
	}
}

func TestNothingIsSettledAcrossAChangeOfLeaders(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	r := newLogRig(t, js)
	r.publish(1, "other", "other")
	r.after(func() {}, func(info *jetstream.StreamInfo) { info.Cluster = &jetstream.ClusterInfo{Leader: "another"} })
	rd := r.reader(0, 1, -1)
	must(t, rd.skip(r.ctx, true))
	if rd.at != 1 {
		t.Errorf("the position has passed to %d", rd.at)
	}
	must(t, rd.skip(r.ctx, true)) // by the other one
	if rd.at != 3 {
		t.Errorf("the position is %d, want 3", rd.at)
	}
}

func TestALeaderOnItsOwnIsAskedAgain(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	r := newLogRig(t, js)
	r.publish(0, "a")
	info, err := r.log.look(r.ctx)
	must(t, err)
	alone := *info
	alone.Cluster = &jetstream.ClusterInfo{Leader: "a", Replicas: []*jetstream.PeerInfo{{Active: time.Hour}, {Offline: true}}}
	if err := r.reader(0, 9, -1).fits(r.ctx, &alone); !errors.Is(err, errBehind) {
		t.Errorf("a position above its end: %v", err)
	}
	wantMisfit(t, r.reader(0, 9, -1).fits(r.ctx, info), consumer.ErrTruncated, 9, 2)
}

func TestWhatOnlyTheConsumersServerHasLetExpireIsNotHandedOn(t *testing.T) {
	t.Parallel()
	js := natstest.Start(t).JetStream(t)
	r := newLogRig(t, js)
	r.publish(0, numbered(0, 3)...)
	r.log.asking.ask = func(ctx context.Context) (*jetstream.StreamInfo, error) {
		info, err := r.log.request(ctx)
		must(t, err)
		old := *info
		old.Config.Replicas, old.Config.MaxAge = 3, time.Hour
		old.TimeStamp = old.State.FirstTime.Add(50 * time.Minute)
		return &old, nil
	}
	good, err := r.reader(0, 1, -1).verify(r.ctx, []consumer.Message{{Offset: 3}})
	if good != 0 || !errors.Is(err, errAhead) {
		t.Errorf("%d messages, %v; want errAhead", good, err)
	}
}

func TestALogIsAnotherWhenWhatItsOffsetsCountIs(t *testing.T) {
	t.Parallel()
	l := func(name string, filters ...string) *streamLog {
		return &streamLog{stream: Stream{Name: name}, filters: filters}
	}
	seen := map[string]bool{}
	for _, id := range []string{
		l("s", "a", "b").logID(incarnation{1}, 0), l("s", "a", "b").logID(incarnation{1}, 1), l("s", "a", "b").logID(incarnation{2}, 0),
		l("s", "a", "b", "c").logID(incarnation{1}, 0), l("s", "x", "b").logID(incarnation{1}, 0), l("t", "a", "b").logID(incarnation{1}, 0),
	} {
		if seen[id] {
			t.Errorf("two logs are called %s", id)
		}
		seen[id] = true
	}
}
