package httpfence

import (
	"context"
	"database/sql"
	"embed"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/epochfence/epochfence/internal/sql/sqlschema"
	"github.com/epochfence/epochfence/internal/sql/sqltx"
	"github.com/epochfence/epochfence/migrations"
)

// This file creates and updates the tables of an SQLStore, whose scripts are in migrations/, and has what
// differs between PostgreSQL and SQLite in a receiver's own statements. Their transactions, and what a
// handler may send in them, are internal/sql/sqltx's.

// Dialect is the dialect of a database: [SQLite] or [PostgreSQL].
type Dialect interface {
	// String returns the name of the database, for errors.
	String() string

	transactions() sqltx.Dialect

	// migrations returns the versions of the schema, 1 first, with {{prefix}} for the prefix of
	// table names.
	migrations() []migrations.Migration

	// schema returns the qualifier of table names, so that no temporary table or view of a handler
	// can take their place. It is empty if the search_path decides.
	schema() string

	// bind replaces the ? parameters of query with those of the driver.
	bind(query string) string

	// lockTimeout returns the statement that limits the lock waits of the transaction.
	lockTimeout(wait time.Duration) string

	// now returns an expression for a time in the past. Its only parameter comes from ago.
	now() string
	ago(age time.Duration) any

	// hex returns an expression that makes the answer to its query readable, whatever is set for the
	// role, if bytes travel as text.
	hex() string
}

//go:embed migrations/*/*.sql
var migrationFiles embed.FS

// SQLite is SQLite 3.37 or newer in WAL mode, through modernc.org/sqlite. These drivers work too:
// github.com/mattn/go-sqlite3, github.com/ncruces/go-sqlite3, and drivers whose errors have a
// method Code() int that returns SQLite's result code, such as github.com/glebarez/go-sqlite. Other
// drivers are refused.
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

func (sqlite) hex() string { return `''` }

func (sqlite) ago(age time.Duration) any { return fmt.Sprintf("-%.3f seconds", age.Seconds()) }

// PostgreSQL is PostgreSQL 14 or newer through github.com/jackc/pgx/v5/stdlib. The search_path of
// db decides the schema of the tables. Another driver works if its errors have a method SQLState()
// string and one Exec without parameters can have several statements.
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

func (postgres) hex() string { return `pg_catalog.set_config('bytea_output', 'hex', true)` }

func (postgres) ago(age time.Duration) any { return age.Seconds() }

func schema(d Dialect, o SQLOptions) sqlschema.Prefixed {
	return sqlschema.Prefixed{
		Prefix: o.TablePrefix, Scripts: d.migrations(),
		Remedy: "httpfence.Migrate, or the SQL of httpfence.Migrations",
	}
}

// Migrations returns the schema as SQL for your own migration tool: see package migrations.
func Migrations(d Dialect, o SQLOptions) ([]migrations.Migration, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	return schema(d, o).Migrations(), nil
}

// Migrate creates the tables or updates them, in one transaction. It does not change tables that
// are up to date, nor newer ones, and returns [migrations.ErrNewer] for those of a later major number.
// Concurrent calls wait for each other. Migrate needs the privilege to create tables.
func Migrate(ctx context.Context, db *sql.DB, d Dialect, o SQLOptions) error {
	o, err := o.withDefaults()
	if err != nil {
		return err
	}
	if err := sqltx.Migrate(ctx, db, d.transactions(), schema(d, o), o.limits(storeTimeout)); err != nil {
		return fmt.Errorf("httpfence: migrate %s: %w", d, err)
	}
	return nil
}
