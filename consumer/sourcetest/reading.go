package sourcetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/waits"
)

// starts returns where the partitions of the grant's topic begin, by number.
func (g *grant) starts(policy consumer.StartPolicy) map[int32]epoch.Start {
	ctx, done := g.bound()
	defer done()
	var starts []epoch.Start
	var err error
	// It asks again like a consumer: a broker may not know a new partition yet.
	waits.Until(ctx, 10*time.Millisecond, func() bool {
		found, last := g.Starts(ctx, policy)
		if ctx.Err() == nil || err == nil { // otherwise the error before says more
			starts, err = found, last
		}
		return err == nil || errors.Is(err, consumer.ErrLost)
	})
	g.check(err, "Starts(%v) on %s", policy, g.name())
	byNumber := map[int32]epoch.Start{}
	for _, s := range starts {
		if _, twice := byNumber[s.Partition.Number]; twice || s.Partition.Topic != g.Origin().Partition.Topic || s.Partition.Group != g.Origin().Partition.Group {
			g.p.w.fail("Starts(%v) on %s lists %s, twice or of another topic", policy, g.name(), s.Partition)
		}
		byNumber[s.Partition.Number] = s
	}
	if s, ok := byNumber[g.Origin().Partition.Number]; !ok || s.Origin != g.Origin() {
		g.p.w.fail("Starts(%v) on %s lists the origin %+v, the tenure has %+v", policy, g.name(), s.Origin, g.Origin())
	}
	return byNumber
}

// at returns a fence that was claimed once, and under which everything below next was applied.
func (g *grant) at(next epoch.Offset) epoch.Fence {
	return epoch.Fence{Origin: g.Origin(), Epoch: 1, Next: next, Mark: epoch.NoMark, Applied: true}
}

// fresh returns a fence that was seeded, and nothing else.
func (g *grant) fresh(at epoch.Position) epoch.Fence {
	return epoch.Fence{Origin: g.Origin(), Next: at.Offset, Mark: at.Mark}
}

// earliest and latest return fences at the positions of the start policies.
func (g *grant) earliest() epoch.Fence {
	return g.fresh(g.starts(consumer.StartEarliest)[g.Origin().Partition.Number].Next)
}

func (g *grant) latest() epoch.Fence {
	return g.fresh(g.starts(consumer.StartLatest)[g.Origin().Partition.Number].Next)
}

type entry struct {
	consumer.Message
	after epoch.Position
}

func entriesOf(b consumer.Batch) []entry {
	es := make([]entry, len(b.Messages))
	for i, m := range b.Messages {
		es[i] = entry{m, b.Position(i + 1)}
	}
	return es
}

// after returns the fence once everything up to e was applied.
func after(f epoch.Fence, e entry) epoch.Fence {
	f.Epoch, f.Next, f.Mark, f.Applied = max(f.Epoch, 1), e.after.Offset, e.after.Mark, true
	return f
}

// read returns n messages from the fence's position on, and checks what every Read must keep.
func (g *grant) read(from epoch.Fence, n int) []entry {
	ctx, done := g.bound()
	defer done()
	var got []entry
	next := from.Next
	for b, err := range g.Read(ctx, from) {
		g.check(err, "Read of %s from %d, after %d messages", g.name(), from.Next, len(got))
		g.orderly(next, b)
		next = b.Next
		if got = append(got, entriesOf(b)...); len(got) >= n {
			return got[:n]
		}
	}
	g.fail("Read of %s from %d ended after %d of %d messages (%v)", g.name(), from.Next, len(got), n, context.Cause(ctx))
	return nil
}

// orderly fails the story if a batch does not continue from next, or is of another partition.
func (g *grant) orderly(next epoch.Offset, b consumer.Batch) {
	begin := next
	for _, m := range b.Messages {
		if m.Offset < next {
			g.p.w.fail("Read of %s yielded offset %d at position %d", g.name(), m.Offset, next)
		}
		if m.Offset == b.Next-1 && m.Mark != b.Mark {
			g.p.w.fail("Read of %s yielded offset %d with mark %d, and a position after it with mark %d", g.name(), m.Offset, m.Mark, b.Mark)
		}
		if p := g.Origin().Partition; m.Partition != p {
			g.p.w.fail("Read of %s yielded a message of %s", g.name(), m.Partition)
		}
		next = m.Offset + 1
	}
	if b.Next < next || b.Next <= begin {
		g.p.w.fail("Read of %s yielded a batch from %d with %d messages that ends at %d", g.name(), begin, len(b.Messages), b.Next)
	}
}

