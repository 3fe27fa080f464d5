// Package consumer applies the messages of a [Source] to a sink so that their effects happen
// exactly once.
//
//	err := consumer.Run(ctx, source, sink, consumer.Each(handle), consumer.Options{})
//
// A [Handler] gets each message with a transaction and an epoch. What it writes through the
// transaction, the new position, and the check that this process still owns the partition
// commit together in the sink's database, or not at all. Package epoch has the protocol.
//
// Users need [Run], [Options], [Handlers], [Message], the [Event] types and [Status]. Authors
// of sources implement [Source] and [Tenure].
//
// # How it works
//
// The source grants partitions. Each grant is a [Tenure] with a goroutine of its own. The
// goroutine claims the partition ([epoch.Sink]: read, confirm with the source, swap), reads
// from the position that the claim returned, and offers the messages to an event loop, a
// committer (see [Options.Committers]). The committer owns the fences and pending messages of
// all its partitions. It starts a transaction for the messages that are ready, without waiting
// for more. The transaction calls the handler for each message. Its last statement checks and
// moves the fences.
//
// A transaction that fails is rolled back as a whole. The partition whose message failed is
// then applied alone, beside the others. Its batch is split until the message at fault is
// found, which is retried with backoff. The other partitions continue meanwhile.
//
// If the outcome of a transaction is unknown, the partition is claimed again and continues
// from the position in the sink. If a transaction is refused as stale, another claim owns
// the partition: it is claimed again only if the source still confirms the lease.
package consumer
