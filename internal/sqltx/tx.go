package sqltx

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"fmt"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/txdb"
)

// Tx is a transaction that is run by hand on a connection of its own.
type Tx struct {
	b       *DB
	Conn    *sql.Conn // for the store's own statements; nil once it was given back
	turn    bool      // it is this one's, of those of the process
	open    bool      // a transaction has been begun, perhaps
	spoiled string    // the first statement that has changed the connection for whoever comes next
	wait    string    // what has Conn wait again as its user wants it to; empty if it does

	began time.Time // when it had the write lock; zero before
}

// Begin takes a connection and opens a transaction that may write, waiting for
// whoever is in the way as long as ctx and [Limits.Wait] allow. Whoever gets no error
// must call [Tx.End].
func (b *DB) Begin(ctx context.Context) (*Tx, error) {
	t := &Tx{b: b}
	if err := t.begin(ctx); err != nil {
		t.End()
		return nil, err
	}
	return t, nil
}

// Restart rolls back what is open and begins again, on another connection, and before
// the transactions of the process that wait for their turn.
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
	err := t.b.Patiently(ctx, func(ctx context.Context) error {
		if err := t.line(ctx); err != nil {
			return err
		}
		if t.Conn == nil {
			conn, err := t.b.db.Conn(ctx) // its PRAGMAs may be in someone's way
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
		// Whatever the answer: the driver may report the end of the context
		// although BEGIN took effect.
		t.open = true
		deadline, _ := ctx.Deadline() // Patiently's at the latest
		_, err := t.Conn.ExecContext(ctx, t.b.d.Begin(Limits{Wait: time.Until(deadline), Idle: t.b.limits.Idle}))
		if err != nil && leave == nil && t.b.queue != nil && t.b.d.Classify(err) == Busy {
			leave = t.b.queue.Wait() // the other processes are told
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

// restore has the connection wait again as its user wants it to.
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

// written changes when others have written to the database.
func (t *Tx) written() (n int64) {
	_ = t.Conn.QueryRowContext(context.Background(), t.b.d.Written()).Scan(&n) // it is for an error's text
	return n
}

// line waits for the transactions of the process that came before, where only one can
// write at a time. Those who poll for a lock get it by luck, and next to one who
// takes it again at once, hardly ever.
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
	// The last moment at which the context counts. A COMMIT that was cut off
	// by it would have an unknown outcome; in SQLite's WAL mode it waits for nobody.
	if err := ctx.Err(); err != nil {
		return err
	}
	return t.Finish(context.WithoutCancel(ctx), `COMMIT`)
}

// Finish runs a script that ends with COMMIT, and does not come there if a statement
// before it fails. Its errors are those of [Tx.Commit], except that ctx may end it: then
// it is not known whether it is committed.
func (t *Tx) Finish(ctx context.Context, script string) error {
	_, err := t.Conn.ExecContext(ctx, script)
	if err == nil {
		t.open = false
		return nil
	}
	if t.b.d.Classify(err) == InDoubt {
		return fmt.Errorf("%w: COMMIT: %w", epoch.ErrInDoubt, err)
	}
	return fmt.Errorf("COMMIT: %w", err)
}

// End gives the connection back, after rolling back what is still open. It must
// be called whatever happened, and may be called again.
func (t *Tx) End() {
	t.giveBack()
	if t.turn {
		t.turn = false
		<-t.b.turns
	}
}

// endTimeout bounds a rollback: it is for a database that is no longer there.
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
			if still, err := t.b.d.InTransaction(ctx, t.Conn); still || err != nil {
				t.discard()
			}
		}
	}
	if t.restore() != nil || t.spoiled != "" {
		t.discard()
	}
	_ = t.Conn.Close()
	t.Conn, t.open, t.wait, t.spoiled = nil, false, "", ""
	if t.b.queue != nil && !t.began.IsZero() {
		t.b.queue.Held(time.Since(t.began)) // now that it is free again
	}
	t.began = time.Time{}
}

// spoil notes that a statement changes the connection, which is closed behind it.
func (t *Tx) spoil(text string) {
	if t.spoiled == "" {
		t.spoiled = excerpt(text)
	}
}

// SavepointName returns a name that nobody can guess.
func SavepointName() string { return txdb.Name() }

// Spoiled returns the first statement of the handler's that has changed the connection
// itself, or is empty.
func (t *Tx) Spoiled() string { return t.spoiled }

// discard has the pool throw the connection away, which must not be anyone's again.
func (t *Tx) discard() {
	_ = t.Conn.Raw(func(any) error { return driver.ErrBadConn })
}
