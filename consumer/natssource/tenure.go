package natssource

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"sync/atomic"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/internal/tenures"
	"github.com/epochfence/epochfence/epoch"
)

// tenure is this process's time with one partition, under one lease.
type tenure struct {
	streamPartition
	*tenures.State
	tenures.Position
	s           *Source
	log         *streamLog
	incarnation incarnation // of the stream
	origin      epoch.Origin
	lease       *heldKey
	under       *registration
	writing     chan struct{} // holds a token while the position is being published
	lag         int64         // the last published lag
	verifying   atomic.Bool
}

var _ consumer.Tenure = (*tenure)(nil)

func (s *Source) newTenure(p streamPartition, log *streamLog, l *heldKey, under *registration) *tenure {
	t := &tenure{
		streamPartition: p, State: tenures.NewState(under.held, nil), s: s, log: log, incarnation: log.incarnation(), lease: l, under: under,
		writing: make(chan struct{}, 1),
	}
	t.origin = t.originOf(p.number)
	return t
}

func (t *tenure) originOf(n int32) epoch.Origin {
	return epoch.Origin{
		Partition: epoch.Partition{Group: t.s.Group, Topic: t.stream, Number: n},
		Log:       t.log.logID(t.incarnation, n),
		Source:    t.s.bucket.source(),
	}
}

// Origin implements [consumer.Tenure].
func (t *tenure) Origin() epoch.Origin { return t.origin }

// Term implements [consumer.Tenure].
func (t *tenure) Term() time.Duration { return term(t.s.LeaseTTL) }

// Starts implements [consumer.Tenure].
func (t *tenure) Starts(ctx context.Context, policy consumer.StartPolicy) ([]epoch.Start, error) {
	return t.log.starts(ctx, t.incarnation, t.originOf, policy)
}

// Read implements [consumer.Tenure].
func (t *tenure) Read(ctx context.Context, from epoch.Fence) iter.Seq2[consumer.Batch, error] {
	return t.State.Read(ctx, func(ctx context.Context, yield func(consumer.Batch) bool) error {
		if err := t.fits(&from); err != nil {
			return err
		}
		for batch, err := range t.log.read(ctx, t.incarnation, t.origin.Partition, &from) {
			if err != nil || !yield(batch) {
				return err
			}
		}
		return nil
	})
}

func (t *tenure) fits(from *epoch.Fence) error {
	if err := from.Check(t.origin); err != nil {
		return fmt.Errorf("natssource: read: %w", err)
	}
	return nil
}

// drain revokes the partition. The tenure is lost if it takes longer than Term to end.
func (t *tenure) drain() {
	t.RevokeWithin(t.Term(), func() {
		t.s.log.Error("the partition was not given back in time; its transaction is cancelled", "stream", t.stream, "partition", t.number)
	})
}

func (t *tenure) err() error {
	_ = t.under.err() // it may end the registration, and the tenure with it
	return t.State.Err()
}

func (t *tenure) value() []byte { return t.s.newRecord(t.under.id, t.lease.nonce).json() }

func (t *tenure) renew(ctx context.Context) (revision, error) {
	rev, err := t.lease.renew(ctx, t.value)
	if errors.Is(err, consumer.ErrLost) {
		t.Lose(err)
		t.s.view.refresh() // the bucket itself may be another one
	}
	return rev, err
}

// verify renews the lease because the view has something else in its key.
func (t *tenure) verify(ctx context.Context) {
	defer t.verifying.Store(false)
	ctx, cancel := context.WithTimeout(ctx, t.s.LeaseTTL/3)
	defer cancel()
	rev, err := t.renew(ctx)
	switch {
	case err == nil:
		t.s.bucket.troubles.Well(t.String())
		t.s.view.learn(t.streamPartition, entry{rev: rev, live: true, value: t.value()})
	case !errors.Is(err, consumer.ErrLost):
		t.s.bucket.trouble(t.String(), "it is not known whether the lease is ours, asking again", err, "stream", t.stream, "partition", t.number)
	}
}
