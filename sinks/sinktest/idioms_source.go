package sinktest

import (
	"context"
	"iter"
	"sync"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
)

// readSource closes read once so many partitions have yielded messages.
type readSource struct {
	consumer.Source
	partitions int
	read       chan struct{}

	mu   sync.Mutex
	seen map[int32]bool
}

func newReadSource(s consumer.Source, partitions int) *readSource {
	return &readSource{Source: s, partitions: partitions, read: make(chan struct{}), seen: map[int32]bool{}}
}

// Run runs the watched source.
func (s *readSource) Run(ctx context.Context, joined func(error), own func(context.Context, consumer.Tenure)) error {
	return s.Source.Run(ctx, joined, func(ctx context.Context, t consumer.Tenure) { own(ctx, &readTenure{t, s}) })
}

func (s *readSource) yields(n int32) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.seen[n] {
		return
	}
	if s.seen[n] = true; len(s.seen) == s.partitions {
		close(s.read)
	}
}

type readTenure struct {
	consumer.Tenure
	source *readSource
}

func (t *readTenure) Read(ctx context.Context, from epoch.Fence) iter.Seq2[consumer.Batch, error] {
	batches := t.Tenure.Read(ctx, from)
	return func(yield func(consumer.Batch, error) bool) {
		batches(func(b consumer.Batch, err error) bool {
			t.source.yields(t.Origin().Partition.Number)
			return yield(b, err)
		})
	}
}
