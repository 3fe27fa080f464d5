package sqlfence

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
)

// This file runs a statement that must change a row. errors.go explains its error.

// DB is a [sql.DB], [sql.Conn] or [sql.Tx].
type DB interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}

// ErrNoRow is returned by [Exec] for a statement that has changed no row.
var ErrNoRow = errors.New("there is no such row")

// Exec runs a statement that writes rows under a token, and returns nil if it has changed at least
// one. It returns [ErrNoRow] if no row fits the statement's condition, and other errors as [Explain]
// does. An error that Explain does not know may be a lost answer: then the write may have been
// applied.
//
// The statement sets both columns, and in PostgreSQL it calls epochfence_token: see the package
// documentation. For pgx, use Explain and the count of the rows.
func Exec(ctx context.Context, db DB, statement string, args ...any) error {
	result, err := db.ExecContext(ctx, statement, args...)
	if err != nil {
		return Explain(err)
	}
	switch n, err := result.RowsAffected(); {
	case err != nil:
		return fmt.Errorf("sqlfence: count the rows of a write: %w", err)
	case n == 0:
		return fmt.Errorf("sqlfence: write a row: %w", ErrNoRow)
	}
	return nil
}
