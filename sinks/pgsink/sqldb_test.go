package pgsink_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/pgsink"
	"github.com/epochfence/epochfence/sinks/sinktest"
)

func onDB(tx pgsink.Tx, do func(db *sql.DB) error) error {
	db := pgsink.OpenDB(tx)
	return errors.Join(do(db), db.Close())
}

// What goes through OpenDB is as fenced as what does not. With EPOCHFENCE_LONG it plays
// the whole suite, and otherwise what other databases may leave out.
func TestSuiteThroughOpenDB(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	plain := suiteOn(r, r.appURL)
	play := sinktest.RunUnblocked[pgsink.Tx]
	if os.Getenv("EPOCHFENCE_LONG") != "" {
		play = sinktest.Run[pgsink.Tx]
	}
	play(t, func(t testing.TB) sinktest.Database[pgsink.Tx] {
		d := plain(t)
		write, commit := d.Append, d.Commit
		d.Append = func(ctx context.Context, tx pgsink.Tx, list, value string) error {
			return onDB(tx, func(db *sql.DB) error { return write(ctx, throughDB{tx, db}, list, value) })
		}
		d.Commit = func(ctx context.Context, tx pgsink.Tx) error {
			return onDB(tx, func(db *sql.DB) error { return commit(ctx, throughDB{tx, db}) })
		}
		return d
	})
}

// throughDB is a Tx that sends statements through a sql.DB.
type throughDB struct {
	pgsink.Tx
	db *sql.DB
}

func (t throughDB) Exec(ctx context.Context, query string, args ...any) (pgconn.CommandTag, error) {
	_, err := t.db.ExecContext(ctx, query, args...)
	return pgconn.CommandTag{}, err
}

// Each is asked for through OpenDB and through pgx/v5/stdlib.
var sqlValues = []string{
	"true", "7::int2", "8::int4", "9::int8", "1.5::float4", "2.5::float8", "'infinity'::float8", "3.25::numeric", "'x'::text", "'y'::varchar(3)",
	"'\\x00ff'::bytea", "''::bytea", `'{"a": [1]}'::json`, `'{"a": [1]}'::jsonb`, "'2026-02-28'::date", "'infinity'::date", "'2026-02-28 12:00:00.5'::timestamp",
	"'2026-02-28 12:00:00.5+02'::timestamptz", "'infinity'::timestamptz", "'1 day 2 hours'::interval", "'{1,2}'::int[]", "'{a,b}'::text[]",
	"'6ba7b810-9dad-11d1-80b4-00c04fd430c8'::uuid", "'10.0.0.1'::inet", "23::oid", "'23'::xid", "null::text", "null::int4", "'(1,2)'::point", "'a'::\"char\"", "'<a/>'::xml",
}

func TestADBOfATransactionHasTheValuesOfStdlib(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	seed(t, s, orders)
	f := claim(t, s, orders, 5)
	for name, mode := range modes {
		pool := newPool(t, r.appURL, mode)
		std := stdlib.OpenDBFromPool(pool)
		as := advance(f, 1)
		err := r.openOn(pool).Commit(t.Context(), as, epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
			return onDB(tx, func(db *sql.DB) error {
				for _, value := range sqlValues {
					got, want := ask(ctx, db, value), ask(ctx, std, value)
					if got != want {
						t.Errorf("%s: %s is %s, want %s", name, value, got, want)
					}
				}
				return nil
			})
		})
		if err = errors.Join(err, std.Close()); err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		f.Next = as[0].To
	}
}

// ask says what comes back, and as what.
func ask(ctx context.Context, db *sql.DB, value string) string {
	rows, err := db.QueryContext(ctx, "select "+value+" as v")
	if err != nil {
		return err.Error()
	}
	defer func() { _ = rows.Close() }()
	var v any
	rows.Next()
	if err := rows.Scan(&v); err != nil {
		return err.Error()
	}
	if at, is := v.(time.Time); is {
		v = at.UTC()
	}
	types, err := rows.ColumnTypes()
	if err != nil {
		return err.Error()
	}
	return fmt.Sprintf("%T %v, a %s named %s", v, v, types[0].DatabaseTypeName(), types[0].Name())
}

func TestADBOfATransactionHasSavepoints(t *testing.T) {
	t.Parallel()
	for name, mode := range modes {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t)
			s := r.openOn(newPool(t, r.appURL, mode))
			seed(t, s, orders)
			err := s.Commit(t.Context(), advance(claim(t, s, orders, 5), 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
				return onDB(tx, func(db *sql.DB) error { return useSavepoints(ctx, t, db) })
			})
			if err != nil {
				t.Fatal(err)
			}
			r.wantList("list", "kept", "after")
		})
	}
}

func useSavepoints(ctx context.Context, t *testing.T, db *sql.DB) error {
	const insert = "insert into effects (list, value) values ('list', $1::text)"
	kept, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	undone, err := db.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	if _, err := undone.ExecContext(ctx, insert, "undone"); err != nil {
		return err
	}
	if _, err := undone.ExecContext(ctx, "select 1/0"); err == nil {
		t.Error("divided by zero")
	}
	if err := undone.Rollback(); err != nil {
		return err
	}
	r, err := kept.ExecContext(ctx, insert, "kept")
	if err != nil {
		return err
	}
	if n, err := r.RowsAffected(); err != nil || n != 1 {
		t.Errorf("%d rows, %v", n, err)
	}
	if err := kept.Commit(); err != nil {
		return err
	}
	stmt, err := db.PrepareContext(ctx, insert)
	if err != nil {
		return err
	}
	if _, err := stmt.ExecContext(ctx, "after"); err != nil {
		return err
	}
	if _, err := db.ExecContext(ctx, "select :v", sql.Named("v", 1)); err == nil {
		t.Error("an argument has a name")
	}
	if _, err := db.BeginTx(ctx, &sql.TxOptions{ReadOnly: true}); !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("an access mode of its own: %v", err)
	}
	return stmt.Close()
}

func TestAHandlerThatCommitsThroughADBIsFoundOut(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.open()
	seed(t, s, orders)
	err := s.Commit(t.Context(), advance(claim(t, s, orders, 5), 1), epoch.TxOptions{}, func(ctx context.Context, tx pgsink.Tx) error {
		return onDB(tx, func(db *sql.DB) error { _, err := db.ExecContext(ctx, "commit"); return err })
	})
	want(t, err, epoch.ErrTxControl)
}
