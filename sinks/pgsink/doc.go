// Package pgsink is an [epoch.Sink] for PostgreSQL 14 or newer, through pgx. Its fences, dead
// letters and audit log are tables of a schema beside the application's own:
//
//	err = pgsink.Migrate(ctx, adminPool, pgsink.Options{})       // as the schema's owner
//	err = pgsink.Grant(ctx, adminPool, "shop", pgsink.Options{}) // the role that the application uses
//	sink, err := pgsink.Open(ctx, pool, pgsink.Options{})        // as that role
//
// It hides the transaction in which handlers run. The check of the fence comes last and raises an
// error, so that a COMMIT sent right behind it does nothing:
//
//	begin;
//	select set_config(…), pg_advisory_xact_lock_shared(…);  -- timeouts, the claim's lock
//	…                                                       -- what the handlers write
//	select epochfence.advance_one(…);                       -- raises, or moves next_offset
//	commit;
//
// It decides which texts a handler may send and which of them run alone (docs/handlers.md), whether
// an error is a message's fault, and which transactions a claim ends ([Sink.Claim]). It leaves
// retries and the size of transactions to package consumer, and the pool to the caller.
//
// A transaction takes two round trips beside those of its handlers, or one right after another of
// the same partitions; [Sink.Queued] takes one in all. Any size of the pool works: with fewer than
// 4 × consumer.Options.Committers + 2 connections, transactions sometimes wait for one.
package pgsink
