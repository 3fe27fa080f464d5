package sqltx

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"fmt"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/sql/queue"
	"github.com/epochfence/epochfence/internal/sql/sqltext"
	"github.com/epochfence/epochfence/internal/text/inert"
)

// This file has how transactions begin, wait and fail in PostgreSQL. effect.go has the
// texts of handlers, and db.go decides what is tried again.

// PostgreSQL is PostgreSQL 14 or newer through github.com/jackc/pgx/v5/stdlib. Other drivers work
// if their errors have a method SQLState() string, and if one Exec without parameters takes several
// statements.
var PostgreSQL Dialect = postgres{}

type postgres struct{}

func (postgres) String() string { return "PostgreSQL" }

func (postgres) Settings(context.Context, Querier) error { return nil }

// Version does not use to_regclass: within a transaction, its stale cache can return the answer
// from before another migration. PostgreSQL folds names without quotes to lower case.
func (postgres) Version(ctx context.Context, q Querier, table string) (v int, err error) {
	var there bool
	err = q.QueryRowContext(ctx, `SELECT EXISTS (SELECT FROM pg_catalog.pg_class WHERE relname = lower($1) AND pg_catalog.pg_table_is_visible(oid))`, table).Scan(&there)
	if err != nil || !there {
		return 0, err
	}
	err = q.QueryRowContext(ctx, `SELECT coalesce(max(version), 0) FROM `+table).Scan(&v)
	return v, err
}

// Unwait does nothing, because there is no Queue.
func (postgres) Unwait(context.Context, *sql.Conn) (undo string, err error) { return "", nil }

func (postgres) LockMigrations(ctx context.Context, t *Tx, _ time.Duration) error {
	return t.exec(ctx, `SELECT pg_advisory_xact_lock(7308895159)`) // any number of our own
}

func (postgres) FoundRows(string) string { return `` }

// Begin asks for READ COMMITTED, whatever the default is: a statement that has waited for a lock,
// and the statements after it, must see what the lock's holder did.
func (postgres) Begin(l Limits) []string {
	return []string{fmt.Sprintf(`BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; %s; SET LOCAL idle_in_transaction_session_timeout = %d`,
		LockTimeout(l.Wait), l.Idle.Milliseconds())}
}

func (postgres) Restore() string { return `` }

func (postgres) OneByOne() bool { return false }

// LockTimeout returns the statement that limits PostgreSQL's waits for locks in a transaction.
func LockTimeout(wait time.Duration) string {
	return fmt.Sprintf(`SET LOCAL lock_timeout = %d`, max(wait.Milliseconds(), 1))
}

// Queue returns nil, because PostgreSQL grants locks in order.
func (postgres) Queue(context.Context, Querier) (*queue.Queue, error) { return nil, nil }

func (postgres) Written() string { return `` }

func (postgres) Kept(context.Context, *sql.Conn) bool { return false }

// InTransaction returns true: after an error a transaction stays open and refuses everything.
func (postgres) InTransaction(context.Context, *sql.Conn, error) (bool, error) { return true, nil }

func (postgres) Classify(err error) Class {
	err = inert.Error(err)
	switch {
	case sqlState(err) != "":
		if (postgres{}).Fault(err) != nil {
			return Busy
		}
		return Aborted
	case errors.Is(err, driver.ErrBadConn), errors.Is(err, sql.ErrConnDone):
		return InDoubt
	}
	return Aborted
}

func (postgres) Fault(err error) error {
	switch sqlState(err) {
	case "55P03", "40P01", "40001": // lock_not_available, deadlock_detected, serialization_failure
		return fmt.Errorf("%w: another transaction is in the way", epoch.ErrTransient)
	}
	return nil
}

func (postgres) Words() sqltext.Dialect { return sqltext.PostgreSQL }

func (postgres) ReadOnly(err error) bool { return sqlState(err) == "25006" }

func sqlState(err error) string {
	var e interface{ SQLState() string }
	if !errors.As(inert.Error(err), &e) {
		return ""
	}
	return inert.Try(e.SQLState)
}
