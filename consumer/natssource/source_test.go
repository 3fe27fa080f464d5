package natssource

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/internal/servers/natstest"
	"github.com/epochfence/epochfence/internal/text/process"
	"github.com/epochfence/epochfence/lease"
)

func TestMembersShareOutAndAMemberThatLeavesLeavesAllToOthersAtOnce(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 7, 20*time.Second)
	a := r.start("a")
	r.shared([]*testMember{a}, 7)
	b := r.start("b")
	r.shared([]*testMember{a, b}, 3, 4)
	c := r.start("c")
	r.shared([]*testMember{a, b, c}, 2, 2, 3)
	began := time.Now()
	b.leave()
	r.shared([]*testMember{a, c}, 3, 4)
	if took := time.Since(began); took > r.ttl/2 {
		t.Errorf("it took %v until b's partitions were with others; nothing had to run out", took)
	}
}

func TestTheLeaseTellsPeopleWhoHoldsItAndWhereItStands(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 1, 20*time.Second)
	for range 3 {
		if _, err := r.js.Publish(inTime(t), "orders.0", []byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	g := r.start("worker-1").granted(0)
	f := g.fence(2)
	f.Epoch = 9
	given := g.confirmFence(t, f)
	now, e := r.lease(0)
	if now.Owner != "worker-1@"+process.Name() || now.Member != g.member.id() || int64(e.rev) != given.Generation {
		t.Errorf("the key holds %+v at %d, the lease is %+v", now, e.rev, given)
	}
	if given.Owner != now.Owner+"/"+now.Member || given.Origin != g.Origin() {
		t.Errorf("the lease is %+v", given)
	}
	poll(t, "the position of the claim is in its key", func() bool { // a claim does not wait for it
		at, ok, err := g.member.source.mirrored(inTime(t), lease.Resource{Name: "orders"})
		must(t, err)
		return ok && at.Next == 2 && at.Epoch == 9
	})
}

func TestConfirmIsARenewalWithALaterNumber(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 1, 20*time.Second)
	g := r.start("a").granted(0)
	last := int64(0)
	for range 10 {
		if lease := g.confirm(t, 1); lease.Generation <= last {
			t.Fatalf("number %d after %d", lease.Generation, last)
		} else {
			last = lease.Generation
		}
	}
}

func TestALeaseWhoseTTLRanOutOnOurClockIsLost(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 1, 5*time.Second)
	m := r.start("a")
	g := m.granted(0)
	// The server takes the renewals, only its answers do not arrive: as far as
	// it is concerned the lease continues.
	g.confirm(t, 1)
	pulse := r.pulse()
	cut := time.Now()
	m.wires.hold(false, true)
	err := g.lost(t)
	if !errors.Is(err, consumer.ErrLeaseExpired) {
		t.Errorf("lost because of %v, want that it ran out", err)
	}
	if took, stalled := time.Since(cut), pulse.Stalled(); took > r.ttl+stalled {
		t.Errorf("lost after %v, with a TTL of %v, on a machine that stalled for %v at most", took, r.ttl, stalled)
	}
	g.wantLost(t)
	// When it is back, what the bucket still has under our name is ours to use.
	m.wires.hold(false, false)
	again := m.granted(0)
	again.confirm(t, 1)
}

func TestAConnectionThatIsLostForAMomentCostsNoLease(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 2, 20*time.Second)
	m := r.start("a")
	gs := []*grant{m.granted(0), m.granted(1)}
	for range 5 {
		m.wires.cut()
		eventually(t, "the lease is confirmed", func() bool {
			_, err := gs[0].Confirm(inASecond(t), gs[0].fence(1))
			if errors.Is(err, consumer.ErrLost) {
				t.Fatal(err)
			}
			return err == nil
		})
	}
	for _, g := range gs {
		g.confirm(t, 1)
		if g.ctx.Err() != nil || g.isOver() {
			t.Errorf("the tenure of %s has ended", g.Origin().Partition)
		}
	}
}

