package sqlsink_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// code is an error as the driver has them.
type code int

func (c code) Code() int     { return int(c) }
func (c code) Error() string { return fmt.Sprintf("SQLite's result code %d", int(c)) }

func TestWhatAMessageCannotBeBlamedForIsSaid(t *testing.T) {
	for name, c := range map[string]struct {
		before string // on the connection
		sql    string // the handler's statement
		err    error  // or what it returns
		want   error  // nil: the handler's own failure
	}{
		"a missing table":         {sql: `INSERT INTO nowhere VALUES (1)`, want: epoch.ErrUnhealthy},
		"a missing column":        {sql: `UPDATE effects SET lots = 1`, want: epoch.ErrUnhealthy},
		"a missing column, named": {sql: `INSERT INTO effects (lots) VALUES (1)`, want: epoch.ErrUnhealthy},
		"too few columns":         {sql: `INSERT INTO effects VALUES (1, 2, 3, 4, 5, 6, 7)`, want: epoch.ErrUnhealthy},
		"a read-only connection":  {before: `PRAGMA query_only = on`, sql: `INSERT INTO effects (list, value) VALUES ('l', 'v')`, want: epoch.ErrUnhealthy},
		"an I/O error":            {err: code(778), want: epoch.ErrUnhealthy}, // SQLITE_IOERR_WRITE
		"a damaged file":          {err: code(11), want: epoch.ErrUnhealthy},
		"no file":                 {err: code(14), want: epoch.ErrUnhealthy},
		"no memory":               {err: code(7), want: epoch.ErrTransient},
		"a lock":                  {err: code(5), want: epoch.ErrTransient},
		"a constraint":            {sql: `INSERT INTO effects (list, value) VALUES (NULL, NULL)`},
		"a mistake in SQL":        {sql: `INSERT INTO INTO effects`},
		"a value that is no JSON": {sql: `SELECT json_extract('{', '$.no such table')`},
	} {
		t.Run(name, func(t *testing.T) {
			db := open(t, newFile(t))
			db.SetMaxOpenConns(1)
			s := newSink(t, db, sqlsink.Options{})
			f := claim(t, s, 1)
			if c.before != "" {
				mustExec(t, db, c.before)
			}
			err := s.Commit(t.Context(), advance(f, 1), func(ctx context.Context, tx *sqlsink.Tx) error {
				if c.sql != "" {
					return run(ctx, tx, c.sql)
				}
				return fmt.Errorf("insert: %w", c.err)
			})
			if err == nil || errors.Is(err, epoch.ErrTransient) != (c.want == epoch.ErrTransient) || errors.Is(err, epoch.ErrUnhealthy) != (c.want == epoch.ErrUnhealthy) {
				t.Errorf("err = %v; want it to be %v", err, c.want)
			}
			wantNext(t, s, 0)
		})
	}
}
