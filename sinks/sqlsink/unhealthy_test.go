package sqlsink_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
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
		want   error  // nil: the handler's own failure
	}{
		"a missing table":         {sql: `INSERT INTO nowhere VALUES (1)`, want: epoch.ErrUnhealthy},
		"a missing column":        {sql: `UPDATE effects SET lots = 1`, want: epoch.ErrUnhealthy},
		"a missing column, named": {sql: `INSERT INTO effects (lots) VALUES (1)`, want: epoch.ErrUnhealthy},
		"too few columns":         {sql: `INSERT INTO effects VALUES (1, 2, 3, 4, 5, 6, 7)`, want: epoch.ErrUnhealthy},
		"a read-only connection":  {before: `PRAGMA query_only = on`, sql: `INSERT INTO effects (list, value) VALUES ('l', 'v')`, want: epoch.ErrUnhealthy},
		"a constraint":            {sql: `INSERT INTO effects (list, value) VALUES (NULL, NULL)`},
		"a mistake in SQL":        {sql: `INSERT INTO WHERE effects`},
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
			err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx *sqlsink.Tx) error {
				return run(ctx, tx, c.sql)
			})
			if err == nil || errors.Is(err, epoch.ErrTransient) != (c.want == epoch.ErrTransient) || errors.Is(err, epoch.ErrUnhealthy) != (c.want == epoch.ErrUnhealthy) {
				t.Errorf("err = %v; want it to be %v", err, c.want)
			}
			wantNext(t, s, 0)
		})
	}
}

func TestCodesThatNoMessageIsAtFaultFor(t *testing.T) {
	for c, want := range map[code]error{
		778: epoch.ErrUnhealthy, // SQLITE_IOERR_WRITE
		11:  epoch.ErrUnhealthy, // damaged
		14:  epoch.ErrUnhealthy, // cannot be opened
		7:   epoch.ErrTransient, // no memory
		5:   epoch.ErrTransient, // busy
	} {
		if err := sqlsink.Blameless(c); !errors.Is(err, want) {
			t.Errorf("%v: %v, want %v", c, err, want)
		}
	}
}

// TestAnErrorOfSomethingElseIsTheHandlers: an HTTP client's error may have a method
// Code too, and another database's connection may be gone.
func TestAnErrorOfSomethingElseIsTheHandlers(t *testing.T) {
	s := newSink(t, open(t, newFile(t)), sqlsink.Options{})
	f := claim(t, s, 1)
	for _, foreign := range []error{code(5), code(6), code(13), code(522), code(11), driver.ErrBadConn, sql.ErrConnDone} {
		err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx *sqlsink.Tx) error {
			if err := appendEffect(ctx, tx, "l", "v"); err != nil {
				return err
			}
			return fmt.Errorf("ask the warehouse: %w", foreign)
		})
		if !errors.Is(err, foreign) {
			t.Errorf("err = %v, want the handler's own: %v", err, foreign)
		}
		for _, fault := range []error{epoch.ErrTransient, epoch.ErrUnhealthy, epoch.ErrInDoubt, epoch.ErrTxEndedByHandler} {
			if errors.Is(err, fault) {
				t.Errorf("%v: err = %v, which is %v", foreign, err, fault)
			}
		}
	}
	wantNext(t, s, 0)
}
