package sqlsink

import (
	"github.com/epochfence/epochfence/internal/sql/sqlschema"
	"github.com/epochfence/epochfence/internal/sql/sqltx"
)

// This file has what differs between databases in the sink's own statements. internal/sql/sqltx has
// how a database begins, locks and fails.

// Dialect has the differences between databases. [SQLite] is the only one.
type Dialect interface {
	// All statements use ? for parameters, and names that no database reserves and that need no
	// quotes. An UPDATE must report the rows that it has found, not those that it has changed.

	String() string

	transactions() sqltx.Dialect

	// tables returns the tables whose names have the prefix.
	tables(prefix string) sqlschema.Prefixed

	// schema returns the prefix of the sink's table names, so that no temporary table or view of a
	// handler's takes their place.
	schema() string

	// forUpdate ends a SELECT of fences that will be updated. It takes their row locks, unless the
	// beginning has locked everything.
	forUpdate() string

	// lockSeeds returns the first statement of a Seed's transaction, which makes other Seeds wait
	// for its end. It is empty if the beginning does so.
	lockSeeds() string

	// now returns an expression for the time, in UTC.
	now() string

	// role returns an expression for the database user, or an empty text.
	role() string

	// outOfDate returns a condition for a time that is too long ago for the audit log.
	outOfDate(at string) string
}

// SQLite is SQLite 3.37 or newer through modernc.org/sqlite, in WAL mode. Other drivers work if
// their errors have a method Code() int that returns SQLite's result code, as those of
// github.com/glebarez/go-sqlite. So do github.com/mattn/go-sqlite3 and
// github.com/ncruces/go-sqlite3. [Open] refuses all others.
var SQLite Dialect = sqlite{}

type sqlite struct{}

func (sqlite) String() string { return sqltx.SQLite.String() }

func (sqlite) transactions() sqltx.Dialect { return sqltx.SQLite }

func (sqlite) tables(prefix string) sqlschema.Prefixed { return sqlschema.SQLite(prefix) }

func (sqlite) schema() string { return `main.` }

func (sqlite) forUpdate() string { return `` }

func (sqlite) lockSeeds() string { return `` }

func (sqlite) now() string { return `strftime('%Y-%m-%dT%H:%M:%fZ', 'now')` }

func (sqlite) role() string { return `''` }

func (sqlite) outOfDate(at string) string {
	return at + ` < strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-90 days')`
}
