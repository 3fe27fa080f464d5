package consumer

import "github.com/epochfence/epochfence/epoch"

// This file treats a sink with one database as a sink with one shard, so that run.go and loop.go
// need no second path. The sink decides which partition is in which database.

// shardsOf returns the databases of a sink. A sink that is not [epoch.Sharded] has one.
func shardsOf[TX any](sink epoch.Sink[TX]) epoch.Sharded {
	if s, ok := epoch.As[epoch.Sharded](sink); ok {
		return s
	}
	return oneShard{func() <-chan struct{} { return sink.Facts().Replaced }}
}

// oneShard is a sink with one database.
type oneShard struct {
	replaced func() <-chan struct{}
}

func (oneShard) Shards() int                      { return 1 }
func (oneShard) Shard(epoch.Partition) int        { return 0 }
func (s oneShard) ReplacedIn(int) <-chan struct{} { return s.replaced() }
