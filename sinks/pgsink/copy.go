package pgsink

import (
	"context"
	"database/sql/driver"
	"errors"

	"github.com/jackc/pgx/v5"
)

// copySource hands rows to pgx, which asks for them on a goroutine of its own: what
// panics there ends the process. So the handler's source is asked on the goroutine
// of the handler.
type copySource struct {
	ask chan struct{}
	row chan []any // the answer; closed at the end
	now []any
	err error // set before row is closed
}

func (s *copySource) Next() (more bool) {
	s.ask <- struct{}{}
	s.now, more = <-s.row
	return more
}

func (s *copySource) Values() ([]any, error) { return s.now, nil }
func (s *copySource) Err() error             { return s.err }

var errCopyAbandoned = errors.New("the source of the rows panicked or ended its goroutine")

func copyFrom(ctx context.Context, conn *pgx.Conn, table pgx.Identifier, columns []string, rows pgx.CopyFromSource) (n int64, err error) {
	s := &copySource{ask: make(chan struct{}), row: make(chan []any), err: errCopyAbandoned}
	done := make(chan struct{})
	go func() {
		defer close(done)
		n, err = conn.CopyFrom(ctx, table, columns, s)
	}()
	asked := false // and not answered: pgx waits
	defer func() {
		if asked {
			close(s.row)
		}
		<-done
	}()
	for {
		select {
		case <-s.ask:
			asked = true
		case <-done:
			return n, err
		}
		if !rows.Next() {
			s.err = rows.Err()
			break
		}
		values, failed := rows.Values()
		if failed != nil {
			s.err = failed
			break
		}
		for _, v := range values {
			if v, is := v.(driver.Valuer); is {
				_, _ = v.Value() // if it panics, then here
			}
		}
		s.row <- values
		asked = false
	}
	asked = false
	close(s.row)
	<-done
	return n, err
}
