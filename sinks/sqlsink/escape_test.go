package sqlsink_test

import (
	"context"
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

var orders0 = epoch.Partition{Group: "billing", Topic: "orders", Number: 0}

// claim seeds the partition if need be and claims it.
func claim(t testing.TB, s *sqlsink.Sink, number int64) epoch.Fence {
	t.Helper()
	return claimOf(t, s, orders0, number)
}

func claimOf(t testing.TB, s *sqlsink.Sink, p epoch.Partition, number int64) epoch.Fence {
	t.Helper()
	o := epoch.Origin{Partition: p, Log: "log", Source: "broker"}
	if err := s.Seed(t.Context(), []epoch.Start{{Origin: o}}); err != nil {
		t.Fatal(err)
	}
	seen, err := epoch.FenceOf(t.Context(), s, p)
	if err != nil {
		t.Fatal(err)
	}
	f, err := s.Claim(t.Context(), seen, epoch.NewClaim(epoch.Lease{Origin: o, Generation: number, Owner: "test"}))
	if err != nil {
		t.Fatal(err)
	}
	return f
}

func advance(f epoch.Fence, messages int) []epoch.Advance {
	return []epoch.Advance{{Partition: f.Partition, Claim: f.Claim, From: f.Next, To: f.Next + epoch.Offset(messages)}}
}

// wantNext fails the test unless the fence is at next.
func wantNext(t testing.TB, s *sqlsink.Sink, next epoch.Offset) {
	t.Helper()
	f, err := epoch.FenceOf(t.Context(), s, orders0)
	if err != nil {
		t.Fatal(err)
	}
	if f.Next != next {
		t.Errorf("the fence is at offset %d, want %d", f.Next, next)
	}
}

func run(ctx context.Context, tx *sqlsink.Tx, statements ...string) error {
	for _, s := range statements {
		if _, err := tx.ExecContext(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

const insert = `INSERT INTO effects (list, value) VALUES ('escaped', 'x')`

// wantCallError fails the test unless err is that of the call with number i, matches is,
// and leaves the sink at work.
func wantCallError(t testing.TB, err error, i int, is error) {
	t.Helper()
	var of *epoch.CallError
	if !errors.As(err, &of) || of.Call != i || is != nil && !errors.Is(err, is) {
		t.Errorf("err = %v, want a CallError of call %d that is %v", err, i, is)
	}
	if errors.Is(err, epoch.ErrTxEndedByHandler) || errors.Is(err, epoch.ErrInDoubt) {
		t.Errorf("err = %v, though nothing can have been committed", err)
	}
}

func TestAHandlersTransactionControlIsNotSentAndFailsItsCall(t *testing.T) {
	db := open(t, newFile(t))
	s := newSink(t, db, sqlsink.Options{})
	hidden := errors.New("the handler's own error")
	for _, statements := range [][]string{
		{insert, `COMMIT`},
		{insert, `COMMIT`, insert},
		{insert, `COMMIT; BEGIN`, insert},
		{insert, `COMMIT; BEGIN; SAVEPOINT epochfence_handler`, insert},
		{insert + `; COMMIT; BEGIN IMMEDIATE; ` + insert},
		{insert, `END TRANSACTION`},
		{insert, `ROLLBACK`},
		{insert, `ROLLBACK`, `SAVEPOINT mine`, insert},
		{insert, `/* all */ rollback -- is well`},
		{insert, "\uFEFFCOMMIT"},
		{insert, "-- don't\r's\nCOMMIT"},
		{insert, `ROLLBACK TRANSACTION "to"`},
		{insert, `EXPLAIN COMMIT`},
		{`BEGIN`, insert},
	} {
		for _, result := range []error{nil, hidden} {
			t.Run(strings.Join(statements, "; "), func(t *testing.T) {
				f := claim(t, s, 1)
				seen, later := error(nil), false
				err := s.Commit(t.Context(), advance(f, 3), epoch.TxOptions{},
					func(ctx context.Context, tx *sqlsink.Tx) error { return run(ctx, tx, insert) },
					func(ctx context.Context, tx *sqlsink.Tx) error {
						for _, statement := range statements {
							if err := run(ctx, tx, statement); seen == nil {
								seen = err
							} else if err == nil {
								t.Errorf("%q was sent after %v", statement, seen)
							}
						}
						return result
					},
					func(context.Context, *sqlsink.Tx) error { later = true; return nil })
				wantCallError(t, err, 1, epoch.ErrTxControl)
				if !errors.Is(seen, epoch.ErrTxControl) || result != nil && !errors.Is(err, result) || later {
					t.Errorf("the handler saw %v; err = %v; the next call ran: %v", seen, err, later)
				}
				wantNext(t, s, f.Next)
				if got, err := effects(t.Context(), db, "escaped"); err != nil || len(got) > 0 {
					t.Errorf("effects %q, %v", got, err)
				}
			})
		}
	}
}

// A text that hides a COMMIT from whoever reads it: a parameter of SQLite's may be named $x(').
func TestAHiddenCommitIsFoundOut(t *testing.T) {
	db := open(t, newFile(t))
	s := newSink(t, db, sqlsink.Options{})
	f := claim(t, s, 1)
	commits := func(ctx context.Context, tx *sqlsink.Tx) error {
		if err := run(ctx, tx, insert); err != nil {
			return err
		}
		_, err := tx.ExecContext(ctx, `SELECT $x('); COMMIT; --'`, sql.Named("x(')", 1))
		_ = run(ctx, tx, insert)
		return err
	}
	again := func(context.Context, *sqlsink.Tx) error { return nil }
	err := s.Commit(t.Context(), advance(f, 2), epoch.TxOptions{}, commits, again)
	wantCallError(t, err, 0, epoch.ErrOwnTransaction)
	if err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, commits); !errors.Is(err, epoch.ErrTxEndedByHandler) {
		t.Errorf("err = %v, want ErrTxEndedByHandler", err)
	}
	if got, err := effects(t.Context(), db, "escaped"); err != nil || len(got) != 1 {
		t.Errorf("effects %q, %v: one is committed, and nothing after it", got, err)
	}
	wantNext(t, s, 0)
	if err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, again); err != nil {
		t.Error(err)
	}
}

func TestAFullFileUnderAPreparedStatementIsNoEscape(t *testing.T) {
	db := open(t, newFile(t))
	db.SetMaxOpenConns(1) // max_page_count is of the connection
	s := newSink(t, db, sqlsink.Options{})
	f := claim(t, s, 1)
	mustExec(t, db, `PRAGMA max_page_count = 20`)
	err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx *sqlsink.Tx) error {
		stmt, err := tx.PrepareContext(ctx, `INSERT INTO effects (list, value) VALUES ('l', ?)`)
		if err != nil {
			return err
		}
		_, err = stmt.ExecContext(ctx, strings.Repeat("x", 100_000))
		return err
	})
	wantError(t, err, "no room")
	if errors.Is(err, epoch.ErrTxEndedByHandler) {
		t.Errorf("err = %v", err)
	}
	wantNext(t, s, 0)
}

