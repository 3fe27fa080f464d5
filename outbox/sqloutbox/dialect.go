package sqloutbox

import (
	"github.com/epochfence/epochfence/internal/sql/sqlschema"
	"github.com/epochfence/epochfence/internal/sql/sqltx"
)

// This file has what differs between databases in the statements of this package, for SQLite so
// far.

// Dialect is the dialect of a database. The only one is [SQLite].
type Dialect interface {
	// String returns the name of the database, for errors.
	String() string

	transactions() sqltx.Dialect

	// schema returns the qualifier of table names, so that no temporary table or view of a handler
	// can take their place.
	schema() string

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

func (sqlite) schema() string { return `main.` }

func (sqlite) tables(prefix string) sqlschema.Prefixed { return sqlschema.SQLite(prefix) }
