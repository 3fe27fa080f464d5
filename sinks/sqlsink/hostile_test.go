package sqlsink_test

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// hostileError is an error whose methods panic, or look like a driver's.
type hostileError struct{}

func (hostileError) Error() string { panic("Error") }
func (hostileError) Is(error) bool { panic("Is") }
func (hostileError) As(any) bool   { panic("As") }
func (hostileError) Code() int     { panic("Code") }

type codePanics struct{}

func (codePanics) Error() string { return "out of stock" }
func (codePanics) Code() int     { panic("Code") }

type failing struct{ err error }

func (f failing) Value() (driver.Value, error) { return nil, f.err }

// TestAnErrorThatPanicsWhereItIsAskedForItsCode: of a handler, or of an argument that it
// gave to a statement.
func TestAnErrorThatPanicsWhereItIsAskedForItsCode(t *testing.T) {
	s := newSink(t, open(t, newFile(t)), sqlsink.Options{})
	f := claim(t, s, 1)
	for name, bad := range map[string]error{"all of it": hostileError{}, "Code": codePanics{}, "a typed nil": (*fs.PathError)(nil)} {
		for how, apply := range map[string]func(ctx context.Context, tx *sqlsink.Tx) error{
			"returned": func(ctx context.Context, tx *sqlsink.Tx) error { return bad },
			"returned, after a query": func(ctx context.Context, tx *sqlsink.Tx) error {
				rows, err := tx.QueryContext(ctx, `SELECT value FROM effects`)
				if err != nil {
					return err
				}
				_ = rows.Close()
				return bad
			},
			"of an argument": func(ctx context.Context, tx *sqlsink.Tx) error {
				_, err := tx.ExecContext(ctx, `INSERT INTO effects (list, value) VALUES ('l', ?)`, failing{bad})
				return err
			},
			"of an argument, hidden": func(ctx context.Context, tx *sqlsink.Tx) error {
				_, _ = tx.ExecContext(ctx, `INSERT INTO effects (list, value) VALUES ('l', ?)`, failing{bad})
				return bad
			},
		} {
			err := func() (err error) {
				defer func() {
					if v := recover(); v != nil && strings.HasPrefix(how, "of an argument") {
						err = fmt.Errorf("as a panic of the handler's: %v", v) // database/sql asks it
					} else if v != nil {
						t.Errorf("%s, %s: Commit panicked: %v", name, how, v)
					}
				}()
				return s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, apply)
			}()
			if err == nil || err.Error() == "" {
				t.Errorf("%s, %s: err = %v", name, how, err)
			}
			wantNext(t, s, 0)
		}
	}
	if err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx *sqlsink.Tx) error { return run(ctx, tx, insert) }); err != nil {
		t.Error(err)
	}
}

type argument func() error

func (a argument) Value() (driver.Value, error) { return "x", a() }

func TestAnArgumentThatUsesItsTransactionWaitsAsLongAsItsHandlerMay(t *testing.T) {
	db := open(t, newFile(t))
	s := newSink(t, db, sqlsink.Options{})
	f := claim(t, s, 1)
	for name, use := range map[string]func(tx *sqlsink.Tx, rows *sql.Rows) error{
		"a statement": func(tx *sqlsink.Tx, _ *sql.Rows) error { return run(context.Background(), tx, insert) },
		"rows":        func(_ *sqlsink.Tx, rows *sql.Rows) error { return rows.Close() },
		"Begin":       func(tx *sqlsink.Tx, _ *sql.Rows) error { _, err := sqlsink.OpenDB(tx).Begin(); return err },
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		err := s.Commit(ctx, advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx *sqlsink.Tx) error {
			rows, err := tx.QueryContext(context.Background(), `SELECT 1`)
			if err != nil {
				return err
			}
			defer func() { _ = rows.Close() }()
			_, err = tx.ExecContext(ctx, `INSERT INTO effects (list, value) VALUES ('l', ?)`, argument(func() error { return use(tx, rows) }))
			return errors.Join(err, rows.Err())
		})
		cancel()
		if err == nil || !strings.Contains(err.Error(), "conn busy") {
			t.Errorf("%s: err = %v", name, err)
		}
	}
	if err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx *sqlsink.Tx) error { return run(ctx, tx, insert) }); err != nil {
		t.Error(err)
	}
	wantNext(t, s, 1)
}
