package cassink

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"
	"unicode/utf8"

	"golang.org/x/sync/errgroup"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/waits"
)

// This file decides once where each partition of a topic begins, in one item for the topic.
// epoch.Fences decides whether a start fits those before it.

// Seed implements [epoch.Sink]. One item for each group and topic has where each partition begins. A
// partition is added to it once and never changed, and the fences are made from it.
func (s *Sink) Seed(ctx context.Context, starts []epoch.Start) error {
	if len(starts) == 0 {
		return nil
	}
	if err := s.seed(ctx, starts); err != nil {
		return fmt.Errorf("cassink: seed %s and %d more: %w", starts[0].Partition, len(starts)-1, err)
	}
	return nil
}

func (s *Sink) seed(ctx context.Context, starts []epoch.Start) error {
	pause := waits.New(5*time.Millisecond, 500*time.Millisecond)
	for {
		begins, err := s.decide(ctx, starts)
		if !errors.Is(err, cas.ErrConflict) { // what was decided before is completed in any case, so that operators can act on it
			return errors.Join(err, s.addFences(ctx, begins))
		}
		if !waits.Sleep(ctx, pause.Next()) {
			return fmt.Errorf("%w, as others were faster: %w", ctx.Err(), err)
		}
	}
}

// decide adds the partitions to the item of the topic, and returns where they begin. If it adds none, it
// returns an error and where the others begin.
func (s *Sink) decide(ctx context.Context, starts []epoch.Start) ([]epoch.Fence, error) {
	group, topic := starts[0].Partition.Group, starts[0].Partition.Topic
	stored, err := s.store.Get(ctx, s.keys.topic(group, topic))
	if err != nil {
		return nil, err
	}
	begins := map[int32]epoch.Fence{}
	if stored.Live {
		if err := json.Unmarshal(stored.Value, &begins); err != nil {
			return nil, fmt.Errorf("item %q is no beginning of a topic: %w", stored.Key, err)
		}
	}
	for _, text := range []string{group, topic} {
		if !utf8.ValidString(text) {
			return nil, fmt.Errorf("%q is not UTF-8", text)
		}
	}
	fences := epoch.Fences{}
	added := false
	for _, f := range begins {
		fences[f.Partition] = f
	}
	for _, start := range starts {
		_, known := begins[start.Partition.Number]
		added = added || !known
	}
	if added { // an operator may have accepted other logs since
		now, err := epoch.Look(ctx, s, slices.Collect(maps.Keys(fences)))
		if err != nil {
			return nil, err
		}
		maps.Copy(fences, now)
	}
	refused := fences.Seed(starts)
	var found []epoch.Fence
	for _, start := range starts {
		n := start.Partition.Number
		if _, known := begins[n]; !known && refused == nil {
			begins[n] = fences[start.Partition]
		}
		if f, known := begins[n]; known {
			found = append(found, f)
		}
	}
	if refused != nil {
		return found, refused
	}
	if !added {
		return found, nil
	}
	value, err := json.Marshal(begins)
	if err != nil {
		return nil, err
	}
	_, err = s.store.Swap(ctx, stored, value, nil)
	return found, err
}

func (s *Sink) addFences(ctx context.Context, fs []epoch.Fence) error {
	var writers errgroup.Group
	writers.SetLimit(sideBySide)
	for _, f := range fs {
		writers.Go(func() error { return s.addFence(ctx, f) })
	}
	return writers.Wait()
}

func (s *Sink) addFence(ctx context.Context, f epoch.Fence) error {
	stored, err := s.store.Get(ctx, s.keys.fence(f.Partition))
	if err != nil || stored.Live {
		return err
	}
	if _, err := s.swap(ctx, stored, record{Fence: f}); err != nil && !errors.Is(err, cas.ErrConflict) {
		return err
	}
	return nil
}
