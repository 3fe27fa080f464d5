package sourcetest

import (
	"context"
	"errors"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/memsink"
)

// takenOver freezes a at the stall, source and all, and starts b, which takes the partition over.
// It returns when b has applied the values. The caller has started a, and thaws it later.
func (w *world) takenOver(a *system, s *stall, db *memsink.Sink, topic string, values ...string) (b *system) {
	s.wait(a.name + " is where it is to be frozen")
	a.freeze()
	b = w.run("b", db, memsink.Hooks{}, topic)
	w.applied(db, topic, 0, values...)
	return b
}

// undisturbed checks that b still holds the partition under its claim, and applies what comes.
func (w *world) undisturbed(b *system, db *memsink.Sink, claim epoch.ClaimID, topic string, all, more []string) {
	w.produce(topic, 0, more...)
	w.applied(db, topic, 0, append(all, more...)...)
	f := w.fence(db, group, topic, 0)
	w.must(f.Claim == claim, "the claim of %s was replaced by one of %q", b.name, f.Owner)
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, e := range b.events {
		e, ok := e.(consumer.Stale)
		w.must(!ok, "%s, which owns the partition, was refused as stale: %+v", b.name, e)
	}
}

var attacks = []history{{
	claim: "attack: frozen with the transaction open",
	rules: "R1, R3, R6", needs: []need{needs[Freezer]()},
	story: func(w *world) {
		topic, db, all := w.filled()
		s := w.newStall()
		a := w.run("a", db, memsink.Hooks{Commit: func(_ context.Context, _ []epoch.Advance, do func() error) error {
			s.stop()
			return do()
		}}, topic)
		b := w.takenOver(a, s, db, topic, all...)
		claim := w.fence(db, group, topic, 0).Claim
		s.goOn()
		// a finds out from the fence, before its source has heard anything.
		saw(a, func(e consumer.Stale) bool { return e.Held.Claim == claim })
		w.undisturbed(b, db, claim, topic, all, numbered(1, 0, 10))
		b.leave()
		a.thaw()
	},
}, {
	claim: "attack: frozen between confirm and swap",
	rules: "R2", needs: []need{needs[Freezer]()},
	story: func(w *world) {
		topic, db, all := w.filled()
		s := w.newStall()
		swapped := make(chan error, 1)
		a := w.run("a", db, memsink.Hooks{Claim: func(_ context.Context, _ epoch.Claim, do func() error) error {
			s.stop()
			err := do()
			select {
			case swapped <- err:
			default:
			}
			return err
		}}, topic)
		b := w.takenOver(a, s, db, topic, all...)
		claim := w.fence(db, group, topic, 0).Claim
		s.goOn()
		select {
		case err := <-swapped:
			w.must(errors.Is(err, epoch.ErrStale), "the late swap = %v, want a refusal as stale", err)
		case <-w.ctx.Done():
			w.fail("the late swap never came")
		}
		w.undisturbed(b, db, claim, topic, all, numbered(1, 0, 10))
		b.leave()
		a.thaw()
	},
}, {
	claim: "attack: late claimer, which reads the fence after the next owner has claimed",
	rules: "R2", needs: []need{needs[Freezer]()},
	story: func(w *world) {
		topic, db, all := w.filled()
		s := w.newStall()
		a := w.run("a", db, memsink.Hooks{Fence: func(_ context.Context, _ epoch.Partition, do func() error) error {
			s.stop()
			return do()
		}}, topic)
		b := w.takenOver(a, s, db, topic, all...)
		claim := w.fence(db, group, topic, 0).Claim
		// Now a reads a fence that is up to date. Only the missing confirmation keeps it from
		// throwing b out. It must not get one, neither now nor when the source can be reached
		// again. A source that heard of nobody for a term may have given the tenure up by itself.
		late := w.grantsOf(a.process)[0]
		s.goOn()
		<-moment(late)
		a.thaw()
		late.waitLost()
		w.await("the tenure of a ends", func() bool { return late.over })
		w.undisturbed(b, db, claim, topic, all, numbered(1, 0, 10))
	},
}, {
	claim: "attack: stale writer, whose handler is slow",
	rules: "R1", needs: []need{needs[Freezer]()},
	story: func(w *world) {
		topic, db := w.newTopic(2), memsink.New()
		all := numbered(0, 0, 30)
		w.produce(topic, 0, all[:10]...)
		a := w.run("a", db, memsink.Hooks{}, topic)
		w.applied(db, topic, 0, all[:10]...)
		a.freeze() // from its source only: its handlers and its database continue
		b := w.run("b", db, memsink.Hooks{}, topic)
		w.produce(topic, 0, all[10:20]...)
		saw(b, func(e consumer.Claimed) bool { return e.Fence.Partition.Number == 0 })
		w.applied(db, topic, 0, all[:20]...)
		w.produce(topic, 0, all[20:]...)
		a.thaw()
		w.applied(db, topic, 0, all...)
		w.produce(topic, 1, "other")
		w.applied(db, topic, 1, "other")
	},
}, {
	claim: "attack: static member swap at one generation, the first frozen with its transaction open",
	rules: "claim id", needs: []need{needs[StaticMembers](), needs[Freezer]()},
	story: func(w *world) {
		topic, db, all := w.filled()
		s := w.newStall()
		hooks := memsink.Hooks{Commit: func(_ context.Context, _ []epoch.Advance, do func() error) error {
			s.stop()
			return do()
		}}
		first := w.runAs(w.static("first", topic), db, hooks, options{}, topic)
		first.mayFail = true
		s.wait("the first has its transaction open")
		generation := w.fence(db, group, topic, 0).Generation
		first.freeze()
		second := w.runAs(w.static("second", topic), db, memsink.Hooks{}, options{}, topic)
		w.applied(db, topic, 0, all...)
		f := w.fence(db, group, topic, 0)
		if f.Generation != generation || f.Epoch <= epoch.Epoch(generation) {
			w.fail("generation %d and epoch %d after generation %d; want the same generation and a higher epoch", f.Generation, f.Epoch, generation)
		}
		s.goOn()
		saw(first, func(e consumer.Stale) bool { return e.Held.Claim == f.Claim })
		w.undisturbed(second, db, f.Claim, topic, all, numbered(1, 0, 10))
		first.thaw()
		w.awaitClosed("Run of the first returns", first.ended)
	},
}, {
	claim: "attack: same owner, same generation, regranted",
	rules: "claim id", needs: []need{needs[Regranter]()},
	story: func(w *world) {
		topic, db := w.newTopic(1), memsink.New()
		all := numbered(0, 0, 20)
		w.produce(topic, 0, all[:10]...)
		a := w.run("a", db, memsink.Hooks{}, topic)
		w.applied(db, topic, 0, all[:10]...)
		was := w.fence(db, group, topic, 0)
		w.Harness.(Regranter).Regrant(w.t, a.source, topic, 0)
		now := saw(a, func(e consumer.Claimed) bool { return e.Fence.Claim != was.Claim }).Fence
		w.must(now.Generation == was.Generation && now.Epoch > was.Epoch, "%+v after %+v; want the same generation and a higher epoch", now, was)
		w.produce(topic, 0, all[10:]...)
		w.applied(db, topic, 0, all...)
	},
}, {
	claim: "attack: group deleted, with a zombie of before",
	rules: "epoch", needs: []need{needs[GroupDeleter](), needs[Freezer]()},
	story: func(w *world) {
		topic, db := w.newTopic(1), memsink.New()
		all := numbered(0, 0, 40)
		// A few generations first, so that the deleted group starts again below them.
		for i := range 3 {
			w.produce(topic, 0, all[10*i:10*i+10]...)
			s := w.run("early", db, memsink.Hooks{}, topic)
			w.applied(db, topic, 0, all[:10*i+10]...)
			s.leave()
		}
		w.produce(topic, 0, all[30:]...)
		s := w.newStall()
		a := w.run("a", db, memsink.Hooks{Commit: func(_ context.Context, _ []epoch.Advance, do func() error) error {
			s.stop()
			return do()
		}}, topic)
		s.wait("a has its transaction open")
		was := w.fence(db, group, topic, 0)
		a.freeze()
		w.Harness.(GroupDeleter).DeleteGroup(w.t, groupOf(group, []string{topic}))
		b := w.run("b", db, memsink.Hooks{}, topic)
		w.applied(db, topic, 0, all...)
		now := w.fence(db, group, topic, 0)
		if now.Generation >= was.Generation || now.Epoch <= was.Epoch {
			w.fail("generation %d, epoch %d after generation %d, epoch %d; want a lower generation and a higher epoch",
				now.Generation, now.Epoch, was.Generation, was.Epoch)
		}
		s.goOn()
		saw(a, func(e consumer.Stale) bool { return e.Held.Claim == now.Claim })
		w.undisturbed(b, db, now.Claim, topic, all, numbered(1, 0, 10))
		b.leave()
		a.thaw()
	},
}, {
	claim: "attack: retained partition, whose claim continues while others join and leave",
	rules: "R7", needs: []need{needs[Retainer]()},
	story: func(w *world) {
		topic, db := w.newTopic(2), memsink.New()
		a := w.run("a", db, memsink.Hooks{}, topic)
		for n := range int32(2) {
			w.produce(topic, n, numbered(n, 0, 10)...)
			w.applied(db, topic, n, numbered(n, 0, 10)...)
		}
		b := w.run("b", db, memsink.Hooks{}, topic)
		moved := saw(b, func(consumer.Claimed) bool { return true }).Fence.Partition.Number
		kept := 1 - moved
		before := w.fence(db, group, topic, kept)
		for n := range int32(2) {
			w.produce(topic, n, numbered(n, 10, 20)...)
			w.applied(db, topic, n, numbered(n, 0, 20)...)
		}
		b.leave()
		for n := range int32(2) {
			w.produce(topic, n, numbered(n, 20, 30)...)
			w.applied(db, topic, n, numbered(n, 0, 30)...)
		}
		now := w.fence(db, group, topic, kept)
		w.must(now.Claim == before.Claim && now.Epoch == before.Epoch, "the kept partition was claimed again: %+v, then %+v", before, now)
		a.leave()
	},
}, {
	claim: "attack: topic deleted and recreated, whose messages are not taken for the old ones",
	rules: "claim CHECK", needs: []need{needs[Recreator]()},
	story: func(w *world) {
		topic, db, old := w.filled()
		a := w.run("a", db, memsink.Hooks{}, topic)
		w.applied(db, topic, 0, old...)
		w.Harness.(Recreator).RecreateTopic(w.t, topic, 2)
		w.produce(topic, 0, numbered(1, 0, 20)...)
		w.produce(topic, 1, numbered(1, 0, 20)...)
		a.leave()
		b := w.run("b", db, memsink.Hooks{}, topic)
		for n := range int32(2) { // the second is new, and not known to be another log's either
			halted := saw(b, func(e consumer.Halted) bool { return e.Partition.Number == n && errors.Is(e.Err, epoch.ErrLogChanged) })
			var changed *epoch.LogChangedError
			w.must(errors.As(halted.Err, &changed) && changed.Fence != changed.Source && changed.Partition.Number == 0, "halted by %v", halted.Err)
		}
		b.leave()
		w.applied(db, topic, 0, old...)
		w.applied(db, topic, 1)
	},
}, {
	claim: "attack: retention passes a partition by, which halts and leaves the others alone",
	rules: "R10", needs: []need{needs[Trimmer]()},
	story: func(w *world) {
		topic, db := w.newTopic(2), memsink.New()
		other, topics := topic, []string{topic}
		if _, shared := w.Harness.(SharedLog); shared {
			other = w.newTopic(2)
			topics = append(topics, other)
		}
		all := numbered(0, 0, 20)
		w.produce(topic, 0, all[:10]...)
		a := w.run("a", db, memsink.Hooks{}, topics...)
		w.applied(db, topic, 0, all[:10]...)
		a.leave()
		w.produce(topic, 0, all[10:]...)
		position := w.fence(db, group, topic, 0).Next
		w.Harness.(Trimmer).Trim(w.t, topic, 0, position+5)
		b := w.run("b", db, memsink.Hooks{}, topics...)
		halted := saw(b, func(e consumer.Halted) bool {
			return e.Partition.Number == 0 && errors.Is(e.Err, consumer.ErrOffsetExpired)
		})
		w.must(halted.Next == position, "halted at %d, want %d", halted.Next, position)
		w.produce(other, 1, "other")
		w.applied(db, other, 1, "other")
		b.leave()
		w.applied(db, topic, 0, all[:10]...)
	},
}, {
	claim: "attack: truncated log, whose new messages do not take the place of the old ones",
	rules: "R10", needs: []need{needs[Truncator]()},
	story: func(w *world) {
		topic, db, old := w.filled()
		a := w.run("a", db, memsink.Hooks{}, topic)
		w.applied(db, topic, 0, old...)
		a.leave()
		position := w.fence(db, group, topic, 0).Next
		w.Harness.(Truncator).Truncate(w.t, topic, 0, position-4)
		w.produce(topic, 0, numbered(1, 0, 20)...)
		b := w.run("b", db, memsink.Hooks{}, topic)
		saw(b, func(e consumer.Halted) bool { return errors.Is(e.Err, consumer.ErrTruncated) })
		b.leave()
		w.applied(db, topic, 0, old...)
	},
}}
