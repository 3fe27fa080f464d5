package kafkasource

import (
	"context"
	"errors"
	"fmt"
	"iter"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
)

var (
	errReading     = errors.New("kafkasource: one Read of a tenure at a time")
	errBadPosition = errors.New("the fence's position is negative")
)

// Read implements [consumer.Tenure]. Keys, values and headers are not copied:
// they are slices of what the broker sent, and nobody writes to them.
func (t *tenure) Read(ctx context.Context, from epoch.Fence) iter.Seq2[consumer.Batch, error] {
	return func(yield func(consumer.Batch, error) bool) {
		if !t.reading.CompareAndSwap(false, true) {
			yield(consumer.Batch{}, errReading)
			return
		}
		defer t.reading.Store(false)
		if err := t.read(ctx, from, yield); err != nil && t.reads(ctx) {
			yield(consumer.Batch{}, err)
		}
	}
}

// reads reports whether there is anyone left to read for.
func (t *tenure) reads(ctx context.Context) bool {
	return ctx.Err() == nil && t.ctx.Err() == nil && !t.isDraining()
}

func (t *tenure) read(ctx context.Context, from epoch.Fence, yield func(consumer.Batch, error) bool) error {
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

// readFrom reads with one feed, until it has something to say.
func (t *tenure) readFrom(ctx context.Context, from epoch.Fence, yield func(consumer.Batch, error) bool) error {
	f := newFeed(t.place, t.topicID(), from)
	t.mu.Lock()
	t.feed = f
	t.mu.Unlock()
	t.s.fetcher.order(open, f)
	defer t.s.fetcher.order(shut, f)
	for t.reads(ctx) {
		share := t.s.fetcher.share()
		batch, err, room := f.take(share/4, share/4)
		if room {
			t.s.fetcher.order(resume, f)
		}
		switch {
		case batch != nil:
			if !yield(*batch, nil) {
				return nil
			}
		case err != nil:
			return t.explain(ctx, f, from, err)
		default:
			select {
			case <-f.ready:
			case <-t.draining:
			case <-t.ctx.Done():
			case <-ctx.Done():
			}
		}
	}
	return nil
}

// check refuses a position that this log cannot have.
func (t *tenure) check(from epoch.Fence) error {
	if err := from.Check(t.Origin()); err != nil {
		return fmt.Errorf("kafkasource: read: %w", err)
	}
	if from.Next < 0 {
		return fmt.Errorf("kafkasource: read %s at offset %d: %w", from.Partition, from.Next, errBadPosition)
	}
	return nil
}
