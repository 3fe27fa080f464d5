package cassink

import (
	"context"
	"errors"
	"fmt"

	"github.com/epochfence/epochfence/epoch"
)

// This file lets the transactions of one process write a fence one after another. Writes of other
// processes are refused by the store.

// takeTurn waits until no other transaction of this process writes the fence. So entries are committed in
// the order of their ids, and no write is refused because of another one of this process.
func (t *transaction) takeTurn(ctx context.Context) error {
	if t.hasTurn() {
		return nil
	}
	turn := t.sink.turnOf(t.goal.Partition)
	select {
	case turn <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("%w: another transaction of this process writes the fence: %w", epoch.ErrTransient, ctx.Err())
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.abandoned || t.over {
		<-turn
		return errors.Join(epoch.ErrAbandoned, errEnded)
	}
	t.turn = turn
	return nil
}

func (s *Sink) turnOf(p epoch.Partition) chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	turn, ok := s.turns[p]
	if !ok {
		turn = make(chan struct{}, 1)
		s.turns[p] = turn
	}
	return turn
}

func (t *transaction) hasTurn() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.turn != nil
}

// close ends the transaction, for goroutines of its handler, too.
func (t *transaction) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over = true
	t.pass()
}

func (t *transaction) giveTurn() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pass()
}

// pass lets another transaction write the fence.
func (t *transaction) pass() {
	if t.turn != nil {
		<-t.turn
		t.turn = nil
	}
}
