package httpfence

import (
	"embed"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/epochfence/epochfence/internal/sqlschema"
	"github.com/epochfence/epochfence/internal/sqltx"
	"github.com/epochfence/epochfence/migrations"
)

// Dialect is what differs between databases. [SQLite] and [PostgreSQL] are the
// ones there are.
//
// All statements use ? for parameters until bind has seen them.
type Dialect interface {
	// String is the name of the database, for errors.
	String() string

	// transactions are how the database runs them.
	transactions() sqltx.Dialect

	// migrations are the schema's versions, 1 first, with {{prefix}} where
	// table names begin.
	migrations() []migrations.Migration

	// schema is what the names of the tables begin with, so that no temporary table or
	// view of a handler's takes their place; empty where the search_path says it.
	schema() string

	// bind gives parameters the names that the driver wants.
	bind(query string) string

	// lockTimeout changes how long statements of the transaction wait for locks.
	lockTimeout(wait time.Duration) string

	// now is an expression for the time some time ago, which is its only
	// parameter, made by ago.
	now() string
	ago(age time.Duration) any
}

//go:embed migrations/*/*.sql
var migrationFiles embed.FS

// SQLite is SQLite 3.37 or newer through modernc.org/sqlite, in WAL mode. A
// driver whose errors have a method Code() int that returns SQLite's result
// code will do as well, such as github.com/glebarez/go-sqlite, and so will
// github.com/mattn/go-sqlite3 and github.com/ncruces/go-sqlite3; others are refused.
var SQLite Dialect = sqlite{}

type sqlite struct{}

func (sqlite) String() string { return sqltx.SQLite.String() }

func (sqlite) transactions() sqltx.Dialect { return sqltx.SQLite }

func (sqlite) migrations() []migrations.Migration {
	return sqlschema.Read(migrationFiles, "migrations/sqlite", "httpfence")
}

func (sqlite) schema() string { return `main.` }

func (sqlite) bind(query string) string { return query }

func (sqlite) lockTimeout(time.Duration) string { return "" }

func (sqlite) now() string { return `strftime('%Y-%m-%dT%H:%M:%fZ', 'now', ?)` }

func (sqlite) ago(age time.Duration) any { return fmt.Sprintf("-%.3f seconds", age.Seconds()) }

// PostgreSQL is PostgreSQL 14 or newer through github.com/jackc/pgx/v5/stdlib. Its
// tables are where the search_path of db leads. A driver whose errors have a method
// SQLState() string, and which takes several statements in one Exec without
// parameters, will do as well.
var PostgreSQL Dialect = postgres{}

type postgres struct{}

func (postgres) String() string { return sqltx.PostgreSQL.String() }

func (postgres) transactions() sqltx.Dialect { return sqltx.PostgreSQL }

func (postgres) migrations() []migrations.Migration {
	return sqlschema.Read(migrationFiles, "migrations/postgres", "httpfence")
}

func (postgres) schema() string { return `` }

func (postgres) bind(query string) string {
	var b strings.Builder
	n := 0
	for part := range strings.SplitSeq(query, "?") {
		if n > 0 {
			b.WriteString("$" + strconv.Itoa(n))
		}
		b.WriteString(part)
		n++
	}
	return b.String()
}

func (postgres) lockTimeout(wait time.Duration) string { return sqltx.LockTimeout(wait) }

func (postgres) now() string { return `clock_timestamp() - make_interval(secs => ?)` }

func (postgres) ago(age time.Duration) any { return age.Seconds() }
