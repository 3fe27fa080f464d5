package pgsink

import (
	"context"
	"errors"
	"sync"
	"time"
)

const (
	// fewAlone is how many calls are made by themselves at a time.
	fewAlone = 2

	// gatherTime is how long a call waits for others at most, whatever becomes of those
	// that are being made.
	gatherTime = 10 * time.Millisecond

	// maxCoalesced bounds the calls that are made as one.
	maxCoalesced = 512
)

// coalescer lets calls that come at the same time share a statement or a transaction, as
// those of a process do that is granted hundreds of partitions at once. The first ones
// are made by themselves; what comes meanwhile is made as one. Nothing else changes: what is
// asked for a call is asked after it has come, and answers none that came later.
type coalescer[Q, A any] struct {
	many func(ctx context.Context, qs []Q) ([]A, error) // the answers in their order, or errEach

	mu      sync.Mutex
	alone   int // calls that are being made by themselves
	waiting []*call[Q, A]
	timer   *time.Timer // while some are waiting
}

// errEach says that the calls are to be made one by one.
var errEach = errors.New("not together")

type call[Q, A any] struct {
	ctx      context.Context
	q        Q
	a        A
	err      error
	answered chan struct{} // closed when a and err are there
}

// do makes a call together with others, or as one does it.
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

// join returns nil for a call that is to be made by itself.
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

// makeAll makes the calls that are waiting.
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
		if c.ctx.Err() == nil { // who has called may have gone
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
