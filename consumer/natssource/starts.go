package natssource

import (
	"context"
	"fmt"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/internal/tenures"
	"github.com/epochfence/epochfence/epoch"
)

// This file lists where the partitions of a stream begin, by policy and at the earliest. The sink
// decides which of the two counts (R9).

func (l *streamLog) starts(ctx context.Context, in incarnation, origin func(n int32) epoch.Origin, policy consumer.StartPolicy) ([]epoch.Start, error) {
	starts, err := l.listStarts(ctx, in, origin, policy)
	if err != nil {
		return nil, fmt.Errorf("natssource: where stream %q starts (%v): %w", l.stream.Name, policy, err)
	}
	return starts, nil
}

func (l *streamLog) listStarts(ctx context.Context, in incarnation, origin func(n int32) epoch.Origin, policy consumer.StartPolicy) ([]epoch.Start, error) {
	info, err := l.look(ctx)
	if err != nil {
		return nil, err
	}
	if incarnationOf(info) != in {
		return nil, tenures.Lost(errOtherStream)
	}
	// The message before the first one is gone, so there is no mark of it.
	earliest := epoch.Position{Offset: epoch.Offset(max(info.State.FirstSeq, 1)), Mark: epoch.NoMark}
	next := earliest
	switch policy {
	case consumer.StartCommitted, consumer.StartEarliest:
	case consumer.StartLatest:
		next.Offset = epoch.Offset(info.State.LastSeq + 1)
		if info.State.LastSeq > 0 {
			next.Mark = fingerprint(info.State.LastTime)
		}
	default:
		return nil, fmt.Errorf("unknown policy %d", policy)
	}
	starts := make([]epoch.Start, l.partitions())
	for n := range l.partitions() {
		starts[n] = epoch.Start{Origin: origin(n), Next: next, Earliest: earliest}
	}
	return starts, nil
}
