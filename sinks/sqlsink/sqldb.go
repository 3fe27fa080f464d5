package sqlsink

import "database/sql"

// OpenDB returns a handler's transaction as a [sql.DB], for gorm, ent, bun, sqlx and
// whatever else asks for more than a [Tx] has. What they write is committed with the
// fence. Begin sets a savepoint; Commit and Rollback of what it returns release the
// savepoint or go back to it.
//
// A [sql.Tx] must be committed or rolled back before the handler returns and before its
// context ends. Otherwise the message fails, and everything that its handler wrote is
// rolled back. The DB is closed when the handler returns.
func OpenDB(tx *Tx) *sql.DB { return tx.call.OpenDB() }
