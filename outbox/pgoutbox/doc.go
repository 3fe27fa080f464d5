// Package pgoutbox keeps an outbox in PostgreSQL, through pgx.
package pgoutbox
