package httpfence

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/sql/sqlschema"
	"github.com/epochfence/epochfence/internal/sql/sqltx"
)

// This file decides the steps of a request in an SQLStore: epoch, key, effect, answer, in one
// transaction, which it lends to the handler, and what is undone when one of them fails. transaction.go
// has each step. Which statements of the handler are sent is decided in internal/sql/sqltx/effect.go.

// SQLOptions configure an [SQLStore]. The zero value works.
type SQLOptions struct {
	// TablePrefix is the prefix of the store's table names: at most 32 letters, digits and
	// underscores. Set it to keep several receivers in one database apart. Defaults to
	// "httpfence_".
	TablePrefix string

	// IdleTimeout limits the time between two statements: after it, PostgreSQL ends the transaction of
	// a process that was frozen or cut off. Raise it if a handler waits longer for another system
	// between two statements. Lower it so that the scope of a frozen process is free sooner. SQLite has
	// no such limit. Defaults to 60 s.
	IdleTimeout time.Duration
}

// lockTimeout limits each wait of a handler's statement for a row lock. SQLite has no such limit.
const lockTimeout = 10 * time.Second

const maxTimeout = 24 * time.Hour

func (o SQLOptions) limits(wait time.Duration) sqltx.Limits {
	return sqltx.Limits{Wait: wait, Idle: o.IdleTimeout}
}

func (o SQLOptions) withDefaults() (SQLOptions, error) {
	o.TablePrefix = cmp.Or(o.TablePrefix, "httpfence_")
	if err := sqlschema.CheckPrefix("SQLOptions.TablePrefix", o.TablePrefix); err != nil {
		return o, fmt.Errorf("httpfence: %w", err)
	}
	o.IdleTimeout = cmp.Or(o.IdleTimeout, 60*time.Second)
	if d := o.IdleTimeout; d < time.Millisecond || d > maxTimeout {
		return o, fmt.Errorf("httpfence: SQLOptions.IdleTimeout is %v; want 0 for the default, or 1ms to 24h", d)
	}
	return o, nil
}

// SQLStore is a [Store] in the database of the effects. A handler writes through [Tx], so that its
// effect, the epoch and the answer commit together. SQLStore is safe for concurrent use, including
// by several processes. It holds no connection between calls and needs no closing. Create it with
// [OpenSQL].
//
// Requests of one process wait for their turn in the order of their arrival, and without a
// connection. Requests of several processes wait for the database's lock.
type SQLStore struct {
	d            Dialect
	o            SQLOptions
	q            queries
	locks        locks // of each scope
	transactions *sqltx.DB
}

// OpenSQL returns a store on db. It does not close db. It checks the database's settings and the
// version of the tables, and changes nothing: see [Migrate]. Errors match
// [migrations.ErrNotMigrated], [migrations.ErrOlder] and [migrations.ErrNewer].
// If the database does not answer, OpenSQL returns an error after 30 s.
func OpenSQL(ctx context.Context, db *sql.DB, d Dialect, o SQLOptions) (*SQLStore, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, storeTimeout)
	defer cancel()
	transactions, err := sqltx.Open(ctx, db, d.transactions(), schema(d, o), o.limits(maxTimeout)) // requests have waits of their own
	if err != nil {
		return nil, fmt.Errorf("httpfence: open %s: %w", d, err)
	}
	return &SQLStore{d: d, o: o, q: newQueries(d, o.TablePrefix), transactions: transactions}, nil
}

// Serve implements [Store].
func (s *SQLStore) Serve(ctx context.Context, c Call, f Fingerprint, effect func(context.Context) (Answer, bool)) (Reply, error) {
	reply, err := s.serve(ctx, c, f, effect)
	if err != nil {
		var stale *StaleError
		var reused *KeyReusedError
		if errors.As(err, &stale) || errors.As(err, &reused) {
			return Reply{}, err
		}
		return Reply{}, fmt.Errorf("httpfence: scope %q: %w", c.Scope, err)
	}
	return reply, nil
}

