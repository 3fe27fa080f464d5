package epoch

// Sharded is what a [Sink] of several databases has besides: each partition is
// kept in one of them, its shard, and no transaction spans two. A consumer asks for
// it, so that it never mixes partitions of two shards, and so that a database
// which is slow or down holds up its own partitions alone. See [As] for a sink that wraps
// another one.
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

// SignpostLog begins the log of a fence that only says in which shard a partition is: the
// shard's number follows. Nobody claims it, and people do nothing with it.
const SignpostLog = "epochfence/shardsink: not in this database but in shard "
