package sqlsink

import (
	"context"
	"database/sql"

	"github.com/epochfence/epochfence/internal/sqlschema"
)

// Dialect is what differs between databases. [SQLite] is the one there is.
//
// All statements use ? for parameters, names that no database reserves, and
// table names of letters, digits and underscores, so that nothing is quoted.
// SAVEPOINT, RELEASE SAVEPOINT, COMMIT and ROLLBACK are everybody's. An UPDATE must report the rows
// it has found, not those it has changed.
type Dialect interface {
	// String is the name of the database, for errors.
	String() string

	// migrations are the schema's versions, 1 first: each a script that goes
	// from the version before, with {{prefix}} where table names begin.
	migrations() []sqlschema.Migration

	// version is a query for the schema's version, or for 0 where there is no
	// such table, given its name.
	version(ctx context.Context, q querier, table string) (int, error)

	// settings refuses a database whose settings do not fit.
	settings(ctx context.Context, q querier) error

	// begin opens a transaction that may write. It must wait for whoever
	// excludes it, if at all, no longer than ctx; a refusal that classify
	// calls busy is tried again.
	begin() string

	// oneWriter reports whether begin excludes all other writers, so that a
	// process's own had better wait for each other in line.
	oneWriter() bool

	// written is a query for a number that is another one when other
	// connections have committed since it was last asked on this one.
	written() string

	// forUpdate ends a SELECT of fences that will be updated: it takes their
	// row locks, where begin has not locked everything.
	forUpdate() string

	// lockSeeds is run first in the transaction of a seeding and makes others
	// wait for its end. Empty where begin does.
	lockSeeds() string

	// now is an expression for the time, in UTC.
	now() string

	// inTransaction reports whether a transaction is open on conn. It must
	// leave an open transaction as it is.
	inTransaction(ctx context.Context, conn *sql.Conn) (bool, error)

	// classify says what an error means for the transaction it came from.
	classify(err error) class

	// driverError reports whether err may be one of the driver's.
	driverError(err error) bool

	// blameless returns [epoch.ErrTransient] or [epoch.ErrUnhealthy], with what
	// is the matter, for an error that is no message's fault, and otherwise nil.
	blameless(err error) error
}

// querier is a [sql.DB], [sql.Conn] or [sql.Tx].
type querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// class is what an error means.
type class int

const (
	// refused: the statement was refused, and nothing else is the matter.
	refused class = iota

	// busy: another transaction is in the way; try again.
	busy

	// aborted: the database may have rolled the transaction back by itself.
	// As the answer to a COMMIT it still means that nothing is committed.
	aborted

	// doubtful: the file or the connection failed. As the answer to a COMMIT
	// it does not tell whether that took effect.
	doubtful
)
