package natssource

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/internal/tenures"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/lease"
)

// tenure is this process's time with one partition, under one lease.
type tenure struct {
	lease.Resource
	*tenures.State
	tenures.Position
	s           *Source
	log         *streamLog
	incarnation incarnation // of the stream
	origin      epoch.Origin
	lease       *lease.Held
	writing     chan struct{} // holds a token while the position is being published
	published   published
}

var _ consumer.Tenure = (*tenure)(nil)

func (s *Source) newTenure(log *streamLog, l *lease.Held) *tenure {
	t := &tenure{
		Resource: l.Resource, State: tenures.NewState(s.base, nil), s: s, log: log, incarnation: log.incarnation(), lease: l,
		writing: make(chan struct{}, 1),
	}
	t.origin = t.originOf(l.Number)
	return t
}

func (t *tenure) originOf(n int32) epoch.Origin {
	return epoch.Origin{
		Partition: epoch.Partition{Group: t.s.Group, Topic: t.Name, Number: n},
		Log:       t.log.logID(t.incarnation, n),
		Source:    t.s.bucketSource(),
	}
}

// Origin implements [consumer.Tenure].
func (t *tenure) Origin() epoch.Origin { return t.origin }

// Term implements [consumer.Tenure].
func (t *tenure) Term() time.Duration { return t.s.member.Term() }

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

// Confirm implements [consumer.Tenure]. It renews the lease. The bucket's leader accepts that only
// if the key is as our last write left it, so nobody has taken the lease since. Confirm then checks
// the tenure again, because the answer may have arrived after our registration expired on our own
// clock.
func (t *tenure) Confirm(ctx context.Context, seen epoch.Fence) (epoch.Lease, error) {
	generation, err := t.confirm(ctx, seen)
	if over := t.err(); over != nil {
		err = over // whatever the answer was
	}
	if err != nil {
		return epoch.Lease{}, fmt.Errorf("natssource: confirm %s: %w", t.origin.Partition, err)
	}
	return epoch.Lease{Origin: t.origin, Generation: generation, Owner: t.lease.Owner()}, nil
}

func (t *tenure) confirm(ctx context.Context, seen epoch.Fence) (generation int64, err error) {
	if err := t.err(); err != nil {
		return 0, err
	}
	if seen.Partition != t.origin.Partition {
		return 0, fmt.Errorf("the fence is that of %s", seen.Partition)
	}
	if err := seen.Check(t.origin); err != nil {
		return 0, err // its position means nothing here
	}
	t.Mirror(seen)
	t.Claims(seen)
	ctx, cancel := t.UntilLost(ctx)
	defer cancel()
	if generation, err = t.lease.Confirm(ctx); err != nil {
		return 0, err
	}
	t.publish(ctx)
	return generation, nil
}

// err returns why the tenure is over, or nil. It asks the lease, which checks our clock.
func (t *tenure) err() error {
	if err := t.lease.Err(); err != nil {
		t.Lose(reasonOf(err))
	}
	return t.State.Err()
}

// hold runs a tenure for as long as its lease lasts.
func (s *Source) hold(l *lease.Held) {
	log := s.logOf(l.Name)
	t := s.newTenure(log, l)
	s.begin(t)
	defer s.over(t)
	stop := context.AfterFunc(l.Context(), func() { _ = t.err() })
	defer stop()
	go func() {
		select {
		case <-l.Draining():
			t.Revoke()
		case <-t.Over():
		}
	}()
	early := t.run(s.own)
	if until := t.GivenUp(); until != nil {
		l.Decline(until)
	}
	if t.Lost() == nil {
		ctx, cancel := context.WithTimeout(s.base, s.goodbyeLimit())
		t.publish(ctx)
		cancel()
	}
	if !early {
		_ = l.Release(s.base) // which does not decline it; the lease says what has failed
	}
}

// run calls own. It reports whether own returned although the partition was neither lost nor
// revoked.
func (t *tenure) run(own func(context.Context, consumer.Tenure)) (early bool) {
	t.State.Run(func(ctx context.Context) {
		if t.err() == nil {
			own(ctx, t)
		}
	})
	return t.Held()
}

// goodbyeLimit limits each of the last requests.
func (s *Source) goodbyeLimit() time.Duration { return min(2*time.Second, s.LeaseTTL/2) }
