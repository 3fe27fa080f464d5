package kafkasource

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
)

// This file passes the batches of a feed to package consumer, and decides what a read does if
// retention has passed the position: it continues above only if nothing was applied yet (R9).

var errBadPosition = errors.New("the fence's position is negative")

// Read implements [consumer.Tenure]. Keys, values and headers are slices of the broker's response,
// and nobody writes to them. The slice of messages is reused for the next batch.
func (t *tenure) Read(ctx context.Context, from epoch.Fence) iter.Seq2[consumer.Batch, error] {
	return t.State.Read(ctx, func(ctx context.Context, yield func(consumer.Batch) bool) error {
		return t.read(ctx, from, yield)
	})
}

func (t *tenure) read(ctx context.Context, from epoch.Fence, yield func(consumer.Batch) bool) error {
	if err := t.check(from); err != nil {
		return err
	}
	for {
		err := t.readFrom(ctx, from, yield)
		var misfit *consumer.PositionError
		if from.Applied || !errors.As(err, &misfit) || !errors.Is(err, consumer.ErrOffsetExpired) || misfit.Position != from.Next {
			return err
		}
		from.Next, from.Mark = misfit.Found, epoch.NoMark // nothing was applied yet, so nothing is lost
	}
}

func (t *tenure) readFrom(ctx context.Context, from epoch.Fence, yield func(consumer.Batch) bool) error {
	f := newFeed(t.topicPartition, t.topicID(), from)
	f.recycle = t.s.set.recycle
	t.s.fetcher.order(open, f)
	defer t.s.fetcher.order(shut, f)
	for ctx.Err() == nil {
		batch, err, freed := f.take(t.s.fetcher.share() / 2)
		if freed {
			t.s.fetcher.order(resume, f)
		}
		t.s.fetcher.taken()
		switch {
		case batch != nil:
			if !yield(*batch) {
				return nil
			}
		case err != nil:
			return t.explain(ctx, f, from, err)
		default:
			select {
			case <-f.ready:
			case <-ctx.Done():
			}
		}
	}
	return nil
}

func (t *tenure) check(from epoch.Fence) error {
	if err := from.Check(t.Origin()); err != nil {
		return fmt.Errorf("kafkasource: read: %w", err)
	}
	if from.Next < 0 {
		return fmt.Errorf("kafkasource: read %s at offset %d: %w", from.Partition, from.Next, errBadPosition)
	}
	return nil
}
