package sourcetest

import (
	"errors"

	"github.com/epochfence/epochfence/consumer"
)

var losing = []history{{
	claim: "a process that is cut off loses its partition to another, and hears of it when it is back",
	rules: "R7", needs: []need{needs[Freezer]()},
	story: func(w *world) {
		topic := w.newTopic(1)
		a := w.startByHand(topic)
		old := a.granted(topic, 0)
		from := old.earliest()
		old.confirm(from)
		a.freeze()
		b := w.start("b", topic)
		g := b.granted(topic, 0)
		g.confirm(from)

		a.thaw()
		old.wantLost(from)
		old.waitLost()
		old.wantLost(from) // also when it is asked again
		for _, err := range old.Read(w.ctx, from) {
			w.must(err == nil, "Read after the loss = %v, want an end without an error", err)
		}
		old.give()
	},
}, {
	claim: "a process that was cut off says that it is not in the group, and when it is again",
	needs: []need{needs[Freezer]()},
	story: func(w *world) {
		topic := w.newTopic(1)
		a := w.start("a", topic)
		a.granted(topic, 0)
		a.freeze()
		w.start("b", topic).granted(topic, 0)
		a.thaw()
		w.await("a has left and joined again", func() bool { return a.outs > 0 && a.in })
	},
}, {
	claim: "a process that was cut off is granted its share when it is back",
	needs: []need{needs[Freezer]()},
	story: func(w *world) {
		topic := w.newTopic(2)
		a := w.start("a", topic)
		a.granted(topic, 0)
		a.granted(topic, 1)
		a.freeze()
		b := w.start("b", topic)
		b.granted(topic, 0)
		b.granted(topic, 1)
		a.thaw()
		w.await("a and b have one partition each", func() bool {
			return len(a.holding()) == 1 && len(b.holding()) == 1
		})
	},
}, {
	claim: "a Confirm that was under way when the lease was lost is not answered with yes",
	rules: "R2, R7", needs: []need{needs[Freezer]()},
	story: func(w *world) {
		topic, old := w.granted()
		a := old.p
		from := old.earliest()
		a.freeze()
		answered := make(chan error, 1)
		go func() {
			_, err := old.Confirm(w.ctx, from)
			answered <- err
		}()
		w.start("b", topic).granted(topic, 0).confirm(from)
		a.thaw()
		select {
		case err := <-answered:
			if err == nil {
				w.fail("Confirm of %s = nil after another process had the partition", old.name())
			}
		case <-w.ctx.Done():
			w.fail("Confirm of %s was never answered", old.name())
		}
	},
}, {
	claim: "a Run that is told to end while it is cut off returns nil",
	needs: []need{needs[Freezer]()},
	story: func(w *world) {
		topic := w.newTopic(1)
		a := w.start("a", topic)
		a.granted(topic, 0)
		a.freeze()
		a.leave()
		w.start("b", topic).granted(topic, 0)
	},
}, {
	claim: "a process that is cut off for a moment keeps its tenure",
	needs: []need{needs[Freezer]()},
	story: func(w *world) {
		topic, g := w.granted()
		a := g.p
		a.freeze()
		a.thaw()
		g.confirm(g.earliest())
		w.produce(topic, 0, "x")
		g.want(g.earliest(), "x")
		w.never(g, "the tenure ends", g.ctx.Done())
	},
}, {
	claim: "a static member that starts again takes over at the same generation, and the first is fenced for good",
	rules: "attack: static member swap at one generation", needs: []need{needs[StaticMembers]()},
	story: func(w *world) {
		topic := w.newTopic(1)
		first := w.startAs(w.static("first", topic), []string{topic})
		old := first.granted(topic, 0)
		from := old.earliest()
		generation := old.confirm(from).Generation
		first.mayFail = true
		first.cutOff()
		second := w.startAs(w.static("second", topic), []string{topic})
		now := second.granted(topic, 0).confirm(from).Generation
		w.must(now == generation, "the generation went from %d to %d", generation, now)
		old.waitLost()
		old.wantLost(from)
		w.awaitClosed("Run of the first returns", first.ended)
		w.must(first.err != nil, "Run of a member that is fenced for good returned nil")
	},
}, {
	claim: "a partition that is taken and granted again at one generation is another tenure",
	rules: "attack: same owner, same generation, regranted", needs: []need{needs[Regranter]()},
	story: func(w *world) {
		topic, old := w.granted()
		a := old.p
		from := old.earliest()
		generation := old.confirm(from).Generation
		w.Harness.(Regranter).Regrant(w.t, a.source, topic, 0)
		old.waitLost()
		again := a.granted(topic, 0)
		w.must(again != old, "the tenure continues")
		now := again.confirm(from).Generation
		w.must(now == generation, "the harness's Regrant went from generation %d to %d", generation, now)
		_, err := old.Confirm(w.ctx, from)
		w.must(errors.Is(err, consumer.ErrLost), "Confirm of the first tenure = %v, want ErrLost", err)
	},
}}

// static returns a process with the identity of a static member, the same one for each topic.
func (w *world) static(name, topic string) *process {
	p := &process{name: name, group: group}
	p.source = w.Harness.(StaticMembers).NewStatic(w.t, groupOf(group, []string{topic}), []string{topic}, "one")
	return p
}
