package sourcetest_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
)

// Ways to say where a partition begins, stands and belongs wrongly.
var originFaults = []fault{{
	name:  "calls every log of a topic the same",
	claim: "attack: topic deleted and recreated",
	world: func(b *broken) {
		same := func(o epoch.Origin) epoch.Origin { o.Log = "log of " + o.Partition.Topic; return o }
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
	name:  "does not look at what the group had committed",
	claim: "Committed is where the group had got to",
	world: brokenCommitted(func(consumer.Tenure, epoch.Position, bool) (epoch.Position, bool) { return epoch.Position{}, false }),
}, {
	name:  "continues at the last message where the group had committed",
	claim: "a process continues where the group had committed",
	world: brokenCommitted(func(_ consumer.Tenure, at epoch.Position, ok bool) (epoch.Position, bool) {
		at.Offset += 3
		return at, ok
	}),
}, {
	name:  "takes what it has published for what the group had committed",
	claim: "what was published for fences that are not there",
	world: func(b *broken) {
		b.tenure = func(t tenure) consumer.Tenure {
			inner := t.Tenure
			t.committed = func(context.Context) (epoch.Position, bool, error) {
				o := inner.Origin()
				at, ok := b.broker.Group(o.Partition.Group).Position(o.Partition.Topic, o.Partition.Number)
				return epoch.Position{Offset: at, Mark: epoch.NoMark}, ok, nil
			}
			return &t
		}
	},
}, {
	name:  "reads what the group had committed when the topic is first seen",
	claim: "what the group had committed is read when a partition is claimed first",
	world: func(b *broken) {
		type known struct {
			at epoch.Offset
			ok bool
		}
		var mu sync.Mutex
		first := map[epoch.Partition]known{}
		b.tenure = func(t tenure) consumer.Tenure {
			inner := t.Tenure
			t.committed = func(ctx context.Context) (epoch.Position, bool, error) {
				ss, err := inner.Starts(ctx, consumer.StartEarliest) // waits while frozen, so without the lock
				mu.Lock()
				defer mu.Unlock()
				for _, s := range ss {
					if _, seen := first[s.Partition]; !seen {
						at, ok := b.broker.Group(s.Partition.Group).Position(s.Partition.Topic, s.Partition.Number)
						first[s.Partition] = known{at, ok}
					}
				}
				k := first[inner.Origin().Partition]
				return epoch.Position{Offset: k.at, Mark: epoch.NoMark}, k.ok, err
			}
			return &t
		}
	},
}, {
	name:  "knows no mark where the group had committed",
	claim: "a log that was cut off below a position from which nothing",
	world: brokenCommitted(func(_ consumer.Tenure, at epoch.Position, ok bool) (epoch.Position, bool) {
		at.Mark = -1
		return at, ok
	}),
}, {
	name:  "knows no mark where a partition begins",
	claim: "a log that was cut off below a position from which nothing",
	world: brokenStarts(func(ss []epoch.Start) []epoch.Start {
		for i := range ss {
			ss[i].Next.Mark = -1
		}
		return ss
	}),
}, {
	name:  "publishes whatever it confirms",
	claim: "a position that the group had committed through others",
	world: func(b *broken) {
		b.tenure = func(t tenure) consumer.Tenure {
			inner := t.Tenure
			t.confirm = func(ctx context.Context, seen epoch.Fence) (epoch.Lease, error) {
				lease, err := inner.Confirm(ctx, seen)
				if err == nil {
					b.broker.Group(seen.Partition.Group).SetPosition(seen.Partition.Topic, seen.Partition.Number, seen.Next)
				}
				return lease, err
			}
			return &t
		}
	},
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
				b.broker.Group(at.Partition.Group).SetPosition(at.Partition.Topic, at.Partition.Number, at.Next)
			}
			return &t
		}
	},
}}

func brokenCommitted(f func(t consumer.Tenure, at epoch.Position, ok bool) (epoch.Position, bool)) func(*broken) {
	return func(b *broken) {
		b.tenure = func(t tenure) consumer.Tenure {
			inner := t.Tenure
			t.committed = func(ctx context.Context) (epoch.Position, bool, error) {
				at, ok, err := inner.Committed(ctx)
				at, ok = f(inner, at, ok)
				return at, ok, err
			}
			return &t
		}
	}
}

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
