// Package sqliteschema reads the version of a package's tables in SQLite. It is
// apart from sqlschema for what its tests need: whoever uses PostgreSQL does not
// have to download SQLite for go mod tidy.
package sqliteschema

import (
	"context"
	"database/sql"
)

// Querier is a [sql.DB], [sql.Conn] or [sql.Tx].
type Querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// Version reads the version from a table of migrations, as of [sqlschema.Prefixed]. It is 0 where
// there is no such table.
func Version(ctx context.Context, q Querier, table string) (v int, err error) {
	var there bool
	err = q.QueryRowContext(ctx, `SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = ? COLLATE NOCASE`, table).Scan(&there)
	if err != nil || !there {
		return 0, err
	}
	err = q.QueryRowContext(ctx, `SELECT coalesce(max(version), 0) FROM `+table).Scan(&v)
	return v, err
}
