package sqloutbox

import (
	"embed"

	"github.com/epochfence/epochfence/internal/sqlschema"
	"github.com/epochfence/epochfence/internal/sqltx"
	"github.com/epochfence/epochfence/migrations"
)

// Dialect is what differs between databases. [SQLite] is the one there is.
type Dialect interface {
	// String is the name of the database, for errors.
	String() string

	// transactions are how the database runs them.
	transactions() sqltx.Dialect

	// schema is what the names of the tables begin with, so that no temporary table or
	// view of a handler's takes their place.
	schema() string

	// migrations are the schema's versions, 1 first, with {{prefix}} where
	// table names begin.
	migrations() []migrations.Migration
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

func (sqlite) schema() string { return `main.` }

func (sqlite) migrations() []migrations.Migration {
	return sqlschema.Read(sqliteMigrations, "migrations/sqlite", "sqloutbox")
}
