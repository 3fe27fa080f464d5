package epoch

// Sharded is implemented by a [Sink] of several databases. Each partition is in one database, its
// shard, and no transaction spans two shards. A consumer gives each shard transactions of its own, so
// that a slow database delays only its own partitions. Its methods are safe for concurrent use.
type Sharded interface {
	// Shards returns the number of databases, at least one. It does not change.
	Shards() int

	// Shard returns the number of p's shard, from 0. It does not change. A number out of range
	// means that p has no shard. The sink's methods return an error for such a p.
	Shard(p Partition) int

	// ReplacedIn is [Facts.Replaced] of one shard.
	ReplacedIn(shard int) <-chan struct{}
}
