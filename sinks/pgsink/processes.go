package pgsink

import (
	"context"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/epochfence/epochfence/internal/sql/pgschema"
	"github.com/epochfence/epochfence/operate"
)

// This file writes and reads signs of life. They are for operators and protect nothing.

// maxProcessText limits the bytes of each text of a process, and maxProblems those of its problems.
const (
	maxProcessText = 500
	maxProblems    = 4000
)

// Alive implements [operate.Operable].
func (s *Sink) Alive(ctx context.Context, p operate.Process) error {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	keep := func(text string) string { return operate.Text(text, maxProcessText) }
	err := s.transact(ctx, harmless, func(b *pgx.Batch) {
		b.Queue(s.sql.alive, keep(p.Run), keep(p.Group), keep(p.Name), keep(p.Host), int64(p.PID), keep(p.Version), operate.Text(p.Problems, maxProblems), p.Every.Milliseconds())
	}, execOne)
	if err != nil {
		return fmt.Errorf("pgsink: sign of life of %s in group %q: %w", p.Name, p.Group, faultless(ended(ctx, explain(err))))
	}
	return nil
}

// Gone implements [operate.Operable].
func (s *Sink) Gone(ctx context.Context, p operate.Process) error {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	err := s.transact(ctx, harmless, func(b *pgx.Batch) { b.Queue(s.sql.gone, operate.Text(p.Run, maxProcessText)) }, execOne)
	if err != nil {
		return fmt.Errorf("pgsink: take away the sign of life of %s in group %q: %w", p.Name, p.Group, faultless(ended(ctx, explain(err))))
	}
	return nil
}

// OldestSnapshots implements [operate.Snapshots].
func (s *Sink) OldestSnapshots(ctx context.Context) (held []operate.Snapshot, err error) {
	ctx, cancel := s.bounded(ctx)
	defer cancel()
	err = s.on(ctx, harmless, func(conn *pgx.Conn) (err error) {
		held, err = pgschema.OldestSnapshots(ctx, conn)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("pgsink: find the holders of old snapshots: %w", faultless(ended(ctx, explain(err))))
	}
	return held, nil
}

// Processes implements [operate.Operator].
func (o *Operator) Processes(ctx context.Context, group string) (found []operate.Process, err error) {
	err = o.reading(ctx, o.sql.processes, func(rows pgx.Rows) error {
		var p operate.Process
		var every int64
		if err := rows.Scan(&p.Run, &p.Group, &p.Name, &p.Host, &p.PID, &p.Version, &p.Problems, &every, &p.Since, &p.Seen, &p.Now); err != nil {
			return err
		}
		p.Every = time.Duration(every) * time.Millisecond
		p.Since, p.Seen, p.Now = p.Since.UTC(), p.Seen.UTC(), p.Now.UTC()
		found = append(found, p)
		return nil
	}, orNil(group))
	if err != nil {
		return nil, fmt.Errorf("pgsink: list processes: %w", err)
	}
	operate.SortProcesses(found)
	return found, nil
}
