package sqlschema

import (
	"context"
	"database/sql"
)

// Querier is a [sql.DB], [sql.Conn] or [sql.Tx].
type Querier interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}

// SQLiteVersion reads the version from a [Prefixed.Table] in SQLite. It is 0 where
// there is no such table.
func SQLiteVersion(ctx context.Context, q Querier, table string) (v int, err error) {
	var there bool
	err = q.QueryRowContext(ctx, `SELECT count(*) FROM sqlite_schema WHERE type = 'table' AND name = ? COLLATE NOCASE`, table).Scan(&there)
	if err != nil || !there {
		return 0, err
	}
	err = q.QueryRowContext(ctx, `SELECT coalesce(max(version), 0) FROM `+table).Scan(&v)
	return v, err
}
