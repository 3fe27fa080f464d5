package sqltx

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/sql/sqltext"
	"github.com/epochfence/epochfence/internal/sql/txdb"
)

// This file begins and ends a transaction, and decides what happens to its connection afterwards.
// db.go decides how long it waits, and guard.go what a handler may do in it.

// Tx is a transaction that is run by statements on a connection of its own.
type Tx struct {
	b       *DB
	Conn    *sql.Conn // for the store's own statements; nil after giveBack
	turn    bool      // it has the turn of its process
	open    bool      // a transaction may have begun
	spoiled string    // the first statement that changed the connection for its next user
	wait    string    // the statement that restores how Conn waits; empty if it need not
	set     bool      // Begin may have set what Restore undoes
	Kept    bool      // a ROLLBACK has left writes

	began time.Time // when it got the write lock; zero before
}

// Begin takes a connection and opens a transaction that may write. It waits for other transactions
// as long as ctx and [Limits.Wait] allow. After a nil error the caller must call [Tx.End].
func (b *DB) Begin(ctx context.Context) (*Tx, error) {
	t := &Tx{b: b}
	if err := t.begin(ctx); err != nil {
		t.End()
		return nil, err
	}
	return t, nil
}

// Restart rolls back and begins again, on another connection, before the transactions of the
// process that wait for their turn.
func (t *Tx) Restart(ctx context.Context) error {
	t.giveBack()
	return t.begin(ctx)
}

func (t *Tx) begin(ctx context.Context) error {
	var (
		leave  func()
		before int64
	)
	defer func() {
		if leave != nil {
			leave()
		}
	}()
	limits := Limits{Idle: t.b.limits.Idle}
	if end, ok := ctx.Deadline(); ok {
		limits.Whole = max(time.Until(end), time.Millisecond)
	}
	err := t.b.Patiently(ctx, func(ctx context.Context) error {
		if err := t.line(ctx); err != nil {
			return err
		}
		if t.Conn == nil {
			conn, err := t.b.db.Conn(ctx) // its PRAGMAs may meet a lock
			if err != nil && ctx.Err() != nil {
				return fmt.Errorf("%w: %w", errNoConn, err)
			}
			if err != nil {
				return err
			}
			t.Conn = conn
			if t.wait, err = t.b.d.Unwait(ctx, conn); err != nil {
				return err
			}
		}
		// This holds whatever the answer is: the driver may report the end of the context although
		// BEGIN took effect.
		t.open, t.set = true, t.b.d.Restore() != ""
		deadline, _ := ctx.Deadline() // Patiently's at the latest
		limits.Wait = time.Until(deadline)
		err := t.each(ctx, t.b.d.Begin(limits))
		if err != nil && leave == nil && t.b.queue != nil && t.b.d.Classify(err) == Busy {
			leave = t.b.queue.Wait() // tells the other processes
			before = t.written()
		}
		if err != nil {
			return err
		}
		return t.restore()
	})
	switch {
	case err == nil:
		t.began = time.Now()
		return nil
	case leave == nil:
		return fmt.Errorf("begin: %w", err)
	case t.written() != before:
		return fmt.Errorf("begin: %w; other processes write in turn, and this one's has not come", err)
	default:
		return fmt.Errorf("begin: %w; one transaction holds it all the time, perhaps that of a frozen process", err)
	}
}

// exec runs a script of our own.
func (t *Tx) exec(ctx context.Context, script string) error {
	if !t.b.d.OneByOne() {
		return t.each(ctx, []string{script})
	}
	return t.each(ctx, sqltext.Split(script, t.b.d.Words()))
}

func (t *Tx) each(ctx context.Context, statements []string) error {
	for _, s := range statements {
		if _, err := t.Conn.ExecContext(ctx, s); err != nil {
			return err
		}
	}
	return nil
}

func (t *Tx) restore() error {
	if t.wait == "" {
		return nil
	}
	_, err := t.Conn.ExecContext(context.Background(), t.wait) // it asks nobody
	if err == nil {
		t.wait = ""
	}
	return err
}

func (t *Tx) unset() error {
	if !t.set {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
	defer cancel()
	return t.exec(ctx, t.b.d.Restore())
}

// written returns a number that changes when others have written to the database.
func (t *Tx) written() (n int64) {
	_ = t.Conn.QueryRowContext(context.Background(), t.b.d.Written()).Scan(&n) // it is for an error's text
	return n
}

// line waits for the process's earlier transactions, if only one can write at a time. Polling for
// the lock would hardly ever succeed while another transaction takes it again at once.
func (t *Tx) line(ctx context.Context) error {
	if t.turn || t.b.queue == nil {
		return nil
	}
	select {
	case t.b.turns <- struct{}{}: // in the order in which they came
		t.turn = true
		t.b.queue.Turn(ctx)
		return nil
	case <-ctx.Done():
		return errInLine
	}
}

// Commit commits. An error that is not [epoch.ErrInDoubt] means that nothing
// is committed, now or later.
func (t *Tx) Commit(ctx context.Context) error {
	// The context no longer counts after this. A COMMIT that it cut off would have an unknown
	// outcome. In SQLite's WAL mode COMMIT waits for nobody.
	if err := ctx.Err(); err != nil {
		return err
	}
	return t.Finish(context.WithoutCancel(ctx), `COMMIT`)
}

// Finish runs a script that ends with COMMIT, and stops at the first statement that fails. Its
// errors are those of [Tx.Commit], except that ctx may end it: then it is unknown whether it is
// committed.
func (t *Tx) Finish(ctx context.Context, script string) error {
	err := t.exec(ctx, script)
	if err == nil {
		t.open = false
		return nil
	}
	if c := t.b.d.Classify(err); c == InDoubt || c == Interrupted {
		return fmt.Errorf("%w: COMMIT: %w", epoch.ErrInDoubt, err)
	}
	return fmt.Errorf("COMMIT: %w", err)
}

// End rolls back what is open and gives the connection back. It must always be called, and may be
// called again.
func (t *Tx) End() {
	t.giveBack()
	if t.turn {
		t.turn = false
		<-t.b.turns
	}
}

// endTimeout limits a rollback, for a database that is no longer there.
const endTimeout = 30 * time.Second

func (t *Tx) giveBack() {
	if t.Conn == nil {
		return
	}
	if t.open {
		ctx, cancel := context.WithTimeout(context.Background(), endTimeout)
		defer cancel()
		if _, err := t.Conn.ExecContext(ctx, `ROLLBACK`); err != nil {
			// There may have been nothing to roll back.
			if still, err := t.b.d.InTransaction(ctx, t.Conn, err); still || err != nil {
				t.discard()
			}
		} else if t.b.d.Kept(ctx, t.Conn) {
			t.Kept = true
		}
	}
	if t.spoiled != "" || t.restore() != nil || t.unset() != nil {
		t.discard()
	}
	_ = t.Conn.Close()
	t.Conn, t.open, t.set, t.wait, t.spoiled = nil, false, false, "", ""
	if t.b.queue != nil && !t.began.IsZero() {
		t.b.queue.Held(time.Since(t.began)) // the lock is free again
	}
	t.began = time.Time{}
}

func (t *Tx) spoil(text string) {
	if t.spoiled == "" {
		t.spoiled = excerpt(text)
	}
}

// SavepointName returns a name that nobody can guess.
func SavepointName() string { return txdb.Name() }

// Spoiled returns the handler's first statement that changed the connection itself, or "".
func (t *Tx) Spoiled() string { return t.spoiled }

func (t *Tx) discard() {
	_ = t.Conn.Raw(func(any) error { return driver.ErrBadConn })
}