func TestAServerThatRestartsCostsNoLease(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 2, 20*time.Second)
	m := r.start("a")
	gs := []*grant{m.granted(0), m.granted(1)}
	must(t, r.server.Stop())
	must(t, r.server.Start())
	for _, g := range gs {
		eventually(t, "the lease is confirmed", func() bool {
			_, err := g.Confirm(inASecond(t), g.fence(1))
			if errors.Is(err, consumer.ErrLost) {
				t.Fatal(err)
			}
			return err == nil
		})
	}
}

func TestAMemberThatIsCutOffIsReplacedAndDoesNotComeBackToItsOldTenure(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 3, 2*time.Second)
	a := r.start("a")
	old := []*grant{a.granted(0), a.granted(1), a.granted(2)}
	a.wires.hold(true, true)
	cut := time.Now()
	b := r.start("b")
	r.shared([]*testMember{b}, 3)
	if took := time.Since(cut); took > 10*r.ttl {
		t.Errorf("taken over after %v, with a TTL of %v", took, r.ttl)
	}
	a.wires.hold(false, false)
	for _, g := range old {
		_ = g.lost(t)
		g.wantLost(t)
	}
	r.shared([]*testMember{a, b}, 1, 2)
}

func TestOfAMemberThatLeftItsLastTenureTheNewestPositionIsPublished(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 1, 20*time.Second)
	m := r.start("a")
	g := m.granted(0)
	g.confirm(t, 1)
	eventually(t, "the position of the claim is published", func() bool {
		at, ok, err := m.source.mirrored(inTime(t), lease.Resource{Name: "orders"})
		return err == nil && ok && at.Next == 1
	})
	g.Mirror(g.fence(77))
	m.leave()
	at, ok, err := m.source.mirrored(inTime(t), lease.Resource{Name: "orders"})
	if err != nil || !ok || at.Next != 77 {
		t.Errorf("the position is %+v, %v, %v", at, ok, err)
	}
	if _, e := r.lease(0); e.live || e.rev == 0 {
		t.Errorf("the lease was not released: %+v", e)
	}
}

func TestADrainThatOverrunsIsCancelled(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 2, 6*time.Second)
	stuck := make(chan struct{})
	a := r.startWith("a", func(g *grant) { <-g.ctx.Done(); <-stuck })
	t.Cleanup(func() { close(stuck) })
	first, second := a.granted(0), a.granted(1)
	b := r.start("b")
	var taken *grant
	eventually(t, "b has its share", func() bool {
		held := b.holding()
		if len(held) == 1 {
			taken = held[0]
		}
		return taken != nil
	})
	overrun := first
	if taken.Origin().Partition.Number == 1 {
		overrun = second
	}
	if err := overrun.lost(t); !errors.Is(err, consumer.ErrDrainOverrun) {
		t.Errorf("lost because of %v", err)
	}
	taken.confirm(t, 1)
}

func TestWhatOwnGivesUpIsLeftToOthersUntilTheMembersChange(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 2, 20*time.Second)
	a := r.start("a")
	given := a.granted(0)
	kept := a.granted(1)
	close(given.give)
	eventually(t, "the partition is released", func() bool { _, e := r.lease(0); return !e.live })
	eventually(t, "the others are told", func() bool {
		return bytes.Contains(r.registration(a.id()).value, []byte(`"declined":["orders/0"]`))
	})
	b := r.start("b")
	b.granted(0)
	if kept.isOver() {
		t.Error("the other tenure has ended, too")
	}
	b.leave()
	a.granted(0)
}

func TestAConnectionThatIsClosedEndsRunAndSaysSo(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 2, 3*time.Second)
	m := r.start("a")
	g := m.granted(0)
	m.source.JetStream.Conn().Close()
	_ = g.lost(t)
	select {
	case <-m.ended:
	case <-time.After(patience):
		t.Fatal("Run continues")
	}
	if !errors.Is(m.err, nats.ErrConnectionClosed) {
		t.Errorf("Run: %v, want nats.ErrConnectionClosed", m.err)
	}
	m.err = nil
}

