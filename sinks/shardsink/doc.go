// Package shardsink makes one [epoch.Sink] of several, for when one database does
// not take what a group has to write. A function routes each partition to one of
// them, its shard: there the partition's fence is, and there its effects go.
//
//	sink, err := shardsink.New(shardsink.ByNumber, a, b)
//	…
//	err = consumer.Run(ctx, source, sink, consumer.Each(reserve).OnFailure(a.DeadLetter), consumer.Options{})
//
// A transaction is one of one database, as it always was, so nothing is
// committed in two steps. consumer.Run has committers for each shard and
// never mixes partitions of two. A database that is slow or down holds up its own
// partitions alone; only a partition that has never been claimed needs all of them.
//
// # The routing
//
// It has to be the same in all processes of a group, and to stay as it is: what a
// partition has written is in its database and does not follow it. So is the
// order of the shards, which are known by their numbers; another one goes to the end
// of the list. The guide docs/several-databases.md says how to add one, and how to
// move a partition.
//
// A process whose routing is another one, be it that a deploy has changed it, is
// refused with [epoch.ErrElsewhere], and the partition halts. Never do two
// databases have a claimed fence of one partition, which would apply its messages
// twice.
//
// # Signposts
//
// Each database has a row for each partition in its table of fences. In one of them
// it is the fence. In the others it is a signpost: a fence that nobody can claim, as
// it counts the offsets of a log that says
//
//	epochfence/shardsink: not in this database but in shard 1
//
// A row is written once, by whoever comes first. A partition's first claim is
// made only where the row in its own shard is the fence and those in all others
// are signposts to it.
//
// Take two processes that route a partition to two databases, a and b, and one of
// which at least knows the other's: the first knows b. It claims only if the row in
// b is a signpost. The second claims only if the row in b is the fence. It is one row, and
// does not change from the one to the other; so one of the two never claims. That
// holds whatever else they know: while a deploy adds a database, and for a process
// that has no shards yet and uses b alone. Only two processes of which neither
// knows the other's database are beyond help, as they are without shards.
//
// The rows of the first shard also say where partitions begin. They are made
// there in one transaction, signposts included, so that of processes which start
// at the same time one decides for all; what the other shards are told is taken from
// there. A topic of which any shard has a row is a known one: what is new in it
// begins at the earliest message.
//
// Do not delete rows, signposts neither.
package shardsink
