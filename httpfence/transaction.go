package httpfence

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/queue"
)

const (
	setSavepoint = `SAVEPOINT httpfence_effect`

	// Both fail where the handler has ended the transaction by itself, and do not go
	// on to COMMIT then.
	keepAndCommit = `RELEASE SAVEPOINT httpfence_effect; COMMIT`
	undoAndCommit = `ROLLBACK TO SAVEPOINT httpfence_effect; RELEASE SAVEPOINT httpfence_effect; COMMIT`
)

// storeTimeout bounds what the store does once nobody waits for it: it is for a
// database that is no longer there.
const storeTimeout = 30 * time.Second

// transaction is one on a connection of its own, run by hand: package
// database/sql knows no BEGIN IMMEDIATE, and its Tx ends with a context.
type transaction struct {
	s       *SQLStore
	conn    *sql.Conn // nil once it was given back
	open    bool      // a transaction has been begun, perhaps
	entered bool      // the savepoint is set
	began   time.Time // when it had the lock; zero before
}

// begin takes a connection and opens a transaction that may write, waiting for
// whoever is in the way as long as ctx lasts.
func (s *SQLStore) begin(ctx context.Context) (*transaction, error) {
	if _, ok := ctx.Deadline(); !ok {
		bound, cancel := context.WithTimeout(ctx, storeTimeout)
		defer cancel()
		ctx = bound
	}
	t := &transaction{s: s}
	var leave func()
	defer func() {
		if leave != nil {
			leave()
		}
	}()
	s.queue.Turn(ctx)
	err := patiently(ctx, s.d, func() (err error) {
		if t.conn == nil {
			if t.conn, err = s.db.Conn(ctx); err != nil { // its PRAGMAs may be in someone's way
				t.conn = nil
				return err
			}
		}
		t.open = true // whatever the answer
		deadline, _ := ctx.Deadline()
		err = t.exec(s.d.begin(time.Until(deadline), s.o.IdleTimeout))
		if err != nil && leave == nil && s.d.busy(err) {
			leave = s.queue.Wait() // the other processes are told
		}
		return err
	})
	if err != nil {
		connected := t.conn != nil
		t.end()
		if !connected && ctx.Err() != nil && !errors.Is(err, ErrBusy) {
			return nil, fmt.Errorf("%w: no connection was free: %w", ErrBusy, err)
		}
		return nil, fmt.Errorf("begin: %w", err)
	}
	t.began = time.Now()
	return t, nil
}

// patiently does what another process may be in the way of, until it is not or ctx
// ends.
func patiently(ctx context.Context, d Dialect, do func() error) error {
	for {
		err := do()
		if err == nil || !d.busy(err) {
			return err
		}
		timer := time.NewTimer(queue.Pause())
		select {
		case <-timer.C:
			continue
		case <-ctx.Done():
			timer.Stop()
			return fmt.Errorf("%w: another process holds the write lock, perhaps a frozen one: %w: %w", ErrBusy, ctx.Err(), err)
		}
	}
}

// bounded is the context of the store's own statements. It does not end with
// that of a client: a driver may close the connection then.
func bounded() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), storeTimeout)
}

func (t *transaction) exec(query string) error {
	ctx, cancel := bounded()
	defer cancel()
	_, err := t.conn.ExecContext(ctx, query)
	return err
}

// waited marks an error that means that another transaction was in the way.
func (t *transaction) waited(ctx context.Context, err error) error {
	if t.s.d.busy(err) {
		return fmt.Errorf("%w: another process serves the scope: %w", ErrBusy, errors.Join(ctx.Err(), err))
	}
	return err
}

// admit locks the scope and notes the call's epoch, and reports whether it is
// higher than what was there; or it refuses a lower one.
func (t *transaction) admit(c Call) (raised bool, err error) {
	ctx, cancel := bounded()
	defer cancel()
	var highest epoch.Epoch
	err = t.conn.QueryRowContext(ctx, t.s.q.raise, c.Scope, int64(c.Epoch)).Scan(&highest)
	if err == nil {
		return true, nil
	}
	if !errors.Is(err, sql.ErrNoRows) {
		return false, fmt.Errorf("note the epoch: %w", err)
	}
	if err := t.conn.QueryRowContext(ctx, t.s.q.highest, c.Scope).Scan(&highest); err != nil {
		return false, fmt.Errorf("read the epoch: %w", err)
	}
	if highest > c.Epoch {
		return false, &StaleError{Scope: c.Scope, Epoch: c.Epoch, Highest: highest}
	}
	return false, nil
}

// reserve makes the row that is to hold the answer, in what is undone with the
// effect, or reports that the key has one. Whoever rolls back by itself, handler or
// database, takes the row away with what was written, and who commits leaves it there.
func (t *transaction) reserve(c Call, f Fingerprint) (bool, error) {
	ctx, cancel := bounded()
	defer cancel()
	none := []byte{}
	r, err := t.conn.ExecContext(ctx, t.s.q.reserve, c.Scope, c.Key, f[:], int64(c.Epoch), none, none, none)
	if err != nil {
		return false, fmt.Errorf("make room for the answer: %w", err)
	}
	n, err := r.RowsAffected()
	return n == 1, err
}

