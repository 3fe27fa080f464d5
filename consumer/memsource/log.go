package memsource

import (
	"context"
	"crypto/rand"
	"fmt"
	"hash/fnv"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
)

// This file has what a test does to a topic: append, delete, truncate, create it anew. part.go has
// the messages of a partition.

// DefaultGroup is the group of [Log.Member] and [Log.UntilApplied].
const DefaultGroup = "group"

// Log is one topic of a broker.
type Log struct {
	broker *Broker
	name   string
	id     string
	parts  []*part
}

// New returns a topic on a broker of its own.
func New(topic string, partitions int32) *Log {
	return NewBroker().Create(topic, partitions)
}

// renew gives the log a new identity and empty partitions. The lock is held, or l is new.
func (l *Log) renew(partitions int32) {
	l.id = l.broker.id + "/" + rand.Text()
	l.parts = nil
	l.extend(partitions)
}

func (l *Log) extend(partitions int32) {
	if partitions <= int32(len(l.parts)) {
		panic(fmt.Sprintf("memsource: topic %q cannot have %d partitions", l.name, partitions))
	}
	for int32(len(l.parts)) < partitions {
		l.parts = append(l.parts, newPart())
	}
}

func (l *Log) part(n int32) *part {
	if n < 0 || int(n) >= len(l.parts) {
		panic(fmt.Sprintf("memsource: topic %q has partitions 0 to %d, not %d", l.name, len(l.parts)-1, n))
	}
	return l.parts[n]
}

// Broker returns the broker that holds the topic.
func (l *Log) Broker() *Broker { return l.broker }

// Name returns the topic's name.
func (l *Log) Name() string { return l.name }

// Group returns a group that reads this topic alone.
func (l *Log) Group(name string) *Group { return l.broker.Group(name, l.name) }

// Member returns a new member of [DefaultGroup].
func (l *Log) Member(name string) *Member { return l.Group(DefaultGroup).Member(name) }

// UntilApplied is [Group.UntilApplied] of [DefaultGroup].
func (l *Log) UntilApplied(ctx context.Context) context.Context {
	return l.Group(DefaultGroup).UntilApplied(ctx)
}

// Append adds a message for each value to partition n, and returns the first offset.
func (l *Log) Append(n int32, values ...string) epoch.Offset {
	ms := make([]consumer.Message, len(values))
	for i, v := range values {
		ms[i].Value = []byte(v)
	}
	return l.AppendMessages(n, ms...)
}

// AppendMessages adds messages to partition n, and returns the first offset. The log sets partition
// and offset. A zero time becomes now.
func (l *Log) AppendMessages(n int32, ms ...consumer.Message) epoch.Offset {
	l.broker.mu.Lock()
	defer l.broker.mu.Unlock()
	return l.append(n, ms)
}

// Send adds one message to the partition of its key, and returns the partition and the offset.
func (l *Log) Send(key, value string) (int32, epoch.Offset) {
	l.broker.mu.Lock()
	defer l.broker.mu.Unlock()
	h := fnv.New32a()
	_, _ = h.Write([]byte(key))
	n := int32(h.Sum32() % uint32(len(l.parts)))
	return n, l.append(n, []consumer.Message{{Key: []byte(key), Value: []byte(value)}})
}

func (l *Log) append(n int32, ms []consumer.Message) epoch.Offset {
	p := l.part(n)
	first := p.end
	for _, m := range ms {
		if m.Time.IsZero() {
			m.Time = time.Now().Round(0) // without the monotonic reading
		}
		p.add(m)
	}
	p.wakeUp()
	l.broker.notify()
	return first
}

// Delete removes messages inside the log, as compaction does. The source can explain the gaps.
func (l *Log) Delete(n int32, offsets ...epoch.Offset) {
	l.broker.mu.Lock()
	defer l.broker.mu.Unlock()
	l.part(n).remove(offsets)
	l.broker.notify()
}

// Trim makes partition n begin at the offset, as retention does. Positions below it then fail with
// [consumer.ErrOffsetExpired], unless nothing was applied yet.
func (l *Log) Trim(n int32, begin epoch.Offset) {
	l.broker.mu.Lock()
	defer l.broker.mu.Unlock()
	p := l.part(n)
	p.trim(begin)
	p.wakeUp()
	l.broker.notify()
}

// Truncate makes partition n end at the offset and raises its leader epoch, as an unclean leader
// election does. The offsets above are given out again.
func (l *Log) Truncate(n int32, end epoch.Offset) {
	l.broker.mu.Lock()
	defer l.broker.mu.Unlock()
	p := l.part(n)
	p.truncate(end)
	p.wakeUp()
	l.broker.notify()
}

// Bounds returns the offset at which partition n begins, and the offset of its next message.
func (l *Log) Bounds(n int32) (begin, end epoch.Offset) {
	l.broker.mu.Lock()
	defer l.broker.mu.Unlock()
	p := l.part(n)
	return p.begin, p.end
}

// AddPartitions raises the number of partitions to total.
func (l *Log) AddPartitions(total int32) {
	l.broker.mu.Lock()
	defer l.broker.mu.Unlock()
	l.extend(total)
	for _, g := range l.broker.groups {
		g.resetAndRebalance()
	}
	l.broker.notify()
}

// Recreate deletes the topic and creates it again under its name, with empty partitions and a new
// identity. Holders lose their partitions, and the published positions are gone.
func (l *Log) Recreate(partitions int32) {
	l.broker.mu.Lock()
	defer l.broker.mu.Unlock()
	l.renew(partitions)
	for _, g := range l.broker.groups {
		g.topicRecreated(l.name)
	}
	l.broker.notify()
}
