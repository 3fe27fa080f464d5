package natssource

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/consumer/internal/tenures"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/jsapi"
)

// This file counts the messages behind a position, for operators. Nothing is decided by the number.

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
