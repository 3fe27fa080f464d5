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

// look is the store of a transaction's items. The first request for one of them also reads the fence.
type look struct {
	cas.BatchGetter
	sink  *Sink
	began item
	asked atomic.Bool
	found chan cas.Written
}

// looks returns a look, and the store for handlers. A store that reads one item in each request reads the fence
// beside the others.
func (s *Sink) looks(ctx context.Context, at item) (*look, cas.Store) {
	l := &look{sink: s, began: at, found: make(chan cas.Written, 1)}
	if all, ok := s.store.(cas.BatchGetter); ok {
		l.BatchGetter = all
		return l, l
	}
	l.asked.Store(true)
	go func() { l.found <- s.readFence(ctx, at.record.Partition) }()
	return l, s.store
}

// stillOurs returns an error unless the transaction fits the fence that was read.
func (l *look) stillOurs(ctx context.Context, g goal) error {
	var first cas.Written
	asked := !l.asked.CompareAndSwap(false, true)
	if asked {
		first = <-l.found
	}
	if !asked || first.Err != nil { // perhaps the error of another item
		first = l.sink.readFence(ctx, g.Partition)
	}
	if first.Err == nil && bytes.Equal(first.Item.Value, l.began.stored.Value) {
		return nil
	}
	at, err := l.sink.fenceFrom(ctx, g.Partition, first)
	if err != nil {
		return lost(err)
	}
	_, err = g.after(at.record.Fence)
	return err
}

// Get implements [cas.Store].
func (l *look) Get(ctx context.Context, key string) (cas.Item, error) {
	items, err := l.GetAll(ctx, []string{key})
	if err != nil {
		return l.BatchGetter.Get(ctx, key) // for the error of this item
	}
	return items[0], nil
}

// GetAll implements [cas.BatchGetter].
func (l *look) GetAll(ctx context.Context, keys []string) ([]cas.Item, error) {
	fence := l.began.stored.Key
	if slices.Contains(keys, fence) || !l.asked.CompareAndSwap(false, true) {
		return l.BatchGetter.GetAll(ctx, keys)
	}
	items, err := l.BatchGetter.GetAll(ctx, append([]string{fence}, keys...))
	if err != nil {
		l.found <- cas.Written{Err: err}
		return nil, err
	}
	l.found <- cas.Written{Item: items[0]}
	return items[1:], nil
}

// SwapAll implements [cas.BatchSwapper].
func (l *look) SwapAll(ctx context.Context, writes []cas.Write) []cas.Written {
	return cas.SwapAll(ctx, l.BatchGetter, writes)
}
