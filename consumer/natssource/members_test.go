package natssource

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/internal/natstest"
)

// memberKey is that of a member's registration.
func memberKey(id string) string { return newKeys("billing").member(id) }

func leaseKey(n int32) string { return newKeys("billing").lease(streamPartition{"orders", n}) }

// registration is what the leader has of one.
func (r *groupRig) registration(id string) entry {
	r.t.Helper()
	e, err := r.bucket().get(inTime(r.t), memberKey(id))
	must(r.t, err)
	return e
}

// A watcher that began in between, or whose server lags behind, may not have seen that
// the holder is registered.
func TestALeaseIsNotTakenBecauseAViewLacksItsRegistration(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 4, 20*time.Second)
	a, b := r.start("a"), r.start("b")
	r.shared([]*testMember{a, b}, 2, 2)
	grants, id := r.granted(), a.source.current().id
	for range 3 {
		b.source.view.mu.Lock()
		delete(b.source.view.now.members, id)
		b.source.view.mu.Unlock()
		b.source.balance()
		eventually(t, "the leader has said that a is registered", func() bool {
			_, known := b.source.view.snapshot().members[id]
			return known
		})
	}
	for _, g := range a.holding() {
		g.confirm(t, 1)
	}
	if now := r.granted(); now != grants || len(a.holding()) != 2 {
		t.Errorf("a holds %d, after %d more grants", len(a.holding()), now-grants)
	}
}

// The answer that there is no such key may be of a server that has not heard of it yet.
func TestARegistrationThatIsThereIsNotBuried(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 1, time.Minute)
	a := r.start("a")
	g := a.granted(0)
	before := r.registration(a.source.current().id)
	if _, err := r.bucket().bury(inTime(t), memberKey(a.source.current().id), 0); !errors.Is(err, errSwapped) {
		t.Errorf("bury = %v, want errSwapped", err)
	}
	if now := r.registration(a.source.current().id); !now.live || now.rev < before.rev {
		t.Errorf("the key holds %+v", now)
	}
	g.confirm(t, 1)
	rev, err := r.bucket().bury(inTime(t), memberKey("x"), 0)
	must(t, err)
	if e := r.registration("x"); e.live || e.rev != rev {
		t.Errorf("the key holds %+v, want our marker at %d", e, rev)
	}
	// Whoever registers late under that id is too late.
	late := newHeldKey(r.bucket(), memberKey("x"), r.ttl)
	if _, err := late.acquire(inTime(t), 0, []byte(`{"nonce":"late"}`)); !errors.Is(err, errSwapped) {
		t.Errorf("acquire = %v, want errSwapped", err)
	}
}

// All members were killed, and the markers of their registrations went too.
func TestLeasesOfAGroupThatIsLongGoneAreTaken(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 8, 20*time.Second)
	b := r.bucket()
	must(t, b.ensure(inTime(t), 1))
	for n := range int32(8) {
		must(t, second(b.swap(inTime(t), leaseKey(n), record{Member: "x", Nonce: "x"}.json(), 0, 0)))
	}
	began := time.Now()
	a := r.start("a")
	r.shared([]*testMember{a}, 8)
	if took := time.Since(began); took > r.ttl/2 {
		t.Errorf("it took %v; nothing had to run out", took)
	}
	for n := range int32(8) {
		a.granted(n).confirm(t, 1)
	}
}

// The leases look alive: nothing in their keys has changed.
func TestLeasesGoWithTheRegistrationThatTheyName(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name string
		end  func(t *testing.T, r *groupRig, id string)
	}{
		{"deleted by hand", func(t *testing.T, r *groupRig, id string) {
			kv, err := r.js.KeyValue(inTime(t), "leases")
			must(t, err)
			must(t, kv.Delete(inTime(t), memberKey(id)))
		}},
		{"purged, without a marker", func(t *testing.T, r *groupRig, id string) {
			st, err := r.js.Stream(inTime(t), "KV_leases")
			must(t, err)
			must(t, st.Purge(inTime(t), jetstream.WithPurgeSubject("$KV.leases."+memberKey(id))))
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			r := newGroupRig(t, 3, 10*time.Second)
			a := r.start("a")
			r.shared([]*testMember{a}, 3)
			old, id := a.holding(), a.source.current().id
			c.end(t, r, id)
			for _, g := range old {
				if err := g.lost(t); !errors.Is(err, errUnregistered) {
					t.Errorf("lost because of %v", err)
				}
				g.wantLost(t)
			}
			r.shared([]*testMember{a}, 3) // under another id
			if now := a.source.current().id; now == id {
				t.Errorf("it is registered as %s again", now)
			}
			b := r.start("b")
			r.shared([]*testMember{a, b}, 1, 2)
		})
	}
}

// One lost answer must not cost what all leases rest on.
func TestALostAnswerToARenewalOfTheRegistrationCostsNoLease(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 3, 20*time.Second)
	a := r.start("a")
	r.shared([]*testMember{a}, 3)
	grants, id := r.granted(), a.source.current().id
	before := r.registration(id).rev
	a.wires.hold(false, true)
	notify(a.source.changed) // renew now
	eventually(t, "the renewal has landed", func() bool { return r.registration(id).rev > before })
	a.wires.cut() // its answer is lost
	a.wires.hold(false, false)
	landed := r.registration(id).rev
	eventually(t, "the next one has landed", func() bool { return r.registration(id).rev > landed })
	for n := range int32(3) {
		a.granted(n).confirm(t, 1)
	}
	if now := r.granted(); now != grants || a.source.current().id != id {
		t.Errorf("%d more grants, registered as %s", now-grants, a.source.current().id)
	}
}

