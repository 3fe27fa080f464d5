package sourcetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// confirm calls Confirm until it succeeds. An error other than ErrLost means "ask again".
func (g *grant) confirm(seen epoch.Fence) epoch.Lease {
	var lease epoch.Lease
	g.poll("Confirm of "+g.name()+" is a yes", func() bool {
		var err error
		lease, err = g.tryConfirm(seen)
		if errors.Is(err, consumer.ErrLost) {
			g.fail("Confirm of %s: %w", g.name(), err)
		}
		return err == nil
	})
	return lease
}

func (g *grant) tryConfirm(seen epoch.Fence) (epoch.Lease, error) {
	ctx, done := g.bound()
	defer done()
	return g.Confirm(ctx, seen)
}

// wantLost checks that Confirm, called outside own's context, returns ErrLost.
func (g *grant) wantLost(seen epoch.Fence) {
	lease, err := g.Confirm(g.p.w.ctx, seen)
	g.p.w.must(errors.Is(err, consumer.ErrLost), "Confirm of %s after the loss = %+v, %v; want ErrLost", g.name(), lease, err)
}

var confirming = []history{{
	claim: "a tenure that is over does not confirm",
	rules: "R2, R7",
	story: func(w *world) {
		topic := w.newTopic(1)
		a := w.startByHand(topic)
		g := a.granted(topic, 0)
		from := g.earliest()
		g.confirm(from)
		g.give()
		w.await("own has returned", func() bool { return g.over })
		w.poll("Confirm says ErrLost", func() bool {
			// The source hears a moment later that own has returned.
			_, err := g.Confirm(w.ctx, from)
			return errors.Is(err, consumer.ErrLost)
		})
		g.wantLost(from)
		a.leave()
		g.wantLost(from)
		w.start("b", topic).granted(topic, 0)
		g.wantLost(from)
	},
}, {
	claim: "the owner of a lease is found by the name of its process",
	story: func(w *world) {
		_, g := w.granted()
		p := g.p
		joined, name := p.source.Identity()
		want := g.Origin().Partition.Group
		w.must(joined == want, "Identity says group %q, and the tenure is of %q", joined, want)
		if lease := g.confirm(g.earliest()); !(operate.Process{Name: name}).Owns(lease.Owner) {
			w.fail("Identity says %q, and the lease's owner is %q: want that name, alone or followed by a slash", name, lease.Owner)
		}
	},
}, {
	claim: "a Confirm whose context ends gives an error, and not ErrLost",
	rules: "R7",
	story: func(w *world) {
		_, g := w.granted()
		from := g.earliest()
		ctx, cancel := context.WithCancel(g.ctx)
		cancel()
		_, err := g.Confirm(ctx, from)
		w.must(err != nil && !errors.Is(err, consumer.ErrLost), "Confirm with a context that has ended = %v; want an error that means: not known", err)
		g.confirm(from)
	},
}, {
	claim: "confirming continues for as long as the tenure does",
	story: func(w *world) {
		topic := w.newTopic(2)
		p := w.start("a", topic)
		for range 50 {
			for n := range int32(2) {
				g := p.granted(topic, n)
				lease := g.confirm(g.earliest())
				w.must(lease.Generation > 0, "generation %d", lease.Generation)
			}
		}
	},
}, {
	claim: "no two tenures of a partition are ever confirmed in turns",
	rules: "R2, R7",
	story: func(w *world) {
		topic := w.newTopic(3)
		random := rand.New(rand.NewPCG(3, 4))
		book := &ledger{}
		var live []*process
		for i := range 10 {
			p := &process{name: fmt.Sprint("m", i), group: group}
			w.add(p, []string{topic})
			p.run(func(ctx context.Context) error { return p.source.Run(ctx, p.member, book.confirmer(p)) })
			live = append(live, p)
			seen := book.length()
			w.poll("leases are confirmed", func() bool { return book.length() > seen+5 })
			if len(live) > 2 {
				gone := random.IntN(len(live))
				live[gone].stop()
				live = append(live[:gone], live[gone+1:]...)
			}
		}
		for _, p := range live {
			p.leave()
		}
		w.check(book.judge(), "confirmations")
	},
}}

type ledger struct {
	mu    sync.Mutex
	clock int
	yes   []yes
}

// yes is one confirmation, which was valid at some moment between sent and answered.
type yes struct {
	of             *grant
	sent, answered int
}

func (l *ledger) tick() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.clock++
	return l.clock
}

func (l *ledger) length() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.yes)
}

func (l *ledger) confirmer(p *process) func(context.Context, consumer.Tenure) {
	return func(ctx context.Context, t consumer.Tenure) {
		p.record(ctx, t, func(g *grant) {
			for {
				sent := l.tick()
				_, err := t.Confirm(ctx, g.at(0))
				l.mu.Lock()
				l.clock++
				if err == nil {
					l.yes = append(l.yes, yes{g, sent, l.clock})
				}
				l.mu.Unlock()
				if !pause(g) {
					return
				}
			}
		})
	}
}

// pause waits a moment, and returns false when the tenure is over.
func pause(g *grant) bool {
	timer := time.NewTimer(time.Millisecond)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-g.Draining():
	case <-g.ctx.Done():
	}
	return false
}

// judge looks for a tenure that was confirmed before and after another tenure of its partition.
func (l *ledger) judge() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	type span struct{ firstAnswered, lastSent int }
	spans := map[*grant]*span{}
	for _, y := range l.yes {
		s := spans[y.of]
		if s == nil {
			s = &span{firstAnswered: y.answered}
			spans[y.of] = s
		}
		s.firstAnswered = min(s.firstAnswered, y.answered)
		s.lastSent = max(s.lastSent, y.sent)
	}
	for _, y := range l.yes {
		for other, s := range spans {
			if other != y.of && other.Origin().Partition == y.of.Origin().Partition &&
				s.firstAnswered < y.sent && y.answered < s.lastSent {
				return fmt.Errorf("%s was confirmed between two confirmations of %s", y.of.name(), other.name())
			}
		}
	}
	return nil
}

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
			w.must(err != nil, "Confirm of %s = nil after another process had the partition", old.name())
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
