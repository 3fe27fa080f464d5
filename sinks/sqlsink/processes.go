package sqlsink

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/epochfence/epochfence/internal/sql/sqltx"
	"github.com/epochfence/epochfence/operate"
)

// This file writes and reads signs of life. They are for operators and protect nothing.

// Alive implements [operate.Operable]. It waits for the database's write lock.
func (s *Sink) Alive(ctx context.Context, p operate.Process) error {
	err := s.write(ctx, func(ctx context.Context, t *sqltx.Tx) error {
		if _, err := t.Conn.ExecContext(ctx, s.q.alive, p.Run, p.Group, p.Name, p.Host, p.PID, p.Version, p.Problems, p.Every.Milliseconds()); err != nil {
			return err
		}
		_, err := t.Conn.ExecContext(ctx, s.q.pruneDead, p.Group, p.Name, p.Run)
		return err
	})
	if err != nil {
		return fmt.Errorf("sqlsink: sign of life of %s in group %q: %w", p.Name, p.Group, err)
	}
	return nil
}

// Gone implements [operate.Operable]. It waits for the database's write lock.
func (s *Sink) Gone(ctx context.Context, p operate.Process) error {
	err := s.write(ctx, func(ctx context.Context, t *sqltx.Tx) error {
		_, err := t.Conn.ExecContext(ctx, s.q.gone, p.Run)
		return err
	})
	if err != nil {
		return fmt.Errorf("sqlsink: take away the sign of life of %s in group %q: %w", p.Name, p.Group, err)
	}
	return nil
}

// Processes implements [operate.Operator].
func (o *Operator) Processes(ctx context.Context, group string) (found []operate.Process, err error) {
	err = o.rows(ctx, func() { found = nil }, o.sink.q.processes, []any{group, group}, func(rows *sql.Rows) error {
		var p operate.Process
		var every int64
		var since, seen, now string
		if err := rows.Scan(&p.Run, &p.Group, &p.Name, &p.Host, &p.PID, &p.Version, &p.Problems, &every, &since, &seen, &now); err != nil {
			return err
		}
		p.Every = time.Duration(every) * time.Millisecond
		p.Since, p.Seen, p.Now = forPeople(since), forPeople(seen), forPeople(now)
		found = append(found, p)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("sqlsink: list processes: %w", err)
	}
	operate.SortProcesses(found)
	return found, nil
}
