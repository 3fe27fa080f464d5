package pgsink

import (
	"context"
	"errors"
	"sync"
	"time"
)

// This file decides which simultaneous reads and claims travel together. The callers have a
// statement for one and a statement for many.

const (
	fewAlone = 2

	// gatherTime limits how long a call waits for others, whatever happens to the calls under way.
	gatherTime = 10 * time.Millisecond

	maxCoalesced = 512
)

// coalescer lets simultaneous calls share a statement or a transaction, for example when a process
// is granted hundreds of partitions at once. The first calls are made by themselves. Calls that
// come meanwhile are made as one. Nothing else changes: the statement for a call is sent after the
// call has come.
type coalescer[Q, A any] struct {
	many func(ctx context.Context, qs []Q) ([]A, error) // the answers in their order, or errEach

	mu      sync.Mutex
	alone   int
	waiting []*call[Q, A]
	timer   *time.Timer
}

// errEach means that each call must be made by itself.
var errEach = errors.New("not together")

type call[Q, A any] struct {
	ctx      context.Context
	q        Q
	a        A
	err      error
	answered chan struct{} // closed when a and err are there
}

// do makes a call together with others, or by itself with one.
func (t *coalescer[Q, A]) do(ctx context.Context, q Q, one func() (A, error)) (A, error) {
	c := t.join(ctx, q)
	if c == nil {
		defer t.leave()
		return one()
	}
	select {
	case <-c.answered:
	case <-ctx.Done():
		var none A
		return none, ctx.Err()
	}
	if errors.Is(c.err, errEach) {
		return one()
	}
	return c.a, c.err
}

// join returns nil for a call that must be made by itself.
func (t *coalescer[Q, A]) join(ctx context.Context, q Q) *call[Q, A] {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.alone < fewAlone {
		t.alone++
		return nil
	}
	c := &call[Q, A]{ctx: ctx, q: q, answered: make(chan struct{})}
	t.waiting = append(t.waiting, c)
	if t.timer == nil {
		t.timer = time.AfterFunc(gatherTime, t.makeAll)
	}
	return c
}

func (t *coalescer[Q, A]) leave() {
	t.mu.Lock()
	t.alone--
	waiting := len(t.waiting) > 0
	t.mu.Unlock()
	if waiting {
		go t.makeAll()
	}
}

func (t *coalescer[Q, A]) makeAll() {
	t.mu.Lock()
	all := t.waiting
	t.waiting = nil
	if t.timer != nil {
		t.timer.Stop()
		t.timer = nil
	}
	t.mu.Unlock()
	for len(all) > 0 {
		n := min(len(all), maxCoalesced)
		t.make(all[:n])
		all = all[n:]
	}
}

func (t *coalescer[Q, A]) make(calls []*call[Q, A]) {
	var live []*call[Q, A]
	var qs []Q
	for _, c := range calls {
		if c.ctx.Err() == nil { // the caller may have gone
			live, qs = append(live, c), append(qs, c.q)
		}
	}
	var as []A
	err := errEach
	if len(live) > 1 {
		as, err = t.many(context.WithoutCancel(live[0].ctx), qs)
	}
	for i, c := range live {
		if c.err = err; err == nil {
			c.a = as[i]
		}
		close(c.answered)
	}
}
