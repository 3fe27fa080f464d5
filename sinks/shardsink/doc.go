// Package shardsink combines several sinks, its shards, into one [epoch.Sink], for a group that
// writes more than one database can take. A function routes each partition to the shard that has
// its fence and its effects. Each transaction is in one database, so nothing is committed in two
// steps.
//
//	sink, err := shardsink.New(shardsink.ByNumber, a, b)
//	…
//	err = consumer.Run(ctx, source, sink, consumer.Each(reserve).OnFailure(a.DeadLetter), consumer.Options{})
//
// The routing and the order of the shards must be the same in all processes and must not change. A
// process with another routing is refused with [epoch.ErrElsewhere], and the partition halts.
// docs/stores.md has how to add a shard, and how to move a partition.
//
// The package hides the redirect rows by which processes with different routings never claim a
// partition twice. In one database the row of a partition is the fence. In each other database it
// is a fence that nobody can claim, because of its log id:
//
//	epochfence/shardsink: not in this database but in shard 1
//
// The first process that needs a row writes it, and no process changes it into the other kind. The
// first claim needs the fence in its own shard and redirect rows in all others: of two processes
// that route to a and b, where one knows both, one never claims. If neither knows the other's
// database, nothing protects them. Do not delete redirect rows.
package shardsink
