package bench

import (
	"context"
	"iter"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
)

// feed is a source that costs next to nothing: one partition, read from a
// channel.
type feed struct {
	origin  epoch.Origin
	batches chan consumer.Batch
	drain   chan struct{}
}

func (f *feed) Run(ctx context.Context, _ func(error), own func(context.Context, consumer.Tenure)) error {
	stop := context.AfterFunc(ctx, func() { close(f.drain) })
	defer stop()
	own(context.WithoutCancel(ctx), f)
	return nil
}

func (f *feed) Origin() epoch.Origin      { return f.origin }
func (f *feed) Term() time.Duration       { return time.Minute }
func (f *feed) Draining() <-chan struct{} { return f.drain }
func (f *feed) Mirror(epoch.Fence)        {}

func (f *feed) Starts(context.Context, consumer.StartPolicy) ([]epoch.Start, error) {
	return []epoch.Start{{Origin: f.origin}}, nil
}

func (f *feed) Committed(context.Context) (epoch.Position, bool, error) {
	return epoch.Position{}, false, nil
}

func (f *feed) Confirm(context.Context, epoch.Fence) (epoch.Lease, error) {
	return epoch.Lease{Origin: f.origin, Generation: 1, Owner: "bench"}, nil
}

func (f *feed) Read(ctx context.Context, _ epoch.Fence) iter.Seq2[consumer.Batch, error] {
	return func(yield func(consumer.Batch, error) bool) {
		for {
			select {
			case b := <-f.batches:
				if !yield(b, nil) {
					return
				}
			case <-f.drain:
				return
			case <-ctx.Done():
				return
			}
		}
	}
}