func (s *SQLStore) serve(ctx context.Context, c Call, f Fingerprint, effect func(context.Context) (Answer, bool)) (Reply, error) {
	leave, err := s.locks.enter(ctx, c.Scope)
	if err != nil {
		return Reply{}, err
	}
	defer leave()
	t, err := s.begin(ctx)
	if err != nil {
		return Reply{}, err
	}
	defer t.tx.End()
	raised, err := t.admit(c)
	if err != nil {
		return Reply{}, s.busy(err)
	}
	if err := t.enter(); err != nil {
		return Reply{}, err
	}
	reserved, err := t.reserve(c, f)
	if err != nil {
		return Reply{}, err
	}
	if !reserved {
		known, err := t.answerTo(c, f)
		if err == nil && raised {
			err = t.commit()
		}
		return Reply{Answer: known, Replayed: true}, err
	}
	if err := ctx.Err(); err != nil { // the last check of ctx: effect runs without it
		return Reply{}, fmt.Errorf("%w: %w", ErrBusy, err)
	}
	a, keep, err := t.run(ctx, c, effect)
	switch {
	case err != nil && (keep || errors.Is(err, epoch.ErrTxEndedByHandler) || errors.Is(err, epoch.ErrTxControl)):
		return Reply{}, errors.Join(fmt.Errorf("the handler lost its transaction: %w", err), t.undo(c))
	case err != nil: // the handler's writes are gone, and its answer is retryable
		return Reply{Answer: a}, t.remember(c)
	case !keep:
		return Reply{Answer: a}, t.undo(c)
	}
	if err := t.store(c, a); err != nil {
		return Reply{}, errors.Join(t.blame(a.Status, err), t.undo(c))
	}
	return Reply{Answer: a}, t.commit()
}

// ForgetAbove lowers the highest epoch of a scope to the given one, so that the scope accepts
// requests from that epoch on. It returns an error if the scope has seen no higher epoch. It is for
// an operator who knows that the higher epoch was never the owner's: somebody else used the scope,
// or sent an epoch that no claim reaches, such as 2^63-1.
//
// WARNING: the scope then also accepts a zombie with that epoch or a higher one. Make sure that no
// sender with a higher epoch is left. Do not call ForgetAbove because the owner's database went
// back to an earlier state: the owner then claims above the highest epoch by itself, see package
// outbox. Stored answers stay.
func (s *SQLStore) ForgetAbove(ctx context.Context, scope string, to epoch.Epoch) error {
	if err := s.lower(ctx, scope, to); err != nil {
		return fmt.Errorf("httpfence: lower the highest epoch of scope %q to %d: %w", scope, to, err)
	}
	return nil
}

func (s *SQLStore) lower(ctx context.Context, scope string, to epoch.Epoch) error {
	if to <= 0 {
		return errors.New("want an epoch of 1 or more")
	}
	leave, err := s.locks.enter(ctx, scope)
	if err != nil {
		return err
	}
	defer leave()
	t, err := s.begin(ctx)
	if err != nil {
		return err
	}
	defer t.tx.End()
	r, err := t.tx.Conn.ExecContext(ctx, s.q.lower, int64(to), scope, int64(to))
	if err != nil {
		return s.busy(err)
	}
	switch n, err := r.RowsAffected(); {
	case err != nil:
		return err
	case n == 0:
		return errNotAbove
	}
	return t.commit()
}

var errNotAbove = errors.New("the scope has seen none above it")

// Forget deletes the answers that were stored longer than age ago, by the clock of the database,
// and returns their number. A later request with such a key counts as a new request, so keep
// answers for longer than any sender may try again. Epochs are never deleted.
func (s *SQLStore) Forget(ctx context.Context, age time.Duration) (int64, error) {
	var all int64
	for {
		n, err := s.forgetSome(ctx, age)
		if err != nil {
			return all, fmt.Errorf("httpfence: forget answers: %w", err)
		}
		if all += n; n < forgetAtOnce {
			return all, nil
		}
	}
}

