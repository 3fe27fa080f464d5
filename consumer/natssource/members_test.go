package natssource

import (
	"bytes"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/epochfence/epochfence/internal/servers/natstest"
	"github.com/epochfence/epochfence/lease"
)

// Nothing is renewed in a lease's key, so that its holder must hear of what others do to it.
func TestAHolderHearsOfALeaseThatIsNotItsOwnAnyMore(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 1, time.Minute)
	g := r.start("a").granted(0)
	must(t, second(r.bucket().write(inTime(t), leaseKey(0), []byte(`{"member":"x","nonce":"x"}`))))
	if err := g.lost(t); !errors.Is(err, lease.ErrLost) {
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
	eventually(t, "a is asked for its surplus", func() bool { return slices.ContainsFunc(old, func(g *grant) bool { return isClosed(g.Draining()) }) })
	a.stop()
	eventually(t, "a serves nothing", func() bool {
		e := r.registration(a.id())
		return e.live && !bytes.Contains(e.value, []byte("serves"))
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
	if e := r.registration(a.id()); e.live {
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
	if l, e := r.lease(0); !e.live || l.Member != a.id() {
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
