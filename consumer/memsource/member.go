package memsource

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/internal/tenures"
)

var (
	// ErrFenced is what Run ends with when the member was fenced for good.
	ErrFenced = errors.New("memsource: this member was fenced")

	// ErrKilled is what Run ends with after [Member.Kill].
	ErrKilled = errors.New("memsource: this member was killed")
)

var closed = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

var errLeaving = fmt.Errorf("memsource: %w: own took longer than the term", consumer.ErrDrainOverrun)

// Member is one process of a group: a [consumer.Source]. [Group.Member] makes
// one.
type Member struct {
	group *Group
	name  string

	// The broker's lock guards the rest.
	ctx     context.Context // of Run, without its end; nil before Run
	own     func(context.Context, consumer.Tenure)
	news    []error          // what Run has not told joined yet; nil is a yes
	unread  chan struct{}    // there is news
	told    chan struct{}    // closed when Run has said that the member has joined
	early   []topicPartition // what a script granted before the member joined
	tenures map[*tenure]struct{}
	latest  map[topicPartition]*tenures.State // of each partition, over or not
	leaving bool
	idle    chan struct{} // closed when the member leaves and has no tenure; made then
	ended   chan struct{} // closed when Run has to end with err
	gone    chan struct{} // closed when Run returns
	err     error

	thaw    chan struct{} // not nil while frozen, closed at the end of it
	unheard []func()      // what a frozen member is still to be told, in order
	session *time.Timer
}

var _ consumer.Source = (*Member)(nil)

// Name returns the member's name.
func (m *Member) Name() string { return m.name }

// Group returns the group that the member is of.
func (m *Member) Group() *Group { return m.group }

// Identity is consumer.Source's: the member's name is the process's.
func (m *Member) Identity() (group, name string) { return m.group.name, m.name }

// Run is consumer.Source's. A topic of the group that does not exist is an
// error.
func (m *Member) Run(ctx context.Context, joined func(error), own func(context.Context, consumer.Tenure)) error {
	entered, err := m.join(ctx, own)
	for err == nil && !entered {
		select {
		case <-ctx.Done():
			return nil
		case <-m.heard():
		}
		entered, err = m.join(ctx, own)
	}
	if err != nil {
		return err
	}
	defer close(m.gone)
	m.pass(joined)
	close(m.told)
	for {
		select {
		case <-m.unread:
			m.pass(joined)
			continue
		case <-ctx.Done():
		case <-m.ended:
		}
		return m.leave()
	}
}

// member notes that the member is one of the group, or why not.
func (m *Member) member(err error) {
	m.news = append(m.news, err)
	select {
	case m.unread <- struct{}{}:
	default:
	}
}

// pass tells joined what there is to tell, without the broker's lock: observers may
// ask the broker for something.
func (m *Member) pass(joined func(error)) {
	m.group.broker.mu.Lock()
	news := m.news
	m.news = nil
	m.group.broker.mu.Unlock()
	for _, err := range news {
		joined(err)
	}
}

// join enters the group, unless the member is frozen.
func (m *Member) join(ctx context.Context, own func(context.Context, consumer.Tenure)) (entered bool, err error) {
	g := m.group
	g.broker.mu.Lock()
	defer g.broker.mu.Unlock()
	if m.ctx != nil {
		return false, fmt.Errorf("memsource: member %q: Run was called before; a new member is a new process", m.name)
	}
	for _, topic := range g.topics {
		if g.broker.logs[topic] == nil {
			return false, fmt.Errorf("memsource: group %q: topic %q does not exist", g.name, topic)
		}
	}
	if m.thaw != nil {
		return false, nil
	}
	// A tenure outlives the end of Run's context: it is drained then.
	m.ctx, m.own = context.WithoutCancel(ctx), own
	if m.err == nil { // it may have been killed before
		m.enter()
	}
	return true, nil
}

// heard is closed when the member is not frozen.
func (m *Member) heard() <-chan struct{} {
	m.group.broker.mu.Lock()
	defer m.group.broker.mu.Unlock()
	if m.thaw != nil {
		return m.thaw
	}
	return closed
}

// enter puts m into the group's records, in place of another of its name if
// there is one.
func (m *Member) enter() {
	g := m.group
	m.member(nil)
	if i := slices.IndexFunc(g.members, func(other *Member) bool { return other.name == m.name }); i >= 0 {
		old := g.members[i]
		held := g.heldBy(old)
		g.drop(old)
		g.members = slices.Insert(g.members, i, m)
		old.tell(func() { old.end(ErrFenced) })
		for _, t := range held {
			g.grant(m, t.at)
		}
	} else {
		g.members = append(g.members, m)
	}
	early := m.early
	m.early = nil
	for _, at := range early {
		if old := g.leases[at]; old != nil {
			g.forget(old)
		}
		g.grant(m, at)
	}
	g.resetAndRebalance()
	g.broker.notify()
}

// rejoin is what a live member does when it hears that it was dropped.
func (m *Member) rejoin() {
	switch taken := slices.ContainsFunc(m.group.members, func(other *Member) bool { return other.name == m.name }); {
	case m.leaving || m.err != nil:
	case taken:
		m.end(ErrFenced)
	default:
		m.enter()
	}
}

