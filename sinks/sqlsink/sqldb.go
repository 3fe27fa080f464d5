package sqlsink

import "database/sql"

// This file is the handle for database/sql. internal/sql decides what its savepoints do.

// OpenDB returns a handler's transaction as a [sql.DB], for gorm, ent, bun, sqlx and other
// libraries that need more than a [Tx]. What they write is committed with the fence. Begin sets a
// savepoint. Commit and Rollback of the [sql.Tx] release it or go back to it.
//
// A [sql.Tx] must be committed or rolled back before the handler returns and before its context
// ends. Otherwise the message fails, and all its handler's writes are rolled back. It also fails if
// the end of a [sql.Tx] would take back, or keep, what was written through another handle meanwhile:
// write through the Tx that was begun last, and end it first. The DB is closed when the handler returns.
func OpenDB(tx *Tx) *sql.DB { return tx.call.OpenDB() }
