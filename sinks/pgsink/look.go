package pgsink

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/epochfence/epochfence/epoch"
)

// Fence implements [epoch.Sink].
func (s *Sink) Fence(ctx context.Context, p epoch.Partition) (epoch.Fence, error) {
	if err := checkPartition(p); err != nil {
		return epoch.Fence{}, err
	}
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	var f epoch.Fence
	err := s.reading(ctx, func(b *pgx.Batch) {
		b.Queue(s.sql.read, p.Group, p.Topic, p.Number)
	}, func(r pgx.BatchResults) (err error) {
		var row fenceRow
		f, err = row.scan(r.QueryRow())
		return err
	})
	if errors.Is(err, pgx.ErrNoRows) {
		err = &epoch.MissingError{Partition: p}
	}
	if err != nil {
		return epoch.Fence{}, fmt.Errorf("pgsink: read fence %s: %w", p, faultless(ended(ctx, explain(err))))
	}
	return f, nil
}

// Look implements [epoch.Sink].
func (s *Sink) Look(ctx context.Context, ps []epoch.Partition) (epoch.Fences, error) {
	var (
		groups, topics []string
		numbers        []int32
	)
	for _, p := range ps {
		if err := checkPartition(p); err != nil {
			return nil, err
		}
		groups, topics, numbers = append(groups, p.Group), append(topics, p.Topic), append(numbers, p.Number)
	}
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	var found epoch.Fences
	err := s.reading(ctx, func(b *pgx.Batch) {
		b.Queue(s.sql.look, groups, topics, numbers)
	}, func(r pgx.BatchResults) error {
		found = epoch.Fences{} // a lost connection's answer is asked for again
		rows, err := r.Query()
		if err != nil {
			return err
		}
		defer rows.Close()
		for rows.Next() {
			var row fenceRow
			f, err := row.scan(rows)
			if err != nil {
				return err
			}
			found[f.Partition] = f
		}
		return rows.Err()
	})
	if err != nil {
		return nil, fmt.Errorf("pgsink: look at %d fences: %w", len(ps), faultless(ended(ctx, explain(err))))
	}
	return found, nil
}

// reading asks which server this is and then, in the same round trip, what is
// queued.
func (s *Sink) reading(ctx context.Context, queue func(*pgx.Batch), read func(pgx.BatchResults) error) error {
	return s.on(ctx, harmless, func(conn *pgx.Conn) error {
		b := &pgx.Batch{}
		b.Queue(s.sql.server)
		if queue != nil {
			queue(b)
		}
		r := conn.SendBatch(ctx, b)
		var id serverID
		err := id.scan(r.QueryRow())
		if err == nil && queue != nil {
			err = read(r)
		}
		if closed := r.Close(); err == nil {
			err = closed
		}
		if err == nil || errors.Is(err, pgx.ErrNoRows) {
			s.server.is(ctx, id)
		}
		return err
	})
}
