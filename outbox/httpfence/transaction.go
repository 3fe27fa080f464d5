package httpfence

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/sql/sqltx"
)

// This file has the order of requests for one scope within this process, and the steps of a request's
// transaction. admit compares the epochs, and refuses one that is lower than the highest that the scope
// has seen. sqlstore.go has the order of the steps.

// storeTimeout limits the store's own statements, in case the database is gone.
const storeTimeout = 30 * time.Second

type transaction struct {
	s         *SQLStore
	tx        *sqltx.Tx
	savepoint string // before the handler; empty if it is not set
}

// The scripts of keepAndCommit and undoAndCommit fail before COMMIT if the handler has ended the
// transaction by itself.
func (t *transaction) keepAndCommit() string {
	return `RELEASE SAVEPOINT ` + t.savepoint + `; COMMIT`
}

func (t *transaction) undoAndCommit() string {
	return `ROLLBACK TO SAVEPOINT ` + t.savepoint + `; ` + t.keepAndCommit()
}

// begin opens a transaction. It waits for locks and connections until ctx ends.
func (s *SQLStore) begin(ctx context.Context) (*transaction, error) {
	ctx, cancel := waiting(ctx)
	defer cancel()
	tx, err := s.transactions.Begin(ctx)
	switch {
	case err == nil:
		return &transaction{s: s, tx: tx}, nil
	case isOver(ctx): // whatever err is
		return nil, fmt.Errorf("%w: %w", ErrBusy, err)
	}
	return nil, s.busy(err)
}

// isOver reports whether ctx has ended or its deadline has passed. A socket may notice the deadline
// before the context's own timer fires.
func isOver(ctx context.Context) bool {
	deadline, ok := ctx.Deadline()
	return ctx.Err() != nil || ok && !time.Now().Before(deadline)
}

func waiting(ctx context.Context) (context.Context, context.CancelFunc) {
	if _, ok := ctx.Deadline(); ok {
		return ctx, func() {}
	}
	return context.WithTimeout(ctx, storeTimeout)
}

// busy adds [ErrBusy] to an error that another transaction has caused.
func (s *SQLStore) busy(err error) error {
	if errors.Is(err, epoch.ErrTransient) || s.d.transactions().Classify(err) == sqltx.Busy {
		return fmt.Errorf("%w: others are being served: %w", ErrBusy, err)
	}
	return err
}

// bounded returns the context of the store's own statements. It does not end with the request's
// context, because a driver may then close the connection.
func bounded() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.Background(), storeTimeout)
}

func (t *transaction) exec(query string) error {
	ctx, cancel := bounded()
	defer cancel()
	_, err := t.tx.Conn.ExecContext(ctx, query)
	return err
}

// admit locks the scope and records the call's epoch. It reports whether the epoch is higher than
// the recorded one, and refuses a lower epoch.
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

// reserve inserts the row for the answer, or returns false if the key has a row. It runs after the
// savepoint, so the row is undone with the effect. If the handler or the database rolls back by
// itself, the row is gone too. If the handler commits by itself, the row stays without an answer.
func (t *transaction) reserve(c Call, f Fingerprint) (bool, error) {
	ctx, cancel := bounded()
	defer cancel()
	none := []byte{}
	r, err := t.tx.Conn.ExecContext(ctx, t.s.q.reserve, c.Scope, c.Key, f[:], int64(c.Epoch), none, none, none)
	if err != nil {
		return false, fmt.Errorf("reserve a row for the answer: %w", err)
	}
	n, err := r.RowsAffected()
	return n == 1, err
}

// answerTo returns the answer to the key. It is a statement after the lock, to see the answer that
// the lock's last holder stored.
func (t *transaction) answerTo(c Call, f Fingerprint) (Answer, error) {
	ctx, cancel := bounded()
	defer cancel()
	var a Answer
	var known, header, trailer []byte
	err := t.tx.Conn.QueryRowContext(ctx, t.s.q.answer, c.Scope, c.Key).Scan(&known, &a.Status, &header, &trailer, &a.Body, new(string))
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

// enter sets the savepoint for undo and the lock timeout of the handler's statements.
func (t *transaction) enter() error {
	t.savepoint = sqltx.SavepointName()
	query := `SAVEPOINT ` + t.savepoint
	if more := t.s.d.lockTimeout(lockTimeout); more != "" {
		query += "; " + more
	}
	return t.exec(query)
}

// run calls effect with the transaction. It returns an error if the effect's writes cannot be kept,
// whatever the answer is. If effect panics, run undoes its writes and keeps the epoch.
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

// store writes the answer into the row that reserve inserted.
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

// undo rolls back the handler's writes and commits the epoch. If the transaction is gone, it
// commits the epoch in a new one.
func (t *transaction) undo(c Call) error {
	err := t.finish(t.undoAndCommit())
	switch {
	case err == nil:
		return nil
	case errors.Is(err, epoch.ErrInDoubt): // only the epoch is in doubt
		return t.remember(c)
	}
	return errors.Join(err, t.remember(c))
}

func (t *transaction) remember(c Call) error {
	ctx, cancel := bounded()
	defer cancel()
	if err := t.tx.Restart(ctx); err != nil {
		return err
	}
	t.savepoint = ""
	switch _, err := t.admit(c); {
	case errors.Is(err, ErrStale):
		return nil // a higher epoch is recorded
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

// locks is a mutex for each name. Waiting callers get it in the order of their arrival.
type locks struct {
	mu sync.Mutex
	of map[string]*lock
}

type lock struct {
	in    chan struct{} // full while a caller is in; Go queues the blocked senders in order
	users int           // in or waiting
}

// enter waits for the mutex of name until ctx ends. Call leave if err is nil.
func (t *locks) enter(ctx context.Context, name string) (leave func(), err error) {
	t.mu.Lock()
	if t.of == nil {
		t.of = map[string]*lock{}
	}
	mine := t.of[name]
	if mine == nil {
		mine = &lock{in: make(chan struct{}, 1)}
		t.of[name] = mine
	}
	mine.users++
	t.mu.Unlock()

	done := func() {
		t.mu.Lock()
		defer t.mu.Unlock()
		if mine.users--; mine.users == 0 {
			delete(t.of, name)
		}
	}
	select {
	case mine.in <- struct{}{}:
		if err := ctx.Err(); err != nil { // both were ready
			<-mine.in
			done()
			return nil, fmt.Errorf("%w: %w", ErrBusy, err)
		}
		return func() { <-mine.in; done() }, nil
	case <-ctx.Done():
		done()
		return nil, fmt.Errorf("%w: others of the same scope are being served: %w", ErrBusy, ctx.Err())
	}
}
