package kafkasource

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sync/semaphore"

	"github.com/epochfence/epochfence/consumer/internal/tenures"
	"github.com/epochfence/epochfence/epoch"
)

// This file decides where a group had got to before its first claim (R9), and which position may
// replace that one in the group (R8).

type committed struct {
	at          int64
	leaderEpoch int32
	metadata    string
}

// ours reports whether a process of this module has committed it.
func (c committed) ours() bool { return strings.HasPrefix(c.metadata, mark) }

// claimed is the inverse of committedOf.
func (c committed) claimed() (at tenures.Claimed, ok bool) {
	var claim string
	if _, err := fmt.Sscanf(c.metadata, described, &at.Epoch, &claim); err != nil {
		return at, false
	}
	id, err := epoch.ParseClaimID(claim)
	at.Claim, at.Next = id, epoch.Offset(c.at)
	return at, err == nil
}

// The metadata of an offset of ours. Other words may follow. Another version begins with mark and then
// something else: it is ours, and its claim is not known.
const (
	mark      = "epochfence "
	described = mark + "epoch=%d claim=%s"
)

func committedOf(f epoch.Fence) committed {
	return committed{int64(f.Next), int32(f.Mark), fmt.Sprintf(described, f.Epoch, f.Claim)}
}

// groupOffsets caches the group's committed offsets.
type groupOffsets struct {
	client *kgo.Client
	group  string
	topics []string
	asking *semaphore.Weighted // one request at a time; whoever waits may use its answer

	mu    sync.Mutex
	since time.Time // when the newest request was sent
	known map[topicPartition]committed
}

func newGroupOffsets(cl *kgo.Client, group string, topics []string) *groupOffsets {
	return &groupOffsets{client: cl, group: group, topics: topics, asking: semaphore.NewWeighted(1)}
}

// fresh returns what the group has committed for a partition, from a request that was not sent
// before since. Concurrent calls share a request.
func (g *groupOffsets) fresh(ctx context.Context, p topicPartition, since time.Time) (committed, bool, error) {
	if err := g.asking.Acquire(ctx, 1); err != nil {
		return committed{}, false, err
	}
	defer g.asking.Release(1)
	g.mu.Lock()
	old := g.since.Before(since)
	g.mu.Unlock()
	if old {
		if err := g.ask(ctx); err != nil {
			return committed{}, false, fmt.Errorf("read what the group has committed: %w", err)
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	c, ok := g.known[p]
	return c, ok, nil
}

// ask waits for pending transactions that commit offsets (RequireStable), as a consumer does when
// it starts at the committed offsets.
func (g *groupOffsets) ask(ctx context.Context) error {
	began := time.Now()
	os, err := kadm.NewClient(g.client).FetchOffsetsForTopics(kadm.RequireStable(ctx), g.group, g.topics...)
	if err == nil {
		err = os.Error()
	}
	if err != nil {
		return err
	}
	known := map[topicPartition]committed{}
	os.Each(func(o kadm.OffsetResponse) {
		if o.At >= 0 {
			known[topicPartition{o.Topic, o.Partition}] = committed{o.At, o.LeaderEpoch, o.Metadata}
		}
	})
	g.mu.Lock()
	defer g.mu.Unlock()
	g.known, g.since = known, began
	return nil
}

// Committed implements [consumer.Tenure].
func (t *tenure) Committed(ctx context.Context) (epoch.Position, bool, error) {
	c, ok, err := t.s.offsets.fresh(ctx, t.topicPartition, t.began)
	if err == nil && ok && c.leaderEpoch < 0 {
		c.leaderEpoch, err = t.s.leaderEpochAt(ctx, t.topicPartition, c.at)
	}
	if over := t.err(); over != nil {
		err = over
	}
	if err != nil {
		return epoch.Position{}, false, fmt.Errorf("kafkasource: read the position that group %q has committed in %s/%d: %w", t.s.set.Group, t.topic, t.number, err)
	}
	// An offset of ours comes from another sink, or from this sink before it was restored. The
	// effects before that offset are not in this sink (R9).
	if !ok || c.ours() {
		return epoch.Position{}, false, nil
	}
	return epoch.Position{Offset: epoch.Offset(c.at), Mark: epoch.Mark(c.leaderEpoch)}, true, nil
}

// leaderEpochAt returns the present leader epoch. By it, the log that now has the messages before
// at can be recognised. It returns -1 if the log ends below at.
func (s *Source) leaderEpochAt(ctx context.Context, p topicPartition, at int64) (int32, error) {
	end, leaderEpoch, err := s.listOffset(ctx, p, -1)
	if err != nil || end < at {
		return -1, err
	}
	return leaderEpoch, nil
}

// learn reads, once, what others had committed for the group when the tenure began.
func (t *tenure) learn(ctx context.Context) error {
	return t.Learn(func() (epoch.Offset, bool, error) {
		c, ok, err := t.s.offsets.fresh(ctx, t.topicPartition, t.began)
		if err != nil || !ok {
			return 0, false, err
		}
		if c.ours() {
			if at, known := c.claimed(); known {
				t.LearnClaim(at)
			}
			return 0, false, nil
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		t.theirs = c
		return epoch.Offset(c.at), true, nil
	})
}

// toCommit returns the position to commit for a fence. While the fence's position must not replace
// the position that others had committed (R8), it is theirs.
func (t *tenure) toCommit(f epoch.Fence) committed {
	if _, stays := t.Theirs(f); !stays {
		return committedOf(f)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.theirs
}
