package memsource

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/epochfence/epochfence/consumer/internal/tenures"
	"github.com/epochfence/epochfence/epoch"
)

// This file has what topics and groups share, one lock and waits for any change, and the records of a
// group, which decide what Confirm answers. share.go decides which member gets which partition, and
// script.go lets a test decide instead.

// DefaultTerm is how long a lease lasts after its holder's last renewal, and how long a drain may
// take. [Group.SetTerm] changes it.
const DefaultTerm = 10 * time.Second

// Group leases the partitions of its topics to its members. It is the coordinator: Confirm answers
// from the group's records, whatever the members have heard.
type Group struct {
	broker *Broker
	name   string
	topics []string

	term       time.Duration
	scripted   bool
	generation int64
	members    []*Member // in the order in which they joined; names differ
	leases     map[topicPartition]*tenure
	positions  map[topicPartition]published
	declined   map[topicPartition][]*Member // who gave it up unasked since the last change of members
	hung       map[topicPartition][]*Member // who gave it up because a handler hangs
	onConfirm  func(context.Context, Confirmation) error
}

type published struct {
	at   epoch.Position
	ours bool // by a member, not by a consumer without fences
}

// publish records a fence's position, unless that of others has to stand. The lock is held.
func (g *Group) publish(at topicPartition, f epoch.Fence) {
	if was, ok := g.positions[at]; ok && !was.ours && f.SetUnder == 0 && (f.Epoch == 0 || f.Next < was.at.Offset) {
		return
	}
	g.positions[at] = published{at: epoch.Position{Offset: f.Next, Mark: f.Mark}, ours: true}
	g.broker.notify()
}

type topicPartition struct {
	topic  string
	number int32
}

func newGroup(b *Broker, name string, topics []string) *Group {
	return &Group{
		broker: b, name: name, topics: topics, term: DefaultTerm,
		leases: map[topicPartition]*tenure{}, positions: map[topicPartition]published{}, declined: map[topicPartition][]*Member{}, hung: map[topicPartition][]*Member{},
	}
}

// Name returns the group's name.
func (g *Group) Name() string { return g.name }

// Member returns a new member: one process, which joins when its Run is called. If a member of the
// same name is still in the group, the new one takes its place, with all its partitions and at the
// same generation, and the old one is fenced for good, as with a static member of Kafka.
func (g *Group) Member(name string) *Member {
	return &Member{group: g, name: name, unread: make(chan struct{}, 1), announced: make(chan struct{}), ended: make(chan struct{}), gone: make(chan struct{}), tenures: map[*tenure]struct{}{}, latest: map[topicPartition]*tenures.State{}}
}

// SetTerm changes the term of leases granted from now on. d must be positive.
func (g *Group) SetTerm(d time.Duration) {
	if d <= 0 {
		panic(fmt.Sprintf("memsource: group %q: a term of %v", g.name, d))
	}
	g.broker.mu.Lock()
	defer g.broker.mu.Unlock()
	g.term = d
}

// Generation returns the generation of a lease confirmed now. It starts at zero. A group that is
// not scripted raises it by one whenever it grants.
func (g *Group) Generation() int64 {
	g.broker.mu.Lock()
	defer g.broker.mu.Unlock()
	return g.generation
}

// Owner returns the name of the member to which the group has leased the partition, or "". That
// member may not have heard of it yet, and the previous holder may still act on its lost lease.
func (g *Group) Owner(topic string, n int32) string {
	g.broker.mu.Lock()
	defer g.broker.mu.Unlock()
	if t := g.leases[g.topicPartition(topic, n)]; t != nil {
		return t.member.name
	}
	return ""
}

// Position returns the published position of the partition, as a lag tool shows it.
func (g *Group) Position(topic string, n int32) (epoch.Offset, bool) {
	g.broker.mu.Lock()
	defer g.broker.mu.Unlock()
	p, ok := g.positions[g.topicPartition(topic, n)]
	return p.at.Offset, ok
}

// SetPosition publishes a position as a consumer without fences does.
func (g *Group) SetPosition(topic string, n int32, at epoch.Offset) {
	g.broker.mu.Lock()
	defer g.broker.mu.Unlock()
	p := g.topicPartition(topic, n)
	g.positions[p] = published{at: epoch.Position{Offset: at, Mark: epoch.NoMark}}
	g.broker.notify()
}