// Nothing is renewed in a lease's key, so that its holder must hear of what others do to it.
func TestAHolderHearsOfALeaseThatIsNotItsOwnAnyMore(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 1, time.Minute)
	g := r.start("a").granted(0)
	must(t, second(r.bucket().write(inTime(t), leaseKey(0), record{Member: "x", Nonce: "x"}.json())))
	if err := g.lost(t); !errors.Is(err, errTaken) {
		t.Errorf("lost because of %v", err)
	}
}

func TestAMemberThatLeavesKeepsItsLeasesUntilTheyAreGivenBack(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 2, 20*time.Second)
	slow := make(chan struct{})
	a := r.startWith("a", func(g *grant) { g.wait(); <-slow })
	r.shared([]*testMember{a}, 2)
	old := a.holding()
	b := r.start("b")
	eventually(t, "b is registered", func() bool { return len(a.source.view.snapshot().members) == 2 })
	a.stop()
	eventually(t, "a serves nothing", func() bool {
		m, known := b.source.view.snapshot().members[a.source.current().id]
		return known && len(m.Streams) == 0
	})
	for _, g := range old {
		g.confirm(t, 1)
	}
	if n := len(b.holding()); n != 0 {
		t.Errorf("b holds %d", n)
	}
	close(slow)
	r.shared([]*testMember{b}, 2)
	<-a.ended
	if e := r.registration(a.source.current().id); e.live {
		t.Error("a has left, and is registered")
	}
}

// What a backup has of a registration runs out as it would have.
func TestABucketThatIsRestoredLocksNobodyOut(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 2, 10*time.Second)
	a := r.start("a")
	r.shared([]*testMember{a}, 2)
	conn := r.js.Conn()
	saved, err := natstest.TakeBackup(inTime(t), conn, "KV_leases")
	must(t, err)
	for _, g := range a.holding() {
		g.confirm(t, 1)
	}
	a.leave()
	must(t, r.js.DeleteKeyValue(inTime(t), "leases"))
	must(t, saved.Restore(inTime(t), conn))
	if l, e := r.lease(0); !e.live || l.Member != a.source.current().id {
		t.Fatalf("the backup has %+v", l)
	}
	b := r.start("b")
	r.shared([]*testMember{b}, 2)
	for n := range int32(2) {
		b.granted(n).confirm(t, 1)
	}
}

// Its members have no reason to believe that their watches show another bucket.
func TestABucketThatIsRestoredUnderItsMembersIsReadAnew(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 2, 10*time.Second)
	a := r.start("a")
	r.shared([]*testMember{a}, 2)
	conn := r.js.Conn()
	saved, err := natstest.TakeBackup(inTime(t), conn, "KV_leases")
	must(t, err)
	b := r.start("b")
	r.shared([]*testMember{a, b}, 1, 1)
	for restored := errors.New("not yet"); restored != nil; { // a member may have created another in between
		must(t, r.js.DeleteKeyValue(inTime(t), "leases"))
		restored = saved.Restore(inTime(t), conn) // in which both are a's, and b is not registered
	}
	began := time.Now()
	first := b.holding()
	eventually(t, "b has a lease of the bucket as it is", func() bool {
		for _, g := range b.holding() {
			if _, err := g.Confirm(inASecond(t), g.fence(1)); err == nil && !slices.Contains(first, g) {
				return true
			}
		}
		return false
	})
	if took := time.Since(began); took > 4*r.ttl {
		t.Errorf("it took %v, with a TTL of %v", took, r.ttl)
	}
}

func TestAFullBucketHasRoomForARegistrationThatHasMoreToTell(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 3, 10*time.Second)
	a := r.start("a")
	r.shared([]*testMember{a}, 3)
	r.limit(func(c *jetstream.StreamConfig) { c.MaxBytes = 64 << 10 })
	r.fill()
	id := a.source.current().id
	a.source.mu.Lock()
	for _, sl := range a.source.slots {
		sl.declined = true // which the registration is to say
	}
	a.source.mu.Unlock()
	notify(a.source.changed)
	for range 2 {
		before := r.registration(id).rev
		eventually(t, "the registration is renewed", func() bool { return r.registration(id).rev > before })
	}
	for n := range int32(2) {
		a.granted(n+1).confirm(t, 1)
	}
	if now := a.source.current().id; now != id {
		t.Errorf("it is registered as %s, was %s", now, id)
	}
}

// The leader of before may answer, which has not heard of the registration.
func TestARegistrationThatAServerLacksIsNotGone(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 2, time.Minute)
	a, b := r.start("a"), r.start("b")
	r.shared([]*testMember{a, b}, 1, 1)
	id := a.source.current().id
	stale := answering(t, r.server, func(asked string, _ map[string]any) map[string]any {
		if !strings.HasPrefix(asked, "STREAM.MSG.GET.") {
			return nil
		}
		return map[string]any{"error": map[string]any{"code": 404, "err_code": 10037, "description": "no message found"}}
	})
	o := r.options()
	o.JetStream = stale
	s, err := New(o)
	must(t, err)
	if gone, err := s.isGone(inTime(t), id); gone || err != nil {
		t.Errorf("isGone = %v, %v; it is registered", gone, err)
	}
	a.holding()[0].confirm(t, 1)
}
