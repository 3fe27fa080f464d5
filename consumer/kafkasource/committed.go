package kafkasource

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/epoch"
)

// committed is a position as the group has it.
type committed struct {
	at          int64
	leaderEpoch int32
	metadata    string
}

// ours reports whether one of us has committed it, which its metadata says.
func (c committed) ours() bool { return strings.HasPrefix(c.metadata, mark) }

const mark = "epochfence "

// committedOf is the position of a fence.
func committedOf(f epoch.Fence) committed {
	return committed{int64(f.Next), int32(f.Mark), fmt.Sprintf(mark+"epoch=%d claim=%s", f.Epoch, f.Claim)}
}

// groupOffsets knows what the group has committed.
type groupOffsets struct {
	client *kgo.Client
	group  string
	topics []string
	asking chan struct{} // holds a token while a request is under way

	mu    sync.Mutex
	since time.Time // when the newest answer was asked for
	known map[topicPartition]committed
}

func newGroupOffsets(cl *kgo.Client, group string, topics []string) *groupOffsets {
	return &groupOffsets{client: cl, group: group, topics: topics, asking: make(chan struct{}, 1)}
}

// fresh returns what the group has committed for a partition, by an answer asked
// for not before since. Those who ask at the same time share a request.
func (g *groupOffsets) fresh(ctx context.Context, p topicPartition, since time.Time) (committed, bool, error) {
	select {
	case g.asking <- struct{}{}:
		defer func() { <-g.asking }()
	case <-ctx.Done():
		return committed{}, false, ctx.Err()
	}
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

// ask waits for transactions that are about to commit offsets, as a consumer
// does that begins where the group has committed.
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
		return epoch.Position{}, false, fmt.Errorf("kafkasource: where group %q has got to in %s/%d: %w", t.s.set.Group, t.topic, t.number, err)
	}
	// Ours is not from before the fence, but from another sink, or from this one
	// before it was put back: what was applied went with it (R9).
	if !ok || c.ours() {
		return epoch.Position{}, false, nil
	}
	return epoch.Position{Offset: epoch.Offset(c.at), Mark: epoch.Mark(c.leaderEpoch)}, true, nil
}

// leaderEpochAt is a leader epoch by which the log can be recognised that holds
// what is before an offset now: its present one. It is -1 where the log ends
// below.
func (s *Source) leaderEpochAt(ctx context.Context, p topicPartition, at int64) (int32, error) {
	end, leaderEpoch, err := s.listOffset(ctx, p, -1)
	if err != nil || end < at {
		return -1, err
	}
	return leaderEpoch, nil
}

// learn finds out what the group had committed through others when the tenure
// began, if that is not known yet.
func (t *tenure) learn(ctx context.Context) error {
	return t.Learn(func() (epoch.Offset, bool, error) {
		c, ok, err := t.s.offsets.fresh(ctx, t.topicPartition, t.began)
		if err != nil || !ok || c.ours() {
			return 0, false, err
		}
		t.mu.Lock()
		defer t.mu.Unlock()
		t.theirs = c
		return epoch.Offset(c.at), true, nil
	})
}

// toCommit is what to tell the group of a fence's position: while that may not
// take the place of what others had committed (R8), theirs again.
func (t *tenure) toCommit(f epoch.Fence) committed {
	if _, stays := t.Theirs(f); !stays {
		return committedOf(f)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.theirs
}
