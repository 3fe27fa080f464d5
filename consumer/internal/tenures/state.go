// Package tenures holds what the tenures of all sources have in common. A [State] says whether a
// partition is held, revoked or lost. A [Position] says which position may be published.
package tenures

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync/atomic"
	"time"

	"github.com/epochfence/epochfence/consumer"
)

// ErrEnded is the cause of the loss of a tenure that is over.
var ErrEnded = errors.New("the tenure has ended")

var errReading = errors.New("consumer: one Read of a tenure at a time")

// Lost wraps an error so that it matches [consumer.ErrLost].
func Lost(why error) error {
	if errors.Is(why, consumer.ErrLost) {
		return why
	}
	return fmt.Errorf("%w: %w", consumer.ErrLost, why)
}

// State is the state of a tenure. A tenure is held at first, may be revoked, lost or both, and is
// over when own has returned. State's methods are safe for concurrent use.
type State struct {
	held    context.Context // ends when the tenure is lost, with the cause
	lose    context.CancelCauseFunc
	kept    context.Context // ends when the partition is revoked
	revoke  context.CancelFunc
	reading atomic.Bool
	until   atomic.Value // <-chan struct{}: see GiveUp

	previous <-chan struct{} // closed when no own of an earlier tenure runs; nil for none
	over     chan struct{}   // closed when own has returned, or will not be called
	clear    chan struct{}   // closed when no own of this tenure or an earlier one runs
}

// NewState returns the state of a tenure that is lost when ctx ends. previous is the process's
// earlier tenure of the same partition, or nil.
func NewState(ctx context.Context, previous *State) *State {
	s := &State{over: make(chan struct{}), clear: make(chan struct{})}
	s.held, s.lose = context.WithCancelCause(ctx)
	s.kept, s.revoke = context.WithCancel(context.Background())
	if previous != nil {
		s.previous = previous.clear
	}
	return s
}

// Run calls own, unless the tenure is revoked or lost first, and ends the tenure. It waits for the
// own of earlier tenures, because a process must not work on a partition twice at a time.
func (s *State) Run(own func(ctx context.Context)) {
	defer s.finish()
	if s.previous != nil {
		select {
		case <-s.previous:
		case <-s.kept.Done():
		case <-s.held.Done():
		}
	}
	if s.Held() {
		own(s.held)
	}
}

// finish closes over, and closes clear once no earlier own runs. A tenure that never got its turn
// may be over while an earlier own still runs.
func (s *State) finish() {
	close(s.over)
	if s.previous == nil {
		close(s.clear)
		return
	}
	go func() {
		<-s.previous
		close(s.clear)
	}()
}

// Draining returns a channel that is closed when the partition is revoked.
func (s *State) Draining() <-chan struct{} { return s.kept.Done() }

// Revoke closes Draining.
func (s *State) Revoke() { s.revoke() }

// RevokeWithin revokes the partition. After limit it calls overrun and ends the tenure.
func (s *State) RevokeWithin(limit time.Duration, overrun func()) {
	s.Revoke()
	timer := time.AfterFunc(limit, func() {
		if !isClosed(s.over) {
			overrun()
			s.Lose(consumer.ErrDrainOverrun)
		}
	})
	context.AfterFunc(s.held, func() { timer.Stop() })
}

// Revoked reports whether the partition was revoked.
func (s *State) Revoked() bool { return s.kept.Err() != nil }

// Lose ends the tenure: nothing more can commit. Only the first cause counts.
func (s *State) Lose(why error) { s.lose(Lost(why)) }

// Lost returns the cause of the loss, which is a [consumer.ErrLost], or nil.
func (s *State) Lost() error {
	if s.held.Err() == nil {
		return nil
	}
	return Lost(context.Cause(s.held))
}

// WhenLost returns a channel that is closed when the tenure is lost.
func (s *State) WhenLost() <-chan struct{} { return s.held.Done() }

// GiveUp implements [consumer.Tenure].
func (s *State) GiveUp(until <-chan struct{}) { s.until.Store(until) }

// GivenUp returns the channel passed to GiveUp, which is closed once we may hold it again, or nil.
func (s *State) GivenUp() <-chan struct{} {
	until, _ := s.until.Load().(<-chan struct{})
	return until
}

// Over returns a channel that is closed when own has returned, or will not be called.
func (s *State) Over() <-chan struct{} { return s.over }

// Held reports whether the partition is neither revoked nor lost.
func (s *State) Held() bool { return s.held.Err() == nil && !s.Revoked() }

// Err returns a [consumer.ErrLost] if nothing may be confirmed under the tenure any more, or nil.
func (s *State) Err() error {
	if err := s.Lost(); err != nil {
		return err
	}
	if isClosed(s.over) {
		return Lost(ErrEnded)
	}
	return nil
}

// UntilLost returns a context that also ends when the tenure is lost.
func (s *State) UntilLost(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.held, cancel)
	return ctx, func() { stop(); cancel() }
}

// WhileHeld returns a context that also ends when the tenure is lost or revoked.
func (s *State) WhileHeld(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := s.UntilLost(ctx)
	if s.Revoked() {
		cancel() // AfterFunc would cancel it a moment later
	}
	stop := context.AfterFunc(s.kept, cancel)
	return ctx, func() { stop(); cancel() }
}

// Read implements [consumer.Tenure]. It calls read with a context that ends when the tenure is lost
// or revoked, and drops an error that follows from that. A second Read at the same time fails.
func (s *State) Read(ctx context.Context, read func(ctx context.Context, yield func(consumer.Batch) bool) error) iter.Seq2[consumer.Batch, error] {
	return func(yield func(consumer.Batch, error) bool) {
		if !s.reading.CompareAndSwap(false, true) {
			yield(consumer.Batch{}, errReading)
			return
		}
		defer s.reading.Store(false)
		ctx, cancel := s.WhileHeld(ctx)
		defer cancel()
		err := read(ctx, func(b consumer.Batch) bool { return s.Held() && yield(b, nil) })
		if err != nil && ctx.Err() == nil && s.Held() {
			yield(consumer.Batch{}, err)
		}
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
