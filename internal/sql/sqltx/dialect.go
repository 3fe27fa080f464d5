package sqltx

import (
	"context"
	"database/sql"
	"time"

	"github.com/epochfence/epochfence/internal/sql/queue"
	"github.com/epochfence/epochfence/internal/sql/sqltext"
)

// This file has what differs between databases, as an interface. postgres.go, sqlite.go and
// mariadb.go implement it, with effect.go and the like for the texts of handlers.

// Dialect has the differences between databases in running transactions. SAVEPOINT, RELEASE
// SAVEPOINT, COMMIT and ROLLBACK are the same in all.
type Dialect interface {
	String() string

	// Settings returns an error if the database's settings do not fit.
	Settings(ctx context.Context, q Querier) error

	// Version returns the newest version in table, or 0 if there is no such table.
	Version(ctx context.Context, q Querier, table string) (int, error)

	// FoundRows returns an UPDATE of one row of the table of versions that changes nothing, or "".
	// Its count must be one: the driver must report the rows that a statement has found.
	FoundRows(table string) string

	// LockMigrations makes other migrations wait for the end of t, unless Begin does so. It waits as
	// long itself.
	LockMigrations(ctx context.Context, t *Tx, wait time.Duration) error

	// Begin returns the statements that open a transaction that may write, with the limits that the
	// database knows. If Classify returns Busy for an error, they are tried again.
	Begin(l Limits) []string

	// Restore returns the statement that undoes what Begin leaves on the connection after the
	// transaction, or "".
	Restore() string

	// OneByOne reports whether the connection takes one statement at a time: a text has one, and all
	// rows are read before the next.
	OneByOne() bool

	// Unwait makes conn's Begin return at once if another process is in the way, because a driver
	// that waits by itself does not wait in the Queue. It returns the statement that undoes this,
	// or "" if there is nothing to undo. It matters only if Queue is not nil.
	Unwait(ctx context.Context, conn *sql.Conn) (undo string, err error)

	// Queue returns the process's place among the processes that write, if Begin takes the only
	// write lock there is. Transactions of one process then wait for each other in line. It returns
	// nil if transactions may run beside each other.
	Queue(ctx context.Context, q Querier) (*queue.Queue, error)

	// Written returns a query for a number. The number changes when other connections have
	// committed since the last query on this one. It matters only if Queue is not nil.
	Written() string

	// Kept reports whether the ROLLBACK just before it on conn has left writes.
	Kept(ctx context.Context, conn *sql.Conn) bool

	// InTransaction reports whether the transaction is still open on conn after a statement failed
	// with err, so that the next statement is not committed by itself. It must leave an open one as
	// it is.
	InTransaction(ctx context.Context, conn *sql.Conn, err error) (bool, error)

	// Classify returns what an error means for its transaction.
	Classify(err error) Class

	// Fault returns [epoch.ErrTransient] or [epoch.ErrUnhealthy], with an explanation, for an error
	// that is no message's fault, and otherwise nil.
	Fault(err error) error

	// ReadOnly reports whether err says that the connection may not write.
	ReadOnly(err error) bool

	// Words returns how texts are read.
	Words() sqltext.Dialect

	// Effect returns what a handler's text does beside reading and writing.
	Effect(text string) Effect
}

// Querier is a [sql.DB], [sql.Conn] or [sql.Tx].
type Querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Class is what an error means for a transaction.
type Class int

const (
	// Refused: the statement failed, and nothing else.
	Refused Class = iota

	// Busy: another transaction is in the way. Try again.
	Busy

	// Aborted: the database may have rolled the transaction back by itself.
	// As the answer to a COMMIT it still means that nothing is committed.
	Aborted

	// Interrupted: the statement was cut off, and nothing else. As the answer to a COMMIT it does
	// not tell whether that took effect.
	Interrupted

	// InDoubt: the file or the connection failed. As the answer to a COMMIT
	// it does not tell whether that took effect.
	InDoubt
)
