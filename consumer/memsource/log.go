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

// DefaultGroup is the group that [Log.Member] and [Log.UntilApplied] mean.
const DefaultGroup = "group"

// Log is one topic of a broker.
type Log struct {
	broker *Broker
	name   string
	id     string
	parts  []*part
}

// New returns a topic with so many partitions, on a broker of its own.
func New(topic string, partitions int32) *Log {
	return NewBroker().Create(topic, partitions)
}

// renew gives the log a new identity and empty partitions. The lock is held, or
// nobody knows l yet.
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

// Append adds a message for each value to partition n, and returns the offset
// of the first.
func (l *Log) Append(n int32, values ...string) epoch.Offset {
	ms := make([]consumer.Message, len(values))
	for i, v := range values {
		ms[i].Value = []byte(v)
	}
	return l.AppendMessages(n, ms...)
}

// AppendMessages adds messages with keys, headers and times to partition n, and
// returns the offset of the first. Partition and offset are set by the log; a time
// that is zero becomes now.
func (l *Log) AppendMessages(n int32, ms ...consumer.Message) epoch.Offset {
	l.broker.mu.Lock()
	defer l.broker.mu.Unlock()
	return l.append(n, ms)
}

// Send adds one message to the partition that its key belongs to, and returns
// that partition and the offset.
func (l *Log) Send(key, value string) (int32, epoch.Offset) {
	l.broker.mu.Lock()
	defer l.broker.mu.Unlock()
	h := fnv.New32a()
	_, _ = h.Write([]byte(key)) // never fails
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

// Delete removes messages from the inside of the log, as compaction or a delete
// by an operator does. The gaps are ones that the source can explain.
func (l *Log) Delete(n int32, offsets ...epoch.Offset) {
	l.broker.mu.Lock()
	defer l.broker.mu.Unlock()
	l.part(n).remove(offsets)
	l.broker.notify()
}

// Trim makes partition n begin at the offset, as retention does: what was below
// is gone without an explanation.
func (l *Log) Trim(n int32, begin epoch.Offset) {
	l.broker.mu.Lock()
	defer l.broker.mu.Unlock()
	p := l.part(n)
	p.trim(begin)
	p.wakeUp()
	l.broker.notify()
}

// Truncate makes partition n end at the offset and raises its leader epoch, as
// an unclean leader election does: what was above is gone, and its offsets are
// given out again.
func (l *Log) Truncate(n int32, end epoch.Offset) {
	l.broker.mu.Lock()
	defer l.broker.mu.Unlock()
	p := l.part(n)
	p.truncate(end)
	p.wakeUp()
	l.broker.notify()
}

// Bounds returns the offset at which partition n begins and the one that its
// next message will have.
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

// Recreate deletes the topic and creates it again under its old name: it has so
// many partitions, all empty, and another identity. Whoever holds a partition of
// the old one loses it, and the positions that groups have published for it are
// gone.
func (l *Log) Recreate(partitions int32) {
	l.broker.mu.Lock()
	defer l.broker.mu.Unlock()
	l.renew(partitions)
	for _, g := range l.broker.groups {
		g.topicRecreated(l.name)
	}
	l.broker.notify()
}