func TestALeaseOfOursThatNoTenureHoldsIsUsedOrReleased(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 2, 10*time.Second) // for which no member stalls, however busy the machine is
	a := r.start("a")
	const at = 0
	g := a.granted(at)
	close(g.give) // declined, so that what comes is released rather than used
	eventually(t, "the partition is released", func() bool { _, x := r.lease(at); return !x.live })
	land := func() {
		_, x := r.lease(at)
		late, err := json.Marshal(record{Owner: "a", Member: a.id(), Nonce: "late"})
		must(t, err)
		kv, err := r.js.KeyValue(inTime(t), "leases")
		must(t, err)
		must(t, second(kv.Update(inTime(t), leaseKey(at), late, x.rev)))
	}
	land()
	eventually(t, "the late lease is released", func() bool { _, x := r.lease(at); return !x.live })
	land()
	c := r.start("c") // as members change, a wants the partition again, or c has it
	eventually(t, "somebody has a tenure of it", func() bool {
		for _, g := range append(a.holding(), c.holding()...) {
			if g.Origin().Partition.Number == at {
				return true
			}
		}
		return false
	})
}

func TestWhatIsGivenBackAndNotTakenCostsOnePartitionARestAndNoMore(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 4, 2*time.Second)
	var given counted
	r.logger = slog.New(slog.NewTextHandler(&given, nil))
	a := r.start("a")
	r.shared([]*testMember{a}, 4)
	// Somebody who is registered, renews that for ever, and takes nothing.
	data := []byte(`{"name":"idle","serves":{"orders":4}}`)
	r.put(memberKey("idle"), data)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	var renewing sync.WaitGroup
	renewing.Go(func() {
		for tick := time.NewTicker(r.ttl / 3); ; {
			select {
			case <-tick.C:
				_, _ = r.bucket().write(ctx, memberKey("idle"), data)
			case <-ctx.Done():
				return
			}
		}
	})
	t.Cleanup(func() { stop(); renewing.Wait() })
	eventually(t, "a gives a partition back", func() bool { return given.n.Load() > 0 })
	// On a busy machine a may stall while it would notice that nobody takes the partition, or the other's
	// renewal may: then it gives another one back.
	for stalls := 0; ; stalls++ {
		if stalls == 6 {
			t.Fatal("a continues losing leases or giving them back")
		}
		r.shared([]*testMember{a}, 4)
		grants, gave := r.granted(), given.n.Load()
		timer := time.NewTimer(4 * r.ttl)
		<-timer.C
		lost := len(a.holding()) < 4
		again, more := r.granted()-grants, int(given.n.Load()-gave)
		if again > more || lost && more == 0 {
			t.Logf("a stalled for so long that it lost leases: %d grants more", again)
			continue
		}
		if more == 0 {
			break
		}
		t.Logf("a has given %d more back", more)
	}
	// When the members change, a shares again.
	b := r.start("b")
	eventually(t, "b has its share", func() bool { return len(b.holding()) >= 1 })
}

// counted counts the lines that tell of a partition that is given back.
type counted struct{ n atomic.Int64 }

func (c *counted) Write(line []byte) (int, error) {
	if bytes.Contains(line, []byte("giving a resource back")) {
		c.n.Add(1)
	}
	return len(line), nil
}

func TestAServerThatIsNotThereEndsRunAfterStartTimeoutAndSaysSo(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 1, time.Second)
	o := r.options()
	o.StartTimeout = time.Second
	s, err := New(o)
	must(t, err)
	must(t, r.server.Stop())
	began := time.Now()
	err = s.Run(inTime(t), func(error) {}, func(context.Context, consumer.Tenure) { t.Error("granted") })
	if err == nil || !strings.Contains(err.Error(), "not reached within 1s") {
		t.Errorf("Run: %v", err)
	}
	if took := time.Since(began); took > 30*time.Second {
		t.Errorf("it took %v", took)
	}
	must(t, r.server.Start())
}

// lines gets each line that is logged.
type lines chan string

func (l lines) Write(p []byte) (int, error) {
	l <- string(p)
	return len(p), nil
}

