package sqloutbox

import (
	"context"
	"embed"

	"github.com/epochfence/epochfence/internal/sqliteschema"
	"github.com/epochfence/epochfence/internal/sqlschema"
)

// Dialect is what differs between databases. [SQLite] is the one there is.
type Dialect interface {
	// String is the name of the database, for errors.
	String() string

	// migrations are the schema's versions, 1 first, with {{prefix}} where
	// table names begin.
	migrations() []sqlschema.Migration

	// version is the schema's version, or 0 where there is no such table.
	version(ctx context.Context, q sqliteschema.Querier, table string) (int, error)
}

// SQLite is SQLite 3.37 or newer through modernc.org/sqlite, in WAL mode. A
// driver whose errors have a method Code() int that returns SQLite's result
// code will do as well.
var SQLite Dialect = sqlite{}

//go:embed migrations/sqlite/*.sql
var sqliteMigrations embed.FS

type sqlite struct{}

func (sqlite) String() string { return "SQLite" }

func (sqlite) migrations() []sqlschema.Migration {
	return sqlschema.Read(sqliteMigrations, "migrations/sqlite")
}

func (sqlite) version(ctx context.Context, q sqliteschema.Querier, table string) (int, error) {
	return sqliteschema.Version(ctx, q, table)
}
