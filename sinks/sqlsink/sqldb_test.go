package sqlsink_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/sinktest"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// What goes through OpenDB is as fenced as what does not.
func TestSuiteThroughOpenDB(t *testing.T) {
	t.Parallel()
	sinktest.Run(t, func(t testing.TB) sinktest.Database[*sqlsink.Tx] {
		d := newDatabase(t)
		d.Append = func(ctx context.Context, tx *sqlsink.Tx, list, value string) error {
			return onDB(tx, func(db *sql.DB) error {
				_, err := db.ExecContext(ctx, `INSERT INTO effects (list, value) VALUES (?, ?)`, list, value)
				return err
			})
		}
		d.Commit = func(ctx context.Context, tx *sqlsink.Tx) error {
			return onDB(tx, func(db *sql.DB) error {
				_, err := db.ExecContext(ctx, `COMMIT`)
				return err
			})
		}
		return d
	})
}

func onDB(tx *sqlsink.Tx, do func(db *sql.DB) error) error {
	db := sqlsink.OpenDB(tx)
	return errors.Join(do(db), db.Close())
}

func TestADBOfATransactionHasSavepointsAndTheDriversValues(t *testing.T) {
	db := open(t, newFile(t))
	s := newSink(t, db, sqlsink.Options{})
	err := s.Commit(t.Context(), advance(claim(t, s, 5), 1), epoch.TxOptions{}, func(ctx context.Context, tx *sqlsink.Tx) error {
		return onDB(tx, func(db *sql.DB) error {
			kept, err := db.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			undone, err := db.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			_, err = undone.ExecContext(ctx, `INSERT INTO effects (list, value) VALUES ('list', 'undone')`)
			if err := errors.Join(err, undone.Rollback()); err != nil {
				return err
			}
			_, err = kept.ExecContext(ctx, `INSERT INTO effects (list, value) VALUES (:list, 'kept')`, sql.Named("list", "list"))
			if err := errors.Join(err, kept.Commit()); err != nil {
				return err
			}
			var n int
			var value string
			var nothing sql.NullString
			row := db.QueryRowContext(ctx, `SELECT count(*), max(value), NULL FROM effects`)
			if err := row.Scan(&n, &value, &nothing); err != nil || n != 1 || value != "kept" || nothing.Valid {
				t.Errorf("%d effects, the last %q, %v; %v", n, value, nothing, err)
			}
			stmt, err := db.PrepareContext(ctx, `SELECT value FROM effects WHERE list = ?`)
			if err != nil {
				return err
			}
			if err := stmt.QueryRowContext(ctx, "list").Scan(&value); err != nil || value != "kept" {
				t.Errorf("prepared: %q, %v", value, err)
			}
			if _, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelSerializable}); !errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("an isolation level of its own: %v", err)
			}
			return stmt.Close()
		})
	})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := effects(t.Context(), db, "list"); err != nil || len(got) != 1 || got[0] != "kept" {
		t.Errorf("%q, %v", got, err)
	}
}
