package epoch

// Sharded is implemented by a [Sink] of several databases. Each partition is in one database,
// its shard, and no transaction spans two shards. A consumer gives each shard its own
// committers, so that a slow database holds up only its own partitions. [As] finds it in a
// sink that wraps another one.
//
// Its methods are safe for concurrent use.
type Sharded interface {
	// Shards returns the number of databases, at least one. It does not change.
	Shards() int

	// Shard returns the number of p's shard, from 0. It does not change. If the number is out
	// of range, p has no shard, and the sink's methods return an error for p.
	Shard(p Partition) int

	// ReplacedIn is [Sink.Replaced] for one shard.
	ReplacedIn(shard int) <-chan struct{}
}

// SignpostLog is the prefix of the log of a redirect row: a fence that only names the shard of
// a partition, by the number after the prefix. Nobody claims it.
const SignpostLog = "epochfence/shardsink: not in this database but in shard "
