package httpfence

import (
	"context"
	"fmt"
	"sync"
)

// This file decides the order of requests for one scope within this process. Between processes, the
// database's lock decides: transaction.go.

// locks is a mutex for each name. Waiting callers get it in the order of their arrival.
type locks struct {
	mu sync.Mutex
	of map[string]*lock
}

type lock struct {
	in    chan struct{} // full while a caller is in; Go queues the blocked senders in order
	users int           // in or waiting
}

// enter waits for the mutex of name until ctx ends. Call leave if err is nil.
func (t *locks) enter(ctx context.Context, name string) (leave func(), err error) {
	t.mu.Lock()
	if t.of == nil {
		t.of = map[string]*lock{}
	}
	mine := t.of[name]
	if mine == nil {
		mine = &lock{in: make(chan struct{}, 1)}
		t.of[name] = mine
	}
	mine.users++
	t.mu.Unlock()

	done := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if mine.users--; mine.users == 0 {
			delete(t.of, name)
		}
	}
	select {
	case mine.in <- struct{}{}:
		if err := ctx.Err(); err != nil { // both were ready
			<-mine.in
			done()
			return nil, fmt.Errorf("%w: %w", ErrBusy, err)
		}
		return func() { <-mine.in; done() }, nil
	case <-ctx.Done():
		done()
		return nil, fmt.Errorf("%w: others of the same scope are being served: %w", ErrBusy, ctx.Err())
	}
}
