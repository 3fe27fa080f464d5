package sourcetest

import (
	"errors"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
)

func (g *grant) wantMisfit(from epoch.Fence, kind error, found epoch.Offset) {
	err := g.readError(from)
	var misfit *consumer.PositionError
	if !errors.As(err, &misfit) || !errors.Is(err, kind) {
		g.p.w.fail("Read of %s from %d = %v; want a *PositionError: %v", g.name(), from.Next, err, kind)
	}
	want := consumer.PositionError{Partition: g.Origin().Partition, Kind: kind, Position: from.Next, Found: found}
	if *misfit != want {
		g.p.w.fail("Read of %s = %+v, want %+v", g.name(), *misfit, want)
	}
}

var misfits = []history{{
	claim: "a position above the log's end is an error with both numbers, and Read may be called again",
	rules: "R10", needs: []need{ofLogs},
	story: func(w *world) {
		_, g := w.granted("x", "y")
		end := g.latest().Next
		g.wantMisfit(g.at(end+10), consumer.ErrTruncated, end)
		g.wantMisfit(g.at(end+1), consumer.ErrTruncated, end)
		g.want(g.earliest(), "x", "y")
	},
}, {
	claim: "a position below the log's beginning is an error with both numbers, and Read may be called again",
	rules: "R10", needs: []need{needs[Trimmer]()},
	story: func(w *world) {
		all := numbered(0, 0, 10)
		topic, g := w.granted(all...)
		a := g.p
		ms := g.want(g.earliest(), all...)
		w.Harness.(Trimmer).Trim(w.t, topic, 0, ms[6].Offset)
		g.wantMisfit(g.at(ms[2].Offset), consumer.ErrOffsetExpired, ms[6].Offset)
		g.wantMisfit(g.at(ms[6].Offset-1), consumer.ErrOffsetExpired, ms[6].Offset)
		g.want(g.at(ms[6].Offset), all[6:]...)
		a.leave()
		if at := w.start("b", topic).granted(topic, 0).earliest().Next; at != ms[6].Offset {
			w.fail("the earliest offset is %d, want %d", at, ms[6].Offset)
		}
	},
}, {
	claim: "a log that was trimmed to its end is no error for a position at the end",
	rules: "R10", needs: []need{needs[Trimmer]()},
	story: func(w *world) {
		topic, g := w.granted("x", "y")
		end := g.latest()
		w.Harness.(Trimmer).Trim(w.t, topic, 0, end.Next)
		w.produce(topic, 0, "z")
		g.want(end, "z")
	},
}, {
	claim: "a gap that a delete has left is read across",
	rules: "R10", needs: []need{needs[Deleter]()},
	story: func(w *world) {
		all := numbered(0, 0, 10)
		topic, g := w.granted(all...)
		ms := g.want(g.earliest(), all...)
		for _, i := range []int{3, 4, 9} {
			w.Harness.(Deleter).Delete(w.t, topic, 0, ms[i].Offset)
		}
		w.produce(topic, 0, "more")
		g.want(g.at(ms[0].Offset), append(append(numbered(0, 0, 3), numbered(0, 5, 9)...), "more")...)
		g.want(g.at(ms[4].Offset), numbered(0, 5, 9)...)
		g.want(g.at(ms[9].Offset), "more")
	},
}, {
	claim: "a log that was cut off below the position is an error, also once it has grown again",
	rules: "R10, attack: truncated log", needs: []need{needs[Truncator]()},
	story: func(w *world) {
		all := numbered(0, 0, 10)
		topic, g := w.granted(all...)
		ms := g.want(g.earliest(), all...)
		applied := after(g.at(0), ms[7])
		w.Harness.(Truncator).Truncate(w.t, topic, 0, ms[4].Offset)
		g.wantMisfit(applied, consumer.ErrTruncated, ms[4].Offset)
		w.produce(topic, 0, numbered(1, 0, 20)...)
		g.wantMisfit(applied, consumer.ErrTruncated, ms[4].Offset)
		// What was applied before the cut is still there.
		g.want(after(g.at(0), ms[1]), append(numbered(0, 2, 4), numbered(1, 0, 20)...)...)
	},
}, {
	claim: "a log that was cut off below a position from which nothing was applied yet is an error, also once it has grown again",
	rules: "R10, attack: a log cut before the first message was applied, and grown again", needs: []need{needs[Truncator](), needs[Positions]()},
	story: func(w *world) {
		topic := w.newTopic(1)
		all := numbered(0, 0, 10)
		ms := w.scouted(topic, all)
		w.Harness.(Positions).SetPosition(w.t, groupOf(group, []string{topic}), topic, 0, ms[7].Offset)
		g := w.start("a", topic).granted(topic, 0)
		latest := g.latest()
		at, _ := g.committed()
		adopted := g.fresh(at)
		adopted.Applied = true
		cut := ms[4].Offset
		w.Harness.(Truncator).Truncate(w.t, topic, 0, cut)
		g.wantMisfit(latest, consumer.ErrTruncated, cut)
		g.wantMisfit(adopted, consumer.ErrTruncated, cut)
		w.produce(topic, 0, numbered(1, 0, 20)...)
		g.wantMisfit(latest, consumer.ErrTruncated, cut)
		g.wantMisfit(adopted, consumer.ErrTruncated, cut)
		g.want(g.earliest(), append(all[:4:4], numbered(1, 0, 20)...)...)
	},
}, {
	claim: "a topic that was deleted and created again is another log, and its old tenures are lost",
	rules: "attack: topic deleted and recreated", needs: []need{needs[Recreator]()},
	story: func(w *world) {
		topic, old := w.granted("old", "older")
		a := old.p
		old.want(old.earliest(), "old", "older")
		w.Harness.(Recreator).RecreateTopic(w.t, topic, 1)
		w.produce(topic, 0, "new")
		// The process may have to start again to see the new log, which no old tenure may read.
		old.waitLost()
		a.leave()
		now := w.start("b", topic).granted(topic, 0)
		was, is := old.Origin(), now.Origin()
		w.must(is.Log != was.Log, "the log is still called %q", is.Log)
		w.must(is.Source == was.Source && is.Partition == was.Partition, "the origin was %+v and is %+v; only the log is another", was, is)
		now.want(now.earliest(), "new")
	},
}}
