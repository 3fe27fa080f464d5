// Package pgsink keeps fences in PostgreSQL, 14 or newer, beside the effects of
// a handler that writes through pgx.
//
// # The fence in a minute
//
// A row of the table fence says which claim owns a partition and which offset
// is next. [Sink.Commit] runs a handler in this transaction:
//
//	begin;
//	select set_config(…), pg_advisory_xact_lock_shared(…);  -- timeouts, the claim's lock
//	…                                                       -- what the handler writes
//	select epochfence.advance_one(…);                       -- the fence: raises, or moves next_offset
//	commit;
//
// advance_one, or advance for several partitions, locks the row, and raises unless the row carries this process's claim
// and is at the offset where the batch began. A raised error aborts the
// transaction, so that the COMMIT that travels right behind it is skipped and
// the handler's writes are gone. A process that was frozen and wakes up after
// its partition has a new owner fails there, whatever it believes. Where this process
// has not claimed or advanced the fence within the last 100 ms, the transaction begins
// with look_early, which spares a handler the work that the end would refuse.
//
// [Sink.CommitHeld] ends in another check, for work that moves no position: hold locks
// the row FOR KEY SHARE, which an advance passes beside and a claim does not, and
// raises unless the row carries this process's claim. Under REPEATABLE READ and
// SERIALIZABLE a claim that was replaced meanwhile is a serialization failure
// ([epoch.ErrTransient]), and an advance of the claim's own is none.
//
// # Setting up
//
//	err = pgsink.Migrate(ctx, adminPool, pgsink.Options{})       // as the schema's owner
//	err = pgsink.Grant(ctx, adminPool, "shop", pgsink.Options{}) // the role that the application uses
//	sink, err := pgsink.Open(ctx, pool, pgsink.Options{})        // as that role
//	err = consumer.Run(ctx, source, sink, consumer.Each(handle).OnFailure(sink.DeadLetter), consumer.Options{})
//
// [Migrations] and [GrantSQL] return the same as SQL for a migration tool. The
// functions are SECURITY DEFINER: the application's role has USAGE on the schema
// and EXECUTE on them, and no right to the tables. People who look after dead
// letters need SELECT on dead_letter. Restrict the owner of the schema: the
// functions run with its rights.
//
// A schema is one domain of trust: that role may claim, move and write decisions about the
// partitions of every group in it. It cannot use epochs up, nor write anything in an operator's name. Groups that
// do not trust each other get a schema each, with an owner each.
//
// # How long a frozen owner can hold up the next one
//
// The fence's row is locked from advance to the commit behind it, which travel
// together, so it is the rows that the handler locked that a frozen process
// holds. [Sink.Claim] ends the open transactions of the claim it replaces: each
// transaction holds a shared advisory lock that derives from its claim id, by
// which the claimant finds the connection in pg_locks and calls
// pg_terminate_backend. It does so once the source has confirmed the new lease,
// before the swap, and again after it. The next owner's first commit is then
// late by a few round trips.
//
// A role may end its own connections, so all processes of a group should use
// one role (or the role of the new owner be a member of the old one's). Where
// it may not, which is logged once, the server ends the frozen transaction:
// after [Options.IdleTimeout], or a second after the end of the Commit's context
// if that is sooner. That is the bound: with the defaults of package consumer,
// half the source's Term and a second, and 30 s at most. From PostgreSQL 17 on,
// transaction_timeout bounds the transaction as a whole as well.
//
// # Pools and poolers
//
// A Commit takes one connection, a Claim another, and a committer has up to two
// transactions at a time: the pool needs one connection more than twice
// consumer.Options.Committers. Connections that died in the pool are replaced unseen.
//
// Nothing is kept in a session: settings are local to a transaction, locks are
// those of transactions, so PgBouncer's transaction pooling will do. pgx must
// then be told not to use named prepared statements,
//
//	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
//
// unless PgBouncer is 1.21 or newer and its max_prepared_statements is above
// zero. All query modes of pgx work; in the simple protocol the error of a
// queued statement may not say which. PgBouncer from 1.18 to 1.20 may exit when
// a client cancels (its issue 822), which pgx does whenever a context ends
// within a statement: use a newer one. Poolers that split one role's
// transactions over several databases do not share locks, and statement pooling
// has no transactions at all: neither can work.
//
// # What a handler may do
//
// Ordinary statements share a transaction with other messages. A text that begins or ends
// transactions is not sent, and the message fails. A text that changes the transaction or the
// session is sent in a transaction with no other message, and the connection is closed
// behind it where the change would stay. What a function changes that a statement calls is
// seen at the end of the transaction, as far as it concerns the search_path, the role,
// timeouts, the time zone, row security, replication and temporary tables. Other settings are
// not seen: a handler that reads a setting of the application's sets it first.
//
// docs/what-a-handler-may-do.md has all of it, with a table of some 200 cases: what is safe,
// what gets a transaction of its own and what to do instead, what fails the message, what
// halts, and what Commit and Rollback of [AsPgxTx] and [OpenDB] mean.
//
// # Whose fault an error is
//
// An error of the transaction's own connection that passes (a deadlock, a lock not
// granted in time, also where the time of the whole transaction ended in such a
// wait) is [epoch.ErrTransient] beside what it is. One that has to do with the state
// of the database (a missing table, column, function or right, a server that is
// read-only, a disk that is full or broken) is [epoch.ErrUnhealthy]: the partition
// halts and no message is blamed. So is whatever the sink's own tables refuse, or the
// outbox's, such as an identity that is behind its rows after logical replication, which copies
// no sequences: the error has the statement that fixes it. A handler that composes its SQL from messages, and
// may so ask for a table that only one of them names, returns consumer.Permanent
// for it. The errors of other connections are the handler's to judge.
//
// # Round trips
//
// A transaction takes two round trips beside those of the handler, and one where it
// follows a claim or a commit of the same partitions within 100 ms: it is then begun
// with the handler's first statement. To pgx's tracers that is a statement of a batch.
// [Sink.Queued] is a second form for handlers that only write: all of a
// transaction travels in one round trip.
package pgsink