// wantLag polls Lag until it is n: an answer may be a moment old.
func (g *grant) wantLag(from epoch.Fence, n int64) {
	bound, done := g.bound()
	defer done()
	ctx, cancel := context.WithTimeout(bound, 10*time.Second)
	defer cancel()
	var got int64
	var err error
	if !waits.Until(ctx, 50*time.Millisecond, func() bool { got, err = g.Lag(bound, from); return err == nil && got == n }) {
		g.fail("Lag of %s from %d on is %d (%v), want %d", g.name(), from.Next, got, err, n)
	}
}

func (g *grant) readError(from epoch.Fence) error {
	ctx, done := g.bound()
	defer done()
	for b, err := range g.Read(ctx, from) {
		if err != nil {
			return err
		}
		g.orderly(from.Next, b)
		g.p.w.fail("Read of %s from %d yielded %d messages up to %d, want an error", g.name(), from.Next, len(b.Messages), b.Next)
	}
	g.fail("Read of %s from %d ended without an error (%v)", g.name(), from.Next, context.Cause(ctx))
	return nil
}

func (g *grant) want(from epoch.Fence, values ...string) []entry {
	es := g.read(from, len(values))
	var got []string
	for _, e := range es {
		got = append(got, string(e.Value))
	}
	g.p.w.must(slices.Equal(got, values), "Read of %s from %d: %s", g.name(), from.Next, difference(got, values))
	return es
}

func valuesOf(b consumer.Batch) []string {
	var vs []string
	for _, m := range b.Messages {
		vs = append(vs, string(m.Value))
	}
	return vs
}

func difference(got, want []string) string {
	for i := range max(len(got), len(want)) {
		switch {
		case i >= len(got):
			return fmt.Sprintf("%d values, want %d; the next would be %q", len(got), len(want), want[i])
		case i >= len(want):
			return fmt.Sprintf("%d values, want %d; %q is too much", len(got), len(want), got[i])
		case got[i] != want[i]:
			return fmt.Sprintf("value %d is %q, want %q", i, got[i], want[i])
		}
	}
	return "no difference"
}

