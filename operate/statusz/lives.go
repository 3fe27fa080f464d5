package statusz

import (
	"fmt"
	"strings"

	"github.com/epochfence/epochfence/lease"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/operate/stats"
)

// This file decides from signs of life which owners are dead and which groups have no process.

// orphaned reports whether the process that has claimed a partition is dead, and describes that
// process.
func (g *groupReading) orphaned(p operate.Partition) (yes bool, sign string) {
	owner, known := g.lives.Owner(p.Fence)
	switch {
	case known && owner.Alive():
		return false, ""
	case known:
		return true, "not seen for " + age(owner.Now.Sub(owner.Seen)) + ", and no process has claimed the partition since"
	default:
		return true, "it gives no sign of life, and no process has claimed the partition since"
	}
}

// deserted describes the groups without a live process. A group of which this process holds a
// partition has one.
func (g *groupReading) deserted(held []stats.Partition) (said []string) {
	seen := map[string]bool{}
	for _, p := range held {
		seen[p.Partition.Group] = true
	}
	for _, p := range g.partitions {
		group := p.Fence.Partition.Group
		if seen[group] || p.Log == lease.FenceLog { // in another database, too
			continue
		}
		seen[group] = true
		if g.lives.Alive(group) > 0 {
			continue
		}
		text := fmt.Sprintf("No process of group %s is alive", show(group))
		if last, known := g.lives.Last(group); known {
			text += fmt.Sprintf("; %s on %s was seen last, %s ago", show(last.Name), show(last.Host), age(last.Now.Sub(last.Seen)))
		}
		said = append(said, text+".")
	}
	return said
}

// processes returns the number of live processes, and of dead ones that did not end in good order.
func (g *groupReading) processes() figure {
	alive := 0
	for _, p := range g.lives {
		if p.Alive() {
			alive++
		}
	}
	f := figure{Name: "Processes alive", Value: thousands(int64(alive))}
	if gone := len(g.lives) - alive; gone > 0 {
		f.Note = plural(gone, "gives no signs of life any more", "give no signs of life any more")
	}
	return f
}

func nobody(deserted []string) verdict {
	return verdict{"halted", "No live process", strings.Join(deserted[:min(len(deserted), 3)], " ") + " Start one."}
}
