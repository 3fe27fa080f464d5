package sqlsink_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// SQLite rolls a transaction back by itself after these: in each way that a statement can
// be sent, nothing may be sent any more in any of them.
const (
	conflicts = `INSERT OR ROLLBACK INTO effects (id, list, value) VALUES (1, 'escaped', 'v')`
	returning = conflicts + ` RETURNING id`
	raises    = `INSERT INTO raising (v) VALUES (1)`
)

// newEndingFile is a file in which conflicts and raises end the transaction.
func newEndingFile(t testing.TB) string {
	file := newFile(t)
	db := open(t, file)
	mustExec(t, db, `INSERT INTO effects (id, list, value) VALUES (1, 'there', 'v')`)
	mustExec(t, db, `CREATE TABLE raising (v INTEGER)`)
	mustExec(t, db, `CREATE TRIGGER raise BEFORE INSERT ON raising BEGIN SELECT RAISE(ROLLBACK, 'no more'); END`)
	return file
}

// ways are all in which a handler can send a statement.
var ways = map[string]func(ctx context.Context, tx *sqlsink.Tx, text string) error{
	"Exec": func(ctx context.Context, tx *sqlsink.Tx, text string) error { return run(ctx, tx, text) },
	"Query": func(ctx context.Context, tx *sqlsink.Tx, text string) error {
		return drain(tx.QueryContext(ctx, text))
	},
	"QueryRow": func(ctx context.Context, tx *sqlsink.Tx, text string) error {
		var v any
		if err := tx.QueryRowContext(ctx, text).Scan(&v); !errors.Is(err, sql.ErrNoRows) {
			return err
		}
		return nil
	},
	"a prepared Exec": func(ctx context.Context, tx *sqlsink.Tx, text string) error {
		stmt, err := tx.PrepareContext(ctx, text)
		if err != nil {
			return err
		}
		_, err = stmt.ExecContext(context.Background())
		return err
	},
	"a prepared Query": func(ctx context.Context, tx *sqlsink.Tx, text string) error {
		stmt, err := tx.PrepareContext(ctx, text)
		if err != nil {
			return err
		}
		return drain(stmt.QueryContext(context.Background()))
	},
	"OpenDB": func(ctx context.Context, tx *sqlsink.Tx, text string) error {
		_, err := sqlsink.OpenDB(tx).ExecContext(ctx, text)
		return err
	},
	"OpenDB's Query": func(ctx context.Context, tx *sqlsink.Tx, text string) error {
		return drain(sqlsink.OpenDB(tx).QueryContext(ctx, text))
	},
	"OpenDB's Tx": func(ctx context.Context, tx *sqlsink.Tx, text string) error {
		t, err := sqlsink.OpenDB(tx).BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer func() { _ = t.Rollback() }()
		if _, err = t.ExecContext(ctx, text); err != nil {
			return err
		}
		return t.Commit()
	},
	"OpenDB's prepared Exec": func(ctx context.Context, tx *sqlsink.Tx, text string) error {
		stmt, err := sqlsink.OpenDB(tx).PrepareContext(ctx, text)
		if err != nil {
			return err
		}
		_, err = stmt.ExecContext(context.Background())
		return err
	},
}

func drain(rows *sql.Rows, err error) error {
	if err != nil {
		return err
	}
	for rows.Next() {
	}
	return errors.Join(rows.Err(), rows.Close())
}

