package sqlsink

import (
	"embed"

	"github.com/epochfence/epochfence/internal/sqlschema"
	"github.com/epochfence/epochfence/internal/sqltx"
	"github.com/epochfence/epochfence/migrations"
)

// Dialect is what differs between databases. [SQLite] is the one there is.
//
// All statements use ? for parameters, names that no database reserves, and
// table names of letters, digits and underscores, so that nothing is quoted. An
// UPDATE must report the rows it has found, not those it has changed.
type Dialect interface {
	// String is the name of the database, for errors.
	String() string

	// transactions are how the database runs them.
	transactions() sqltx.Dialect

	// migrations are the schema's versions, 1 first: each a script that goes
	// from the version before, with {{prefix}} where table names begin.
	migrations() []migrations.Migration

	// schema is what the names of the sink's tables begin with, so that no temporary
	// table or view of a handler's takes their place.
	schema() string

	// forUpdate ends a SELECT of fences that will be updated: it takes their
	// row locks, where beginning has not locked everything.
	forUpdate() string

	// lockSeeds is run first in the transaction of a seeding and makes others
	// wait for its end. Empty where beginning does.
	lockSeeds() string

	// now is an expression for the time, in UTC.
	now() string

	// outOfDate says whether a time of now's is so long ago that the audit log
	// need not keep it. Nothing else depends on it.
	outOfDate(at string) string
}

// SQLite is SQLite 3.37 or newer through modernc.org/sqlite, in WAL mode. A
// driver whose errors have a method Code() int that returns SQLite's result
// code will do as well, such as github.com/glebarez/go-sqlite, and so will
// github.com/mattn/go-sqlite3 and github.com/ncruces/go-sqlite3; others are refused.
var SQLite Dialect = sqlite{}

//go:embed migrations/sqlite/*.sql
var sqliteMigrations embed.FS

type sqlite struct{}

func (sqlite) String() string { return sqltx.SQLite.String() }

func (sqlite) transactions() sqltx.Dialect { return sqltx.SQLite }

func (sqlite) migrations() []migrations.Migration {
	return sqlschema.Read(sqliteMigrations, "migrations/sqlite", "sqlsink")
}

func (sqlite) schema() string { return `main.` }

func (sqlite) forUpdate() string { return `` }

func (sqlite) lockSeeds() string { return `` }

func (sqlite) now() string { return `strftime('%Y-%m-%dT%H:%M:%fZ', 'now')` }

func (sqlite) outOfDate(at string) string {
	return at + ` < strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-90 days')`
}