// UntilApplied returns a context that ends as soon as the published positions have passed all
// messages in the group's topics. Append first: without messages it has ended already.
func (g *Group) UntilApplied(ctx context.Context) context.Context {
	ctx, cancel := context.WithCancel(ctx)
	b := g.broker
	b.mu.Lock()
	defer b.mu.Unlock()
	if g.applied() {
		cancel()
		return ctx
	}
	w := &waiter{group: g, cancel: cancel}
	b.waiting = append(b.waiting, w)
	context.AfterFunc(ctx, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.waiting = slices.DeleteFunc(b.waiting, func(other *waiter) bool { return other == w })
	})
	return ctx
}

func (g *Group) applied() bool {
	for at := range g.places() {
		ms := g.part(at).messages
		if len(ms) > 0 && g.positions[at].at.Offset <= ms[len(ms)-1].Offset {
			return false
		}
	}
	return true
}

func (g *Group) topicPartition(topic string, n int32) topicPartition {
	if !slices.Contains(g.topics, topic) {
		panic(fmt.Sprintf("memsource: group %q reads %q, not %q", g.name, g.topics, topic))
	}
	if l := g.broker.logs[topic]; l != nil {
		l.part(n)
	}
	return topicPartition{topic, n}
}

func (g *Group) part(at topicPartition) *part { return g.broker.logs[at.topic].part(at.number) }

func (g *Group) places() func(yield func(topicPartition) bool) {
	return func(yield func(topicPartition) bool) {
		for _, topic := range g.topics {
			l := g.broker.logs[topic]
			if l == nil {
				continue
			}
			for n := range l.parts {
				if !yield(topicPartition{topic, int32(n)}) {
					return
				}
			}
		}
	}
}

func (g *Group) origin(at topicPartition) epoch.Origin {
	return epoch.Origin{
		Partition: epoch.Partition{Group: g.name, Topic: at.topic, Number: at.number},
		Log:       "memory/" + g.broker.logs[at.topic].id,
		Source:    "memory/" + g.broker.id,
	}
}

func (g *Group) topicRecreated(topic string) {
	if !slices.Contains(g.topics, topic) {
		return
	}
	for at := range g.positions {
		if at.topic == topic {
			delete(g.positions, at)
		}
	}
	for _, t := range g.held() {
		if t.at.topic == topic {
			g.take(t, fmt.Errorf("memsource: topic %q was deleted", topic))
		}
	}
	g.resetAndRebalance()
}

// Broker holds topics and the groups that read them, like one cluster. The
// zero Broker is not usable; see [NewBroker].
type Broker struct {
	id string

	mu      sync.Mutex // guards everything below, and all that groups, logs and members keep
	logs    map[string]*Log
	groups  map[string]*Group
	waiting []*waiter
}

type waiter struct {
	group  *Group
	cancel context.CancelFunc
}

// NewBroker returns an empty broker with an id of its own.
func NewBroker() *Broker {
	return &Broker{id: rand.Text(), logs: map[string]*Log{}, groups: map[string]*Group{}}
}

// Create adds a topic with empty partitions. It panics if the topic exists.
func (b *Broker) Create(topic string, partitions int32) *Log {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.logs[topic] != nil {
		panic(fmt.Sprintf("memsource: topic %q exists already", topic))
	}
	l := &Log{broker: b, name: topic}
	l.renew(partitions)
	b.logs[topic] = l
	return l
}

// Group returns the group of that name. The first call creates it, and sets the topics that it
// reads. Later calls may leave the topics out, and otherwise have to give the same ones.
func (b *Broker) Group(name string, topics ...string) *Group {
	b.mu.Lock()
	defer b.mu.Unlock()
	topics = slices.Compact(slices.Sorted(slices.Values(topics)))
	g := b.groups[name]
	if g == nil {
		if len(topics) == 0 {
			panic(fmt.Sprintf("memsource: group %q has no topics", name))
		}
		g = newGroup(b, name, topics)
		b.groups[name] = g
	}
	if len(topics) > 0 && !slices.Equal(topics, g.topics) {
		panic(fmt.Sprintf("memsource: group %q reads %q, not %q", name, g.topics, topics))
	}
	return g
}

// notify ends the waits for groups that have applied everything. The lock is held.
func (b *Broker) notify() {
	for _, w := range b.waiting {
		if w.group.applied() {
			w.cancel()
		}
	}
}
