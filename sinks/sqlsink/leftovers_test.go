package sqlsink_test

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"testing"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// What a message does to its connection is not met with by others: it has a transaction of
// its own, and a connection that is closed behind it.
func TestWhatAMessageLeavesOnItsConnectionIsNotMetWithByOthers(t *testing.T) {
	attached := filepath.Join(t.TempDir(), "attached.db")
	for _, text := range []string{
		`CREATE TEMP TABLE effects (id INTEGER, list TEXT, value TEXT)`,
		`CREATE TABLE temp.effects (id INTEGER, list TEXT, value TEXT)`,
		`CREATE TABLE "TEMP" . effects (id INTEGER, list TEXT, value TEXT)`,
		`CREATE TABLE 'temp'.effects (id INTEGER, list TEXT, value TEXT)`,
		`SELECT 1; create /* it */ temporary view effects as select 1 as id, 'a' as list, 'b' as value`,
		`CREATE TEMP TRIGGER ignore BEFORE INSERT ON effects BEGIN SELECT RAISE(IGNORE); END`,
		`CREATE TRIGGER temp.ignore BEFORE INSERT ON main.effects BEGIN SELECT RAISE(IGNORE); END`,
		`CREATE TEMP TABLE epochfence_fence AS SELECT * FROM main.epochfence_fence`,
		`CREATE TEMP VIEW epochfence_ledger AS SELECT 1 AS id`,
		`PRAGMA query_only = 1`,
		`EXPLAIN PRAGMA query_only = 1`,
		`PRAGMA case_sensitive_like = ON`,
		fmt.Sprintf(`ATTACH '%s' AS elsewhere`, attached),
	} {
		t.Run(text, func(t *testing.T) {
			db := open(t, newFile(t))
			db.SetMaxOpenConns(1)
			s := newSink(t, db, sqlsink.Options{})
			f := claim(t, s, 1)
			leaves := func(ctx context.Context, tx *sqlsink.Tx) error { return run(ctx, tx, text) }
			innocent := func(ctx context.Context, tx *sqlsink.Tx) error { return run(ctx, tx, insert) }

			err := s.Commit(t.Context(), advance(f, 3), epoch.TxOptions{}, innocent, leaves, innocent)
			wantCallError(t, err, 1, epoch.ErrOwnTransaction)
			wantNext(t, s, 0)

			for range 3 { // each time as if for the first time
				err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, leaves)
				if err == nil {
					f.Next++
				} else if wantCallError(t, err, 0, nil); errors.Is(err, epoch.ErrUnhealthy) {
					t.Errorf("err = %v, but it is the message that is at fault", err)
				}
				wantNext(t, s, f.Next)
				if err := s.Commit(t.Context(), advance(f, 2), epoch.TxOptions{}, innocent, innocent); err != nil {
					t.Fatal(err)
				}
				f.Next += 2
				wantNext(t, s, f.Next)
			}
			if got, err := effects(t.Context(), db, "escaped"); err != nil || len(got) != 6 {
				t.Errorf("effects %q, %v, want 6", got, err)
			}
			s = newSink(t, open(t, fileOf(t, db)), sqlsink.Options{}) // another process
			wantNext(t, s, f.Next)
		})
	}
}

// In the message's own transaction too, our tables are ours.
func TestATemporaryTableDoesNotTakeTheAdvance(t *testing.T) {
	db := open(t, newFile(t))
	s := newSink(t, db, sqlsink.Options{})
	f := claim(t, s, 1)
	err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx *sqlsink.Tx) error {
		if err := run(ctx, tx, `CREATE TEMP TABLE epochfence_fence AS SELECT * FROM main.epochfence_fence`,
			`CREATE TEMP TABLE epochfence_ledger AS SELECT * FROM main.epochfence_ledger`, insert); err != nil {
			return err
		}
		return s.DeadLetter(ctx, tx, epoch.Message{Partition: orders0}, 1, errors.New("no"))
	})
	if err != nil {
		t.Fatal(err)
	}
	wantNext(t, s, 1)
	var letters int
	if err := db.QueryRowContext(t.Context(), `SELECT count(*) FROM main.epochfence_ledger WHERE kind = 'dead-letter'`).Scan(&letters); err != nil || letters != 1 {
		t.Errorf("%d dead letters, %v", letters, err)
	}
}

// A trigger of the message's own keeps its fence from moving: that is refused.
func TestATemporaryTriggerOnTheFenceHoldsNobodyElseUp(t *testing.T) {
	db := open(t, newFile(t))
	db.SetMaxOpenConns(1)
	s := newSink(t, db, sqlsink.Options{})
	f := claim(t, s, 1)
	err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx *sqlsink.Tx) error {
		return run(ctx, tx, insert, `CREATE TEMP TRIGGER ignore BEFORE UPDATE ON main.epochfence_fence BEGIN SELECT RAISE(IGNORE); END`)
	})
	if err == nil {
		t.Error("committed without its advance")
	}
	wantNext(t, s, 0)
	if err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx *sqlsink.Tx) error { return run(ctx, tx, insert) }); err != nil {
		t.Fatal(err)
	}
	wantNext(t, s, 1)
}

// A column or a value called temp is no schema.
func TestOrdinaryStatementsShareATransaction(t *testing.T) {
	db := open(t, newFile(t))
	mustExec(t, db, `CREATE TABLE weather (temp REAL, attempts INTEGER, "commit" TEXT)`)
	s := newSink(t, db, sqlsink.Options{})
	f := claim(t, s, 1)
	var calls []func(context.Context, *sqlsink.Tx) error
	for _, text := range []string{
		`INSERT INTO weather (temp, attempts, "commit") VALUES (20.5, 1, 'begin; commit')`,
		`UPDATE weather SET temp = temp + 1, attempts = attempts + 1 WHERE "commit" = 'temp'`,
		`WITH w AS (SELECT temp FROM weather) SELECT max(temp) FROM w`,
		`CREATE TABLE IF NOT EXISTS made (id INTEGER); DROP TABLE made`,
		`REPLACE INTO weather VALUES (1, 2, 'rollback')`, `DELETE FROM weather -- all; COMMIT`, ``, ` ; `,
		`EXPLAIN QUERY PLAN SELECT * FROM weather`, `SELECT * FROM pragma_table_info('weather')`,
	} {
		calls = append(calls, func(ctx context.Context, tx *sqlsink.Tx) error { return run(ctx, tx, text) })
	}
	if err := s.Commit(t.Context(), advance(f, len(calls)), epoch.TxOptions{}, calls...); err != nil {
		t.Fatal(err)
	}
	wantNext(t, s, epoch.Offset(len(calls)))
}
