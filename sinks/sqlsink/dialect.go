package sqlsink

import (
	"context"
	"database/sql"
	"strings"

	"github.com/epochfence/epochfence/internal/sql/sqlschema"
	"github.com/epochfence/epochfence/internal/sql/sqltx"
)

// This file has what differs between databases in the sink's own statements. internal/sql/sqltx has
// how a database begins, locks and fails.

// Dialect has the differences between databases: [SQLite] and [MariaDB].
type Dialect interface {
	// All statements use ? for parameters, and names that no database reserves and that need no
	// quotes. An UPDATE must report the rows that it has found, not those that it has changed.

	String() string

	transactions() sqltx.Dialect

	// tables returns the tables whose names have the prefix.
	tables(prefix string) sqlschema.Prefixed

	// schema returns what qualifies the sink's table names, so that neither another default database
	// nor a temporary table or view of a handler's takes their place.
	schema(ctx context.Context, db *sql.DB) (string, error)

	// unshadow returns a statement that removes temporary tables of these names, which a handler may
	// have made, or "" if a qualified name cannot mean one.
	unshadow(tables ...string) string

	// forUpdate ends a SELECT of fences that will be updated. It takes their row locks, unless the
	// beginning has locked everything.
	forUpdate() string

	// lockSeeds returns the first statement of a Seed's transaction, which makes other Seeds wait
	// for its end, given the table of versions. It is empty if the beginning does so.
	lockSeeds(versions string) string

	// remove returns a statement that deletes the rows of table whose id a query returns.
	remove(table, query string) string

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

func (sqlite) schema(context.Context, *sql.DB) (string, error) { return `main.`, nil }

func (sqlite) unshadow(...string) string { return `` }

func (sqlite) forUpdate() string { return `` }

func (sqlite) lockSeeds(string) string { return `` }

func (sqlite) remove(table, query string) string {
	return `DELETE FROM ` + table + ` WHERE id IN (` + query + `)`
}

func (sqlite) now() string { return `strftime('%Y-%m-%dT%H:%M:%fZ', 'now')` }

func (sqlite) role() string { return `''` }

func (sqlite) outOfDate(at string) string {
	return at + ` < strftime('%Y-%m-%dT%H:%M:%fZ', 'now', '-90 days')`
}

// MariaDB is MariaDB 10.11 or newer through github.com/go-sql-driver/mysql, with clientFoundRows=true in
// the data source name. [Open] refuses settings that do not fit, and says what to change. The tables are
// in InnoDB.
//
// A transaction locks the rows that its handlers write, and the fence last, so that transactions of
// different partitions run beside each other. In MariaDB, the server ends the transaction of a frozen
// process shortly after the end of its context, by idle_transaction_timeout and max_statement_time. The
// sink sets both at the beginning, with innodb_lock_wait_timeout, and restores them at the end. Rows that
// a handler queries are read into memory at once.
//
// MySQL 8 was not run. By its manual it differs in this: it has no idle_transaction_timeout, so that the
// sink sets wait_timeout, and max_execution_time, which limits only SELECT.
var MariaDB Dialect = mariadb{}

type mariadb struct{}

func (mariadb) String() string { return sqltx.MariaDB.String() }

func (mariadb) transactions() sqltx.Dialect { return sqltx.MariaDB }

func (mariadb) tables(prefix string) sqlschema.Prefixed { return sqlschema.MariaDB(prefix) }

func (mariadb) schema(ctx context.Context, db *sql.DB) (string, error) {
	return sqltx.MariaDBDatabase(ctx, db)
}

func (mariadb) unshadow(tables ...string) string {
	return `DROP TEMPORARY TABLE IF EXISTS ` + strings.Join(tables, `, `) // which commits nothing
}

func (mariadb) forUpdate() string { return ` FOR UPDATE` }

func (mariadb) lockSeeds(versions string) string {
	return `SELECT version FROM ` + versions + ` WHERE version = 1 FOR UPDATE`
}

// remove is a join, because DELETE … IN (SELECT …) would read the whole table, and lock it.
func (mariadb) remove(table, query string) string {
	return `DELETE ` + table + ` FROM ` + table + ` JOIN (` + query + `) AS found ON found.id = ` + table + `.id`
}

func (mariadb) now() string { return mariadbTime(`UTC_TIMESTAMP(3)`) }

func (mariadb) role() string { return `CURRENT_USER()` }

func (mariadb) outOfDate(at string) string {
	return at + ` < ` + mariadbTime(`UTC_TIMESTAMP(3) - INTERVAL 90 DAY`)
}

func mariadbTime(at string) string {
	return `CONCAT(LEFT(DATE_FORMAT(` + at + `, '%Y-%m-%dT%H:%i:%s.%f'), 23), 'Z')`
}
