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
	seen, err := s.Fence(t.Context(), p)
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
	f, err := s.Fence(t.Context(), orders0)
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

func TestAHandlerThatEndsItsTransactionIsFoundOutBeforeTheFenceMoves(t *testing.T) {
	db := open(t, newFile(t))
	s := newSink(t, db, sqlsink.Options{})
	hidden := errors.New("the handler's own error")
	for _, c := range []struct {
		name       string
		statements []string
		result     error
	}{
		{"COMMIT", []string{insert, `COMMIT`}, nil},
		{"COMMIT and on without a transaction", []string{insert, `COMMIT`, insert}, nil},
		{"COMMIT; BEGIN in one", []string{insert, `COMMIT; BEGIN`, insert}, nil},
		{"COMMIT in the middle of a script", []string{insert + `; COMMIT; BEGIN IMMEDIATE; ` + insert}, nil},
		{"END", []string{insert, `END TRANSACTION`}, nil},
		{"ROLLBACK", []string{insert, `ROLLBACK`}, nil},
		{"ROLLBACK and a savepoint of its own", []string{insert, `ROLLBACK`, `SAVEPOINT mine`, insert}, nil},
		{"release of the sink's savepoint", []string{`RELEASE SAVEPOINT epochfence_handler`, insert}, nil},
		{"COMMIT, then an error of its own", []string{insert, `COMMIT`}, hidden},
		{"COMMIT; BEGIN, then an error of its own", []string{insert, `COMMIT; BEGIN`}, hidden},
		{"ON CONFLICT ROLLBACK", []string{`INSERT OR ROLLBACK INTO effects (id, list, value) VALUES (1, 'a', 'b')`,
			`INSERT OR ROLLBACK INTO effects (id, list, value) VALUES (1, 'a', 'b')`}, nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := claim(t, s, 1)
			err := s.Commit(t.Context(), advance(f, 1), func(ctx context.Context, tx *sqlsink.Tx) error {
				if err := run(ctx, tx, c.statements...); err != nil {
					t.Log(err)
				}
				return c.result
			})
			if !errors.Is(err, epoch.ErrTxEndedByHandler) || !errors.Is(err, c.result) && c.result != nil {
				t.Errorf("err = %v, want ErrTxEndedByHandler", err)
			}
			wantNext(t, s, 0)
			// The connection goes on, outside any transaction.
			if err := s.Commit(t.Context(), advance(f, 0), func(ctx context.Context, tx *sqlsink.Tx) error {
				return run(ctx, tx, insert)
			}); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestAHandlerThatGoesOnAfterOnConflictRollbackWritesNothing(t *testing.T) {
	db := open(t, newFile(t))
	s := newSink(t, db, sqlsink.Options{})
	f := claim(t, s, 1)
	err := s.Commit(t.Context(), advance(f, 1), func(ctx context.Context, tx *sqlsink.Tx) error {
		const conflict = `INSERT OR ROLLBACK INTO effects (id, list, value) VALUES (1, 'l', 'v')`
		if err := run(ctx, tx, conflict, conflict); err == nil {
			t.Error("a duplicate key was accepted")
		}
		return run(ctx, tx, insert)
	})
	if !errors.Is(err, epoch.ErrTxEndedByHandler) {
		t.Errorf("err = %v, want ErrTxEndedByHandler", err)
	}
	if got, err := effects(t.Context(), db, "escaped"); err != nil || len(got) != 0 {
		t.Errorf("effects %q, %v, of a transaction that was rolled back", got, err)
	}
	wantNext(t, s, 0)
}

func TestAHandlersCommitIsFoundOutThoughItsContextEnds(t *testing.T) {
	s := newSink(t, open(t, newFile(t)), sqlsink.Options{})
	f := claim(t, s, 1)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	err := s.Commit(ctx, advance(f, 1), func(ctx context.Context, tx *sqlsink.Tx) error {
		if err := run(ctx, tx, insert, `COMMIT`); err != nil {
			return err
		}
		cancel()
		return run(ctx, tx, insert)
	})
	if !errors.Is(err, epoch.ErrTxEndedByHandler) || !errors.Is(err, context.Canceled) {
		t.Errorf("err = %v, want ErrTxEndedByHandler and the context's", err)
	}
	wantNext(t, s, 0)
}

func TestAFullFileUnderAPreparedStatementIsNoEscape(t *testing.T) {
	db := open(t, newFile(t))
	db.SetMaxOpenConns(1) // max_page_count is of the connection
	s := newSink(t, db, sqlsink.Options{})
	f := claim(t, s, 1)
	mustExec(t, db, `PRAGMA max_page_count = 20`)
	err := s.Commit(t.Context(), advance(f, 1), func(ctx context.Context, tx *sqlsink.Tx) error {
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
	for name, c := range map[string]struct {
		result func(full, next error) error
		says   error
	}{
		"the failure is returned":  {func(full, _ error) error { return full }, epoch.ErrUnhealthy},
		"what follows is returned": {func(_, next error) error { return next }, epoch.ErrTxEndedByHandler},
		"another error":            {func(_, _ error) error { return hides }, epoch.ErrTxEndedByHandler},
		"no error":                 {func(_, _ error) error { return nil }, epoch.ErrTxEndedByHandler},
	} {
		t.Run(name, func(t *testing.T) {
			db := open(t, newFile(t))
			db.SetMaxOpenConns(1) // max_page_count is of the connection
			s := newSink(t, db, sqlsink.Options{})
			f := claim(t, s, 1)
			mustExec(t, db, `PRAGMA max_page_count = 20`)
			err := s.Commit(t.Context(), advance(f, 1), func(ctx context.Context, tx *sqlsink.Tx) error {
				stmt, err := tx.PrepareContext(ctx, `INSERT INTO effects (list, value) VALUES ('l', ?)`)
				if err != nil {
					return err
				}
				_, full := stmt.ExecContext(ctx, strings.Repeat("x", 100_000))
				if full == nil {
					t.Error("the file is not full")
				}
				next := run(ctx, tx, insert)
				if next == nil {
					t.Error("a statement ran without a transaction")
				}
				return c.result(full, next)
			})
			if !errors.Is(err, c.says) {
				t.Errorf("err = %v, want %v", err, c.says)
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
	err := s.Commit(t.Context(), advance(f, 1), func(ctx context.Context, tx *sqlsink.Tx) error {
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
	err := s.Commit(t.Context(), advance(f, 1), func(ctx context.Context, tx *sqlsink.Tx) error {
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
		err := s.Commit(t.Context(), advance(f, 1), func(ctx context.Context, tx *sqlsink.Tx) error {
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
	if err := s.Commit(t.Context(), advance(f, 1), func(_ context.Context, tx *sqlsink.Tx) error { kept = tx; return nil }); err != nil {
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
	err := s.Commit(t.Context(), nil, func(context.Context, *sqlsink.Tx) error { called = true; return nil })
	if err == nil || called {
		t.Errorf("err = %v, handler called: %v", err, called)
	}
}
