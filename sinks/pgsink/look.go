package pgsink

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/epochfence/epochfence/epoch"
)

// This file reads fences without locks. What it returns may be out of date: the claim and the
// advance compare again.

// Fence implements [epoch.Sink].
func (s *Sink) Fence(ctx context.Context, p epoch.Partition) (epoch.Fence, error) {
	if err := checkPartition(p); err != nil {
		return epoch.Fence{}, err
	}
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	f, err := s.fences.do(ctx, p, func() (lookedUp, error) { return s.fence(ctx, p) })
	if err == nil && !f.found {
		err = &epoch.MissingError{Partition: p}
	}
	if err != nil {
		return epoch.Fence{}, fmt.Errorf("pgsink: read fence %s: %w", p, passed(ended(ctx, explain(err))))
	}
	return f.fence, nil
}

type lookedUp struct {
	fence epoch.Fence
	found bool
}

func (s *Sink) fence(ctx context.Context, p epoch.Partition) (f lookedUp, err error) {
	err = s.reading(ctx, func(b *pgx.Batch) {
		b.Queue(s.sql.read, p.Group, p.Topic, p.Number)
	}, func(r pgx.BatchResults) (err error) {
		var row fenceRow
		f.fence, err = row.scan(r.QueryRow())
		return err
	})
	if errors.Is(err, pgx.ErrNoRows) {
		return lookedUp{}, nil
	}
	return lookedUp{f.fence, true}, err
}

func (s *Sink) fenceMany(ctx context.Context, ps []epoch.Partition) ([]lookedUp, error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	fences, err := s.look(ctx, ps)
	if err != nil {
		return nil, ended(ctx, err)
	}
	fs := make([]lookedUp, len(ps))
	for i, p := range ps {
		fs[i].fence, fs[i].found = fences[p]
	}
	return fs, nil
}

// Look implements [epoch.Looker].
func (s *Sink) Look(ctx context.Context, ps []epoch.Partition) (epoch.Fences, error) {
	for _, p := range ps {
		if err := checkPartition(p); err != nil {
			return nil, err
		}
	}
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	found, err := s.look(ctx, ps)
	if err != nil {
		return nil, fmt.Errorf("pgsink: look at %d fences: %w", len(ps), passed(ended(ctx, explain(err))))
	}
	return found, nil
}

func (s *Sink) look(ctx context.Context, ps []epoch.Partition) (found epoch.Fences, err error) {
	var (
		groups, topics []string
		numbers        []int32
	)
	for _, p := range ps {
		groups, topics, numbers = append(groups, p.Group), append(topics, p.Topic), append(numbers, p.Number)
	}
	err = s.reading(ctx, func(b *pgx.Batch) {
		b.Queue(s.sql.look, groups, topics, numbers)
	}, func(r pgx.BatchResults) error {
		found = epoch.Fences{} // this runs again after a lost connection
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
	return found, err
}

// reading asks which server this is, and sends what queue adds in the same round trip.
func (s *Sink) reading(ctx context.Context, queue func(*pgx.Batch), read func(pgx.BatchResults) error) error {
	return s.on(ctx, harmless, func(conn *pgx.Conn) error {
		b := &pgx.Batch{}
		texts := queueTexts(conn, b)
		b.Queue(s.sql.server)
		if queue != nil {
			queue(b)
		}
		r := conn.SendBatch(ctx, b)
		var id serverID
		err := texts(r)
		if err == nil {
			err = id.scan(r.QueryRow())
		}
		if err == nil && queue != nil {
			err = read(r)
		}
		if closed := r.Close(); err == nil {
			err = closed
		}
		if err == nil || errors.Is(err, pgx.ErrNoRows) {
			s.server.answeredBy(ctx, id)
			if behind := s.follows(ctx, conn, id); behind != nil {
				return behind
			}
		}
		return err
	})
}
