// Package pgoutbox keeps an [outbox] in PostgreSQL, through pgx. Its tables are in the database of
// the sink, so that a handler's effects and its entries commit together:
//
//	err = pgoutbox.Migrate(ctx, owner, pgoutbox.Options{})
//	err = pgoutbox.Grant(ctx, owner, "app", pgoutbox.Options{})
//	…
//	store, err := pgoutbox.Open[pgsink.Tx](ctx, pool, pgoutbox.Options{})
//
// It works in the caller's transactions and holds no connection.
//
// [outbox]: https://pkg.go.dev/github.com/epochfence/epochfence/outbox
package pgoutbox
