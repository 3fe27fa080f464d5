// Package tenures is for sources: it holds what their tenures have in common. A
// [State] says whether a partition is held, revoked or lost, and a [Position]
// what of it may be published.
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

// Lost makes an error a [consumer.ErrLost].
func Lost(why error) error {
	if errors.Is(why, consumer.ErrLost) {
		return why
	}
	return fmt.Errorf("%w: %w", consumer.ErrLost, why)
}

// State is how far a tenure has got. It is held at first. It may be revoked or
// lost, or both, and is over when own has returned. Its methods are safe for
// concurrent use.
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

// NewState returns that of a tenure which is lost with ctx. Previous is the
// process's tenure of the same partition before this one, nil if there was none.
func NewState(ctx context.Context, previous *State) *State {
	s := &State{over: make(chan struct{}), clear: make(chan struct{})}
	s.held, s.lose = context.WithCancelCause(ctx)
	s.kept, s.revoke = context.WithCancel(context.Background())
	if previous != nil {
		s.previous = previous.clear
	}
	return s
}

// Run calls own, unless the tenure is revoked or lost before that. It waits for
// the own of earlier tenures, as a process never works on a partition twice at a
// time. When Run returns the tenure is over.
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

// finish also notes when the partition is clear. A tenure that did not come to
// its turn may be over while the own of an earlier one still runs.
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

// Draining is closed when the partition is revoked.
func (s *State) Draining() <-chan struct{} { return s.kept.Done() }

// Revoke closes Draining.
func (s *State) Revoke() { s.revoke() }

// RevokeWithin is Revoke, and takes the partition away if the tenure is not over
// after limit; overrun is called then, to say so.
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

// Lose ends the tenure: nothing can commit any more. The cause becomes a
// [consumer.ErrLost]; of several the first counts.
func (s *State) Lose(why error) { s.lose(Lost(why)) }

// Lost returns the cause of the loss, which is a [consumer.ErrLost], or nil.
func (s *State) Lost() error {
	if s.held.Err() == nil {
		return nil
	}
	return Lost(context.Cause(s.held))
}

// WhenLost is closed when the tenure is lost.
func (s *State) WhenLost() <-chan struct{} { return s.held.Done() }

// OnceLost calls f on a goroutine of its own when the tenure is lost, unless stop was called before.
func (s *State) OnceLost(f func()) (stop func() bool) { return context.AfterFunc(s.held, f) }

// GiveUp is a [consumer.Tenure]'s.
func (s *State) GiveUp(until <-chan struct{}) { s.until.Store(until) }

// GivenUp returns the channel that GiveUp was called with, which is closed once this
// process may have the partition again, or nil.
func (s *State) GivenUp() <-chan struct{} {
	until, _ := s.until.Load().(<-chan struct{})
	return until
}

// Over is closed when own has returned, or will not be called.
func (s *State) Over() <-chan struct{} { return s.over }

// Held reports whether the partition is neither revoked nor lost.
func (s *State) Held() bool { return s.held.Err() == nil && !s.Revoked() }

// Err returns why nothing may be confirmed under the tenure any more: it was
// lost, or it is over. It is a [consumer.ErrLost], or nil.
func (s *State) Err() error {
	if err := s.Lost(); err != nil {
		return err
	}
	if isClosed(s.over) {
		return Lost(ErrEnded)
	}
	return nil
}

// UntilLost returns a context that ends when the tenure is lost, too.
func (s *State) UntilLost(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	stop := context.AfterFunc(s.held, cancel)
	return ctx, func() { stop(); cancel() }
}

// WhileHeld returns a context that ends when the tenure is lost or revoked, too.
func (s *State) WhileHeld(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := s.UntilLost(ctx)
	if s.Revoked() {
		cancel() // now, and not soon
	}
	stop := context.AfterFunc(s.kept, cancel)
	return ctx, func() { stop(); cancel() }
}

// Read is a [consumer.Tenure]'s. It calls read with a context that ends when the
// tenure is lost or revoked, and passes its error on only if that is not why it
// ended. A second Read at the same time is an error.
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
