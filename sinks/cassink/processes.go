package cassink

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/operate"
)

// This file keeps a sign of life of each process, and deletes those that were replaced or are old.
// Package operate decides who is alive.

const keptProcess = 7 * 24 * time.Hour

// Alive implements [operate.Operable].
func (s *Sink) Alive(ctx context.Context, p operate.Process) error {
	if err := s.alive(ctx, p); err != nil {
		return fmt.Errorf("cassink: sign of life of %s in group %q: %w", p.Name, p.Group, err)
	}
	return nil
}

func (s *Sink) alive(ctx context.Context, p operate.Process) error {
	err := replace(ctx, s.store, s.keys.process(p.Run), func(before operate.Process) (operate.Process, error) {
		p.Seen = now()
		if p.Since = before.Since; p.Since.IsZero() {
			p.Since = p.Seen
		}
		return p, nil
	})
	if err != nil {
		return err
	}
	lives, err := s.lives(ctx)
	if err != nil {
		return err
	}
	for _, other := range lives {
		replaced := other.Group == p.Group && other.Name == p.Name && other.Run != p.Run && !other.Alive()
		if replaced || other.Now.Sub(other.Seen) > keptProcess {
			if err := s.gone(ctx, other.Run); err != nil {
				return err
			}
		}
	}
	return nil
}

// Gone implements [operate.Operable].
func (s *Sink) Gone(ctx context.Context, p operate.Process) error {
	if err := s.gone(ctx, p.Run); err != nil {
		return fmt.Errorf("cassink: take away the sign of life of %s in group %q: %w", p.Name, p.Group, err)
	}
	return nil
}

func (s *Sink) gone(ctx context.Context, run string) error {
	stored, err := s.store.Get(ctx, s.keys.process(run))
	if err != nil || !stored.Live {
		return err
	}
	return s.store.Delete(ctx, stored)
}

func (s *Sink) lives(ctx context.Context) (found []operate.Process, err error) {
	items, err := s.list(ctx, s.keys.processes())
	if err != nil {
		return nil, err
	}
	for _, it := range items {
		if !it.Live {
			continue
		}
		p, err := processOf(it)
		if err != nil {
			return nil, err
		}
		found = append(found, p)
	}
	return found, nil
}

func processOf(it cas.Item) (p operate.Process, err error) {
	if err := json.Unmarshal(it.Value, &p); err != nil {
		return p, fmt.Errorf("item %q is no sign of life: %w", it.Key, err)
	}
	p.Now = now()
	return p, nil
}

// Processes implements [operate.Operator].
func (o *Operator) Processes(ctx context.Context, group string) ([]operate.Process, error) {
	lives, err := o.sink.lives(ctx)
	if err != nil {
		return nil, fmt.Errorf("cassink: list processes: %w", err)
	}
	var found []operate.Process
	for _, p := range lives {
		if group == "" || p.Group == group {
			found = append(found, p)
		}
	}
	operate.SortProcesses(found)
	return found, nil
}
