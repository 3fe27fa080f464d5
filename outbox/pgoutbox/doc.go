// Package pgoutbox keeps an [outbox] in PostgreSQL, through pgx. Its table is in the schema of
// the sink, which pgsink.Migrate makes, so that a handler's effects and its entries commit together:
//
//	store, err := pgoutbox.Open[pgsink.Tx](ctx, pool, pgoutbox.Options{})
//
// It works in the caller's transactions and holds no connection.
//
// [outbox]: https://pkg.go.dev/github.com/epochfence/epochfence/outbox
package pgoutbox
