package natssource

import (
	"testing"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

func TestAPositionThatWasPublishedUnderAClaimOfAnotherSinkIsTold(t *testing.T) {
	t.Parallel()
	r := newGroupRig(t, 1, time.Minute)
	before := r.start("a")
	g := before.granted(0)
	claimed := g.fence(1)
	claimed.Epoch = 7
	g.confirmFence(t, claimed)
	before.leave()

	g = r.start("b").granted(0)
	ours := g.fence(1)
	for e, want := range map[epoch.Epoch]bool{6: true, 7: false, 8: false} {
		ours.Epoch = e
		g.confirmFence(t, ours)
		if at, is := g.Tenure.(*tenure).PublishedElsewhere(); is != want || is && at.Epoch != 7 {
			t.Errorf("under epoch %d: published elsewhere: %v, %+v; want %v", e, is, at, want)
		}
	}
}
