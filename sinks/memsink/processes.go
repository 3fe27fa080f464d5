package memsink

import (
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/epochfence/epochfence/operate"
)

// This file keeps the signs of life of processes. Package operate decides who is alive.

const keptProcess = 7 * 24 * time.Hour

// Alive implements [operate.Operable].
func (s *Sink) Alive(ctx context.Context, p operate.Process) error {
	err := run(ctx, s.hook().Alive, p, func() error {
		s.db.mu.Lock()
		defer s.db.mu.Unlock()
		lives := s.db.lives
		p.Since, p.Seen = now(), now()
		if before, again := lives[p.Run]; again {
			p.Since = before.Since
		}
		lives[p.Run] = p
		maps.DeleteFunc(lives, func(run string, other operate.Process) bool {
			other.Now = p.Seen
			replaced := other.Group == p.Group && other.Name == p.Name && run != p.Run && !other.Alive()
			return replaced || other.Now.Sub(other.Seen) > keptProcess
		})
		return nil
	})
	if err != nil {
		return fmt.Errorf("memsink: sign of life of %s in group %q: %w", p.Name, p.Group, err)
	}
	return nil
}

// Gone implements [operate.Operable].
func (s *Sink) Gone(ctx context.Context, p operate.Process) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("memsink: take away the sign of life of %s in group %q: %w", p.Name, p.Group, err)
	}
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	delete(s.db.lives, p.Run)
	return nil
}

// Processes implements [operate.Operator].
func (o *Operator) Processes(ctx context.Context, group string) (found []operate.Process, err error) {
	err = o.within(ctx, func(*state) error {
		for _, p := range o.sink.db.lives {
			if group == "" || p.Group == group {
				p.Now = now()
				found = append(found, p)
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("memsink: list processes: %w", err)
	}
	operate.SortProcesses(found)
	return found, nil
}
