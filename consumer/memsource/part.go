package memsource

import (
	"bytes"
	"cmp"
	"slices"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
)

// This file has the messages of a partition, and the marks by which a log that was truncated is
// recognized. log.go changes it, and tenure.go reads it.

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
