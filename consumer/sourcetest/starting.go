package sourcetest

import (
	"github.com/epochfence/epochfence/consumer"
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
		if len(earliest) != 3 || len(latest) != 3 {
			w.fail("Starts lists %d and %d partitions of 3", len(earliest), len(latest))
		}
		for n, e := range earliest {
			l := latest[n]
			if e.Next != e.Earliest || l.Earliest != e.Earliest || l.Next < e.Next {
				w.fail("partition %d: earliest %+v, latest %+v", n, e, l)
			}
		}
		g.want(g.at(earliest[0].Next), "x", "y")
		w.produce(topic, 0, "later")
		g.want(g.at(latest[0].Next), "later")
		g2 := p.granted(topic, 2)
		g2.want(g2.at(earliest[2].Next), "z")
		w.produce(topic, 1, "first")
		g1 := p.granted(topic, 1)
		g1.want(g1.at(latest[1].Next), "first")
	},
}, {
	claim: "Starts begins where the group's published position is, and at the earliest message where there is none",
	rules: "R8",
	needs: []need{needs[Positions]()},
	story: func(w *world) {
		topic := w.newTopic(2)
		all := numbered(0, 0, 10)
		w.produce(topic, 0, all...)
		w.produce(topic, 1, "x")
		scout := w.startAs(&process{name: "scout", group: "other"}, []string{topic})
		look := scout.granted(topic, 0)
		ms := look.want(look.earliest(), all...)
		scout.leave()

		w.Harness.(Positions).SetPosition(w.t, groupOf(group, []string{topic}), topic, 0, ms[6].Offset)
		g := w.start("a", topic).granted(topic, 0)
		committed, earliest := g.starts(consumer.StartCommitted), g.starts(consumer.StartEarliest)
		if committed[0].Next != ms[6].Offset || committed[0].Earliest != ms[0].Offset {
			w.fail("%+v, want Next %d and Earliest %d", committed[0], ms[6].Offset, ms[0].Offset)
		}
		if committed[1] != earliest[1] {
			w.fail("without a published position: %+v, want %+v", committed[1], earliest[1])
		}
		g.want(g.at(committed[0].Next), all[6:]...)
	},
}}
