package sourcetest_test

import (
	"context"
	"fmt"
	"sync/atomic"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
)

// Ways to say where a partition begins, stands and belongs wrongly.
var originFaults = []fault{{
	name:  "calls every log of a topic the same",
	claim: "attack: topic deleted and recreated",
	world: func(b *broken) {
		same := func(o epoch.Origin) epoch.Origin { o.Log = "log of " + o.Topic; return o }
		b.tenure = func(t tenure) consumer.Tenure {
			inner := t.Tenure
			t.origin = same
			t.confirm = func(ctx context.Context, seen epoch.Fence) (epoch.Lease, error) {
				lease, err := inner.Confirm(ctx, seen)
				lease.Origin = same(lease.Origin)
				return lease, err
			}
			t.starts = func(ctx context.Context, policy consumer.StartPolicy) ([]epoch.Start, error) {
				ss, err := inner.Starts(ctx, policy)
				for i := range ss {
					ss[i].Origin = same(ss[i].Origin)
				}
				return ss, err
			}
			return &t
		}
	},
}, {
	name:  "calls a log by another name in every process",
	claim: "a partition is the same to whoever is granted it",
	world: func(b *broken) {
		var n atomic.Int64
		b.tenure = func(t tenure) consumer.Tenure {
			name := fmt.Sprint("log", n.Add(1))
			t.origin = func(o epoch.Origin) epoch.Origin { o.Log = name; return o }
			return &t
		}
	},
}, {
	name:  "starts at the latest message under every policy",
	claim: "Starts lists every partition",
	world: func(b *broken) {
		b.tenure = func(t tenure) consumer.Tenure {
			inner := t.Tenure
			t.starts = func(ctx context.Context, _ consumer.StartPolicy) ([]epoch.Start, error) {
				return inner.Starts(ctx, consumer.StartLatest)
			}
			return &t
		}
	},
}, {
	name:  "takes the latest for the earliest policy",
	claim: "messages that were produced before a group began",
	world: func(b *broken) {
		b.tenure = func(t tenure) consumer.Tenure {
			inner := t.Tenure
			t.starts = func(ctx context.Context, _ consumer.StartPolicy) ([]epoch.Start, error) {
				return inner.Starts(ctx, consumer.StartEarliest)
			}
			return &t
		}
	},
}, {
	name:  "starts one partition only",
	claim: "a partition that is added to a topic",
	world: brokenStarts(func(ss []epoch.Start) []epoch.Start { return ss[:min(1, len(ss))] }),
}, {
	name:  "does not look at published positions",
	claim: "Starts begins where the group's published position is",
	world: brokenStarts(func(ss []epoch.Start) []epoch.Start {
		for i := range ss {
			ss[i].Next = ss[i].Earliest
		}
		return ss
	}),
}, {
	name:  "mirrors nothing",
	claim: "a mirrored position is published",
	world: func(b *broken) {
		b.tenure = func(t tenure) consumer.Tenure {
			t.mirror = func(epoch.Fence) {}
			return &t
		}
	},
}, {
	name:  "mirrors for a process that has lost the partition",
	claim: "a position mirrored by a process that has lost",
	world: func(b *broken) {
		b.tenure = func(t tenure) consumer.Tenure {
			t.mirror = func(at epoch.Fence) {
				b.broker.Group(at.Group).SetPosition(at.Topic, at.Partition.Number, at.Next)
			}
			return &t
		}
	},
}}

func brokenStarts(f func(ss []epoch.Start) []epoch.Start) func(*broken) {
	return func(b *broken) {
		b.tenure = func(t tenure) consumer.Tenure {
			inner := t.Tenure
			t.starts = func(ctx context.Context, policy consumer.StartPolicy) ([]epoch.Start, error) {
				ss, err := inner.Starts(ctx, policy)
				return f(ss), err
			}
			return &t
		}
	}
}
