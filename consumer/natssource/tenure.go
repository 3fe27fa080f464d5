package natssource

import (
	"context"
	"fmt"
	"iter"
	"sync"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/internal/leased"
	"github.com/epochfence/epochfence/consumer/internal/tenures"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/lease"
)

// This file has what package consumer sees of a partition. consumer/internal/leased ends a tenure
// with its lease.

// tenure is this process's time with one partition, under one lease.
type tenure struct {
	*leased.Tenure
	tenures.Position
	s           *Source
	log         *streamLog
	incarnation incarnation   // of the stream
	writing     chan struct{} // holds a token while the position is being published
	published   published
	publishing  sync.WaitGroup // after confirmations
}

var _ consumer.Tenure = (*tenure)(nil)

func (s *Source) newTenure(log *streamLog, l *lease.Held) *tenure {
	t := &tenure{s: s, log: log, incarnation: log.incarnation(), writing: make(chan struct{}, 1)}
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
		select {
		case t.writing <- struct{}{}: // who writes the key learns as well, and says what is wrong with it
			_ = t.learn(ctx, seen) // or the next who writes it
			<-t.writing
		case <-ctx.Done():
		}
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
