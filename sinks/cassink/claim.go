package cassink

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// This file claims fences, and remembers the fence that this process has written last.
// epoch.Fences decides whether a claim is allowed.

// Claim implements [epoch.Sink].
func (s *Sink) Claim(ctx context.Context, seen epoch.Fence, c epoch.Claim) (epoch.Fence, error) {
	if _, err := s.store.Facts(ctx); errors.Is(err, cas.ErrUnsuitable) {
		return epoch.Fence{}, fmt.Errorf("cassink: claim %s: %w", c.Partition, err)
	}
	at, err := s.change(ctx, c.Partition, func(r *record) error {
		before := r.Fence
		after, err := epoch.Fences{c.Partition: before}.Claim(seen, c)
		if err != nil {
			return err
		}
		_ = s.announce(ctx, r, operate.Claimed(before, after, operate.TraceID(ctx)))
		r.Fence, r.ClaimedAt = after, now()
		return nil
	})
	if err != nil {
		return epoch.Fence{}, fmt.Errorf("cassink: claim %s: %w", c.Partition, err)
	}
	if whole, err := s.whole(ctx, at); err == nil {
		s.hold(whole)
	} // or the first commit reads it
	return at.record.Fence, nil
}

func (s *Sink) hold(at item) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held[at.record.Partition] = at
}

// ours returns the fence with this claim as it was written last, or reads it, with its lists.
func (s *Sink) ours(ctx context.Context, p epoch.Partition, claim epoch.ClaimID) (item, error) {
	s.mu.Lock()
	at, ok := s.held[p]
	s.mu.Unlock()
	if ok && at.record.Claim == claim {
		return at, nil
	}
	at, err := s.fence(ctx, p)
	if err != nil {
		return item{}, err
	}
	return s.whole(ctx, at)
}

func (s *Sink) forget(p epoch.Partition) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.held, p)
}

func now() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }
