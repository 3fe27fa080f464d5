// Package shardsink combines several sinks into one [epoch.Sink], for a group that writes more than
// a single database can take. A function routes each partition to one of the sinks, its shard. The shard
// has the partition's fence and its effects.
//
//	sink, err := shardsink.New(shardsink.ByNumber, a, b)
//	…
//	err = consumer.Run(ctx, source, sink, consumer.Each(reserve).OnFailure(a.DeadLetter), consumer.Options{})
//
// Any shard's DeadLetter will do if all shards have the same schema or table prefix: it writes
// through the transaction.
//
// Each transaction is in one database, so nothing is committed in two steps. consumer.Run has
// committers for each shard and never mixes partitions of two shards. A database that is slow or
// down delays only its own partitions. Only the first claim of a partition needs all databases.
//
// # The routing
//
// All processes of a group must use the same routing, and it must not change: what a partition has
// written stays in its database. The order of the shards must not change either, because shards are
// known by their numbers. Add a new shard at the end of the list. The guide
// docs/stores.md says how to add a shard, and how to move a partition.
//
// A process with another routing, for example after a deploy, is refused with [epoch.ErrElsewhere],
// and the partition halts. Two databases never have a claimed fence of the same partition, which
// would apply its messages twice, unless neither process knows the other's database.
//
// # Redirect rows
//
// When a partition is seeded and when it is first claimed, each database gets a row of it in its table
// of fences. In one database the row is the fence. In the others it is a redirect row: a fence that nobody can claim, because its log id is
//
//	epochfence/shardsink: not in this database but in shard 1
//
// The first process that comes writes a row, and no process changes it into the other kind. A
// partition's first claim is made only if the row in its own shard is the fence and the rows in all
// others redirect to it.
//
// Take two processes that route a partition to different databases, a and b, where b is also a
// shard of the first. The first claims only if the row in b is a redirect row. The second claims
// only if the same row is the fence. So one of the two never claims. That holds whatever other
// shards they have: also while a deploy adds a database, and if the second process has no shards
// yet and uses b alone. If neither process knows the other's database, nothing protects them, just
// as without shards.
//
// The rows of the first shard also decide where partitions begin. They are written in one
// transaction, redirect rows included, so that one of the processes that start at the same time
// decides for all. The other shards copy them. A topic is known if any shard has a row of it. New
// partitions of a known topic begin at the earliest message.
//
// Do not delete rows, not even redirect rows.
package shardsink
