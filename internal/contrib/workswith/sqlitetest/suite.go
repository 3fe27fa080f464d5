// Package sqlitetest has sqlsink and sqlfence on drivers of SQLite other than modernc.org/sqlite. Each has a
// directory of its own, as they register the same name.
package sqlitetest

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"testing"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/suites/sqlsinktest"
	"github.com/epochfence/epochfence/lease/sqlfence"
	"github.com/epochfence/epochfence/sinks/sinktest"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// Opener is what a driver's package has: it opens a file in WAL mode, until t ends.
type Opener func(t testing.TB, file string) *sql.DB

// Suite is sinktest's.
func (open Opener) Suite(t *testing.T) {
	sinktest.Run(t, func(t testing.TB) sinktest.Database[*sqlsink.Tx] {
		file := filepath.Join(t.TempDir(), "app.db")
		sqlsinktest.SQLite.Create(t, open(t, file))
		return sqlsinktest.SQLite.Database(t, func(t testing.TB) *sql.DB { return open(t, file) })
	})
}

// PreparedTwice has a statement that is prepared twice, and writes once.
func (open Opener) PreparedTwice(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "app.db"))
	sqlsinktest.SQLite.Create(t, db)
	sink := sqlsinktest.SQLite.Sink(t, db, sqlsink.Options{})
	log := memsource.New("orders", 1)
	log.Append(0, "a", "b")
	err := memsource.Apply(t.Context(), log, sink, consumer.Each(func(ctx context.Context, tx *sqlsink.Tx, m consumer.Message, _ epoch.Epoch) error {
		for range 2 {
			insert, err := tx.PrepareContext(ctx, `INSERT INTO effects (list, value) SELECT 'l', ?1 WHERE NOT EXISTS (SELECT 1 FROM effects WHERE value = ?1)`)
			if err != nil {
				return err
			}
			if _, err := insert.ExecContext(ctx, string(m.Value)); err != nil {
				return err
			}
			if err := insert.Close(); err != nil {
				return err
			}
		}
		return nil
	}))
	var n int
	if err == nil {
		err = db.QueryRowContext(t.Context(), `SELECT count(*) FROM effects`).Scan(&n)
	}
	if err != nil || n != 2 {
		t.Errorf("%d effects, %v; want 2", n, err)
	}
}

// RowsOfACall tests that rows which one call has left open do not disturb the calls after it. A driver may run a query when its rows are read, and interrupt
// the connection when the context ends while they are open.
func (open Opener) RowsOfACall(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "app.db"))
	sqlsinktest.SQLite.Create(t, db)
	sink := sqlsinktest.SQLite.Sink(t, db, sqlsink.Options{})
	p := epoch.Partition{Group: "g", Topic: "orders"}
	origin := epoch.Origin{Partition: p, Log: "log", Source: "broker"}
	if err := sink.Seed(t.Context(), []epoch.Start{{Origin: origin}}); err != nil {
		t.Fatal(err)
	}
	f, err := epoch.FenceOf(t.Context(), sink, p)
	if err == nil {
		f, err = sink.Claim(t.Context(), f, epoch.NewClaim(epoch.Lease{Origin: origin, Generation: 1, Owner: "test"}))
	}
	if err != nil {
		t.Fatal(err)
	}
	insert := func(ctx context.Context, tx *sqlsink.Tx) error {
		_, err := tx.ExecContext(ctx, `INSERT INTO effects (list, value) VALUES ('l', 'a'), ('l', 'b')`)
		return err
	}
	commit := func(calls ...func(context.Context, *sqlsink.Tx) error) error {
		return sink.Commit(t.Context(), []epoch.Advance{{Partition: p, Claim: f.Claim, From: f.Next, To: f.Next + 1}}, epoch.TxOptions{}, calls...)
	}
	calls := []func(context.Context, *sqlsink.Tx) error{insert}
	for range 100 {
		calls = append(calls, insert, func(ctx context.Context, tx *sqlsink.Tx) error {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel() // with its rows open
			rows, err := tx.QueryContext(ctx, `SELECT value FROM effects`)
			if err != nil {
				return err
			}
			rows.Next()
			return rows.Err()
		})
	}
	if err := commit(calls...); err != nil {
		t.Fatal(err)
	}
	f.Next++
	err = commit(insert, func(ctx context.Context, tx *sqlsink.Tx) error {
		var id int
		if err := tx.QueryRowContext(ctx, `INSERT OR ROLLBACK INTO effects (id, list, value) VALUES (1, 'l', 'c') RETURNING id`).Scan(&id); err == nil {
			t.Error("a duplicate key was accepted")
		}
		if insert(ctx, tx) == nil {
			t.Error("a statement was sent although the transaction was gone")
		}
		return nil
	})
	if of, ok := errors.AsType[*epoch.CallError](err); !ok || of.Call != 1 {
		t.Errorf("err = %v, want that of the second call", err)
	}
}

// Tokens in rows are refused with errors that package sqlfence recognises.
func (open Opener) Tokens(t *testing.T) {
	db := open(t, filepath.Join(t.TempDir(), "app.db"))
	sqlsinktest.Exec(t, db, `CREATE TABLE report (id INTEGER PRIMARY KEY, lock_name TEXT, lock_epoch INTEGER)`)
	sqlsinktest.Exec(t, db, `INSERT INTO report VALUES (1, 'nightly', 8)`)
	sqlsinktest.Exec(t, db, sqlfence.SQLite("report").SQL)
	write := func(lock string, token int64) error {
		_, err := db.ExecContext(t.Context(), `UPDATE report SET lock_name = ?, lock_epoch = ?`, lock, token)
		return sqlfence.Explain(err)
	}
	if err := write("nightly", 8); err != nil {
		t.Error(err)
	}
	err := write("nightly", 7)
	if of, ok := errors.AsType[*sqlfence.RefusedError](err); !ok || of.Lock != "nightly" || of.Token != 7 || of.Seen != 8 {
		t.Errorf("err = %v, want a refusal", err)
	}
	err = write("daily", 9)
	if of, ok := errors.AsType[*sqlfence.ScopeError](err); !ok || of.SeenLock != "nightly" || of.Seen != 8 {
		t.Errorf("err = %v, want another lock", err)
	}
	if err := write("nightly", 0); !errors.Is(err, sqlfence.ErrNoToken) {
		t.Errorf("err = %v, want none", err)
	}
}
