package sourcetest

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/epochfence/epochfence/consumer"
)

// groupOf makes a group's name unique.
func groupOf(group string, topics []string) string { return group + "-of-" + topics[0] }

// process is one member of a group, with its Run.
type process struct {
	w       *world
	name    string
	group   string
	source  consumer.Source
	stop    context.CancelFunc
	ended   chan struct{} // closed when Run has returned err
	err     error
	mayFail bool // Run may return an error

	byHand bool // a tenure is held until give; otherwise until it is drained or lost

	// The world's lock guards the rest.
	grants []*grant // all there were, the latest last
	frozen func()   // thaws; nil unless frozen
	in     bool     // a member, by what it said last
	outs   int      // how often it was one no more
	cut    bool     // frozen, or replaced: it may not hear of what it loses
}

// grant is one tenure of a process, from the call of own to its return.
type grant struct {
	consumer.Tenure
	p    *process
	ctx  context.Context // of own
	once sync.Once
	back chan struct{} // closed by give
	done chan struct{} // closed when own has returned

	// The world's lock guards the rest.
	over    bool // own has returned
	excused bool // the process was cut off during the tenure
}

// start runs a process which holds what it is granted until that is drained or
// lost.
func (w *world) start(name string, topics ...string) *process {
	return w.startAs(&process{name: name, group: group}, topics)
}

// startByHand runs a process which holds what it is granted until it gives it.
func (w *world) startByHand(topics ...string) *process {
	return w.startAs(&process{name: "a", group: group, byHand: true}, topics)
}

func (w *world) startAs(p *process, topics []string) *process {
	w.add(p, topics)
	p.run(func(ctx context.Context) error { return p.source.Run(ctx, p.member, p.hold) })
	return p
}

func (w *world) add(p *process, topics []string) {
	p.w, p.ended = w, make(chan struct{})
	if p.source == nil {
		p.source = w.NewSource(w.t, groupOf(p.group, topics), topics, p.name)
	}
	w.note(func() { w.processes = append(w.processes, p) })
}

func (p *process) run(run func(ctx context.Context) error) {
	ctx, stop := context.WithCancel(context.Background())
	p.stop = stop
	go func() {
		defer stop()
		err := run(ctx)
		p.w.note(func() {
			for _, g := range p.grants {
				if !g.over {
					p.w.violations = append(p.w.violations, fmt.Errorf("Run of %s returned (%w) before own of %s", p.name, err, g.name()))
				}
			}
			p.err = err
			close(p.ended)
		})
	}()
}

// member notes what the source says of its membership.
func (p *process) member(err error) {
	p.w.note(func() {
		if p.in && err != nil {
			p.outs++
		}
		p.in = err == nil
	})
}

// hold is own for histories that look at tenures.
func (p *process) hold(ctx context.Context, t consumer.Tenure) {
	p.record(ctx, t, func(g *grant) {
		p.w.mu.Lock()
		byHand := p.byHand
		p.w.mu.Unlock()
		if byHand {
			<-g.back
			return
		}
		select {
		case <-g.Draining():
		case <-g.back:
		case <-ctx.Done():
		}
	})
}

// record notes a tenure while it is spent.
func (p *process) record(ctx context.Context, t consumer.Tenure, spend func(g *grant)) {
	g := &grant{Tenure: t, p: p, ctx: ctx, back: make(chan struct{}), done: make(chan struct{})}
	p.w.note(func() {
		g.excused = p.cut
		p.w.watch(g)
		p.grants = append(p.grants, g)
	})
	defer p.w.note(func() {
		g.over = true
		close(g.done)
	})
	spend(g)
}

// watch notes it if a partition is granted that somebody still holds: what must
// never be in any history. A tenure during which the process was cut off is
// excused, as its loss may not have been heard of.
func (w *world) watch(g *grant) {
	at := g.Origin().Partition
	for _, p := range w.processes {
		for _, other := range p.grants {
			held := !other.over && other.Origin().Partition == at
			switch {
			case !held:
			case p == g.p:
				w.violations = append(w.violations, fmt.Errorf("%s was granted to %s while its own of the tenure before still ran", at, p.name))
			case g.excused, other.excused:
			case g.ctx.Err() != nil, other.ctx.Err() != nil: // lost, perhaps before own was even called
			default:
				w.violations = append(w.violations, fmt.Errorf("%s was granted to %s while %s held it", at, g.p.name, p.name))
			}
		}
	}
}

