package sqltx

import (
	"context"
	"database/sql"

	"github.com/epochfence/epochfence/internal/queue"
)

// Dialect is what differs between databases for whoever runs transactions.
// SAVEPOINT, RELEASE SAVEPOINT, COMMIT and ROLLBACK are everybody's.
type Dialect interface {
	// String is the name of the database, for errors.
	String() string

	// Settings refuses a database whose settings do not fit.
	Settings(ctx context.Context, q Querier) error

	// Version is the newest in the table of versions, or 0 where there is no such
	// table.
	Version(ctx context.Context, q Querier, table string) (int, error)

	// LockMigrations is run first in the transaction of a migration and makes
	// others wait for its end. Empty where Begin does.
	LockMigrations() string

	// Begin opens a transaction that may write, with these limits as far as the
	// database knows such. A refusal that Classify calls Busy is tried again.
	Begin(l Limits) string

	// Unwait has conn's Begin answer at once where Queue is not nil and another process
	// is in the way, until the statement that it returns has been run there; empty if it
	// would have done so anyway. A driver that waits by itself waits outside the line.
	Unwait(ctx context.Context, conn *sql.Conn) (undo string, err error)

	// Queue is the process's place among those that write, where Begin takes the
	// only write lock there is: transactions of one process then wait for each
	// other in line. Nil where transactions may run beside each other.
	Queue(ctx context.Context, q Querier) (*queue.Queue, error)

	// Written is a query for a number that is another one when other connections
	// have committed since it was last asked on this one. It is asked only where
	// Queue is not nil.
	Written() string

	// InTransaction reports whether a transaction is open on conn, so that the next
	// statement is not committed by itself. It must leave an open one as it is.
	InTransaction(ctx context.Context, conn *sql.Conn) (bool, error)

	// Classify says what an error means for the transaction it came from.
	Classify(err error) Class

	// Fault returns [epoch.ErrTransient] or [epoch.ErrUnhealthy], with what is the
	// matter, for an error that is no message's fault, and otherwise nil.
	Fault(err error) error

	// ReadOnly reports whether err says that the connection may not write.
	ReadOnly(err error) bool

	// Effect says what a handler's text does beside what it reads and writes.
	Effect(text string) Effect
}

// Querier is a [sql.DB], [sql.Conn] or [sql.Tx].
type Querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Class is what an error means for a transaction.
type Class int

const (
	// Refused: the statement was refused, and nothing else is the matter.
	Refused Class = iota

	// Busy: another transaction is in the way; try again.
	Busy

	// Aborted: the database may have rolled the transaction back by itself.
	// As the answer to a COMMIT it still means that nothing is committed.
	Aborted

	// InDoubt: the file or the connection failed. As the answer to a COMMIT
	// it does not tell whether that took effect.
	InDoubt
)
