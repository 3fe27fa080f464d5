package cassink

import (
	"bytes"
	"context"
	"slices"
	"sync/atomic"

	"github.com/epochfence/epochfence/cas"
)

// This file reads the fence while the handlers of a transaction run, so that a process that has lost it
// meanwhile writes nothing. One that loses it later is stopped by the items.

// look is the store of a transaction's items. The request for the first of them that a handler reads also
// reads the fence.
type look struct {
	cas.BatchGetter
	sink  *Sink
	goal  goal
	began item
	asked atomic.Bool
	found chan answer
}

// looks returns a look, and the store for handlers. A store that reads one item in each request reads the fence
// beside the others.
func (s *Sink) looks(ctx context.Context, at item, g goal) (*look, cas.Store) {
	l := &look{sink: s, goal: g, began: at, found: make(chan answer, 1)}
	if all, ok := s.store.(cas.BatchGetter); ok {
		l.BatchGetter = all
		return l, l
	}
	l.asked.Store(true)
	go func() { l.found <- s.readFence(ctx, g.Partition) }()
	return l, s.store
}

// stillOurs returns an error unless the transaction fits the fence that was read.
func (l *look) stillOurs(ctx context.Context) error {
	var first answer
	asked := !l.asked.CompareAndSwap(false, true)
	if asked {
		first = <-l.found
	}
	if !asked || first.err != nil { // perhaps of another item
		first = l.sink.readFence(ctx, l.goal.Partition)
	}
	if first.err == nil && bytes.Equal(first.stored.Value, l.began.stored.Value) {
		return nil
	}
	at, err := l.sink.fenceFrom(ctx, l.goal.Partition, first)
	if err != nil {
		return lost(err)
	}
	_, err = l.goal.after(at.record.Fence)
	return err
}

// with reads items and the fence, unless that was read before.
func (l *look) with(ctx context.Context, keys ...string) ([]cas.Item, bool) {
	fence := l.sink.keys.fence(l.goal.Partition)
	if slices.Contains(keys, fence) || !l.asked.CompareAndSwap(false, true) {
		return nil, false
	}
	items, err := l.BatchGetter.GetAll(ctx, append([]string{fence}, keys...))
	if err != nil {
		l.found <- answer{err: err}
		return nil, false
	}
	l.found <- answer{stored: items[0]}
	return items[1:], true
}

// Get implements [cas.Store].
func (l *look) Get(ctx context.Context, key string) (cas.Item, error) {
	if items, ok := l.with(ctx, key); ok {
		return items[0], nil
	}
	return l.BatchGetter.Get(ctx, key)
}

// GetAll implements [cas.BatchGetter].
func (l *look) GetAll(ctx context.Context, keys []string) ([]cas.Item, error) {
	if items, ok := l.with(ctx, keys...); ok {
		return items, nil
	}
	return l.BatchGetter.GetAll(ctx, keys)
}

// SwapAll implements [cas.BatchSwapper].
func (l *look) SwapAll(ctx context.Context, writes []cas.Write) []cas.Written {
	return cas.SwapAll(ctx, l.BatchGetter, writes)
}

var _ cas.BatchSwapper = (*look)(nil)