// holding returns the grants of a process that are neither over nor being
// taken back. The lock is held.
func (p *process) holding() []*grant {
	var held []*grant
	for _, g := range p.grants {
		if !g.over && !g.ending() {
			held = append(held, g)
		}
	}
	return held
}

// granted waits until the process holds the partition and is not asked for it.
func (p *process) granted(topic string, n int32) *grant {
	var found *grant
	p.w.await(fmt.Sprintf("%s is granted %s/%d", p.name, topic, n), func() bool {
		for _, g := range p.holding() {
			if o := g.Origin(); o.Partition.Topic == topic && o.Partition.Number == n {
				found = g
			}
		}
		return found != nil
	})
	return found
}

// cutOff notes that the process may not hear of what it loses from now on.
func (p *process) cutOff() {
	p.w.note(func() {
		p.cut = true
		for _, g := range p.grants {
			g.excused = g.excused || !g.over
		}
	})
}

// freeze cuts the process off.
func (p *process) freeze() {
	p.cutOff()
	thaw := p.w.Harness.(Freezer).Freeze(p.w.t, p.source)
	p.w.note(func() { p.frozen = thaw })
}

// thaw ends the freeze, if there is one.
func (p *process) thaw() {
	var thaw func()
	p.w.note(func() { thaw, p.frozen = p.frozen, nil })
	if thaw != nil {
		thaw()
		p.w.note(func() { p.cut = false })
	}
}

// leave tells the process to end, and waits for it.
func (p *process) leave() {
	p.stop()
	p.follow()
	p.w.await("Run of "+p.name+" returns", func() bool {
		select {
		case <-p.ended:
			return true
		default:
			return false
		}
	})
	if p.err != nil && !p.mayFail {
		p.w.fail("Run of %s = %v, want nil", p.name, p.err)
	}
}

// follow gives back what is held by hand, and what will be, as soon as it is
// revoked or lost.
func (p *process) follow() {
	p.w.mu.Lock()
	p.byHand = false
	grants := p.grants
	p.w.mu.Unlock()
	for _, g := range grants {
		go func() {
			select {
			case <-g.done:
			case <-g.Draining():
			case <-g.ctx.Done():
			}
			g.give()
		}()
	}
}

// giveAll gives back everything, asked or not.
func (p *process) giveAll() {
	p.follow()
	p.w.mu.Lock()
	grants := p.grants
	p.w.mu.Unlock()
	for _, g := range grants {
		g.give()
	}
}

// give makes own return.
func (g *grant) give() { g.once.Do(func() { close(g.back) }) }

// asked reports whether the partition is revoked.
func (g *grant) asked() bool {
	select {
	case <-g.Draining():
		return true
	default:
		return false
	}
}

// ending reports whether the partition is revoked or lost.
func (g *grant) ending() bool { return g.asked() || g.ctx.Err() != nil }

// name is how messages call the grant.
func (g *grant) name() string { return fmt.Sprintf("%s of %s", g.Origin().Partition, g.p.name) }

// bound returns a context that ends with own's and with patience.
func (g *grant) bound() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(g.ctx)
	stop := context.AfterFunc(g.p.w.ctx, func() { cancel(errors.New("patience ended")) })
	return ctx, func() { stop(); cancel(nil) }
}

// waitDraining waits until the partition is revoked.
func (g *grant) waitDraining() {
	select {
	case <-g.Draining():
	case <-g.ctx.Done():
		g.fail("%s was lost, not drained: %v", g.name(), context.Cause(g.ctx))
	case <-g.p.w.ctx.Done():
		g.p.w.fail("%s was not revoked within %v", g.name(), g.p.w.patience)
	}
}

// waitLost waits until the context of own has ended, and checks the cause.
func (g *grant) waitLost() {
	select {
	case <-g.ctx.Done():
	case <-g.p.w.ctx.Done():
		g.p.w.fail("%s: the context of own has not ended within %v of the loss", g.name(), g.p.w.patience)
	}
	if cause := context.Cause(g.ctx); !errors.Is(cause, consumer.ErrLost) {
		g.p.w.fail("%s: the cause of the loss is %v, want ErrLost", g.name(), cause)
	}
}
