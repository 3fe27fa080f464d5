// Package pgsink is a sink for PostgreSQL 14 or newer. It stores fences beside the effects of
// handlers that write through pgx.
//
// # The fence in a minute
//
// A row of the table fence has the claim that owns a partition, and the next offset.
// [Sink.Commit] runs a handler in this transaction:
//
//	begin;
//	select set_config(…), pg_advisory_xact_lock_shared(…);  -- timeouts, the claim's lock
//	…                                                       -- what the handler writes
//	select epochfence.advance_one(…);                       -- the fence: raises, or moves next_offset
//	commit;
//
// advance_one, or advance for several partitions, locks the row and raises an error unless the
// row has this process's claim and the offset where the batch began. The error aborts the
// transaction: the COMMIT that was sent right behind it does nothing, and the handler's writes
// are gone. A process that was frozen and wakes up after its partition has a new owner fails
// there. If this process has not claimed or advanced the fence within the last 100 ms, the
// transaction begins with look_early, which spares the handler work that would be refused.
//
// [Sink.CommitHeld] ends with another check, for work that moves no position. It locks the row
// FOR KEY SHARE, so that an advance can run beside it and a claim cannot, and raises an error
// unless the row has this process's claim. Under REPEATABLE READ and SERIALIZABLE, a claim that
// was replaced meanwhile is a serialization failure ([epoch.ErrTransient]).
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
// and EXECUTE on them, and no privilege on the tables. For operators,
// [GrantOperatorSQL] allows all that [OpenOperator] offers, and [GrantReaderSQL] allows only reads.
// Restrict the owner of the schema: the functions run with its privileges.
//
// A schema is one domain of trust. Its application role may claim and move the partitions of every
// group in it, and add entries to their audit logs. It cannot use up epochs, nor write anything in an
// operator's name. Give groups that do not trust each other a schema and an owner each.
//
// # How long a frozen owner delays the next one
//
// The fence's row is locked only from advance to the commit right behind it. So a frozen process
// holds the rows that its handler locked, but not the fence's row. [Sink.Claim] ends the open
// transactions of the claim that it replaces: each transaction holds a shared advisory lock derived
// from its claim id, by which the claimant finds the connection in pg_locks and calls
// pg_terminate_backend. It does so after the source has confirmed the new lease, before the swap,
// and again after it. The next owner's first commit is then late by a few round trips.
//
// A role may end its own connections, so all processes of a group should use one role, or the new
// owner's role should be a member of the old one's. Otherwise the sink logs a line once, and the
// server ends the frozen transaction when it has got no statement for [Options.IdleTimeout]. With the
// defaults of package consumer, this is half the source's Term plus 1 s. From PostgreSQL 17 on,
// transaction_timeout ends the whole transaction 1 s after the end of the context.
//
// # Pools and poolers
//
// A committer (consumer.Options.Committers) has one transaction open, and up to three more: for a
// partition that has just failed, for Handlers.Background, and for a replay. Claims, looks
// at fences and audit entries use one or two more. With fewer than 4 × Committers + 2 connections
// in the pool, transactions sometimes wait for one; any size works.
// Connections that died in the pool are replaced.
//
// Settings and locks last for one transaction, so PgBouncer's transaction pooling works. pgx must
// not use named prepared statements then,
//
//	config.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeExec
//
// unless PgBouncer is 1.21 or newer and its max_prepared_statements is above
// zero. All query modes of pgx work; in the simple protocol the error of a queued statement may
// not name the statement. Do not use PgBouncer 1.18 to 1.20: it may exit when a client cancels
// (its issue 822), which pgx does when a context ends during a statement. Statement pooling, and
// poolers that split one role's transactions over several databases, cannot work.
//
// # What a handler may do
//
// Ordinary statements share a transaction with other messages. A text that begins or ends a
// transaction is not sent, and the message fails. A text that changes the transaction or the
// session is sent in a transaction with no other message, and the connection is closed afterwards
// if the change would stay. Changes by a function that a statement calls are found at the end of
// the transaction, for search_path, role, statement_timeout, lock_timeout, time zone, row security,
// replication and temporary tables. Other settings, such as app.tenant, are not checked: a handler
// that reads one must set it first, for every message, or it reads what another message has set.
//
// docs/handlers.md has the rules: what is safe, what gets a transaction of its own, what fails the
// message, what halts, and what Commit and Rollback of [AsPgxTx] and [OpenDB] mean.
//
// # Whose fault an error is
//
// [epoch.ErrTransient] is an error of the transaction's own connection that passes: a deadlock, or
// a lock that was not granted in time. [epoch.ErrUnhealthy] is an error about the state of the
// database: a missing table, column, function or privilege, a read-only server, a full or broken
// disk. The partition halts and no message is blamed. The same holds for anything that the tables
// of the sink or of the outbox refuse, such as an identity column whose sequence is behind its rows
// after logical replication; the error has the statement that fixes it. If a handler composes its
// SQL from messages, a single message can name a missing table. For that the handler returns
// consumer.Permanent. Errors of other connections are the handler's to classify.
//
// # Round trips
//
// A transaction takes two round trips beside those of the handler. In pgx's default query mode it
// takes one if it follows a claim or a commit of the same partitions within 100 ms: the transaction
// then begins together with the handler's first statement, which pgx's tracers see as a statement
// of a batch. [Sink.Queued] is a pipelined mode for handlers that only write: the whole transaction
// travels in one round trip.
package pgsink
