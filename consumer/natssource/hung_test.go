package natssource

import (
	"sync/atomic"
	"testing"
	"time"
)

// A partition that own gave up because a handler does not return is others' to have at once, and
// this member does not take it before the handler has returned, whoever joins or leaves.
func TestAPartitionWhoseHandlerHangsIsNotTakenAgainBeforeItReturns(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 2, 20*time.Second)
	until := make(chan struct{})
	var hung, again atomic.Int32
	a := r.startWith("a", func(g *grant) {
		if g.Origin().Partition.Number == 0 && hung.Add(1) == 1 {
			g.GiveUp(until)
			return
		}
		if g.Origin().Partition.Number == 0 && !isClosed(until) {
			again.Add(1)
		}
		g.wait()
	})
	kept := a.granted(1)
	eventually(t, "the lease is released", func() bool { _, e := r.lease(0); return e.rev > 0 && !e.live })
	b := r.start("b")
	b.granted(0)
	b.leave()
	c := r.start("c") // who joins and leaves makes no difference
	c.granted(0)
	c.leave()
	if again.Load() > 0 || kept.isOver() {
		t.Errorf("taken again %d times while its handler hangs; the other partition is given up: %v", again.Load(), kept.isOver())
	}
	close(until)
	a.granted(0)
}
