package httpfence

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/sqltx"
)

// storeTimeout bounds what the store does once nobody waits for it: it is for a
// database that is no longer there.
const storeTimeout = 30 * time.Second

// transaction is that of one request.
type transaction struct {
	s         *SQLStore
	tx        *sqltx.Tx
	savepoint string // before the handler; empty if it is not set
}

// keepAndCommit and undoAndCommit are scripts that fail where the handler has ended the
// transaction by itself, and do not continue to COMMIT then.
func (t *transaction) keepAndCommit() string {
	return `RELEASE SAVEPOINT ` + t.savepoint + `; COMMIT`
}

func (t *transaction) undoAndCommit() string {
	return `ROLLBACK TO SAVEPOINT ` + t.savepoint + `; ` + t.keepAndCommit()
}

// begin opens a transaction, waiting for whoever is in the way as long as ctx lasts.
func (s *SQLStore) begin(ctx context.Context) (*transaction, error) {
	ctx, cancel := waiting(ctx)
	defer cancel()
	tx, err := s.transactions.Begin(ctx)
	switch {
	case err == nil:
		return &transaction{s: s, tx: tx}, nil
	case isOver(ctx): // whatever it was doing then
		return nil, fmt.Errorf("%w: %w", ErrBusy, err)
	}
	return nil, s.busy(err)
}

// isOver reports whether ctx has ended, or its deadline has passed, which a socket
// may notice before the context's own timer.
func isOver(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ctx.Err() != nil || ok && !time.Now().Before(deadline)
}

// waiting bounds a wait that nobody bounds.
func waiting(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, storeTimeout)
}

// busy marks an error that means that another transaction was in the way.
func (s *SQLStore) busy(err error) error {
	if errors.Is(err, epoch.ErrTransient) || s.d.transactions().Classify(err) == sqltx.Busy {
		return fmt.Errorf("%w: others are being served: %w", ErrBusy, err)
	}
	return err
}

// bounded is the context of the store's own statements. It does not end with
// that of a client: a driver may close the connection then.
func bounded() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), storeTimeout)
}

func (t *transaction) exec(query string) error {
	ctx, cancel := bounded()
	defer cancel()
	_, err := t.tx.Conn.ExecContext(ctx, query)
	return err
}

// admit locks the scope and notes the call's epoch, and reports whether it is
// higher than what was there; or it refuses a lower one.
func (t *transaction) admit(c Call) (raised bool, err error) {
	ctx, cancel := bounded()
	defer cancel()
	var highest epoch.Epoch
	err = t.tx.Conn.QueryRowContext(ctx, t.s.q.raise, c.Scope, int64(c.Epoch)).Scan(&highest)
	if err == nil {
		return true, nil
	}
	if !errors.Is(err, sql.ErrNoRows) {
		return false, fmt.Errorf("note the epoch: %w", err)
	}
	if err := t.tx.Conn.QueryRowContext(ctx, t.s.q.highest, c.Scope).Scan(&highest); err != nil {
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
	r, err := t.tx.Conn.ExecContext(ctx, t.s.q.reserve, c.Scope, c.Key, f[:], int64(c.Epoch), none, none, none)
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
	err := t.tx.Conn.QueryRowContext(ctx, t.s.q.answer, c.Scope, c.Key).Scan(&known, &a.Status, &header, &trailer, &a.Body)
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
	t.savepoint = sqltx.SavepointName()
	query := `SAVEPOINT ` + t.savepoint
	if more := t.s.d.lockTimeout(t.s.o.LockTimeout); more != "" {
		query += "; " + more
	}
	return t.exec(query)
}

// run calls effect with the transaction. Its error is why what was written cannot be kept
// whatever the answer is. If effect does not return, what it wrote is undone, and the epoch
// kept.
func (t *transaction) run(ctx context.Context, c Call, effect func(context.Context) (Answer, bool)) (Answer, bool, error) {
	guard := t.lend()
	call := guard.Call(context.Background())
	returned := false
	defer func() {
		call.Close()
		if !returned {
			_ = t.undo(c) // the panic continues
		}
	}()
	a, keep := effect(context.WithValue(context.WithoutCancel(ctx), txKey{}, DBTX(call)))
	returned = true
	call.Close()
	return a, keep, cmp.Or(guard.Gone(), call.Refused())
}

// store writes the answer down, where reserve made room for it.
func (t *transaction) store(c Call, a Answer) error {
	body := a.Body
	if body == nil {
		body = []byte{} // not NULL
	}
	ctx, cancel := bounded()
	defer cancel()
	r, err := t.tx.Conn.ExecContext(ctx, t.s.q.store, a.Status, writeHeader(a.Header), writeHeader(a.Trailer), body, c.Scope, c.Key)
	if err != nil {
		return err
	}
	if n, err := r.RowsAffected(); err != nil || n != 1 {
		return errors.Join(errRolledBack, err)
	}
	return nil
}

var errRolledBack = errors.New("the transaction was rolled back: by the handler, or by the database after a failure that the handler has ignored")

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
	if t.savepoint != "" {
		query = t.keepAndCommit()
	}
	return t.finish(query)
}

// undo rolls back what the handler wrote and commits what was there before: the
// epoch. If the transaction is gone, the epoch is noted in another one.
func (t *transaction) undo(c Call) error {
	err := t.finish(t.undoAndCommit())
	switch {
	case err == nil:
		return nil
	case errors.Is(err, epoch.ErrInDoubt): // only whether the epoch is noted: nothing else would be committed
		return t.remember(c)
	}
	return errors.Join(err, t.remember(c))
}

// remember notes the epoch and nothing else, in a new transaction.
func (t *transaction) remember(c Call) error {
	ctx, cancel := bounded()
	defer cancel()
	if err := t.tx.Restart(ctx); err != nil {
		return err
	}
	t.savepoint = ""
	switch _, err := t.admit(c); {
	case errors.Is(err, ErrStale):
		return nil // a higher one is noted
	case err != nil:
		return err
	}
	return t.commit()
}

func (t *transaction) finish(query string) error {
	ctx, cancel := bounded()
	defer cancel()
	return t.tx.Finish(ctx, query)
}
