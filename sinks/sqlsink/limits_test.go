package sqlsink_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/suites/bubble"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// holdLock takes the file's write lock from another connection, as a frozen
// process would, and returns what lets go of it.
func holdLock(t testing.TB, file string) (release func()) {
	t.Helper()
	conn, err := open(t, file).Conn(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.ExecContext(t.Context(), `BEGIN IMMEDIATE`); err != nil {
		t.Fatal(err)
	}
	return func() {
		_, _ = conn.ExecContext(context.Background(), `ROLLBACK`)
		_ = conn.Close()
	}
}

func TestAWaitForTheWriteLockIsBoundedAndSaysSo(t *testing.T) {
	file := newFile(t)
	s := newSink(t, open(t, file), sqlsink.Options{LockTimeout: 400 * time.Millisecond})
	f := claim(t, s, 1)
	release := holdLock(t, file)
	defer release()

	_, err := s.Claim(t.Context(), f, epoch.NewClaim(epoch.Lease{Origin: f.Origin, Generation: 2}))
	wantError(t, err, "sqlsink: claim billing/orders/0:", "write lock was not free for 400ms", "frozen")
	wantTransient(t, err)
	err = s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(context.Context, *sqlsink.Tx) error { return nil })
	wantError(t, err, "sqlsink: commit billing/orders/0:", "write lock was not free")
	wantTransient(t, err)
	if errors.Is(err, epoch.ErrInDoubt) {
		t.Error("a transaction that never began is in doubt")
	}
	err = s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx *sqlsink.Tx) error {
		_ = run(ctx, tx, insert) // the handler does not look
		return nil
	})
	wantError(t, err, "write lock was not free")
	wantTransient(t, err)
	wantError(t, s.Seed(t.Context(), []epoch.Start{{Origin: f.Origin}}), "sqlsink: seed", "write lock was not free")

	if _, err := epoch.FenceOf(t.Context(), s, orders0); err != nil {
		t.Errorf("a reader waits for a writer: %v", err)
	}
	release()
	if err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx *sqlsink.Tx) error { return run(ctx, tx, insert) }); err != nil {
		t.Fatal(err)
	}
	wantNext(t, s, 1)
}

func TestAWaitForTheWriteLockEndsWithItsContext(t *testing.T) {
	file := newFile(t)
	s := newSink(t, open(t, file), sqlsink.Options{})
	f := claim(t, s, 1)
	defer holdLock(t, file)()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Second)
	defer cancel()
	err := s.Commit(ctx, advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx *sqlsink.Tx) error { return run(ctx, tx, insert) })
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("err = %v, want the context's", err)
	}
	wantError(t, err, "waiting for the write lock")
	wantTransient(t, err) // or the message would be blamed for a frozen process
}

// wantTransient fails the test unless err says, to the consumer, that the
// database refused and that it passes.
func wantTransient(t testing.TB, err error) {
	t.Helper()
	if !errors.Is(err, epoch.ErrTransient) {
		t.Errorf("err = %v, want it to be ErrTransient", err)
	}
}

// A reader that becomes a writer after another has written gets
// SQLITE_BUSY_SNAPSHOT, and a handler may do that on a connection of its own.
func TestAConflictOnAConnectionOfTheHandlersOwnIsTheHandlers(t *testing.T) {
	file := newFile(t)
	db := open(t, file)
	s := newSink(t, open(t, file), sqlsink.Options{})
	f := claim(t, s, 1)
	conflict := func(ctx context.Context) error {
		conn, err := db.Conn(ctx)
		if err != nil {
			return err
		}
		defer func() {
			_, _ = conn.ExecContext(context.Background(), `ROLLBACK`)
			_ = conn.Close()
		}()
		if _, err := conn.ExecContext(ctx, `BEGIN`); err != nil {
			return err
		}
		var n int
		if err := conn.QueryRowContext(ctx, `SELECT count(*) FROM effects`).Scan(&n); err != nil {
			return err
		}
		if _, err := db.ExecContext(ctx, `INSERT INTO effects (list, value) VALUES ('other', 'other')`); err != nil {
			return err
		}
		_, err = conn.ExecContext(ctx, `INSERT INTO effects (list, value) VALUES ('l', 'mine')`)
		return err
	}
	err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, _ *sqlsink.Tx) error { return conflict(ctx) })
	var code interface{ Code() int }
	if !errors.As(err, &code) || code.Code() != 517 { // SQLITE_BUSY_SNAPSHOT
		t.Fatalf("err = %v, want SQLITE_BUSY_SNAPSHOT", err)
	}
	if errors.Is(err, epoch.ErrTransient) {
		t.Errorf("err = %v, of a connection of the handler's own; want it to be the handler's to judge", err)
	}

	err = s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx *sqlsink.Tx) error {
		return run(ctx, tx, `INSERT INTO nowhere VALUES (1)`)
	})
	if errors.Is(err, epoch.ErrTransient) || !errors.Is(err, epoch.ErrUnhealthy) {
		t.Errorf("err = %v, of a table that is not there; want an unhealthy database, which does not pass", err)
	}
	wantNext(t, s, 0)
}