var reading = []history{{
	claim: "Read begins at the fence's position and yields every message once, in order",
	rules: "R10",
	story: func(w *world) {
		all := numbered(0, 0, 1000)
		topic, g := w.granted(all[:700]...)
		ms := g.want(g.earliest(), all[:700]...)

		// From the middle, from the last, and from the end on.
		g.want(g.at(ms[350].Offset), all[350:700]...)
		g.want(after(g.at(0), ms[350]), all[351:700]...)
		g.want(g.at(ms[699].Offset), all[699])
		end := g.latest()
		w.produce(topic, 0, all[700:]...)
		g.want(end, all[700:]...)
		g.want(after(g.at(0), ms[699]), all[700:]...)
		g.want(g.earliest(), all...)
	},
}, {
	claim: "Read of an empty partition waits for the first message",
	story: func(w *world) {
		topic := w.newTopic(2)
		p := w.start("a", topic)
		g := p.granted(topic, 1)
		from := g.earliest()
		w.produce(topic, 0, "elsewhere")
		w.produce(topic, 1, "first")
		g.want(from, "first")
		g0 := p.granted(topic, 0)
		g0.want(g0.earliest(), "elsewhere")
	},
}, {
	claim: "Read continues with what is produced while it runs",
	story: func(w *world) {
		topic, g := w.granted()
		ctx, done := g.bound()
		defer done()
		const total = 50
		w.produce(topic, 0, numbered(0, 0, 1)...)
		var got []string
		for b, err := range g.Read(ctx, g.earliest()) {
			w.check(err, "Read")
			if got = append(got, valuesOf(b)...); len(got) == total {
				break
			}
			w.produce(topic, 0, numbered(0, len(got), len(got)+1)...)
		}
		if want := numbered(0, 0, total); !slices.Equal(got, want) {
			w.fail("%s", difference(got, want))
		}
	},
}, {
	claim: "the messages of a batch stay as they are until the next one is asked for",
	story: func(w *world) {
		all := numbered(0, 0, 600)
		topic, g := w.granted(all...)
		ctx, done := g.bound()
		defer done()
		var got []string
		for b, err := range g.Read(ctx, g.earliest()) {
			w.check(err, "Read")
			before := valuesOf(b)
			w.produce(topic, 0, "later")
			if now := valuesOf(b); !slices.Equal(now, before) {
				w.fail("while it was looked at: %s", difference(now, before))
			}
			if got = append(got, before...); len(got) >= len(all) {
				break
			}
		}
		if got = got[:min(len(got), len(all))]; !slices.Equal(got, all) {
			w.fail("%s", difference(got, all))
		}
	},
}, {
	claim: "Read ends without an error when its context ends, and may be called again",
	rules: "R5",
	story: func(w *world) {
		all := numbered(0, 0, 20)
		_, g := w.granted(all...)
		from := g.earliest()
		for round := range 3 {
			patient, done := g.bound()
			ctx, cancel := context.WithCancel(patient)
			seen := 0
			for b, err := range g.Read(ctx, from) {
				w.check(err, "Read number %d after its context ended", round)
				if seen += len(b.Messages); seen >= len(all) {
					cancel() // and the loop continues: Read has to end by itself
				}
			}
			cancel()
			done()
		}
		g.want(from, all...)
	},
}, {
	claim: "a batch says where the log ends, if the source says so at all",
	story: func(w *world) {
		_, g := w.granted(numbered(0, 0, 300)...)
		ctx, done := g.bound()
		defer done()
		from, left := g.earliest(), 300
		for b, err := range g.Read(ctx, from) {
			g.check(err, "Read of %s", g.name())
			left -= len(b.Messages)
			if b.End != 0 && b.End != b.Next+epoch.Offset(left) {
				w.fail("Read of %s yielded a batch that ends at %d, with %d messages to come, and says that the log ends at %d", g.name(), b.Next, left, b.End)
			}
			if left <= 0 {
				return
			}
		}
		g.fail("Read of %s ended before %d messages", g.name(), left)
	},
}, {
	claim: "the lag of a partition that is not read is what it is now, from any position",
	story: func(w *world) {
		topic := w.newTopic(2)
		w.produce(topic, 0, numbered(0, 0, 8)...)
		p := w.start("a", topic)
		g := p.granted(topic, 0)
		ms := g.want(g.earliest(), numbered(0, 0, 8)...)
		g.wantLag(after(g.at(0), ms[7]), 0)
		w.produce(topic, 1, numbered(1, 0, 30)...)
		w.produce(topic, 0, numbered(0, 8, 108)...)
		g.wantLag(after(g.at(0), ms[7]), 100) // nothing has read since
		g.wantLag(g.at(ms[3].Offset), 105)
		g.wantLag(g.earliest(), 108)
		g1 := p.granted(topic, 1)
		g1.wantLag(g1.earliest(), 30)
		g.want(after(g.at(0), ms[7]), numbered(0, 8, 108)...)
	},
}, {
	claim: "the lag is of what the log holds still, and of no log but the fence's",
	needs: []need{needs[Trimmer]()},
	story: func(w *world) {
		topic, g := w.granted(numbered(0, 0, 50)...)
		ms := g.want(g.earliest(), numbered(0, 0, 50)...)
		from := g.at(ms[10].Offset)
		w.Harness.(Trimmer).Trim(w.t, topic, 0, ms[40].Offset)
		g.wantLag(from, 10)
		from.Log += "x"
		ctx, done := g.bound()
		defer done()
		if n, err := g.Lag(ctx, from); err == nil {
			w.fail("Lag of %s under a fence of another log is %d, want an error", g.name(), n)
		}
	},
}, {
	claim: "Read may be left in the middle and begin anew anywhere",
	rules: "R5",
	story: func(w *world) {
		all := numbered(0, 0, 300)
		_, g := w.granted(all...)
		ms := g.want(g.earliest(), all...)
		for _, i := range []int{0, 299, 10, 11, 150, 5, 200} {
			g.want(g.at(ms[i].Offset), all[i:min(i+20, len(all))]...)
		}
	},
}, {
	claim: "Read ends without an error when the partition is drained, and own is waited for",
	rules: "R7",
	story: func(w *world) {
		topic := w.newTopic(1)
		w.produce(topic, 0, "x")
		p := w.startByHand(topic)
		g := p.granted(topic, 0)
		from := g.earliest()
		first, ended := make(chan struct{}), make(chan error, 1)
		go func() {
			n := 0
			for _, err := range g.Read(g.ctx, from) {
				if err != nil {
					ended <- err
					return
				}
				if n++; n == 1 {
					close(first)
				}
			}
			ended <- nil
		}()
		w.awaitClosed("the first message", first)
		p.stop()
		g.waitDraining()
		select {
		case err := <-ended:
			w.check(err, "Read of a partition that is drained")
		case <-w.ctx.Done():
			w.fail("Read did not end when the partition was drained")
		}
		w.never(g, "Run returns before own", p.ended)
		if err := g.ctx.Err(); err != nil {
			w.fail("the context of own has ended in a drain: %v", context.Cause(g.ctx))
		}
		p.leave()
	},
}}

func (w *world) awaitClosed(what string, c <-chan struct{}) {
	select {
	case <-c:
	case <-w.ctx.Done():
		w.fail("did not happen within %v: %s", w.patience, what)
	}
}
