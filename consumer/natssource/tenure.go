package natssource

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"iter"
	"slices"
	"sync"
	"time"

	"github.com/nats-io/nats.go/jetstream"
	"golang.org/x/sync/semaphore"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/internal/leased"
	"github.com/epochfence/epochfence/consumer/internal/tenures"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/jsapi"
	"github.com/epochfence/epochfence/lease"
)

// This file has what package consumer sees of a partition: where it may start, its messages, who owns
// it, and the messages behind a position, by which nothing is decided. consumer/internal/leased ends
// a tenure with its lease. The sink decides which start counts (R9).

// tenure is this process's time with one partition, under one lease.
type tenure struct {
	*leased.Tenure
	tenures.Position
	s           *Source
	log         *streamLog
	incarnation incarnation         // of the stream
	writing     *semaphore.Weighted // whoever publishes the position
	published   published
	publishing  sync.WaitGroup // after confirmations
}

var _ consumer.Tenure = (*tenure)(nil)

func (s *Source) newTenure(log *streamLog, l *lease.Held) *tenure {
	t := &tenure{s: s, log: log, incarnation: log.incarnation(), writing: semaphore.NewWeighted(1)}
	t.Tenure = leased.New(s.base, l, t.originOf(l.Name, l.Number), s.member.Term())
	return t
}

func (t *tenure) originOf(topic string, n int32) epoch.Origin {
	return epoch.Origin{
		Partition: epoch.Partition{Group: t.s.Group, Topic: topic, Number: n},
		Log:       t.log.logID(t.incarnation, n),
		Source:    t.s.bucketSource(),
	}
}

// Starts implements [consumer.Tenure].
func (t *tenure) Starts(ctx context.Context, policy consumer.StartPolicy) ([]epoch.Start, error) {
	return t.log.starts(ctx, t.incarnation, func(n int32) epoch.Origin { return t.originOf(t.Name, n) }, policy)
}

// Read implements [consumer.Tenure].
func (t *tenure) Read(ctx context.Context, from epoch.Fence) iter.Seq2[consumer.Batch, error] {
	return t.State.Read(ctx, func(ctx context.Context, yield func(consumer.Batch) bool) error {
		if err := t.Fits(&from); err != nil {
			return fmt.Errorf("natssource: read: %w", err)
		}
		for batch, err := range t.log.read(ctx, t.incarnation, t.Origin().Partition, &from) {
			if err != nil || !yield(batch) {
				return err
			}
		}
		return nil
	})
}

// Confirm implements [consumer.Tenure].
func (t *tenure) Confirm(ctx context.Context, seen epoch.Fence) (epoch.Lease, error) {
	if t.Fits(&seen) == nil {
		t.Mirror(seen)
		t.Claims(seen)
	}
	confirmed, err := t.Tenure.Confirm(ctx, &seen)
	if err != nil {
		return epoch.Lease{}, fmt.Errorf("natssource: confirm %s: %w", t.Origin().Partition, err)
	}
	t.inTime(ctx, func(ctx context.Context) {
		if t.writing.Acquire(ctx, 1) != nil {
			return
		}
		defer t.writing.Release(1) // who writes the key learns as well, and says what is wrong with it
		_ = t.learn(ctx, seen)     // or the next who writes it
	})
	t.Compare(seen)
	t.publishing.Go(func() { t.inTime(t.s.base, t.publish) }) // the claim does not wait for it
	return confirmed, nil
}

// hold runs a tenure for as long as its lease lasts.
func (s *Source) hold(l *lease.Held) {
	t := s.newTenure(s.logOf(l.Name), l)
	s.begin(t)
	defer s.over(t)
	defer t.publishing.Wait()
	t.Hold(s.base, func(ctx context.Context) { s.own(ctx, t) }, func() {
		ctx, cancel := context.WithTimeout(s.base, s.goodbyeLimit())
		defer cancel()
		t.publish(ctx)
	})
}

// goodbyeLimit limits each of the last requests.
func (s *Source) goodbyeLimit() time.Duration { return min(2*time.Second, s.LeaseTTL/2) }

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

// Lag implements [consumer.Tenure]. If the stream continues after the position, Lag creates a
// consumer there and deletes it at once, because the server counts the partition's messages for it.
func (t *tenure) Lag(ctx context.Context, from epoch.Fence) (int64, error) {
	err := t.Fits(&from)
	if err != nil {
		return 0, err
	}
	n, err := t.log.behind(ctx, t.incarnation, t.Origin().Partition, from.Next)
	if err != nil {
		return 0, fmt.Errorf("natssource: how many messages of %s there are from %d on: %w", t.Resource, from.Next, err)
	}
	return n, nil
}

func (l *streamLog) behind(ctx context.Context, in incarnation, p epoch.Partition, next epoch.Offset) (int64, error) {
	s, err := l.seen(ctx, time.Second) // one answer serves many partitions
	switch {
	case err != nil:
		return 0, err
	case incarnationOf(s.info) != in:
		return 0, tenures.Lost(errOtherStream)
	case next > epoch.Offset(s.info.State.LastSeq):
		return 0, nil
	}
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	for range counters {
		n, whole, err := l.pending(ctx, p, next)
		if err != nil || whole {
			return n, err
		}
	}
	return 0, errors.New("the servers that count lag behind the stream's leader")
}

// counters is the number of consumers that count until one is on a server that does not lag.
const counters = 5

// pending makes a consumer that counts. whole is false if its server lags.
func (l *streamLog) pending(ctx context.Context, p epoch.Partition, next epoch.Offset) (n int64, whole bool, err error) {
	c, err := l.js.CreateConsumer(ctx, l.stream.Name, jetstream.ConsumerConfig{
		Name: "epochfence-" + rand.Text(), Description: "lag of " + p.String(),
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: max(uint64(next), 1), FilterSubject: l.filters[p.Number],
		AckPolicy: jetstream.AckNonePolicy, InactiveThreshold: 5 * time.Second, MemoryStorage: true, Replicas: 1,
	})
	if err != nil {
		return 0, false, fmt.Errorf("make a consumer: %w", jsapi.Denied(l.js.Conn(), jsapi.Prefix(l.js)+"CONSUMER.CREATE.", l.explainLimit(err)))
	}
	_ = l.js.DeleteConsumer(ctx, l.stream.Name, c.CachedInfo().Name) // otherwise InactiveThreshold ends it
	s, err := l.seen(ctx, time.Second)
	if err != nil {
		return 0, false, err
	}
	return int64(c.CachedInfo().NumPending), hasAll(c.CachedInfo(), s.info), nil
}

// hasAll reports whether the server of a consumer has the stream's messages, as far as the leader knows: it
// believes for up to a second that a server has what it had before it lost its disk.
func hasAll(c *jetstream.ConsumerInfo, stream *jetstream.StreamInfo) bool {
	if c.Cluster == nil || stream.Cluster == nil || c.Cluster.Leader == stream.Cluster.Leader {
		return true
	}
	return slices.ContainsFunc(stream.Cluster.Replicas, func(p *jetstream.PeerInfo) bool {
		return p.Name == c.Cluster.Leader && p.Current && !p.Offline && p.Lag == 0
	})
}
