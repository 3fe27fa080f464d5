// Package sqloutbox keeps an [outbox] through database/sql, for SQLite so far.
// Its tables are in the database of the sink, so that a handler's effects and its
// entries commit together:
//
//	err = sqloutbox.Migrate(ctx, db, sqloutbox.SQLite, sqloutbox.Options{})
//	…
//	store, err := sqloutbox.Open[*sqlsink.Tx](ctx, db, sqloutbox.SQLite, sqloutbox.Options{})
//
// It works in the caller's transactions and holds no connection.
//
// [outbox]: https://pkg.go.dev/github.com/epochfence/epochfence/outbox
package sqloutbox
