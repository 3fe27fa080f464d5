package sqlsink_test

import (
	"context"
	"database/sql/driver"
	"fmt"
	"io/fs"
	"strings"
	"testing"

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
				return s.Commit(t.Context(), advance(f, 1), apply)
			}()
			if err == nil || err.Error() == "" {
				t.Errorf("%s, %s: err = %v", name, how, err)
			}
			wantNext(t, s, 0)
		}
	}
	if err := s.Commit(t.Context(), advance(f, 1), func(ctx context.Context, tx *sqlsink.Tx) error { return run(ctx, tx, insert) }); err != nil {
		t.Error(err)
	}
}