func TestAFullFileCommitsNothingAndSaysSo(t *testing.T) {
	file := newFile(t)
	db := open(t, file)
	db.SetMaxOpenConns(1) // max_page_count is of the connection
	s := newSink(t, db, sqlsink.Options{})
	f := claim(t, s, 1)
	mustExec(t, db, `PRAGMA max_page_count = 20`)
	big := strings.Repeat("x", 100_000)
	for name, hide := range map[string]bool{"the handler returns it": false, "the handler hides it": true} {
		t.Run(name, func(t *testing.T) {
			err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx *sqlsink.Tx) error {
				if err := appendEffect(ctx, tx, "l", "small"); err != nil {
					return err
				}
				err := appendEffect(ctx, tx, "l", big)
				// SQLite may have rolled back everything; a statement on its own
				// would be committed at once.
				after := appendEffect(ctx, tx, "l", "after")
				if hide {
					return nil
				}
				return errors.Join(err, after)
			})
			if !hide || err != nil {
				wantError(t, err, "no room", "nothing was committed")
				if !errors.Is(err, epoch.ErrUnhealthy) {
					t.Errorf("err = %v, want it to be ErrUnhealthy", err)
				}
			}
			if errors.Is(err, epoch.ErrInDoubt) || errors.Is(err, epoch.ErrTxEndedByHandler) {
				t.Errorf("err = %v, want a definite one", err)
			}
			if err == nil {
				t.Fatal("a transaction without room was committed")
			}
			got, err := effects(t.Context(), db, "l")
			if err != nil || len(got) > 0 {
				t.Errorf("%d effects of a refused transaction, %v", len(got), err)
			}
			wantNext(t, s, 0)
		})
	}
	mustExec(t, db, `PRAGMA max_page_count = 1000000`)
	if err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx *sqlsink.Tx) error { return appendEffect(ctx, tx, "l", big) }); err != nil {
		t.Errorf("with room again: %v", err)
	}
	wantNext(t, s, 1)
}

// An interrupted write takes the whole transaction with it: what a handler
// writes after its own timeout must not be committed by itself.
func TestAHandlerThatGoesOnAfterAnInterruptedWriteCommitsNothing(t *testing.T) {
	db := open(t, newFile(t))
	s := newSink(t, db, sqlsink.Options{})
	f := claim(t, s, 1)
	err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx *sqlsink.Tx) error {
		if err := appendEffect(ctx, tx, "l", "before"); err != nil {
			return err
		}
		short, cancel := context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
		_, err := tx.ExecContext(short, `INSERT INTO effects (list, value)
			WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 100000000) SELECT 'l', i FROM n`)
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("err = %v, want the handler's own timeout", err)
		}
		if err := appendEffect(ctx, tx, "l", "after"); err == nil {
			t.Error("a write after the end of the transaction was accepted")
		}
		return nil
	})
	wantError(t, err, "the database has rolled the transaction back after", "WITH RECURSIVE")
	if errors.Is(err, epoch.ErrTxEndedByHandler) || errors.Is(err, epoch.ErrInDoubt) {
		t.Errorf("err = %v, want a definite one", err)
	}
	if got, err := effects(t.Context(), db, "l"); err != nil || len(got) > 0 {
		t.Errorf("effects %q, %v", got, err)
	}
	wantNext(t, s, 0)
}

func TestAFileThatMayNotBeWrittenIsAClearError(t *testing.T) {
	file := newFile(t)
	db := open(t, file)
	db.SetMaxOpenConns(1)
	s := newSink(t, db, sqlsink.Options{})
	f := claim(t, s, 1)
	mustExec(t, db, `PRAGMA query_only = 1`)
	_, err := s.Claim(t.Context(), f, epoch.NewClaim(epoch.Lease{Origin: f.Origin, Generation: 2}))
	wantError(t, err, "sqlsink: claim billing/orders/0:", "readonly")
	if errors.Is(err, epoch.ErrInDoubt) {
		t.Errorf("err = %v, want a definite one", err)
	}
}

// One who polls for a lock, next to others who take it again at once, gets it
// late or never: a partition was not claimed while others were busy.
func TestWhoWaitsForTheWriteLockInOneProcessGetsItInTurn(t *testing.T) {
	bubble.Test(t, func(t *testing.T) {
		const waiting = 12
		s := newSink(t, open(t, newFile(t)), sqlsink.Options{})
		var fences []epoch.Fence
		for n := range int32(waiting + 1) {
			p := orders0
			p.Number = n
			fences = append(fences, claimOf(t, s, p, 1))
		}
		var order []int32 // written by whoever has the lock
		commit := func(f epoch.Fence, before func()) {
			err := s.Commit(t.Context(), advance(f, 1), epoch.TxOptions{}, func(ctx context.Context, tx *sqlsink.Tx) error {
				if err := run(ctx, tx, insert); err != nil {
					return err
				}
				before()
				order = append(order, f.Partition.Number)
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		}
		var running sync.WaitGroup
		has, letGo := make(chan struct{}), make(chan struct{})
		running.Go(func() { commit(fences[waiting], func() { close(has); <-letGo }) })
		<-has
		var want []int32
		for n := range int32(waiting) {
			want = append(want, n)
			running.Go(func() { commit(fences[n], func() {}) })
			synctest.Wait() // until it stands in line
		}
		close(letGo)
		running.Wait()
		if want = append([]int32{waiting}, want...); !slices.Equal(order, want) {
			t.Errorf("the write lock was had in the order %v, want that of asking, %v", order, want)
		}
	})
}