// leave gives everything up, in good time or after the term.
func (m *Member) leave() error {
	g := m.group
	g.broker.mu.Lock()
	m.leaving = true
	idle, term := make(chan struct{}), g.term
	m.idle = idle
	// Out of the members at once, so that nothing more is granted to m; what it
	// holds comes free as own returns.
	g.members = slices.DeleteFunc(g.members, func(other *Member) bool { return other == m })
	for _, t := range g.heldBy(m) {
		t.asked = true
	}
	for t := range m.tenures {
		t.Revoke()
	}
	m.checkIdle()
	m.setSession(0)
	g.resetAndRebalance()
	g.broker.mu.Unlock()

	patience := time.NewTimer(term)
	defer patience.Stop()
	late := false
	select {
	case <-idle:
	case <-patience.C:
		g.broker.mu.Lock()
		g.drop(m)
		m.loseAll(errLeaving)
		g.resetAndRebalance()
		g.broker.mu.Unlock()
		patience.Reset(term)
		select {
		case <-idle:
		case <-patience.C:
			late = true
		}
	}

	g.broker.mu.Lock()
	defer g.broker.mu.Unlock()
	m.unheard = nil
	g.drop(m)
	g.resetAndRebalance()
	if m.err == nil && late {
		return fmt.Errorf("memsource: member %q: own has not returned within %v of losing its partition", m.name, term)
	}
	return m.err
}

// Freeze stops the process's side of the member, as SIGSTOP or a cut cable does:
// it hears of nothing, its Confirm gets no answer and its Read yields nothing.
// What runs in own continues. Unless the group is scripted it expires after a
// term. Only the member's own Run still can end.
func (m *Member) Freeze() {
	g := m.group
	g.broker.mu.Lock()
	defer g.broker.mu.Unlock()
	if m.thaw != nil {
		return
	}
	m.thaw = make(chan struct{})
	if !g.scripted && m.ctx != nil && !m.leaving {
		m.setSession(g.term)
	}
}

// Thaw ends a freeze. The member hears of what happened meanwhile, in order.
func (m *Member) Thaw() {
	g := m.group
	g.broker.mu.Lock()
	defer g.broker.mu.Unlock()
	if m.thaw == nil {
		return
	}
	m.setSession(0)
	close(m.thaw)
	m.thaw = nil
	unheard := m.unheard
	m.unheard = nil
	for _, f := range unheard {
		f()
	}
	g.broker.notify()
}

// setSession arms or, with zero, stops the timer that expires a frozen member.
func (m *Member) setSession(term time.Duration) {
	if m.session != nil {
		m.session.Stop()
		m.session = nil
	}
	if term <= 0 {
		return
	}
	freeze := m.thaw
	m.session = time.AfterFunc(term, func() {
		m.group.broker.mu.Lock()
		defer m.group.broker.mu.Unlock()
		if m.thaw == freeze { // and not thawed at this very moment
			m.group.expire(m)
		}
	})
}

// Kill ends the process at once: its contexts end, nothing is published any
// more, and Run returns [ErrKilled] when own has returned. The group hears of it
// at once and does not wait for own.
func (m *Member) Kill() {
	g := m.group
	g.broker.mu.Lock()
	defer g.broker.mu.Unlock()
	g.drop(m)
	m.end(ErrKilled)
	g.resetAndRebalance()
}

// end makes Run end with err.
func (m *Member) end(err error) {
	if m.err != nil {
		return
	}
	m.err = err
	m.member(err)
	close(m.ended)
	m.loseAll(err)
}

// tell lets the member know of something, now or when it is no longer frozen.
func (m *Member) tell(f func()) {
	if m.thaw != nil {
		m.unheard = append(m.unheard, f)
		return
	}
	f()
}

// start calls own for a tenure.
func (m *Member) start(t *tenure) {
	t.State = tenures.NewState(m.ctx, m.latest[t.at])
	if m.leaving || m.err != nil {
		m.group.forget(t)
		return
	}
	m.latest[t.at] = t.State
	m.tenures[t] = struct{}{}
	go t.run()
}

// stopped is what happens when own has returned.
func (m *Member) stopped(t *tenure) {
	delete(m.tenures, t)
	m.checkIdle()
	m.tell(func() {
		g := m.group
		until := t.GivenUp()
		if until != nil {
			m.keepFrom(t.at, until)
		}
		if g.leases[t.at] != t {
			return
		}
		if until == nil && !t.asked {
			g.declined[t.at] = append(g.declined[t.at], m)
		}
		g.forget(t)
		g.rebalance()
	})
	m.group.broker.notify()
}

// keepFrom keeps the group from granting the partition to m before until is closed.
func (m *Member) keepFrom(at topicPartition, until <-chan struct{}) {
	g := m.group
	g.hung[at] = append(g.hung[at], m)
	go func() {
		select {
		case <-until:
		case <-m.gone:
		}
		g.broker.mu.Lock()
		defer g.broker.mu.Unlock()
		i := slices.Index(g.hung[at], m)
		g.hung[at] = slices.Delete(g.hung[at], i, i+1)
		g.rebalance()
		g.broker.notify()
	}()
}

func (m *Member) checkIdle() {
	if m.idle != nil && len(m.tenures) == 0 {
		close(m.idle)
		m.idle = nil
	}
}

func (m *Member) each(at topicPartition, f func(*tenure)) {
	for t := range m.tenures {
		if t.at == at {
			f(t)
		}
	}
}

func (m *Member) loseAll(why error) {
	for t := range m.tenures {
		t.Lose(why)
	}
}
