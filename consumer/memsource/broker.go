package memsource

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"sync"
)

// This file has what topics and groups share: one lock, and waits for any change. log.go has a
// topic, and group.go a group.

// Broker holds topics and the groups that read them, like one cluster. The
// zero Broker is not usable; see [NewBroker].
type Broker struct {
	id string

	mu      sync.Mutex // guards everything below, and all that groups, logs and members keep
	logs    map[string]*Log
	groups  map[string]*Group
	waiting []*waiter
	changed chan struct{} // closed at the next change; nil while nobody waits
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

// Await returns nil as soon as cond is true, or the error of ctx. It calls cond after each change
// at the broker, such as an append or a grant. cond may call any method that does not wait.
func (b *Broker) Await(ctx context.Context, cond func() bool) error {
	for {
		b.mu.Lock()
		if b.changed == nil {
			b.changed = make(chan struct{})
		}
		changed := b.changed
		b.mu.Unlock()
		if cond() {
			return nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// notify wakes all who wait. The lock is held.
func (b *Broker) notify() {
	if b.changed != nil {
		close(b.changed)
		b.changed = nil
	}
	for _, w := range b.waiting {
		if w.group.applied() {
			w.cancel()
		}
	}
}