// answerTo returns the answer that the key has. It is read in a statement of its
// own, after the lock, to see what the lock's last holder stored.
func (t *transaction) answerTo(c Call, f Fingerprint) (Answer, error) {
	ctx, cancel := bounded()
	defer cancel()
	var a Answer
	var known, header, trailer []byte
	err := t.conn.QueryRowContext(ctx, t.s.q.answer, c.Scope, c.Key).Scan(&known, &a.Status, &header, &trailer, &a.Body)
	switch {
	case err != nil:
		return a, fmt.Errorf("read the answer to key %q: %w", c.Key, err)
	case string(known) != string(f[:]):
		return a, &KeyReusedError{Scope: c.Scope, Key: c.Key}
	case a.Status == 0:
		return a, fmt.Errorf("key %q: the handler committed by itself, and its answer was not stored: whether its effect is whole is not known", c.Key)
	}
	a.Header, a.Trailer = readHeader(header), readHeader(trailer)
	return a, nil
}

// enter sets the point to which undo goes back, and the handler's own patience.
func (t *transaction) enter() error {
	query := setSavepoint
	if more := t.s.d.lockTimeout(t.s.o.LockTimeout); more != "" {
		query += "; " + more
	}
	t.entered = true
	return t.exec(query)
}

// run calls effect with the transaction. If it does not return, what it wrote is
// undone, and the epoch kept.
func (t *transaction) run(ctx context.Context, c Call, effect func(context.Context) (Answer, bool)) (Answer, bool, error) {
	tx := t.lend()
	returned := false
	defer func() {
		tx.Close()
		if !returned {
			_ = t.undo(c) // the panic goes on
		}
	}()
	a, keep := effect(context.WithValue(context.WithoutCancel(ctx), txKey{}, DBTX(tx)))
	returned = true
	tx.Close()
	return a, keep, tx.Gone()
}

// store writes the answer down, where reserve made room for it.
func (t *transaction) store(c Call, a Answer) error {
	body := a.Body
	if body == nil {
		body = []byte{} // not NULL
	}
	ctx, cancel := bounded()
	defer cancel()
	r, err := t.conn.ExecContext(ctx, t.s.q.store, a.Status, writeHeader(a.Header), writeHeader(a.Trailer), body, c.Scope, c.Key)
	if err != nil {
		return err
	}
	if n, err := r.RowsAffected(); err != nil || n != 1 {
		return errors.Join(errRolledBack, err)
	}
	return nil
}

var errRolledBack = errors.New("the transaction was rolled back: by the handler, or by the database after a failure that the handler did not heed")

// blame explains why the answer of a handler cannot be stored.
func (t *transaction) blame(status int, err error) error {
	var e interface{ SQLState() string }
	if errors.As(err, &e) && e.SQLState() == "25P02" {
		return fmt.Errorf("the handler answered %d although a statement had failed, which aborts the transaction: %w", status, err)
	}
	return fmt.Errorf("store the answer: %w", err)
}

func (t *transaction) commit() error {
	query := `COMMIT`
	if t.entered {
		query = keepAndCommit
	}
	return t.finish(query)
}

// undo rolls back what the handler wrote and commits what was there before: the
// epoch. If the transaction is gone, the epoch is noted in another one.
func (t *transaction) undo(c Call) error {
	err := t.finish(undoAndCommit)
	if err == nil {
		return nil
	}
	t.end()
	return errors.Join(err, t.s.remember(c))
}

// remember notes the epoch and nothing else.
func (s *SQLStore) remember(c Call) error {
	ctx, cancel := bounded()
	defer cancel()
	t, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer t.end()
	switch _, err := t.admit(c); {
	case errors.Is(err, ErrStale):
		return nil // a higher one is noted
	case err != nil:
		return err
	}
	return t.commit()
}

func (t *transaction) finish(query string) error {
	if err := t.exec(query); err != nil {
		return fmt.Errorf("commit: %w", err)
	}
	t.open = false
	return nil
}

// end gives the connection back, after rolling back what is still open. It must
// be called whatever happened, and may be called again.
func (t *transaction) end() {
	if t.conn == nil {
		return
	}
	if t.open {
		// There may have been nothing to roll back. If there still is, the
		// connection must not be anyone's again.
		if err := t.exec(`ROLLBACK`); err != nil {
			_ = t.conn.Raw(func(any) error { return driver.ErrBadConn })
		}
	}
	_ = t.conn.Close()
	t.conn = nil
	if !t.began.IsZero() {
		t.s.queue.Held(time.Since(t.began))
	}
}
