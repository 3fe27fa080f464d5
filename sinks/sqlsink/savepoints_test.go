package sqlsink_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/sql/txdb"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// A sql.Tx of OpenDB's decides only its own message, whatever becomes of it.
func TestATransactionOfOpenDBThatIsNotEndedFailsItsMessageAndNoOther(t *testing.T) {
	write := func(ctx context.Context, db interface {
		ExecContext(context.Context, string, ...any) (sql.Result, error)
	}) error {
		_, err := db.ExecContext(ctx, insert)
		return err
	}
	// gone waits until database/sql has rolled back by itself.
	gone := func(ctx context.Context, tx *sql.Tx) error {
		for {
			if _, err := tx.ExecContext(ctx, insert); errors.Is(err, sql.ErrTxDone) {
				return nil
			}
		}
	}
	for name, c := range map[string]struct {
		handle func(ctx context.Context, tx *sqlsink.Tx) error
		is     error
	}{
		"cancelled when the handler returns": {func(ctx context.Context, tx *sqlsink.Tx) error {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			db := sqlsink.OpenDB(tx)
			defer func() { _ = db.Close() }()
			t, err := db.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			return write(ctx, t)
		}, txdb.ErrLeft},
		"never ended": {func(ctx context.Context, tx *sqlsink.Tx) error {
			t, err := sqlsink.OpenDB(tx).BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			return write(ctx, t)
		}, txdb.ErrLeft},
		"cancelled while the handler waits, and then a write of its own": {func(ctx context.Context, tx *sqlsink.Tx) error {
			short, cancel := context.WithCancel(ctx)
			defer cancel()
			t, err := sqlsink.OpenDB(tx).BeginTx(short, nil)
			if err != nil {
				return err
			}
			if err := write(ctx, tx); err != nil {
				return err
			}
			cancel()
			if err := gone(ctx, t); err != nil {
				return err
			}
			_ = write(ctx, tx)
			return nil
		}, txdb.ErrLeft},
		"one whose context ended before its Commit": {func(ctx context.Context, tx *sqlsink.Tx) error {
			short, cancel := context.WithCancel(ctx)
			defer cancel()
			t, err := sqlsink.OpenDB(tx).BeginTx(short, nil)
			if err != nil {
				return err
			}
			err = write(ctx, t)
			cancel()
			_ = t.Commit()
			return err
		}, txdb.ErrLeft},
		"an inner one that outlives its outer one": {func(ctx context.Context, tx *sqlsink.Tx) error {
			db := sqlsink.OpenDB(tx)
			outer, err := db.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			inner, err := db.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			if err := outer.Rollback(); err != nil {
				return err
			}
			if write(ctx, inner) == nil {
				return errors.New("the inner one still writes")
			}
			if inner.Commit() == nil {
				return errors.New("the inner one was committed")
			}
			_, err = db.BeginTx(ctx, nil)
			return err
		}, txdb.ErrLeft},
	} {
		t.Run(name, func(t *testing.T) {
			db := open(t, newFile(t))
			s := newSink(t, db, sqlsink.Options{})
			f := claim(t, s, 1)
			other := func(ctx context.Context, tx *sqlsink.Tx) error { return run(ctx, tx, insert) }
			for range 10 {
				err := s.Commit(t.Context(), advance(f, 3), epoch.TxOptions{}, other, c.handle, other)
				wantCallError(t, err, 1, c.is)
			}
			if got, err := effects(t.Context(), db, "escaped"); err != nil || len(got) > 0 {
				t.Errorf("effects %q, %v", got, err)
			}
			wantNext(t, s, 0)
			if err := s.Commit(t.Context(), advance(f, 2), epoch.TxOptions{}, other, other); err != nil {
				t.Error(err)
			}
			if got, err := effects(t.Context(), db, "escaped"); err != nil || len(got) != 2 {
				t.Errorf("effects %q, %v", got, err)
			}
		})
	}
}

// What ends as its author meant shares a transaction with others.
func TestATransactionOfOpenDBThatIsEndedDoesWhatItSays(t *testing.T) {
	db := open(t, newFile(t))
	s := newSink(t, db, sqlsink.Options{})
	f := claim(t, s, 1)
	in := func(how func(*sql.Tx) error) func(ctx context.Context, tx *sqlsink.Tx) error {
		return func(ctx context.Context, tx *sqlsink.Tx) error {
			ctx, cancel := context.WithCancel(ctx)
			defer cancel()
			t, err := sqlsink.OpenDB(tx).BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			defer func() { _ = t.Rollback() }()
			if _, err = t.ExecContext(ctx, insert); err != nil {
				return err
			}
			return how(t)
		}
	}
	direct := func(ctx context.Context, tx *sqlsink.Tx) error { return run(ctx, tx, insert) }
	err := s.Commit(t.Context(), advance(f, 4), epoch.TxOptions{}, direct, in((*sql.Tx).Commit), in((*sql.Tx).Rollback), direct)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := effects(t.Context(), db, "escaped"); err != nil || len(got) != 3 {
		t.Errorf("effects %q, %v, want 3", got, err)
	}
	wantNext(t, s, 4)
}

// A savepoint of the handler's own is for a transaction of its own, and the sink's have
// names that nobody knows.
func TestASavepointInATextNeedsATransactionOfItsOwn(t *testing.T) {
	db := open(t, newFile(t))
	s := newSink(t, db, sqlsink.Options{})
	f := claim(t, s, 1)
	other := func(ctx context.Context, tx *sqlsink.Tx) error { return run(ctx, tx, insert) }
	for _, text := range []string{`SAVEPOINT a`, `RELEASE epochfence_handler`, `ROLLBACK TO epochfence_handler`, `ROLLBACK TRANSACTION TO SAVEPOINT a`} {
		var seen error
		err := s.Commit(t.Context(), advance(f, 2), epoch.TxOptions{}, other, func(ctx context.Context, tx *sqlsink.Tx) error {
			seen = run(ctx, tx, text)
			_ = run(ctx, tx, insert)
			return nil
		})
		wantCallError(t, err, 1, epoch.ErrOwnTransaction)
		if !errors.Is(seen, epoch.ErrOwnTransaction) {
			t.Errorf("%s: the handler saw %v", text, seen)
		}
		wantNext(t, s, 0)
	}
	err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx *sqlsink.Tx) error {
		return errors.Join(run(ctx, tx, insert), run(ctx, tx, `ROLLBACK TO epochfence_handler`))
	})
	wantError(t, err, "no such savepoint")
	wantNext(t, s, 0)
	if got, err := effects(t.Context(), db, "escaped"); err != nil || len(got) > 0 {
		t.Errorf("effects %q, %v", got, err)
	}
}
