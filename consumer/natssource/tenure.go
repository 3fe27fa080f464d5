package natssource

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/internal/tenures"
	"github.com/epochfence/epochfence/epoch"
)

// tenure is one time with one partition, under one lease.
type tenure struct {
	streamPartition
	*tenures.State
	tenures.Position
	s           *Source
	log         *streamLog
	incarnation incarnation // of the stream
	origin      epoch.Origin
	lease       *lease
	writing     chan struct{} // holds a token while the position is being published
}

var _ consumer.Tenure = (*tenure)(nil)

func (s *Source) newTenure(p streamPartition, log *streamLog, l *lease) *tenure {
	t := &tenure{
		streamPartition: p, State: tenures.NewState(s.base, nil), s: s, log: log, incarnation: log.incarnation(), lease: l,
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
		if err := from.Check(t.origin); err != nil {
			return fmt.Errorf("natssource: read: %w", err)
		}
		for batch, err := range t.log.read(ctx, t.incarnation, t.origin.Partition, from) {
			if err != nil || !yield(batch) {
				return err
			}
		}
		return nil
	})
}

// drain revokes the partition. A drain that takes longer than the term costs the
// tenure.
func (t *tenure) drain() {
	t.RevokeWithin(t.Term(), func() {
		t.s.log.Error("the partition was not given back in time; its transaction is cancelled", "stream", t.stream, "partition", t.number)
	})
}

// err returns why the tenure no longer holds, or nil. It does not wait for a
// timer to notice that the lease ran out: a process that was stopped finds the
// timer due, and may get here first.
func (t *tenure) err() error {
	if t.Lost() == nil && t.lease.left() <= 0 {
		t.Lose(errRanOut)
	}
	return t.State.Err()
}

// record is what the lease's key is to hold now.
func (t *tenure) record() []byte {
	r := t.s.newRecord(t.lease.nonce)
	if at, known := t.Newest(); known {
		r.Epoch, r.Next = at.Epoch, at.Next
	}
	r.Lag = t.log.lag(t.number)
	return r.json()
}
