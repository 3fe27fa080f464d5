package natssource

import (
	"context"
	"errors"
	"sync/atomic"

	"github.com/epochfence/epochfence/consumer"
)

// Source is a [consumer.Source] that leases partitions through a key-value
// bucket and reads them from JetStream. Make one with [New]. It is good for one
// Run.
type Source struct {
	Options
	started atomic.Bool
}

var _ consumer.Source = (*Source)(nil)

// New checks the options and returns a source that has not done anything yet.
func New(o Options) (*Source, error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	return &Source{Options: o}, nil
}

// Run implements [consumer.Source].
func (s *Source) Run(ctx context.Context, own func(context.Context, consumer.Tenure)) error {
	if s.started.Swap(true) {
		return errors.New("natssource: Run was called before; make a new Source")
	}
	return errors.New("natssource: not written yet")
}
