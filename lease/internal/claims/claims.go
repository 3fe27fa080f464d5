// Package claims holds a lease that another library takes and gives back, and its claims: one for each
// sink that work under the lease commits to.
package claims

import (
	"context"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/lease"
)

// Lease is a lease with its claims. It is safe for concurrent use.
type Lease struct {
	*lease.Held
	sem    chan struct{} // has an element while nobody claims; it guards claims
	claims []any         // a claim[TX] for each sink
}

// New returns a lease without claims.
func New(h *lease.Held) *Lease {
	l := &Lease{Held: h, sem: make(chan struct{}, 1)}
	l.sem <- struct{}{}
	return l
}

type claim[TX any] struct {
	sink epoch.Sink[TX]
	*lease.Claimed[TX]
}

// Do runs work in a transaction under the claim of the lease in the sink, as [lease.Claimed.Do] does.
// The first call claims.
func Do[TX any](ctx context.Context, l *Lease, sink epoch.Sink[TX], work lease.Work[TX]) error {
	c, err := claimOf(ctx, l, sink)
	if err != nil {
		return err
	}
	return c.Do(ctx, work)
}

func claimOf[TX any](ctx context.Context, l *Lease, sink epoch.Sink[TX]) (*lease.Claimed[TX], error) {
	select {
	case <-l.sem:
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	defer func() { l.sem <- struct{}{} }()
	for _, c := range l.claims {
		if c, ok := c.(claim[TX]); ok && c.sink == sink {
			return c.Claimed, nil
		}
	}
	c, err := lease.Claim(ctx, l.Held, sink)
	if err != nil {
		return nil, err
	}
	l.claims = append(l.claims, claim[TX]{sink, c})
	return c, nil
}

// ReleaseAfter releases the lease after d, and sooner if it ends or is to be given back.
func (l *Lease) ReleaseAfter(d time.Duration) {
	go func() {
		timer := time.NewTimer(d)
		defer timer.Stop()
		select {
		case <-timer.C:
		case <-l.Context().Done():
		case <-l.Draining():
		}
		_ = l.Release(context.Background()) // else it expires; the member's log says so
	}()
}
