package sourcetest

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/epochfence/epochfence/consumer"
)

func groupOf(group string, topics []string) string { return group + "-of-" + topics[0] }

type process struct {
	w       *world
	name    string
	group   string
	source  consumer.Source
	stop    context.CancelFunc
	ended   chan struct{}
	err     error
	mayFail bool

	byHand bool // a tenure is held until give; otherwise until it is drained or lost

	// The world's lock guards the rest.
	grants []*grant // all there were, the latest last
	frozen func()   // thaws; nil unless frozen
	in     bool     // it was a member at its last report
	outs   int      // how often it ceased to be a member
	cut    bool     // frozen, or replaced: it may not hear of what it loses
}

// grant is one tenure of a process, from the call of own to its return.
type grant struct {
	consumer.Tenure
	p    *process
	ctx  context.Context
	once sync.Once
	back chan struct{}
	done chan struct{} // closed when own has returned

	// The world's lock guards the rest.
	over    bool
	excused bool // the process was cut off during the tenure
}

// start runs a process that holds its grants until they are drained or lost.
func (w *world) start(name string, topics ...string) *process {
	return w.startAs(&process{name: name, group: group}, topics)
}

// startByHand runs a process that holds its grants until it gives them.
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

func (p *process) member(err error) {
	p.w.note(func() {
		if p.in && err != nil {
			p.outs++
		}
		p.in = err == nil
	})
}

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

// watch records a violation if a partition is granted while a process holds it, which must never
// happen. A tenure is excused if its process was cut off: it may not have heard of the loss.
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

// holding returns the grants that are neither over, revoked nor lost. The lock is held.
func (p *process) holding() []*grant {
	var held []*grant
	for _, g := range p.grants {
		if !g.over && !g.ending() {
			held = append(held, g)
		}
	}
	return held
}

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

// granted has a granted the only partition of a new topic with these messages.
func (w *world) granted(values ...string) (topic string, g *grant) {
	topic = w.newTopic(1)
	if len(values) > 0 {
		w.produce(topic, 0, values...)
	}
	return topic, w.start("a", topic).granted(topic, 0)
}

// cutOff records that from now on the process may not hear of what it loses.
func (p *process) cutOff() {
	p.w.note(func() {
		p.cut = true
		for _, g := range p.grants {
			g.excused = g.excused || !g.over
		}
	})
}

func (p *process) freeze() {
	p.cutOff()
	thaw := p.w.Harness.(Freezer).Freeze(p.w.t, p.source)
	p.w.note(func() { p.frozen = thaw })
}

func (p *process) thaw() {
	var thaw func()
	p.w.note(func() { thaw, p.frozen = p.frozen, nil })
	if thaw != nil {
		thaw()
		p.w.note(func() { p.cut = false })
	}
}

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
	p.w.must(p.err == nil || p.mayFail, "Run of %s = %v, want nil", p.name, p.err)
}

// follow gives back what is or will be held by hand, as soon as it is revoked or lost.
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

func (p *process) giveAll() {
	p.follow()
	p.w.mu.Lock()
	grants := p.grants
	p.w.mu.Unlock()
	for _, g := range grants {
		g.give()
	}
}

func (g *grant) give() { g.once.Do(func() { close(g.back) }) }

func (g *grant) asked() bool {
	select {
	case <-g.Draining():
		return true
	default:
		return false
	}
}

func (g *grant) ending() bool { return g.asked() || g.ctx.Err() != nil }

func (g *grant) name() string { return fmt.Sprintf("%s of %s", g.Origin().Partition, g.p.name) }

// bound returns a context that ends with own's context and with patience.
func (g *grant) bound() (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(g.ctx)
	stop := context.AfterFunc(g.p.w.ctx, func() { cancel(errors.New("patience ended")) })
	return ctx, func() { stop(); cancel(nil) }
}

func (g *grant) waitDraining() {
	select {
	case <-g.Draining():
	case <-g.ctx.Done():
		g.fail("%s was lost, not drained: %v", g.name(), context.Cause(g.ctx))
	case <-g.p.w.ctx.Done():
		g.p.w.fail("%s was not revoked within %v", g.name(), g.p.w.patience)
	}
}

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
