package kafkasource

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"golang.org/x/sync/semaphore"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/internal/tenures"
	"github.com/epochfence/epochfence/epoch"
)

// This file lists where the partitions of a topic begin, by policy and at the earliest (the sink
// decides which of the two counts, R9), and how far a position is behind the end.

// startsAge is how long a listing is reused. At the first start of a group all partitions call
// Starts at once, and each listing contains all of them.
const startsAge = time.Second

type listing struct {
	asking *semaphore.Weighted // one request at a time; whoever waits may use its answer
	at     time.Time
	starts []epoch.Start
}

type listingKey struct {
	topic  string
	id     [16]byte
	policy consumer.StartPolicy
}

// Starts implements [consumer.Tenure].
func (t *tenure) Starts(ctx context.Context, policy consumer.StartPolicy) ([]epoch.Start, error) {
	starts, err := t.listStarts(ctx, policy)
	return slices.Clone(starts), err
}

// listStarts returns a slice that other tenures share.
func (t *tenure) listStarts(ctx context.Context, policy consumer.StartPolicy) ([]epoch.Start, error) {
	id := t.topicID()
	l := t.s.listing(listingKey{t.topic, id, policy})
	if err := l.asking.Acquire(ctx, 1); err != nil {
		return nil, fmt.Errorf("kafkasource: where topic %q starts (%v): %w", t.topic, policy, err)
	}
	defer l.asking.Release(1)
	// A listing from before the tenure may lack a new partition.
	if l.starts != nil && !l.at.Before(t.began) && time.Since(l.at) < startsAge {
		return l.starts, nil
	}
	at := time.Now()
	starts, err := t.s.starts(ctx, t.topic, id, policy)
	if err == nil { // the partitions were listed by the topic's name
		var after [16]byte
		if after, err = t.s.topics.fresh(ctx, t.topic, time.Now()); err == nil && after != id {
			err = tenures.Lost(errOtherTopic)
		}
	}
	if err == nil && !slices.ContainsFunc(starts, func(st epoch.Start) bool { return st.Partition.Number == t.number }) {
		err = fmt.Errorf("not every broker knows of partition %d yet", t.number)
	}
	if err != nil {
		return nil, fmt.Errorf("kafkasource: where topic %q starts (%v): %w", t.topic, policy, err)
	}
	l.at, l.starts = at, starts
	return starts, nil
}

// Lag implements [consumer.Tenure]. It counts offsets up to the last stable offset, including
// transaction markers and compacted messages. One listing serves all partitions of the topic.
func (t *tenure) Lag(ctx context.Context, from epoch.Fence) (int64, error) {
	if err := t.check(from); err != nil {
		return 0, err
	}
	starts, err := t.listStarts(ctx, consumer.StartLatest)
	if err != nil {
		return 0, err
	}
	i := slices.IndexFunc(starts, func(s epoch.Start) bool { return s.Partition.Number == t.number })
	s := starts[i] // listStarts has checked that it exists
	return int64(max(s.Next.Offset-max(from.Next, s.Earliest.Offset), 0)), nil
}

func (s *Source) listing(k listingKey) *listing {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listings == nil {
		s.listings = map[listingKey]*listing{}
	}
	l := s.listings[k]
	if l == nil {
		l = &listing{asking: semaphore.NewWeighted(1)}
		s.listings[k] = l
	}
	return l
}

// starts lists every partition that the topic has now.
func (s *Source) starts(ctx context.Context, topic string, id [16]byte, policy consumer.StartPolicy) ([]epoch.Start, error) {
	admin := kadm.NewClient(s.reader)
	earliest, err := listed(admin.ListStartOffsets(ctx, topic))
	if err != nil {
		return nil, fmt.Errorf("list the first offsets: %w", err)
	}
	latest := earliest
	switch policy {
	case consumer.StartCommitted, consumer.StartEarliest:
	case consumer.StartLatest:
		// The last stable offset: the messages of an open transaction come after it, and will be
		// read if the transaction commits.
		latest, err = listed(admin.ListCommittedOffsets(ctx, topic))
		if err != nil {
			return nil, fmt.Errorf("list the last offsets: %w", err)
		}
	default:
		return nil, fmt.Errorf("unknown policy %d", policy)
	}
	var starts []epoch.Start
	for p, o := range earliest[topic] {
		next, ok := latest.Lookup(topic, p)
		if !ok { // its earliest offset would replay the whole partition
			return nil, fmt.Errorf("partition %d appeared between two requests", p)
		}
		starts = append(starts, epoch.Start{Origin: s.origin(topicPartition{topic, p}, id), Next: positionOf(next), Earliest: positionOf(o)})
	}
	slices.SortFunc(starts, func(a, b epoch.Start) int { return a.Partition.Compare(b.Partition) })
	return starts, nil
}

func positionOf(o kadm.ListedOffset) epoch.Position {
	return epoch.Position{Offset: epoch.Offset(o.Offset), Mark: epoch.Mark(o.LeaderEpoch)}
}

func listed(os kadm.ListedOffsets, err error) (kadm.ListedOffsets, error) {
	if err == nil {
		err = os.Error()
	}
	return os, err
}
