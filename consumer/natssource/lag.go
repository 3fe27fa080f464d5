package natssource

import (
	"context"
	"crypto/rand"
	"fmt"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/consumer/internal/tenures"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/jsapi"
)

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
	c, err := l.js.CreateConsumer(ctx, l.stream.Name, jetstream.ConsumerConfig{
		Name: "epochfence-" + rand.Text(), Description: "lag of " + p.String(),
		DeliverPolicy: jetstream.DeliverByStartSequencePolicy, OptStartSeq: max(uint64(next), 1), FilterSubject: l.filters[p.Number],
		AckPolicy: jetstream.AckNonePolicy, InactiveThreshold: 5 * time.Second, MemoryStorage: true, Replicas: 1,
	})
	if err != nil {
		return 0, fmt.Errorf("make a consumer: %w", jsapi.Denied(l.js.Conn(), jsapi.Prefix(l.js)+"CONSUMER.CREATE.", l.explainLimit(err)))
	}
	_ = l.js.DeleteConsumer(ctx, l.stream.Name, c.CachedInfo().Name) // otherwise InactiveThreshold ends it
	return int64(c.CachedInfo().NumPending), nil
}