func TestNothingIsSentOnceTheDatabaseHasRolledBack(t *testing.T) {
	for ending, text := range map[string]string{"ON CONFLICT ROLLBACK": conflicts, "RETURNING": returning, "RAISE(ROLLBACK)": raises} {
		for name, way := range ways {
			t.Run(ending+" by "+name, func(t *testing.T) {
				db := open(t, newEndingFile(t))
				s := newSink(t, db, sqlsink.Options{})
				f := claim(t, s, 1)
				later := false
				err := s.Commit(t.Context(), advance(f, 3), epoch.TxOptions{},
					func(ctx context.Context, tx *sqlsink.Tx) error { return run(ctx, tx, insert) },
					func(ctx context.Context, tx *sqlsink.Tx) error {
						before, err := tx.PrepareContext(ctx, insert)
						if err != nil {
							return err
						}
						opened := sqlsink.OpenDB(tx)
						if way(ctx, tx, text) == nil {
							t.Error("the statement was accepted")
						}
						if _, err := before.ExecContext(ctx); err == nil {
							t.Error("a statement that was prepared before was sent")
						}
						if _, err := opened.ExecContext(ctx, insert); err == nil {
							t.Error("a DB that was opened before sent a statement")
						}
						for name, way := range ways {
							if way(ctx, tx, insert) == nil {
								t.Errorf("%s was sent", name)
							}
						}
						return nil
					},
					func(context.Context, *sqlsink.Tx) error { later = true; return nil })
				wantCallError(t, err, 1, nil)
				wantError(t, err, "the database has rolled the transaction back after", text[:20])
				if later {
					t.Error("another call ran")
				}
				if got, err := effects(t.Context(), db, "escaped"); err != nil || len(got) > 0 {
					t.Errorf("effects %q, %v", got, err)
				}
				wantNext(t, s, 0)
				if err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx *sqlsink.Tx) error { return run(ctx, tx, insert) }); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

// What is sent after a call has returned is refused, and touches nobody.
func TestWhatACallLeavesBehindIsRefusedInTheNext(t *testing.T) {
	db := open(t, newFile(t))
	db.SetMaxOpenConns(1)
	s := newSink(t, db, sqlsink.Options{})
	f := claim(t, s, 1)
	var kept struct {
		tx   *sqlsink.Tx
		stmt *sql.Stmt
		rows *sql.Rows
		db   *sql.DB
	}
	err := s.Commit(t.Context(), advance(f, 2), epoch.TxOptions{}, func(_ context.Context, tx *sqlsink.Tx) (err error) {
		ctx := context.Background() // not the context that the handler was given
		kept.tx, kept.db = tx, sqlsink.OpenDB(tx)
		if err := run(ctx, tx, insert, insert); err != nil {
			return err
		}
		if kept.stmt, err = tx.PrepareContext(ctx, insert); err != nil {
			return err
		}
		if _, err := kept.stmt.ExecContext(ctx); err != nil {
			return err
		}
		if kept.rows, err = tx.QueryContext(ctx, `SELECT value FROM effects`); err == nil && !kept.rows.Next() {
			t.Error("no row")
		}
		return err
	}, func(ctx context.Context, tx *sqlsink.Tx) error {
		if kept.rows.Next() || kept.rows.Err() == nil {
			t.Errorf("rows of another call are read: %v", kept.rows.Err())
		}
		if _, err := kept.stmt.ExecContext(ctx); err == nil {
			t.Error("a statement of another call was sent")
		}
		if _, err := kept.db.ExecContext(ctx, insert); err == nil {
			t.Error("the DB of another call sent a statement")
		}
		for name, way := range ways {
			if way(ctx, kept.tx, insert) == nil {
				t.Errorf("%s was sent through the Tx of another call", name)
			}
		}
		return run(ctx, tx, insert)
	})
	if err != nil {
		t.Fatal(err)
	}
	if got, err := effects(t.Context(), db, "escaped"); err != nil || len(got) != 4 {
		t.Errorf("effects %q, %v, want 4", got, err)
	}
	wantNext(t, s, 2)
}

// An interrupt that comes after its rows' call must not strike the next one.
func TestAContextThatEndsWithACallDoesNotInterruptTheNext(t *testing.T) {
	s := newSink(t, open(t, newFile(t)), sqlsink.Options{})
	f := claim(t, s, 1)
	calls := []func(context.Context, *sqlsink.Tx) error{func(ctx context.Context, tx *sqlsink.Tx) error {
		return run(ctx, tx, insert, insert, insert)
	}}
	for range 100 {
		calls = append(calls, func(ctx context.Context, tx *sqlsink.Tx) error {
			short, cancel := context.WithCancel(ctx)
			defer cancel() // with its rows open
			rows, err := tx.QueryContext(short, `SELECT value FROM effects`)
			if err != nil {
				return err
			}
			rows.Next()
			return errors.Join(rows.Err(), run(ctx, tx, insert))
		})
	}
	if err := s.Commit(t.Context(), advance(f, len(calls)), epoch.TxOptions{}, calls...); err != nil {
		t.Fatal(err)
	}
	wantNext(t, s, epoch.Offset(len(calls)))
}
