// Package consumer applies the messages of a [Source] to a sink so that their
// effects happen exactly once.
//
// A [Handler] gets each message with a transaction and an epoch. What it writes
// through the transaction, the new position and the check that this process
// still owns the partition commit together in the sink's database, or not at
// all. See package epoch for the protocol.
//
//	err := consumer.Run(ctx, source, sink, consumer.Each(handle), consumer.Options{})
//
// # How it works
//
// The source grants partitions; each grant is a [Tenure] and gets a goroutine,
// which claims the partition ([epoch.Sink]: read, confirm with the source,
// swap), reads from the position that the claim returned, and offers what it
// reads to an event loop. The loop owns what is pending of all its partitions, and their
// fences. It takes what is ready from all of them, has a transaction call the handler for each
// message and commit the lot, and decides what the answer means. The transaction's
// last statement checks and moves the fences. The loop never waits for more to come.
//
// A transaction that fails is rolled back as a whole. The partition whose
// message failed is then taken alone, in the loop's second lane, and its
// batch split, down to the message at fault, which is retried with backoff. The
// other partitions continue meanwhile.
//
// Whenever the outcome of a transaction is unknown, the partition is claimed
// again and continues from the position that the sink then states. Nothing is
// guessed. A refusal as stale means that another process owns the partition:
// the transaction is rolled back, and the partition is claimed again only if
// the source still confirms it.
package consumer
