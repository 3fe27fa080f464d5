package sqlsink

import (
	"cmp"
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/queue"
)

// transaction is a connection on which a transaction is run by hand: package
// database/sql knows no BEGIN IMMEDIATE, and its Tx cannot be begun late.
type transaction struct {
	s    *Sink
	conn *sql.Conn
	turn bool // it is this one's, of those of the sink
	open bool // a transaction has been begun, perhaps

	began time.Time // when it had the write lock; zero before
}

func (s *Sink) newTransaction() *transaction { return &transaction{s: s} }

// begin takes a connection and opens a transaction that may write, waiting for
// whoever is in the way as long as ctx and the lock timeout allow.
func (t *transaction) begin(ctx context.Context) error {
	var (
		leave  func()
		before int64
	)
	defer func() {
		if leave != nil {
			leave()
		}
	}()
	err := t.s.patiently(ctx, func(ctx context.Context) error {
		if err := t.line(ctx); err != nil {
			return err
		}
		if t.conn == nil {
			conn, err := t.s.db.Conn(ctx) // its PRAGMAs may be in someone's way
			if err != nil {
				return err
			}
			t.conn = conn
		}
		// Whatever the answer: the driver may report the end of the context
		// although BEGIN took effect.
		t.open = true
		_, err := t.conn.ExecContext(ctx, t.s.d.begin())
		if err != nil && leave == nil && t.s.d.classify(err) == busy {
			leave = t.s.queue.Wait() // the other processes are told
			before = t.written()
		}
		return err
	})
	switch {
	case err == nil:
	case leave == nil:
		return fmt.Errorf("begin: %w", err)
	case t.written() != before:
		return fmt.Errorf("begin: %w; other processes write in turn, and this one's has not come", err)
	default:
		return fmt.Errorf("begin: %w; one transaction holds it all the time, perhaps that of a frozen process", err)
	}
	t.began = time.Now()
	return nil
}

// written changes when others have written to the database.
func (t *transaction) written() (n int64) {
	_ = t.conn.QueryRowContext(context.Background(), t.s.d.written()).Scan(&n) // it is for an error's text
	return n
}

// errInLine: the sink's own transactions before this one have not ended in time.
var errInLine = errors.New("transactions of this process are before it")

// line waits for the transactions of the sink that came before, where only one can
// write at a time. Those who poll for a lock get it by luck, and next to one who
// takes it again at once, hardly ever.
func (t *transaction) line(ctx context.Context) error {
	if t.turn || !t.s.d.oneWriter() {
		return nil
	}
	select {
	case t.s.turns <- struct{}{}: // in the order in which they came
		t.turn = true
		t.s.queue.Turn(ctx)
		return nil
	case <-ctx.Done():
		return errInLine
	}
}

// patiently does what another transaction may be in the way of, until it is not
// or the time is up. It does not rely on the driver's own patience, which is
// none unless busy_timeout is set.
func (s *Sink) patiently(ctx context.Context, do func(ctx context.Context) error) error {
	waited, cancel := context.WithTimeout(ctx, s.o.LockTimeout)
	defer cancel()
	var inTheWay error // the last answer that blames another transaction
	for {
		err := do(waited)
		switch {
		case err == nil:
			return nil
		case errors.Is(err, errInLine) || s.d.classify(err) == busy:
			inTheWay = err
		case waited.Err() == nil || inTheWay == nil && ctx.Err() != nil:
			return err
		}
		timer := time.NewTimer(queue.Pause())
		select {
		case <-timer.C:
			continue
		case <-waited.Done():
			timer.Stop()
		}
		// Whoever is in the way, it is no message's fault.
		if err := ctx.Err(); err != nil {
			return fmt.Errorf("%w: waiting for the write lock: %w", epoch.ErrTransient, err)
		}
		return fmt.Errorf("%w: the write lock was not free for %v: %w", epoch.ErrTransient, s.o.LockTimeout, cmp.Or(inTheWay, err))
	}
}

// commit commits. An error that is not [epoch.ErrInDoubt] means that nothing
// is committed, now or later.
func (t *transaction) commit(ctx context.Context) error {
	// The last moment at which the context counts. A COMMIT that was cut off
	// by it would have an unknown outcome; in WAL mode it waits for nobody.
	if err := ctx.Err(); err != nil {
		return err
	}
	_, err := t.conn.ExecContext(context.WithoutCancel(ctx), `COMMIT`)
	if err == nil {
		t.open = false
		return nil
	}
	if t.s.d.classify(err) == doubtful {
		return fmt.Errorf("%w: COMMIT: %w", epoch.ErrInDoubt, err)
	}
	return fmt.Errorf("COMMIT: %w", err)
}

// end gives the connection back, after rolling back what is still open. It must
// be called whatever happened.
func (t *transaction) end() {
	if t.turn {
		t.turn = false
		defer func() { <-t.s.turns }()
		if !t.began.IsZero() {
			defer func() { t.s.queue.Held(time.Since(t.began)) }() // when it is free again
		}
	}
	if t.conn == nil {
		return
	}
	if t.open {
		if _, err := t.conn.ExecContext(context.Background(), `ROLLBACK`); err != nil {
			// There may have been nothing to roll back. If there still is, the
			// connection must not be anyone's again.
			if still, err := t.s.d.inTransaction(context.Background(), t.conn); still || err != nil {
				_ = t.conn.Raw(func(any) error { return driver.ErrBadConn })
			}
		}
	}
	_ = t.conn.Close()
	t.conn = nil
}

// explain marks a refusal that passes as [epoch.ErrTransient] and one that has to
// do with the state of the database as [epoch.ErrUnhealthy], and adds what a person
// can do.
func (s *Sink) explain(err error) error {
	for _, settled := range []error{epoch.ErrTransient, epoch.ErrUnhealthy, epoch.ErrEscaped} {
		if errors.Is(err, settled) {
			return err
		}
	}
	var foreign *foreignError
	if errors.As(err, &foreign) {
		return err
	}
	fault := s.d.blameless(err)
	if fault == nil || errors.Is(err, epoch.ErrInDoubt) && !errors.Is(fault, epoch.ErrUnhealthy) {
		return err
	}
	return fmt.Errorf("%w: %w", fault, err)
}
