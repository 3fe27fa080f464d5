package lease

import (
	"fmt"
	"testing"
	"time"
)

// BenchmarkPlan is one decision of one member in a group of 10,000 partitions and 100
// members: as it starts, as one member has gone, and at rest. Each change of a lease in the bucket
// may ask for one, and those that come meanwhile are one.
func BenchmarkPlan(b *testing.B) {
	const partitions, members = 10_000, 100
	begin := func() *group {
		g := &group{
			members: map[string]memberRecord{}, held: map[Resource]string{}, free: map[Resource]time.Duration{}, busy: map[Resource]bool{},
			grace: time.Second, idle: 30 * time.Second,
		}
		for m := range members {
			g.members[fmt.Sprintf("member%02d", m)] = memberRecord{Serves: map[string]int32{"orders": partitions}}
		}
		return g
	}
	for _, c := range []struct {
		name string
		held int // by how many members, evenly
	}{{"all is free", 0}, {"one has gone", members - 1}, {"at rest", members}} {
		g := begin()
		for n := range int32(partitions) {
			p := Resource{"orders", n}
			if m := int(n) % members; m < c.held {
				g.held[p] = fmt.Sprintf("member%02d", m)
			} else {
				g.free[p] = 0
			}
		}
		if c.held == members-1 {
			delete(g.members, fmt.Sprintf("member%02d", members-1))
		}
		b.Run(c.name, func(b *testing.B) {
			for b.Loop() {
				g.plan("member00")
			}
		})
	}
}
