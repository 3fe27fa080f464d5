package natssource

import (
	"errors"
	"testing"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
)

func TestABucketThatIsDeletedIsCreatedAgainAndLeasedAnew(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 3, time.Second)
	a := r.start("a")
	g := a.granted(0)
	source := g.Origin().Source
	must(t, r.js.DeleteKeyValue(inTime(t), "leases"))
	_ = g.lost(t)
	r.shared([]*testMember{a}, 3)
	if now := a.granted(0); now.Origin().Source != source {
		t.Errorf("the leases now come from %q, came from %q", now.Origin().Source, source)
	}
	b := r.start("b")
	r.shared([]*testMember{a, b}, 1, 2)
}

func TestABucketThatIsCreatedAgainBySomebodyIsNoticed(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 3, time.Second)
	a, b := r.start("a"), r.start("b")
	r.shared([]*testMember{a, b}, 1, 2)
	must(t, r.js.DeleteKeyValue(inTime(t), "leases"))
	must(t, r.bucket().create(inTime(t), 1))
	c := r.start("c")
	eventually(t, "all have one partition of the new bucket", func() bool {
		for _, m := range []*testMember{a, b, c} {
			holds := m.holding()
			if len(holds) != 1 {
				return false
			}
			if _, err := holds[0].Confirm(inASecond(t), holds[0].fence(1)); err != nil {
				return false
			}
		}
		return true
	})
}

func TestABucketThatIsRestoredFromABackupLeasesOn(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 2, 2*time.Second)
	a := r.start("a")
	var first *grant
	var number int64
	eventually(t, "a has a lease that it can confirm", func() bool { // a stall may end one
		first = a.granted(0)
		l, err := first.Confirm(inASecond(t), first.fence(1))
		number = l.Generation
		return err == nil
	})
	saved := backup(t, r.server)
	for range 20 {
		eventually(t, "the lease is confirmed", func() bool {
			_, err := first.Confirm(inASecond(t), first.fence(1))
			return err == nil || errors.Is(err, consumer.ErrLost)
		})
	}
	a.leave()
	rollBack(t, r.server, saved)
	b := r.start("b")
	r.shared([]*testMember{b}, 2)
	if now := b.granted(0).confirm(t, 1).Generation; now <= number {
		t.Errorf("number %d; the backup had gone as far as %d", now, number)
	}
}

func TestAStreamThatIsCreatedAgainIsLeasedAnewUnderAnotherLog(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 1, 20*time.Second) // no stall of the machine is to end the lease first
	a := r.start("a")
	g := a.granted(0)
	was := g.Origin()
	st, err := r.js.Stream(inTime(t), "orders")
	must(t, err)
	c := st.CachedInfo().Config
	must(t, r.js.DeleteStream(inTime(t), "orders"))
	must(t, second(r.js.CreateStream(inTime(t), c)))
	if err := g.lost(t); !errors.Is(err, errOtherStream) {
		t.Errorf("lost because of %v", err)
	}
	must(t, second(r.js.Publish(inTime(t), "orders.0", []byte("x"))))
	now := a.granted(0).Origin()
	if now.Log == was.Log || now.Source != was.Source || now.Partition != was.Partition {
		t.Errorf("origin %+v, was %+v", now, was)
	}
	if _, err := a.granted(0).Confirm(inTime(t), epoch.Fence{Origin: was}); !errors.Is(err, epoch.ErrLogChanged) {
		t.Errorf("Confirm of a fence of the old log: %v", err)
	}
	for b, err := range a.granted(0).Read(inTime(t), epoch.Fence{Origin: was, Next: 1}) {
		if len(b.Messages) > 0 || !errors.Is(err, epoch.ErrLogChanged) {
			t.Errorf("Read from a fence of the old log: %v, %v", show(b.Messages), err)
		}
	}
}
