package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/epochfence/epochfence/epoch"
)

// This file decides which fences exist before the first claim of a topic: one for each of its
// partitions (R9). Where they start is the source's answer; claim.go adopts what the group had
// committed.

// seed creates fences for all partitions that the topic has now, so that a partition that is added
// later can be recognized. One partition does so for all that find no fence at the same time.
func (r *runner[TX]) seed(ctx context.Context, t Tenure) (epoch.Fence, error) {
	p := t.Origin().Partition
	err := r.seedings.once(ctx, p.Topic, func() error {
		// Another partition may have created it meanwhile.
		if _, err := r.sink.Fence(ctx, p); !errors.Is(err, epoch.ErrMissing) {
			return err
		}
		starts, err := t.Starts(ctx, r.Start)
		if err != nil {
			return fmt.Errorf("find where the partitions of %s start (%v): %w", p.Topic, r.Start, &sourceError{err})
		}
		if err := r.sink.Seed(ctx, starts); err != nil {
			return fmt.Errorf("create the fences of %s: %w", p.Topic, err)
		}
		return nil
	})
	switch {
	// The partition that was seeding was lost, which says nothing about this one.
	case errors.Is(err, errCutOff):
		return r.seed(ctx, t)
	case err != nil:
		return epoch.Fence{}, err
	}
	return r.sink.Fence(ctx, p)
}

// errCutOff means that the partition that created the fences was lost meanwhile.
var errCutOff = errors.New("cut off")

// seedings are the seedings under way, by topic. Without them, all partitions of a new topic would
// ask the source and write the same fences at the same time.
type seedings struct {
	mu       sync.Mutex
	underWay map[string]*seeding
}

type seeding struct {
	over chan struct{}
	err  error // valid when over is closed
}

// once calls do, or waits for the partition that is doing so and returns its result.
func (s *seedings) once(ctx context.Context, topic string, do func() error) error {
	other, own := s.join(topic)
	if own != nil {
		own.err = errCutOff // if do panics
		defer s.leave(topic, own)
		err := do()
		if own.err = err; ctx.Err() != nil {
			own.err = errCutOff
		}
		return err
	}
	select {
	case <-other.over:
		return other.err
	case <-ctx.Done():
		return ctx.Err()
	}
}

// join returns the seeding under way as other, or begins one as own.
func (s *seedings) join(topic string) (other, own *seeding) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if other := s.underWay[topic]; other != nil {
		return other, nil
	}
	if s.underWay == nil {
		s.underWay = map[string]*seeding{}
	}
	own = &seeding{over: make(chan struct{})}
	s.underWay[topic] = own
	return nil, own
}

func (s *seedings) leave(topic string, own *seeding) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.underWay, topic)
	close(own.over)
}
