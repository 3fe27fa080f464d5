// Package consumer applies the messages of a [Source] to a sink so that their effects happen
// exactly once.
//
//	err := consumer.Run(ctx, source, sink, consumer.Each(handle), consumer.Options{})
//
// A [Handler] gets each message with a transaction and an epoch. What it writes through the
// transaction, the new position, and the check that this process still owns the partition commit
// together in the sink's database, or not at all. Package epoch has the protocol.
//
// The package hides how partitions are claimed, read and shared out to transactions. Each grant of
// the source is a [Tenure] with a goroutine of its own. It claims the partition ([epoch.Sink]: read,
// confirm with the source, swap), reads from the position that the claim returned, and submits the
// messages to a committer, which applies what is ready in one transaction, without waiting for more. What
// the answer means, each partition decides for itself.
//
// It decides what follows from an error. A transaction that fails is rolled back as a whole. The
// partition whose message failed is then applied alone, in ever smaller batches until the message
// is found, which is retried with backoff. After an unknown outcome, the partition is claimed again
// and continues from the sink's position. After a refusal as stale, it is claimed again only if the
// source still confirms the lease.
//
// It leaves to the source who owns a partition, to the sink whether a commit is allowed and whether
// an error is a message's fault, and to the user what becomes of a message that fails for good
// ([Handlers.OnFailure]). [Options] has the limits, and their defaults fit most uses.
package consumer
