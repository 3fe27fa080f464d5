// Package sqloutbox keeps an [outbox] through database/sql, for SQLite and MariaDB.
// Its table is one of the sink's, which sqlsink.Migrate makes, so that a handler's effects and its
// entries commit together:
//
//	store, err := sqloutbox.Open[*sqlsink.Tx](ctx, db, sqloutbox.SQLite, sqloutbox.Options{})
//
// It works in the caller's transactions and holds no connection.
//
// [outbox]: https://pkg.go.dev/github.com/epochfence/epochfence/outbox
package sqloutbox