// forgetAtOnce limits the rows of one transaction, because other transactions may wait for it.
const forgetAtOnce = 500

func (s *SQLStore) forgetSome(ctx context.Context, age time.Duration) (int64, error) {
	leave, err := s.locks.enter(ctx, "") // no scope is empty
	if err != nil {
		return 0, err
	}
	defer leave()
	t, err := s.begin(ctx)
	if err != nil {
		return 0, err
	}
	defer t.tx.End()
	r, err := t.tx.Conn.ExecContext(ctx, s.q.forget, s.d.ago(age), forgetAtOnce)
	if err != nil {
		return 0, err
	}
	n, err := r.RowsAffected()
	if err != nil {
		return 0, err
	}
	return n, t.commit()
}

type queries struct {
	raise, highest, lower, reserve, answer, store, forget string
}

func newQueries(d Dialect, prefix string) queries {
	scopes, answers := d.schema()+prefix+`scope`, d.schema()+prefix+`answer`
	return queries{
		// raise locks the scope's row even if it changes nothing and returns no row.
		raise: d.bind(`INSERT INTO ` + scopes + ` (scope, epoch) VALUES (?, ?)` +
			` ON CONFLICT (scope) DO UPDATE SET epoch = excluded.epoch WHERE ` + prefix + `scope.epoch < excluded.epoch RETURNING epoch`),
		highest: d.bind(`SELECT epoch FROM ` + scopes + ` WHERE scope = ?`),
		lower:   d.bind(`UPDATE ` + scopes + ` SET epoch = ? WHERE scope = ? AND epoch > ?`),
		answer: d.bind(`SELECT fingerprint, status, header, trailer, body, ` + d.hex() + ` FROM ` + answers +
			` WHERE scope = ? AND idempotency_key = ?`),
		reserve: d.bind(`INSERT INTO ` + answers + ` (scope, idempotency_key, fingerprint, epoch, status, header, trailer, body)` +
			` VALUES (?, ?, ?, ?, 0, ?, ?, ?) ON CONFLICT (scope, idempotency_key) DO NOTHING`),
		store: d.bind(`UPDATE ` + answers + ` SET status = ?, header = ?, trailer = ?, body = ?` +
			` WHERE scope = ? AND idempotency_key = ? AND status = 0`),
		forget: d.bind(`DELETE FROM ` + answers + ` WHERE (scope, idempotency_key) IN (SELECT scope, idempotency_key FROM ` + answers +
			` WHERE stored_at < ` + d.now() + ` ORDER BY stored_at LIMIT ?)`),
	}
}

// DBTX is the interface through which a handler writes to an [SQLStore]. It has the methods of
// sqlc's DBTX for database/sql, and no Commit or Rollback.
type DBTX interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	PrepareContext(ctx context.Context, query string) (*sql.Stmt, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Tx returns the transaction of the request. The epoch and the answer are stored in it too, so the
// handler's writes through it are committed exactly once or not at all. It is safe for concurrent
// use, until the handler has returned. BEGIN, COMMIT, END and ROLLBACK are not sent to the
// database, and a handler that tries one has failed.
//
// In SQLite, some failures roll back the whole transaction, such as a full disk or the end of the
// context of a statement that writes. The transaction then refuses all statements.
//
// Tx panics if the request is not behind a [Handler] with an [SQLStore].
func Tx(ctx context.Context) DBTX {
	tx, ok := ctx.Value(txKey{}).(DBTX)
	if !ok {
		panic("httpfence: Tx: no transaction in this context: it is that of a request behind a Handler with an SQLStore")
	}
	return tx
}

type txKey struct{}

func (t *transaction) lend() *sqltx.Guard {
	return t.s.transactions.Guard(sqltx.GuardConfig{
		Package: "httpfence", Alone: true,
		Begin:   func(context.Context) (*sqltx.Tx, error) { return t.tx, nil },
		Explain: func(err error) error { return err },
	})
}