func TestATransactionThatEndedUnderAPreparedStatementIsNotWrittenAround(t *testing.T) {
	hides := errors.New("the handler's own error")
	for name, result := range map[string]func(full, next error) error{
		"the failure is returned":  func(full, _ error) error { return full },
		"what follows is returned": func(_, next error) error { return next },
		"another error":            func(_, _ error) error { return hides },
		"no error":                 func(_, _ error) error { return nil },
	} {
		t.Run(name, func(t *testing.T) {
			db := open(t, newFile(t))
			db.SetMaxOpenConns(1) // max_page_count is of the connection
			s := newSink(t, db, sqlsink.Options{})
			f := claim(t, s, 1)
			mustExec(t, db, `PRAGMA max_page_count = 20`)
			err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx *sqlsink.Tx) error {
				stmt, err := tx.PrepareContext(ctx, `INSERT INTO effects (list, value) VALUES ('escaped', ?)`)
				if err != nil {
					return err
				}
				_, full := stmt.ExecContext(ctx, strings.Repeat("x", 100_000))
				if full == nil {
					t.Error("the file is not full")
				}
				if _, err := stmt.ExecContext(ctx, "short"); err == nil {
					t.Error("the prepared statement ran without a transaction")
				}
				next := run(ctx, tx, insert)
				if next == nil {
					t.Error("a statement ran without a transaction")
				}
				return result(full, next)
			})
			if !errors.Is(err, epoch.ErrUnhealthy) || errors.Is(err, epoch.ErrTxEndedByHandler) {
				t.Errorf("err = %v, want %v", err, epoch.ErrUnhealthy)
			}
			if got, err := effects(t.Context(), db, "escaped"); err != nil || len(got) != 0 {
				t.Errorf("effects %q, %v, of a transaction that was rolled back", got, err)
			}
			wantNext(t, s, 0)
		})
	}
}

