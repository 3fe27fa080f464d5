package sourcetest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/epochfence/epochfence/consumer"
)

var granting = []history{{
	claim: "a member that is alone is granted every partition of every topic",
	story: func(w *world) {
		one, two := w.newTopic(1), w.newTopic(3)
		p := w.start("a", one, two)
		p.granted(one, 0)
		for n := range int32(3) {
			p.granted(two, n)
		}
	},
}, {
	claim: "a member that is granted nothing says that it has joined",
	story: func(w *world) {
		topic := w.newTopic(1)
		a, b := w.start("a", topic), w.start("b", topic)
		for _, p := range []*process{a, b} {
			w.await(p.name+" has joined", func() bool { return p.in })
		}
	},
}, {
	claim: "a tenure says which partition it is about, and its lease is a lease",
	story: func(w *world) {
		topic := w.newTopic(2)
		p := w.start("a", topic)
		for n := range int32(2) {
			g := p.granted(topic, n)
			o := g.Origin()
			w.must(o.Partition.Group == groupOf(group, []string{topic}) && o.Log != "" && o.Source != "", "origin %+v", o)
			w.must(g.Term() > 0, "a term of %v", g.Term())
			lease := g.confirm(g.earliest())
			w.must(lease.Origin == o && lease.Generation > 0 && lease.Owner != "", "Confirm of %+v returned %+v", o, lease)
		}
		if a, b := p.granted(topic, 0).Origin(), p.granted(topic, 1).Origin(); a.Source != b.Source {
			w.fail("two partitions of one group are leased from %q and %q", a.Source, b.Source)
		}
	},
}, {
	claim: "a partition is the same to whoever is granted it",
	rules: "claim CHECK",
	story: func(w *world) {
		topic := w.newTopic(1)
		a := w.start("a", topic)
		of := a.granted(topic, 0).Origin()
		a.leave()
		b := w.start("b", topic).granted(topic, 0).Origin()
		w.must(b == of, "origin %+v for one process and %+v for the next", of, b)
	},
}, {
	claim: "every partition is held by exactly one live member after joins and leaves",
	story: func(w *world) {
		topic := w.newTopic(5)
		var live []*process
		settle := func() {
			names := []string{}
			for _, p := range live {
				names = append(names, p.name)
			}
			w.await(fmt.Sprintf("five partitions are shared out among %v", names), func() bool {
				var held []int32
				for _, p := range live {
					mine := p.holding()
					if len(mine) < 5/len(live) {
						return false
					}
					for _, g := range mine {
						held = append(held, g.Origin().Partition.Number)
					}
				}
				slices.Sort(held)
				return slices.Equal(held, []int32{0, 1, 2, 3, 4})
			})
		}
		for i := range 4 {
			live = append(live, w.start(fmt.Sprint("m", i), topic))
			settle()
		}
		for _, i := range []int{2, 0, 0} {
			live[i].leave()
			live = slices.Delete(live, i, i+1)
			settle()
		}
	},
}, {
	claim: "a partition that is revoked goes to the next only when own has returned",
	rules: "R7",
	story: func(w *world) {
		topic := w.newTopic(2)
		a := w.startByHand(topic)
		a.granted(topic, 0)
		a.granted(topic, 1)
		b := w.start("b", topic)
		// The suite checks that b is not granted what a holds. A source may ask a for both.
		var asked []*grant
		w.poll("a is asked for a partition", func() bool {
			w.mu.Lock()
			defer w.mu.Unlock()
			asked = slices.DeleteFunc(slices.Clone(a.grants), func(g *grant) bool { return !g.asked() })
			return len(asked) > 0
		})
		w.never(asked[0], "own ends by itself", asked[0].ctx.Done())
		a.follow()
		w.await("b is granted a partition", func() bool { return len(b.holding()) == 1 && len(a.holding()) == 1 })
	},
}, {
	claim: "a partition that stays with its member keeps its tenure",
	rules: "R7", needs: []need{needs[Retainer]()},
	story: func(w *world) {
		topic := w.newTopic(4)
		a := w.start("a", topic)
		for n := range int32(4) {
			a.granted(topic, n)
		}
		b := w.start("b", topic)
		w.await("b has its share", func() bool { return len(b.holding()) == 2 && len(a.holding()) == 2 })
		kept := w.grantsOf(a)
		w.must(len(kept) == 4, "a was granted a partition again: %d grants of four partitions", len(kept))
		kept = slices.DeleteFunc(kept, (*grant).ending)
		w.produce(topic, kept[0].Origin().Partition.Number, "x")
		kept[0].want(kept[0].earliest(), "x")
		kept[0].confirm(kept[0].earliest())
		b.leave()
		w.await("a has everything again", func() bool { return len(a.holding()) == 4 })
		for _, g := range kept {
			w.must(!g.ending(), "%s did not keep its tenure when b left", g.name())
		}
	},
}, {
	claim: "an own that returns early does not disturb the other partitions",
	story: func(w *world) {
		topic := w.newTopic(3)
		p := w.startByHand(topic)
		early, other := p.granted(topic, 0), p.granted(topic, 1)
		p.granted(topic, 2)
		early.give()
		w.produce(topic, 1, "x", "y")
		from := other.earliest()
		ms := other.want(from, "x", "y")
		other.confirm(after(from, ms[1]))
		w.never(other, "another tenure is lost", other.ctx.Done())
		w.must(!other.asked(), "%s was revoked", other.name())
		p.leave()
	},
}, {
	claim: "an own that does nothing does not hold another partition up",
	rules: "slow claims",
	story: func(w *world) {
		topic := w.newTopic(2)
		w.produce(topic, 0, "never read")
		w.produce(topic, 1, numbered(1, 0, 100)...)
		p := w.startByHand(topic)
		p.granted(topic, 0)
		other := p.granted(topic, 1)
		other.want(other.earliest(), numbered(1, 0, 100)...)
		other.confirm(other.earliest())
	},
}, {
	claim: "a reader that stops taking messages does not hold another partition up",
	story: func(w *world) {
		topic := w.newTopic(2)
		big := make([]consumer.Message, 16)
		for i := range big {
			big[i].Value = make([]byte, 512<<10)
		}
		w.Produce(w.t, topic, 0, big...)
		w.produce(topic, 1, numbered(1, 0, 100)...)
		p := w.start("a", topic)
		slow, other := p.granted(topic, 0), p.granted(topic, 1)
		ctx, done := slow.bound()
		defer done()
		for b, err := range slow.Read(ctx, slow.earliest()) {
			w.check(err, "Read")
			slow.orderly(0, b)
			other.want(other.earliest(), numbered(1, 0, 100)...)
			w.produce(topic, 1, "more")
			other.want(other.earliest(), append(numbered(1, 0, 100), "more")...)
			break
		}
	},
}, {
	claim: "a partition that is added to a topic is granted and read from its beginning",
	rules: "R9", needs: []need{needs[PartitionAdder]()},
	story: func(w *world) {
		topic := w.newTopic(1)
		p := w.start("a", topic)
		p.granted(topic, 0)
		w.Harness.(PartitionAdder).AddPartitions(w.t, topic, 3)
		w.produce(topic, 2, "x", "y")
		g := p.granted(topic, 2)
		p.granted(topic, 1)
		starts := g.starts(consumer.StartLatest)
		w.must(len(starts) == 3, "Starts lists %d partitions of 3", len(starts))
		g.want(g.fresh(starts[2].Earliest), "x", "y")
	},
}, {
	claim: "a Run whose context ends returns nil, and others get its partitions before the lease would run out",
	rules: "release",
	story: func(w *world) {
		topic := w.newTopic(2)
		a := w.start("a", topic)
		term := a.granted(topic, 0).Term()
		b := w.start("b", topic)
		w.await("a and b have one partition each", func() bool { return len(a.holding()) == 1 && len(b.holding()) == 1 })
		a.leave()
		left := time.Now()
		b.granted(topic, 0)
		b.granted(topic, 1)
		if took := time.Since(left); took >= term {
			panic(failure{&lostError{fmt.Errorf("it took %v, and the term is %v", took, term), term}})
		}
	},
}, {
	claim: "a Run whose context has ended already returns nil and grants nothing for long",
	story: func(w *world) {
		topic := w.newTopic(1)
		p := &process{name: "a", group: group}
		w.add(p, []string{topic})
		p.run(func(ctx context.Context) error {
			ctx, stop := context.WithCancel(ctx)
			stop()
			return p.source.Run(ctx, p.member, p.hold)
		})
		w.awaitClosed("Run returns", p.ended)
		w.check(p.err, "Run")
		w.start("b", topic).granted(topic, 0)
	},
}, {
	claim: "members that come and go at any moment leave no partition behind",
	story: func(w *world) {
		topic := w.newTopic(3)
		random := rand.New(rand.NewPCG(1, 2))
		var live []*process
		for i := range 12 {
			if len(live) > 0 && (len(live) == 3 || random.IntN(2) == 0) {
				gone := random.IntN(len(live))
				live[gone].stop() // and nobody waits for it
				live = slices.Delete(live, gone, gone+1)
			}
			live = append(live, w.start(fmt.Sprint("m", i), topic))
			if random.IntN(2) == 0 {
				w.await("somebody is granted something", func() bool { return len(live[len(live)-1].grants) > 0 || len(live) > 1 })
			}
		}
		w.await("all partitions are held", func() bool {
			held := 0
			for _, p := range live {
				held += len(p.holding())
			}
			return held == 3
		})
	},
}, {
	claim: "a topic that does not exist is an error of Run",
	needs: []need{ofLogs},
	story: func(w *world) {
		missing := w.newTopic(1) + "-missing"
		p := w.startAs(&process{name: "a", group: group, mayFail: true}, []string{missing})
		w.awaitClosed("Run returns", p.ended)
		w.must(p.err != nil, "Run of a topic that does not exist returned nil")
	},
}}

func (w *world) grantsOf(p *process) []*grant {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(p.grants)
}
