package cassink

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"golang.org/x/sync/errgroup"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/guard"
	"github.com/epochfence/epochfence/epoch"
)

// This file opens the sink and reads fences. It decides which errors of a store leave an outcome
// unknown.

// Options configure a [Sink]. The zero Options are valid.
type Options struct {
	// Prefix begins the keys of the sink's own items: fences, dead letters, the audit log. The keys
	// that handlers change must not begin with it and a slash. Two sinks of one prefix and store
	// are one sink. Set it to keep several sinks in one store apart. Defaults to "epochfence".
	Prefix string

	// Observe, if set, is called with a [guard.Event] for each decided change of an item: during
	// [Tx.Update] if the item has the change already, or refuses it, and otherwise after the items
	// of the transaction were written and before the position is. The transaction waits for
	// Observe, so it must return soon. It must not panic. Calls may overlap.
	// [guard.Message.Observe] lists what is not decided. Set it for a log of changed items.
	Observe func(guard.Event)
}

// Sink is an [epoch.Sink] over a [cas.Store]. It is safe for concurrent use.
type Sink struct {
	store cas.Store
	keys  keys
	facts cas.Facts

	observe func(guard.Event) // or nil

	mu   sync.Mutex
	held map[epoch.Partition]item   // what this process has claimed, as it has written it last
	seen map[epoch.Partition]record // of which the fence and LastEntry are set

	mostRiding int // the constant, or less in tests

	turns    map[epoch.Partition]chan struct{} // of the writes of each fence
	outboxes map[epoch.Partition]*entryCache
}

// The suite skips the histories of interfaces that a sink lacks, so the compiler checks them here.
var (
	_ epoch.Sink[*Tx]    = (*Sink)(nil)
	_ epoch.Looker       = (*Sink)(nil)
	_ epoch.Bounded      = (*Sink)(nil)
	_ epoch.Holding[*Tx] = (*Sink)(nil)
)

// Open returns a sink. It returns [cas.ErrUnsuitable] if the store's settings lose items.
func Open(ctx context.Context, store cas.Store, o Options) (*Sink, error) {
	facts, err := store.Facts(ctx)
	if err != nil {
		return nil, fmt.Errorf("cassink: open: %w", err)
	}
	if o.Prefix == "" {
		o.Prefix = "epochfence"
	}
	return &Sink{
		store: store, keys: keys{o.Prefix}, facts: facts, observe: o.Observe, mostRiding: mostRiding,
		held: map[epoch.Partition]item{}, seen: map[epoch.Partition]record{},
		turns: map[epoch.Partition]chan struct{}{}, outboxes: map[epoch.Partition]*entryCache{},
	}, nil
}

// Guarantee returns [epoch.PerItem].
func (s *Sink) Guarantee() epoch.Guarantee { return epoch.PerItem }

// Bounds implements [epoch.Bounded]. A transaction has one partition.
func (s *Sink) Bounds() epoch.Bounds { return epoch.Bounds{Partitions: 1} }

// Fence implements [epoch.Sink].
func (s *Sink) Fence(ctx context.Context, p epoch.Partition) (epoch.Fence, error) {
	at, err := s.fence(ctx, p)
	if err != nil {
		return epoch.Fence{}, fmt.Errorf("cassink: read fence %s: %w", p, err)
	}
	return at.record.Fence, nil
}

// Look implements [epoch.Looker].
func (s *Sink) Look(ctx context.Context, ps []epoch.Partition) (epoch.Fences, error) {
	var mu sync.Mutex
	found := epoch.Fences{}
	var readers errgroup.Group
	readers.SetLimit(sideBySide)
	for _, p := range ps {
		readers.Go(func() error {
			at, err := s.fence(ctx, p)
			if errors.Is(err, epoch.ErrMissing) {
				return nil
			}
			mu.Lock()
			defer mu.Unlock()
			found[p] = at.record.Fence
			return err
		})
	}
	if err := readers.Wait(); err != nil {
		return nil, fmt.Errorf("cassink: look at %d fences: %w", len(ps), err)
	}
	return found, nil
}

// sideBySide limits requests that are sent beside each other.
const sideBySide = 16

// doubtful returns err as one whose outcome is not known, unless the store reports that nothing was done.
func doubtful(err error) error {
	switch {
	case errors.Is(err, cas.ErrFull):
		return fmt.Errorf("%w: %w", epoch.ErrUnhealthy, err)
	case errors.Is(err, cas.ErrTooLarge):
		return fmt.Errorf("%w: %w", epoch.ErrTooLarge, err)
	case errors.Is(err, cas.ErrKey), errors.Is(err, cas.ErrForeign), errors.Is(err, cas.ErrConflict):
		return err
	}
	return fmt.Errorf("%w: %w", epoch.ErrInDoubt, err)
}
