package natssource

import (
	"errors"
	"testing"
	"time"

	"github.com/epochfence/epochfence/consumer"
)

func TestOnAClusterLeasesOutliveStepDownsAndRestarts(t *testing.T) {
	t.Parallel()
	r, c := newClusterRig(t, 8, 40*time.Second)
	a, b := r.start("a"), r.start("b")
	r.shared([]*testMember{a, b}, 4, 4)
	grants := r.granted()
	confirmed := func(what string) {
		for _, m := range []*testMember{a, b} {
			for _, g := range m.holding() {
				eventually(t, what+": the lease is confirmed", func() bool {
					_, err := g.Confirm(inASecond(t), g.fence(1))
					if errors.Is(err, consumer.ErrLost) {
						t.Fatalf("%s: %v", what, err)
					}
					return err == nil
				})
			}
		}
	}
	for range 4 {
		eventually(t, "the leader of the bucket steps down", func() bool { return c.StepDown("KV_leases") == nil })
		confirmed("after a step-down")
	}
	for n := range c.Nodes() {
		must(t, c.Stop(n))
		confirmed("without a node")
		must(t, c.Start(n))
		must(t, c.Await(inTime(t)))
	}
	confirmed("in the end")
	if now := r.granted(); now != grants || len(a.holding()) != 4 || len(b.holding()) != 4 {
		t.Errorf("%d and %d held, after %d more grants", len(a.holding()), len(b.holding()), now-grants)
	}
}