func TestAServerThatIsWaitedForIsNamedInTheLogOnce(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 1, time.Second)
	must(t, r.server.Stop())
	conn, err := nats.Connect(r.server.URL(), nats.RetryOnFailedConnect(true), nats.MaxReconnects(-1))
	must(t, err)
	t.Cleanup(conn.Close)
	o := r.options()
	o.JetStream, err = jetstream.New(conn)
	must(t, err)
	said := make(lines, 100)
	o.Logger = slog.New(slog.NewTextHandler(said, nil))
	s, err := New(o)
	must(t, err)
	ctx, stop := context.WithCancel(inTime(t))
	ended := make(chan error, 1)
	go func() {
		ended <- s.Run(ctx, func(error) {}, func(context.Context, consumer.Tenure) { t.Error("granted") })
	}()
	select {
	case line := <-said:
		if !strings.Contains(line, r.server.URL()) || !strings.Contains(line, "disconnected") {
			t.Errorf("it does not say what is waited for, and why: %s", line)
		}
	case err := <-ended:
		t.Fatalf("Run: %v", err)
	case <-time.After(patience):
		t.Fatal("nothing is said")
	}
	stop()
	must(t, <-ended)
	must(t, r.server.Start())
}

func TestCredentialsThatAreRefusedEndRunAndAreNamed(t *testing.T) {
	t.Parallel()
	s := natstest.Start(t, withUser(nil, nil, nil))
	conn, err := nats.Connect(s.URL(), nats.UserInfo("user", "wrong"), nats.RetryOnFailedConnect(true),
		nats.MaxReconnects(-1), nats.ReconnectWait(10*time.Millisecond))
	must(t, err)
	t.Cleanup(conn.Close)
	js, err := jetstream.New(conn)
	must(t, err)
	source, err := New(Options{
		Group: "billing", JetStream: js, Streams: []Stream{{Name: "orders"}}, StartTimeout: patience, Logger: slog.New(slog.DiscardHandler),
	})
	must(t, err)
	err = source.Run(inTime(t), func(error) {}, func(context.Context, consumer.Tenure) { t.Error("granted") })
	if !errors.Is(err, nats.ErrAuthorization) || !strings.Contains(err.Error(), "refuses the credentials") || strings.Contains(err.Error(), "wrong") {
		t.Errorf("Run: %v", err)
	}
}

func TestAServerThatComesUpInTimeIsWaitedFor(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 1, 20*time.Second)
	s, err := New(r.options())
	must(t, err)
	must(t, r.server.Stop())
	ctx, stop := context.WithCancel(inTime(t))
	granted, ended := make(chan struct{}), make(chan error)
	go func() {
		ended <- s.Run(ctx, func(error) {}, func(_ context.Context, tn consumer.Tenure) {
			close(granted)
			<-tn.Draining()
		})
	}()
	select {
	case err := <-ended:
		t.Fatalf("Run: %v", err)
	case <-time.After(300 * time.Millisecond):
	}
	must(t, r.server.Start())
	<-granted
	stop()
	must(t, <-ended)
}

func TestTwoGroupsShareABucket(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 2, 20*time.Second)
	a := r.start("a")
	r.shared([]*testMember{a}, 2)
	o := r.options()
	o.Group = "billing.lease" // whose keys might be taken for those of the other
	s, err := New(o)
	must(t, err)
	ctx, stop := context.WithCancel(inTime(t))
	granted := make(chan int32, 2)
	ended := make(chan error)
	go func() {
		ended <- s.Run(ctx, func(error) {}, func(ctx context.Context, tn consumer.Tenure) {
			granted <- tn.Origin().Partition.Number
			<-tn.Draining()
		})
	}()
	if x, y := <-granted, <-granted; x == y {
		t.Errorf("partitions %d and %d", x, y)
	}
	stop()
	must(t, <-ended)
	r.shared([]*testMember{a}, 2)
	if n := r.granted(); n != 2 {
		t.Errorf("the other group has moved partitions of this one: %d grants", n)
	}
}

func TestRunIsForOnce(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 1, 20*time.Second)
	m := r.start("a")
	m.granted(0)
	if err := m.source.Run(inTime(t), func(error) {}, m.hold); err == nil {
		t.Error("a second Run began")
	}
}
