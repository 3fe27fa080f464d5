package memsource

import (
	"bytes"
	"cmp"
	"context"
	"crypto/rand"
	"fmt"
	"hash/fnv"
	"slices"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
)

// This file has the messages of a partition, the marks by which a log that was truncated is recognized,
// and what a test does to a topic: append, delete, truncate, create it anew. tenure.go reads.

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
	l.change(n, func(p *part) { p.remove(offsets) })
}

func (l *Log) change(n int32, do func(p *part)) {
	l.broker.mu.Lock()
	defer l.broker.mu.Unlock()
	p := l.part(n)
	do(p)
	p.wakeUp()
	l.broker.notify()
}

// Trim makes partition n begin at the offset, as retention does. Positions below it then fail with
// [consumer.ErrOffsetExpired], unless nothing was applied yet.
func (l *Log) Trim(n int32, begin epoch.Offset) {
	l.change(n, func(p *part) { p.trim(begin) })
}

// Truncate makes partition n end at the offset and raises its leader epoch, as an unclean leader
// election does. The offsets above are given out again.
func (l *Log) Truncate(n int32, end epoch.Offset) {
	l.change(n, func(p *part) { p.truncate(end) })
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

// The limits of one slice. A reader's memory does not depend on the size of the log.
const (
	maxSlice      = 4096
	maxSliceBytes = 1 << 20
)

// part is the log of one partition. The broker's lock guards it.
type part struct {
	messages   []consumer.Message // by offset; a missing offset was deleted
	begin, end epoch.Offset
	epochs     []epoch.Offset // where each leader epoch begins, from epoch 0
	wake       chan struct{}  // closed at the next change; nil while nobody waits
}

func newPart() *part { return &part{epochs: []epoch.Offset{0}} }

func (p *part) add(m consumer.Message) {
	m = copied(m)
	m.Offset = p.end
	p.messages = append(p.messages, m)
	p.end++
}

// copied returns a copy that shares no bytes with m, so that nobody changes the broker's messages.
func copied(m consumer.Message) consumer.Message {
	m.Key, m.Value, m.Headers = bytes.Clone(m.Key), bytes.Clone(m.Value), slices.Clone(m.Headers)
	for i := range m.Headers {
		m.Headers[i].Value = bytes.Clone(m.Headers[i].Value)
	}
	return m
}

func (p *part) index(at epoch.Offset) int {
	i, _ := slices.BinarySearchFunc(p.messages, at, func(m consumer.Message, at epoch.Offset) int {
		return cmp.Compare(m.Offset, at)
	})
	return i
}

func (p *part) remove(offsets []epoch.Offset) {
	p.messages = slices.DeleteFunc(p.messages, func(m consumer.Message) bool {
		return slices.Contains(offsets, m.Offset)
	})
}

func (p *part) trim(begin epoch.Offset) {
	if begin <= p.begin {
		return
	}
	p.messages = slices.Clone(p.messages[p.index(begin):])
	p.begin, p.end = begin, max(p.end, begin)
}

func (p *part) truncate(end epoch.Offset) {
	if end >= p.end {
		return
	}
	p.messages = slices.Delete(p.messages, p.index(end), len(p.messages))
	p.begin, p.end = min(p.begin, end), end
	for i := range p.epochs {
		p.epochs[i] = min(p.epochs[i], end)
	}
	p.epochs = append(p.epochs, end)
}

func (p *part) position(at epoch.Offset) epoch.Position {
	if at == p.begin {
		return epoch.Position{Offset: at, Mark: epoch.Mark(len(p.epochs) - 1)}
	}
	return epoch.Position{Offset: at, Mark: p.mark(at - 1)}
}

func (p *part) mark(at epoch.Offset) epoch.Mark {
	e := len(p.epochs) - 1
	for e > 0 && p.epochs[e] > at {
		e--
	}
	return epoch.Mark(e)
}

func (p *part) endOf(leaderEpoch epoch.Mark) epoch.Offset {
	if leaderEpoch < 0 || int(leaderEpoch) >= len(p.epochs)-1 {
		return p.end
	}
	return p.epochs[leaderEpoch+1]
}

// fetch returns one slice from the position, or why the log does not have the position.
func (p *part) fetch(of epoch.Partition, at epoch.Offset, mark epoch.Mark) (b consumer.Batch, ready bool, err error) {
	if at < p.begin {
		return b, false, &consumer.PositionError{Partition: of, Kind: consumer.ErrOffsetExpired, Position: at, Found: p.begin}
	}
	if end := p.endOf(mark); at > end {
		return b, false, &consumer.PositionError{Partition: of, Kind: consumer.ErrTruncated, Position: at, Found: end}
	}
	if at == p.end {
		return b, false, nil
	}
	first := p.index(at)
	last, size := first, 0
	for last < len(p.messages) && last-first < maxSlice && size < maxSliceBytes {
		size += len(p.messages[last].Key) + len(p.messages[last].Value)
		last++
	}
	b.Messages = make([]consumer.Message, last-first)
	for i, m := range p.messages[first:last] {
		b.Messages[i] = copied(m)
		b.Messages[i].Partition = of
		b.Messages[i].Mark = p.mark(m.Offset)
	}
	if last == len(p.messages) {
		b.Next = p.end // the rest, if there is any, was deleted
	} else {
		b.Next = p.messages[last-1].Offset + 1
	}
	b.Mark = p.mark(b.Next - 1)
	b.End = b.Next + epoch.Offset(len(p.messages)-last)
	return b, true, nil
}

func (p *part) changed() <-chan struct{} {
	if p.wake == nil {
		p.wake = make(chan struct{})
	}
	return p.wake
}

func (p *part) wakeUp() {
	if p.wake != nil {
		close(p.wake)
		p.wake = nil
	}
}
