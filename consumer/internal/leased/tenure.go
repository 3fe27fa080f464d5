// Package leased is the common part of the sources that lease their partitions through package
// lease: natssource and schedule.
package leased

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/internal/tenures"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/lease"
)

// Tenure is the part of a [consumer.Tenure] that is about its lease. It lasts as long as the lease.
type Tenure struct {
	lease.Resource
	*tenures.State
	origin epoch.Origin
	term   time.Duration
	lease  *lease.Held
}

// New returns the tenure of a lease that this process has. It is lost when base ends.
func New(base context.Context, l *lease.Held, origin epoch.Origin, term time.Duration) *Tenure {
	return &Tenure{Resource: l.Resource, State: tenures.NewState(base, nil), origin: origin, term: term, lease: l}
}

// Origin implements [consumer.Tenure].
func (t *Tenure) Origin() epoch.Origin { return t.origin }

// Term implements [consumer.Tenure].
func (t *Tenure) Term() time.Duration { return t.term }

// Owner returns the name of this process in the lease.
func (t *Tenure) Owner() string { return t.lease.Owner() }

// Err returns why the tenure is over, or nil. It asks the lease, which checks our clock.
func (t *Tenure) Err() error {
	if err := t.lease.Err(); err != nil {
		t.Lose(ReasonOf(err))
	}
	return t.State.Err()
}

// Fits returns an error unless seen is a fence of this partition, its log and its issuer.
func (t *Tenure) Fits(seen *epoch.Fence) error {
	if seen.Partition != t.origin.Partition {
		return fmt.Errorf("the fence is that of %s", seen.Partition)
	}
	return seen.Check(t.origin)
}

// Confirm renews the lease, which the store accepts only if the lease is as our last write left it,
// so nobody has taken it since. Then it checks the tenure again, because the answer may have arrived
// after our registration expired on our own clock.
func (t *Tenure) Confirm(ctx context.Context, seen *epoch.Fence) (epoch.Lease, error) {
	generation, err := t.confirm(ctx, seen)
	if over := t.Err(); over != nil {
		err = over // whatever the answer was
	}
	if err != nil {
		return epoch.Lease{}, err
	}
	return epoch.Lease{Origin: t.origin, Generation: generation, Owner: t.lease.Owner()}, nil
}

func (t *Tenure) confirm(ctx context.Context, seen *epoch.Fence) (generation int64, err error) {
	if err := t.Err(); err != nil {
		return 0, err
	}
	if err := t.Fits(seen); err != nil {
		return 0, err // its position means nothing here
	}
	ctx, cancel := t.UntilLost(ctx)
	defer cancel()
	return t.lease.Confirm(ctx)
}

// Hold calls own for as long as the lease lasts, and gives the lease back. It calls last before, unless
// the tenure is lost. base limits the release.
func (t *Tenure) Hold(base context.Context, own func(context.Context), last func()) {
	defer t.Lose(tenures.ErrEnded)
	stop := context.AfterFunc(t.lease.Context(), func() { _ = t.Err() })
	defer stop()
	go func() {
		select {
		case <-t.lease.Draining():
			t.Revoke()
		case <-t.Over():
		}
	}()
	t.Run(func(ctx context.Context) {
		if t.Err() == nil {
			own(ctx)
		}
	})
	early := t.Held() // own has returned although the partition is neither lost nor revoked
	if until := t.GivenUp(); until != nil {
		t.lease.Decline(until)
	}
	if last != nil && t.Lost() == nil {
		last()
	}
	if !early {
		_ = t.lease.Release(base) // which does not decline it; the lease says what has failed
	}
}

// ReasonOf adds the consumer's reason to the error with which a lease was lost.
func ReasonOf(err error) error {
	switch {
	case errors.Is(err, lease.ErrExpired):
		return fmt.Errorf("%w: %w", consumer.ErrLeaseExpired, err)
	case errors.Is(err, lease.ErrDrainOverrun):
		return fmt.Errorf("%w: %w", consumer.ErrDrainOverrun, err)
	}
	return err
}

// Membership is the [consumer.Remover] of a source whose members are those of package lease. It is ready
// before the process has joined the group.
type Membership struct {
	Ready  func(context.Context) error // of [consumer.Rejoiner], for [lease.Options]
	joined atomic.Pointer[lease.Member]
}

// Join notes that this process has joined the group.
func (p *Membership) Join(m *lease.Member) { p.joined.Store(m) }

// Member implements [consumer.Remover]. A process that restarts registers under another id: it keeps nothing.
func (p *Membership) Member() (id string, session time.Duration, static bool) {
	m := p.joined.Load()
	if m == nil {
		return "", 0, false
	}
	return m.Registration(), m.TTL, false
}

// Remove implements [consumer.Remover]. Who may be a member may also write the registrations of others.
func (p *Membership) Remove(ctx context.Context, member, reason string) error {
	m := p.joined.Load()
	if m == nil {
		return errors.New("this process has not joined the group yet")
	}
	return m.End(ctx, member, reason)
}
