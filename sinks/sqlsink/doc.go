// Package sqlsink is an [epoch.Sink] through database/sql, for [SQLite] and [MariaDB]: fences and dead
// letters are tables beside the application's own.
//
//	db, err := sql.Open("sqlite", "file:app.db?_pragma=journal_mode(WAL)")
//	err = sqlsink.Migrate(ctx, db, sqlsink.SQLite, sqlsink.Options{})
//	sink, err := sqlsink.Open(ctx, db, sqlsink.SQLite, sqlsink.Options{})
//
// The rest of this comment is about SQLite. It hides SQLite's one write lock, for processes on one machine and a local disk. A transaction
// takes the lock when a handler first uses its [Tx], and all other claims and commits wait until it
// has committed: do slow work before, or set a small consumer.Options.MaxBatch. After 50 ms with
// the lock, a process lets a waiting process go first. Processes wait at a file whose name is the
// database's with -queue appended. Without that file, and on Windows, they get the lock in no order.
//
// It decides which texts a handler may send (docs/handlers.md), and whether an error is a message's
// fault. It leaves retries and the size of transactions to package consumer.
//
// A process that is frozen while it holds the lock stops all others, until it continues or dies, or
// until [Options.LockTimeout] has passed for them (30 s by default). Use a database with row locks
// if that matters. A process that was frozen before is refused if its partition has been claimed.
//
// With PRAGMA synchronous=FULL, a commit survives a power cut. With NORMAL, the last commits may be
// lost as a whole, and their messages are applied again. Epochs may then be issued twice: do not
// hand them to other systems. OFF can destroy the file.
package sqlsink
