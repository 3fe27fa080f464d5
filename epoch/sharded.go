package epoch

// Sharded is what a [Sink] of several databases has besides: each partition is
// kept in one of them, its shard, and no transaction spans two. A consumer asks for
// it, so that it never mixes partitions of two shards, and so that a database
// which is slow or down holds up its own partitions alone. A sink that wraps another
// one passes these methods on, if that has them.
//
// Its methods are safe for concurrent use.
type Sharded interface {
	// Shards is how many databases there are, at least one. It does not change.
	Shards() int

	// Shard is the number of p's shard, from 0, and always the same. Any other
	// number says that there is none; what is asked of the sink about p then fails
	// with the reason.
	Shard(p Partition) int

	// ReplacedIn is what [Sink.Replaced] is for all of them, for one shard.
	ReplacedIn(shard int) <-chan struct{}
}
