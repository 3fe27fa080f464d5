// Package sqloutbox keeps an outbox through database/sql, for SQLite so far.
package sqloutbox
