// Package explore pauses the callers of a store before each request. A test lets them go on one by one,
// in a random order, and decides the outcome of each request. So it finds orders of events that
// nobody has thought of.
package explore

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/memstore"
	"github.com/epochfence/epochfence/internal/suites/bubble"
)

// Each plays runs of random faults, each in a bubble and with numbers of its own, until one fails. It logs
// the seed of that one.
func Each(t *testing.T, runs int, play func(t *testing.T, seed uint64)) {
	t.Helper()
	for seed := range bubble.Rounds(runs) {
		bubble.Test(t, func(t *testing.T) {
			play(t, uint64(seed)) //nolint:gosec // it is not negative
			if t.Failed() {
				t.Logf("seed %d", seed)
			}
		})
		if t.Failed() {
			return
		}
	}
}

// ErrLost is the error of a request that was lost, or whose answer was.
var ErrLost = errors.New("the connection was lost")

// Fate is what becomes of a request.
type Fate int

// The fates of a request.
const (
	CarriedOut Fate = iota
	RequestLost
	AnswerLost
	LandsLate // the caller gets ErrLost, and the write is carried out by Lands
)

// Schedule has the callers that are paused. It is safe for concurrent use, but for LetGo and Fate, which
// use Rand: call them while all callers are paused, as after synctest.Wait.
type Schedule struct {
	Rand *rand.Rand

	mu      sync.Mutex
	waiting []chan Fate // of the callers that are paused
	late    []func()    // writes that have not landed
}

// Fate draws a fate. Three of four requests are carried out.
func (s *Schedule) Fate() Fate {
	if n := s.Rand.IntN(12); n < 3 {
		return Fate(1 + n)
	}
	return CarriedOut
}

// LetGo lets one caller go on, and reports whether there was one.
func (s *Schedule) LetGo(f Fate) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.waiting) == 0 {
		return false
	}
	i := s.Rand.IntN(len(s.waiting))
	s.waiting[i] <- f
	s.waiting = slices.Delete(s.waiting, i, i+1)
	return true
}

// Pause waits until the caller is let go.
func (s *Schedule) Pause(ctx context.Context) (Fate, error) {
	letGo := make(chan Fate, 1)
	s.mu.Lock()
	s.waiting = append(s.waiting, letGo)
	s.mu.Unlock()
	select {
	case f := <-letGo:
		return f, nil
	case <-ctx.Done():
		s.mu.Lock()
		defer s.mu.Unlock()
		s.waiting = slices.DeleteFunc(s.waiting, func(w chan Fate) bool { return w == letGo })
		return 0, ctx.Err()
	}
}

// Lands carries out the write that is late for the longest time, and reports whether there was one.
func (s *Schedule) Lands() bool {
	s.mu.Lock()
	if len(s.late) == 0 {
		s.mu.Unlock()
		return false
	}
	land := s.late[0]
	s.late = s.late[1:]
	s.mu.Unlock()
	land()
	return true
}

func (s *Schedule) isLate(land func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.late = append(s.late, land)
}

// Store is a store whose callers are paused before each Get, Swap and Delete.
type Store struct {
	*memstore.Store
	Schedule *Schedule
}

// Get implements [cas.Store].
func (p Store) Get(ctx context.Context, key string) (cas.Item, error) {
	f, err := p.Schedule.Pause(ctx)
	if err != nil {
		return cas.Item{}, err
	}
	if f != CarriedOut {
		return cas.Item{}, ErrLost
	}
	return p.Store.Get(ctx, key)
}

// Swap implements [cas.Store].
func (p Store) Swap(ctx context.Context, seen cas.Item, value, note []byte) (cas.Item, error) {
	f, err := p.Schedule.Pause(ctx)
	if err != nil {
		return cas.Item{}, err
	}
	return p.write(f, func() (cas.Item, error) { return p.Store.Swap(context.WithoutCancel(ctx), seen, value, note) })
}

// Delete implements [cas.Store].
func (p Store) Delete(ctx context.Context, seen cas.Item) error {
	f, err := p.Schedule.Pause(ctx)
	if err != nil {
		return err
	}
	_, err = p.write(f, func() (cas.Item, error) { return cas.Item{}, p.Store.Delete(context.WithoutCancel(ctx), seen) })
	return err
}

func (p Store) write(f Fate, write func() (cas.Item, error)) (cas.Item, error) {
	switch f {
	case RequestLost:
		return cas.Item{}, ErrLost
	case AnswerLost:
		if _, err := write(); err != nil {
			return cas.Item{}, err
		}
		return cas.Item{}, ErrLost
	case LandsLate:
		p.Schedule.isLate(func() { _, _ = write() })
		return cas.Item{}, ErrLost
	default:
		return write()
	}
}
