package memsource

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/internal/tenures"
	"github.com/epochfence/epochfence/internal/waits"
)

// This file has what one process hears and does: join, freeze, thaw, stop. group.go decides what is
// true meanwhile, and tenure.go reads.

var (
	// ErrFenced is returned by Run when another member has taken the name.
	ErrFenced = errors.New("memsource: this member was fenced")

	// ErrKilled is returned by Run after [Member.Kill].
	ErrKilled = errors.New("memsource: this member was killed")
)

var closed = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

var errLeaving = fmt.Errorf("memsource: %w: own took longer than the term", consumer.ErrDrainOverrun)

// Member is one process of a group: a [consumer.Source]. [Group.Member] returns one.
type Member struct {
	group *Group
	name  string

	// The broker's lock guards the rest.
	ctx       context.Context // of Run, without its cancellation; nil before Run
	own       func(context.Context, consumer.Tenure)
	news      []error // what Run has yet to pass to joined
	unread    chan struct{}
	announced chan struct{}    // closed when Run has called joined for the first time
	early     []topicPartition // what a script granted before the member joined
	tenures   map[*tenure]struct{}
	latest    map[topicPartition]*tenures.State // of each partition, over or not
	leaving   bool
	idle      chan struct{} // made when the member leaves, closed when it has no tenure
	ended     chan struct{} // closed when Run has to end with err
	gone      chan struct{}
	err       error

	thaw        chan struct{} // set while frozen, closed at the thaw
	undelivered []func()      // calls that wait for the thaw of a frozen member, in order
	session     *time.Timer
}

var _ consumer.Source = (*Member)(nil)

// Name returns the member's name.
func (m *Member) Name() string { return m.name }

// Group returns the member's group.
func (m *Member) Group() *Group { return m.group }

// Identity implements [consumer.Source]. The process has the member's name.
func (m *Member) Identity() (group, name string) { return m.group.name, m.name }

// Run implements [consumer.Source]. It fails if a topic of the group does not exist.
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
	close(m.announced)
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

// member queues news for joined: nil, or why the member is not in the group.
func (m *Member) member(err error) {
	m.news = append(m.news, err)
	waits.Notify(m.unread)
}

// pass passes the news to joined, without the broker's lock: observers may use the broker.
func (m *Member) pass(joined func(error)) {
	m.group.broker.mu.Lock()
	news := m.news
	m.news = nil
	m.group.broker.mu.Unlock()
	for _, err := range news {
		joined(err)
	}
}

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
	// A tenure outlives the end of Run's context, to drain.
	m.ctx, m.own = context.WithoutCancel(ctx), own
	if m.err == nil { // it may have been killed before
		m.enter()
	}
	return true, nil
}

func (m *Member) heard() <-chan struct{} {
	m.group.broker.mu.Lock()
	defer m.group.broker.mu.Unlock()
	if m.thaw != nil {
		return m.thaw
	}
	return closed
}

// enter adds m to the group's records, in place of a member of the same name.
func (m *Member) enter() {
	g := m.group
	m.member(nil)
	if i := slices.IndexFunc(g.members, func(other *Member) bool { return other.name == m.name }); i >= 0 {
		old := g.members[i]
		held := g.heldBy(old)
		g.drop(old)
		g.members = slices.Insert(g.members, i, m)
		old.deliver(func() { old.end(ErrFenced) })
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

func (m *Member) rejoin() {
	switch taken := slices.ContainsFunc(m.group.members, func(other *Member) bool { return other.name == m.name }); {
	case m.leaving || m.err != nil:
	case taken:
		m.end(ErrFenced)
	default:
		m.enter()
	}
}

func (m *Member) leave() error {
	g := m.group
	g.broker.mu.Lock()
	m.leaving = true
	idle, term := make(chan struct{}), g.term
	m.idle = idle
	// Nothing more is granted to m from now on. Its partitions become free as own returns.
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
	m.undelivered = nil
	g.drop(m)
	g.resetAndRebalance()
	if m.err == nil && late {
		return fmt.Errorf("memsource: member %q: own has not returned within %v of losing its partition", m.name, term)
	}
	return m.err
}

// Freeze stops the process's side of the member, like SIGSTOP or a cut cable. The member hears
// nothing, its Confirm gets no answer, and its Read yields nothing. What runs in own continues.
// Unless the group is scripted, the member expires after a term. Its Run still ends
// when its context ends or after Kill.
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
	undelivered := m.undelivered
	m.undelivered = nil
	for _, f := range undelivered {
		f()
	}
	g.broker.notify()
}

// setSession starts the timer that expires a frozen member, or stops it if term is zero.
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
		if m.thaw == freeze { // not thawed meanwhile
			m.group.expire(m)
		}
	})
}

// Kill ends the process at once: its contexts end, and it publishes nothing more. Run returns
// [ErrKilled] when own has returned. The group hears of it at once and does not wait for own.
func (m *Member) Kill() {
	g := m.group
	g.broker.mu.Lock()
	defer g.broker.mu.Unlock()
	g.drop(m)
	m.end(ErrKilled)
	g.resetAndRebalance()
}

func (m *Member) end(err error) {
	if m.err != nil {
		return
	}
	m.err = err
	m.member(err)
	close(m.ended)
	m.loseAll(err)
}

// deliver calls f now, or at the thaw if the member is frozen.
func (m *Member) deliver(f func()) {
	if m.thaw != nil {
		m.undelivered = append(m.undelivered, f)
		return
	}
	f()
}

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

func (m *Member) stopped(t *tenure) {
	delete(m.tenures, t)
	m.checkIdle()
	m.deliver(func() {
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
