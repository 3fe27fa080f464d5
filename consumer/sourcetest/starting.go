package sourcetest

import (
	"context"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/memsink"
)

var starting = []history{{
	claim: "Starts lists every partition of the topic, at its earliest and its latest message",
	rules: "R9",
	story: func(w *world) {
		topic, other := w.newTopic(3), w.newTopic(2)
		w.produce(topic, 0, "x", "y")
		w.produce(topic, 2, "z")
		w.produce(other, 0, "other")
		p := w.start("a", topic, other)
		g := p.granted(topic, 0)
		earliest, latest := g.starts(consumer.StartEarliest), g.starts(consumer.StartLatest)
		w.must(len(earliest) == 3 && len(latest) == 3, "Starts lists %d and %d partitions of 3", len(earliest), len(latest))
		for n, e := range earliest {
			l := latest[n]
			w.must(e.Next == e.Earliest && l.Earliest == e.Earliest && l.Next.Offset >= e.Next.Offset, "partition %d: earliest %+v, latest %+v", n, e, l)
		}
		g.want(g.fresh(earliest[0].Next), "x", "y")
		w.produce(topic, 0, "later")
		g.want(g.fresh(latest[0].Next), "later")
		g2 := p.granted(topic, 2)
		g2.want(g2.fresh(earliest[2].Next), "z")
		w.produce(topic, 1, "first")
		g1 := p.granted(topic, 1)
		g1.want(g1.fresh(latest[1].Next), "first")
	},
}, {
	claim: "Committed is where the group had got to, and nothing where it had committed nothing",
	rules: "R8", needs: []need{needs[Positions]()},
	story: func(w *world) {
		topic := w.newTopic(2)
		ms := w.scouted(topic, numbered(0, 0, 10))
		w.produce(topic, 1, "x")
		w.Harness.(Positions).SetPosition(w.t, groupOf(group, []string{topic}), topic, 0, ms[6].Offset)
		p := w.start("a", topic)
		g := p.granted(topic, 0)
		at, ok := g.committed()
		if !ok || at.Offset != ms[6].Offset {
			w.fail("Committed = %+v, %v; want offset %d", at, ok, ms[6].Offset)
		}
		g.want(g.fresh(at), numbered(0, 6, 10)...)
		if at, ok := p.granted(topic, 1).committed(); ok {
			w.fail("Committed = %+v of a partition that the group has not committed", at)
		}
	},
}, {
	claim: "what was published for fences that are not there is not where the group had got to",
	rules: "R9, attack: sink restored from backup", needs: []need{needs[Positions]()},
	story: func(w *world) {
		topic := w.newTopic(2)
		ms := w.scouted(topic, numbered(0, 0, 10))
		a := w.start("a", topic)
		g, other := a.granted(topic, 0), a.granted(topic, 1)
		g.confirm(after(g.at(0), ms[6])) // of another sink, or of this one before it was put back
		other.confirm(other.latest())    // for a claim that was not made
		a.leave()
		b := w.start("b", topic)
		for n := range int32(2) {
			at, ok := b.granted(topic, n).committed()
			w.must(!ok, "partition %d: Committed = %+v", n, at)
		}
	},
}, {
	claim: "a partition of which nothing was applied begins where its log begins by then",
	rules: "R9, attack: retention that passes a group which has not begun", needs: []need{needs[Trimmer]()},
	story: func(w *world) {
		all := numbered(0, 0, 10)
		topic, g := w.granted(all...)
		earliest, latest := g.earliest(), g.latest()
		ms := g.want(earliest, all...)
		w.Harness.(Trimmer).Trim(w.t, topic, 0, ms[6].Offset)
		g.want(earliest, all[6:]...)
		w.Harness.(Trimmer).Trim(w.t, topic, 0, ms[8].Offset)
		g.want(earliest, all[8:]...)
		claimed := earliest
		claimed.Epoch = 1 // under which nothing was applied, either
		g.want(claimed, all[8:]...)
		w.produce(topic, 0, numbered(0, 10, 20)...)
		more := g.want(latest, numbered(0, 10, 20)...)
		w.Harness.(Trimmer).Trim(w.t, topic, 0, more[3].Offset)
		g.want(latest, numbered(0, 13, 20)...)
		g.wantMisfit(g.at(earliest.Next), consumer.ErrOffsetExpired, more[3].Offset)
	},
}, {
	claim: "retention that passes the beginning between the first claim and the first read stops nobody",
	rules: "R9, attack: retention that passes a group which has not begun", needs: []need{needs[Trimmer]()},
	story: func(w *world) {
		topic, db := w.newTopic(1), memsink.New()
		ms := w.scouted(topic, numbered(0, 0, 10))
		s := w.run("a", db, memsink.Hooks{Claim: func(_ context.Context, _ epoch.Claim, do func() error) error {
			w.Harness.(Trimmer).Trim(w.t, topic, 0, ms[6].Offset)
			return do()
		}}, topic)
		w.applied(db, topic, 0, numbered(0, 6, 10)...)
		s.leave()
	},
}, {
	claim: "a process continues where the group had committed",
	rules: "R8, attack: a group that existed before us", needs: []need{needs[Positions]()},
	story: func(w *world) {
		topic, db := w.newTopic(2), memsink.New()
		ms := w.scouted(topic, numbered(0, 0, 10))
		w.produce(topic, 1, "x")
		w.Harness.(Positions).SetPosition(w.t, groupOf(group, []string{topic}), topic, 0, ms[6].Offset)
		s := w.run("a", db, memsink.Hooks{}, topic)
		w.applied(db, topic, 0, numbered(0, 6, 10)...)
		w.applied(db, topic, 1, "x")
		s.leave()
	},
}, {
	claim: "what the group had committed is read when a partition is claimed first, not when its topic is seen",
	rules: "R8, attack: a group that existed before us, moved over while its old consumers run", needs: []need{needs[Positions]()},
	story: func(w *world) {
		topic, db := w.newTopic(2), memsink.New()
		all := [][]string{numbered(0, 0, 10), numbered(1, 0, 10)}
		for n, values := range all {
			w.produce(topic, int32(n), values...)
		}
		old := w.startByHand(topic)
		var ms [2][]entry
		commits := func(n int32, i int) { // the old consumer does
			w.Harness.(Positions).SetPosition(w.t, groupOf(group, []string{topic}), topic, n, ms[n][i].Offset)
		}
		for n := range int32(2) {
			g := old.granted(topic, n)
			ms[n] = g.want(g.earliest(), all[n]...)
			commits(n, 3)
		}
		old.follow()
		s := w.run("b", db, memsink.Hooks{}, topic)
		first := saw(s, func(consumer.Claimed) bool { return true }).Fence.Partition.Number
		w.applied(db, topic, first, all[first][3:]...)
		other := 1 - first
		commits(other, 8)
		old.leave()
		w.applied(db, topic, other, all[other][8:]...)
		s.leave()
	},
}}

func (w *world) scouted(topic string, values []string) []entry {
	w.produce(topic, 0, values...)
	scout := w.startAs(&process{name: "scout", group: "other"}, []string{topic})
	look := scout.granted(topic, 0)
	ms := look.want(look.earliest(), values...)
	scout.leave()
	return ms
}

func (g *grant) committed() (epoch.Position, bool) {
	ctx, done := g.bound()
	defer done()
	at, ok, err := g.Committed(ctx)
	g.check(err, "Committed on %s", g.name())
	return at, ok
}

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