func TestAHandlerMayUseSavepointsOfItsOwn(t *testing.T) {
	db := open(t, newFile(t))
	s := newSink(t, db, sqlsink.Options{})
	f := claim(t, s, 1)
	err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx *sqlsink.Tx) error {
		return run(ctx, tx,
			`SAVEPOINT a`, `INSERT INTO effects (list, value) VALUES ('l', 'taken back')`, `ROLLBACK TO a`, `RELEASE a`,
			`INSERT INTO effects (list, value) VALUES ('l', 'kept')`,
			`SAVEPOINT never_released`)
	})
	if err != nil {
		t.Fatal(err)
	}
	got, err := effects(t.Context(), db, "l")
	if err != nil || len(got) != 1 || got[0] != "kept" {
		t.Errorf("effects %q, %v", got, err)
	}
	wantNext(t, s, 1)
}

func TestAHandlersFailedStatementLeavesTheTransactionUsable(t *testing.T) {
	db := open(t, newFile(t))
	s := newSink(t, db, sqlsink.Options{})
	f := claim(t, s, 1)
	err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx *sqlsink.Tx) error {
		if err := run(ctx, tx, `INSERT INTO effects (id, list, value) VALUES (1, 'l', 'a')`); err != nil {
			return err
		}
		if err := run(ctx, tx, `INSERT INTO effects (id, list, value) VALUES (1, 'l', 'b')`); err == nil {
			t.Error("a duplicate key was accepted")
		}
		return run(ctx, tx, `INSERT INTO effects (id, list, value) VALUES (2, 'l', 'c')`)
	})
	if err != nil {
		t.Fatal(err)
	}
	wantNext(t, s, 1)
}

func TestWhatAHandlerLeavesOpenIsClosed(t *testing.T) {
	db := open(t, newFile(t))
	db.SetMaxOpenConns(1) // what stays open would stop everything
	s := newSink(t, db, sqlsink.Options{})
	f := claim(t, s, 1)
	background := context.Background() // not the context that the handler was given
	var kept *sql.Stmt
	for n := range 3 {
		err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx *sqlsink.Tx) error {
			if _, err := tx.ExecContext(background, `INSERT INTO effects (list, value) VALUES ('l', 'a'), ('l', 'b')`); err != nil {
				return err
			}
			rows, err := tx.QueryContext(background, `SELECT value FROM effects`)
			if err != nil {
				return err
			}
			rows.Next()
			tx.QueryRowContext(background, `SELECT value FROM effects`)
			kept, err = tx.PrepareContext(background, insert)
			if err != nil {
				return err
			}
			_, err = kept.ExecContext(background)
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
		f.Next++
		wantNext(t, s, epoch.Offset(n+1))
		if _, err := kept.ExecContext(background); err == nil {
			t.Error("a statement outlived its transaction")
		}
	}
	if got, _ := effects(t.Context(), db, "escaped"); len(got) != 3 {
		t.Errorf("%d effects of a prepared statement, want 3", len(got))
	}
}

func TestAllMethodsOfAnEndedTransactionFailWithTheReason(t *testing.T) {
	db := open(t, newFile(t))
	s := newSink(t, db, sqlsink.Options{})
	f := claim(t, s, 1)
	var kept *sqlsink.Tx
	if err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(_ context.Context, tx *sqlsink.Tx) error { kept = tx; return nil }); err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	_, execErr := kept.ExecContext(ctx, insert)
	_, prepareErr := kept.PrepareContext(ctx, insert)
	rows, queryErr := kept.QueryContext(ctx, `SELECT 1`)
	if queryErr == nil {
		_ = rows.Close()
		t.Error(rows.Err())
	}
	var one int
	rowErr := kept.QueryRowContext(ctx, `SELECT 1`).Scan(&one)
	for name, err := range map[string]error{"Exec": execErr, "Prepare": prepareErr, "Query": queryErr, "QueryRow": rowErr} {
		if !errors.Is(err, sql.ErrTxDone) {
			t.Errorf("%s: err = %v, want sql.ErrTxDone", name, err)
		}
	}
}

func TestACommitWithoutAPartitionIsRefused(t *testing.T) {
	s := newSink(t, open(t, newFile(t)), sqlsink.Options{})
	called := false
	err := s.Commit(t.Context(), nil, epoch.TxOptions{}, func(context.Context, *sqlsink.Tx) error { called = true; return nil })
	if err == nil || called {
		t.Errorf("err = %v, handler called: %v", err, called)
	}
}
