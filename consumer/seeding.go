package consumer

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/epochfence/epochfence/epoch"
)

// seed creates fences for all partitions that the topic has now, so that one
// which is added later can be told from one which was there when the group
// began. Of the partitions that find theirs missing at the same time, one does it for all.
func (r *runner[TX]) seed(ctx context.Context, t Tenure) (epoch.Fence, error) {
	p := t.Origin().Partition
	err := r.seedings.once(ctx, p.Topic, func() error {
		// Another may have done it since ours was found missing.
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
	case errors.Is(err, errCutOff):
		return r.seed(ctx, t)
	case err != nil:
		return epoch.Fence{}, err
	}
	return r.sink.Fence(ctx, p)
}

// errCutOff: whoever was at it has lost its partition meanwhile.
var errCutOff = errors.New("cut off")

// seedings are those under way, by topic. The zero value is none.
type seedings struct {
	mu       sync.Mutex
	underWay map[string]*seeding
}

type seeding struct {
	over chan struct{} // closed when it is
	err  error         // then
}

// once does it, or waits for whoever is at it and returns what came of that.
func (s *seedings) once(ctx context.Context, topic string, do func() error) error {
	other, own := s.join(topic)
	if own != nil {
		own.err = errCutOff // should it panic
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
