package sourcetest

import "github.com/epochfence/epochfence/epoch"

func (g *grant) published(at epoch.Offset) func() bool {
	w, o := g.p.w, g.Origin()
	return func() bool {
		now, ok := w.Harness.(Positions).Position(w.t, o.Partition.Group, o.Partition.Topic, o.Partition.Number)
		return ok && now == at
	}
}

var publishing = []history{{
	claim: "Confirm publishes the position it is given",
	rules: "R8", needs: []need{needs[Positions]()},
	story: func(w *world) {
		topic := w.newTopic(2)
		w.produce(topic, 0, numbered(0, 0, 10)...)
		g := w.start("a", topic).granted(topic, 0)
		ms := g.read(g.earliest(), 10)
		for _, i := range []int{2, 7} {
			f := after(g.at(0), ms[i])
			g.confirm(f)
			g.poll("the position is published", g.published(f.Next))
		}
	},
}, {
	claim: "a mirrored position is published, the newest at the latest when the tenure ends",
	rules: "R8", needs: []need{needs[Positions]()},
	story: func(w *world) {
		_, g := w.granted(numbered(0, 0, 100)...)
		a := g.p
		ms := g.read(g.earliest(), 100)
		g.confirm(g.earliest())
		for _, m := range ms[:50] {
			g.Mirror(after(g.at(0), m))
		}
		g.poll("the position is published", g.published(ms[49].Offset+1))
		for _, m := range ms[50:] {
			g.Mirror(after(g.at(0), m))
		}
		a.leave()
		g.poll("the last position is published", g.published(ms[99].Offset+1))
	},
}, {
	claim: "a position mirrored by a process that has lost the partition is not published",
	rules: "R8", needs: []need{needs[Positions](), needs[Freezer]()},
	story: func(w *world) {
		topic := w.newTopic(1)
		w.produce(topic, 0, numbered(0, 0, 10)...)
		a := w.startByHand(topic)
		old := a.granted(topic, 0)
		ms := old.read(old.earliest(), 10)
		a.freeze()
		old.Mirror(after(old.at(0), ms[1]))
		b := w.start("b", topic)
		g := b.granted(topic, 0)
		g.confirm(after(g.at(0), ms[5]))
		g.poll("the new position is published", g.published(ms[5].Offset+1))
		a.thaw()
		old.waitLost()
		old.Mirror(after(old.at(0), ms[2]))
		old.give()
		a.leave()
		w.must(g.published(ms[5].Offset+1)(), "the position went back")
	},
}, {
	claim: "a position that the group had committed through others is not taken back before ours has passed it",
	rules: "R8", needs: []need{needs[Positions]()},
	story: func(w *world) {
		topic := w.newTopic(1)
		ms := w.scouted(topic, numbered(0, 0, 10))
		theirs := ms[6].Offset
		w.Harness.(Positions).SetPosition(w.t, groupOf(group, []string{topic}), topic, 0, theirs)
		stays := func(g *grant, when string) {
			if !g.published(theirs)() {
				at, _ := w.Harness.(Positions).Position(w.t, g.Origin().Partition.Group, topic, 0)
				w.fail("%s the group's position is %d, others had committed %d", when, at, theirs)
			}
		}
		a := w.start("a", topic)
		g := a.granted(topic, 0)
		g.confirm(g.latest()) // before it was claimed
		stays(g, "after a claim that was not made,")
		for _, m := range ms[:4] {
			g.confirm(after(g.at(0), m))
			stays(g, "after a confirmation below it,")
			g.Mirror(after(g.at(0), m))
		}
		a.leave()
		b := w.start("b", topic)
		g = b.granted(topic, 0)
		stays(g, "after a tenure whose positions were all below it,")
		if at, ok := g.committed(); !ok || at.Offset != theirs {
			w.fail("Committed = %+v, %v; want offset %d", at, ok, theirs)
		}
		g.confirm(after(g.at(0), ms[4]))
		stays(g, "after a confirmation below it,")
		g.Mirror(after(g.at(0), ms[8]))
		g.poll("the position has passed it", g.published(ms[8].Offset+1))
		b.leave()
		c := w.start("c", topic)
		g = c.granted(topic, 0)
		g.confirm(after(g.at(0), ms[1])) // an operator has set the fence back
		g.poll("a position below our own is published", g.published(ms[1].Offset+1))
		c.leave()
		w.Harness.(Positions).SetPosition(w.t, groupOf(group, []string{topic}), topic, 0, theirs)
		g = w.start("d", topic).granted(topic, 0)
		set := after(g.at(0), ms[2])
		set.SetUnder = set.Epoch
		g.confirm(set)
		g.poll("a position that an operator has set is published though it is below theirs", g.published(ms[2].Offset+1))
	},
}}
