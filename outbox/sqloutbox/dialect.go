package sqloutbox

import (
	"context"
	"database/sql"

	"github.com/epochfence/epochfence/internal/sql/sqlschema"
	"github.com/epochfence/epochfence/internal/sql/sqltx"
)

// This file has what differs between databases in the statements of this package.

// Dialect is the dialect of a database: [SQLite] or [MariaDB].
type Dialect interface {
	// String returns the name of the database, for errors.
	String() string

	transactions() sqltx.Dialect

	// schema returns the qualifier of table names, so that neither another default database nor a
	// temporary table or view of a handler can take their place.
	schema(ctx context.Context, db *sql.DB) (string, error)

	// index makes the planner use an index.
	index(name string) string

	// forUpdate ends a SELECT whose rows are locked until the transaction's end, unless its beginning
	// has locked everything.
	forUpdate() string

	// inOrder returns a statement that makes other transactions that add to a partition wait, given
	// the table of fences, so that they commit in the order of their entries' IDs. It is empty if they
	// do so anyway.
	inOrder(fences string) string

	// tables returns the tables of the sink whose names have the prefix.
	tables(prefix string) sqlschema.Prefixed
}

// SQLite is SQLite 3.37 or newer in WAL mode, through modernc.org/sqlite. These drivers work too:
// github.com/mattn/go-sqlite3, github.com/ncruces/go-sqlite3, and drivers whose errors have a
// method Code() int that returns SQLite's result code, such as github.com/glebarez/go-sqlite. Other
// drivers are refused.
var SQLite Dialect = sqlite{}

type sqlite struct{}

func (sqlite) String() string { return sqltx.SQLite.String() }

func (sqlite) transactions() sqltx.Dialect { return sqltx.SQLite }

func (sqlite) schema(context.Context, *sql.DB) (string, error) { return `main.`, nil }

func (sqlite) index(name string) string { return ` INDEXED BY ` + name }

func (sqlite) forUpdate() string { return `` }

func (sqlite) inOrder(string) string { return `` }

func (sqlite) tables(prefix string) sqlschema.Prefixed { return sqlschema.SQLite(prefix) }

// MariaDB is MariaDB as [sqlsink.MariaDB]. A transaction that adds an entry locks the partition's fence from
// then on, until it has ended. If its process is frozen, the next claim of the partition waits until the
// server has ended the transaction.
//
// [sqlsink.MariaDB]: https://pkg.go.dev/github.com/epochfence/epochfence/sinks/sqlsink#MariaDB
var MariaDB Dialect = mariadb{}

type mariadb struct{}

func (mariadb) String() string { return sqltx.MariaDB.String() }

func (mariadb) transactions() sqltx.Dialect { return sqltx.MariaDB }

func (mariadb) schema(ctx context.Context, db *sql.DB) (string, error) {
	return sqltx.MariaDBDatabase(ctx, db)
}

func (mariadb) index(name string) string { return ` FORCE INDEX (` + name + `)` }

func (mariadb) forUpdate() string { return ` FOR UPDATE` }

func (mariadb) inOrder(fences string) string {
	return `SELECT epoch FROM ` + fences + partition + ` FOR UPDATE`
}

func (mariadb) tables(prefix string) sqlschema.Prefixed { return sqlschema.MariaDB(prefix) }
