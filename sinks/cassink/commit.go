package cassink

import (
	"context"
	"errors"
	"fmt"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/guard"
)

// Commit implements [epoch.Sink]. It runs calls, writes the items that they have changed, and then the
// position.
func (s *Sink) Commit(ctx context.Context, as []epoch.Advance, calls ...func(ctx context.Context, tx *Tx) error) error {
	if len(as) == 0 {
		return errors.New("cassink: commit: no partition to advance")
	}
	for _, a := range as[1:] {
		if a.Partition == as[0].Partition {
			return fmt.Errorf("cassink: commit: %s is given twice; want one advance for each partition", a.Partition)
		}
	}
	if len(as) > 1 {
		return fmt.Errorf("cassink: commit %s and %d more: a transaction has one partition: %w", as[0].Partition, len(as)-1, epoch.ErrTooLarge)
	}
	if err := s.commit(ctx, as[0], calls); err != nil {
		return fmt.Errorf("cassink: commit %s: %w", as[0].Partition, err)
	}
	return nil
}

func (s *Sink) commit(ctx context.Context, a epoch.Advance, calls []func(context.Context, *Tx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	at, err := s.ours(ctx, a.Partition, a.Claim)
	if err != nil {
		return lost(err)
	}
	if _, err := at.record.Advanced(a); err != nil {
		s.forget(a.Partition)
		if at, err = s.fence(ctx, a.Partition); err != nil {
			return lost(err)
		}
		if _, err := at.record.Advanced(a); err != nil {
			return err
		}
	}
	stillOurs := s.looks(ctx, a)
	t := s.begin(at.record, a)
	stop := epoch.AfterAbandoned(ctx, t.abandon)
	defer stop()
	err = t.callAll(ctx, calls)
	passed, failed := t.failed()
	switch {
	case !stop():
		return epoch.Abandoned(err)
	case err != nil && failed == nil && passed == nil: // the handler's
		return err
	case ctx.Err() != nil:
		return ctx.Err()
	}
	if err := <-stillOurs; err != nil {
		s.forget(a.Partition)
		return err
	}
	switch {
	case failed != nil:
		return &epoch.CallError{Call: t.calling, Err: s.explain(ctx, a, failed)}
	case err != nil:
		return s.moves(ctx, at, a, passed.Position)
	}
	if err := t.write(ctx); err != nil {
		return s.explain(ctx, a, err)
	}
	err = t.addLetters(ctx)
	if err == nil {
		err = s.advance(ctx, at, a, t)
	}
	if err != nil && !errors.Is(err, epoch.ErrInDoubt) {
		t.dropLetters(ctx)
	}
	return err
}

// looks reads the fence while the handlers run, so that a process that has lost it meanwhile writes
// nothing. One that loses it later is stopped by the items.
func (s *Sink) looks(ctx context.Context, a epoch.Advance) <-chan error {
	found := make(chan error, 1)
	go func() {
		at, err := s.fence(ctx, a.Partition)
		if err == nil {
			_, err = at.record.Advanced(a)
		} else {
			err = lost(err)
		}
		found <- err
	}()
	return found
}

// advance moves the position, in one write with the dead letters.
func (s *Sink) advance(ctx context.Context, at item, a epoch.Advance, t *transaction) error {
	for {
		next, err := at.record.Advanced(a)
		if err != nil {
			return err
		}
		r := at.record
		r.Fence, r.AdvancedAt = next, now()
		if a.To == a.From {
			r.AdvancedAt = at.record.AdvancedAt
		}
		r.add(t.letters)
		after, err := s.swap(ctx, at.stored, r)
		if err == nil {
			s.hold(after)
			s.moveOut(ctx, after)
			return s.finishReplay(ctx, t)
		}
		s.forget(a.Partition)
		if !errors.Is(err, cas.ErrConflict) {
			return err
		}
		stored := at.stored
		if at, err = s.newer(ctx, a.Partition, stored); err != nil {
			return lost(err)
		}
	}
}

// moves sets the position behind messages that were applied completely, as an item says, and that the
// fence does not know: it was restored from a backup. None of this transaction is written.
func (s *Sink) moves(ctx context.Context, at item, a epoch.Advance, to epoch.Offset) error {
	a.To, a.Mark = to, epoch.NoMark
	if err := s.advance(ctx, at, a, s.begin(at.record, a)); err != nil {
		return err
	}
	return &epoch.MovedError{Partition: a.Partition, From: a.From, Next: to}
}

// explain returns the error of a transaction whose items were not all written.
func (s *Sink) explain(ctx context.Context, a epoch.Advance, err error) error {
	switch {
	case errors.Is(err, guard.ErrStale):
		at, again := s.newest(ctx, a.Partition)
		s.forget(a.Partition)
		if again != nil {
			return lost(fmt.Errorf("%w, after: %v", again, err)) //nolint:errorlint // a refusal that was not looked into
		}
		if err := at.record.Holds(epoch.Hold{Partition: a.Partition, Claim: a.Claim}); err != nil {
			return err
		}
		return err // consumers find an epoch.LowEpochError in it
	case errors.Is(err, guard.ErrFenceLost), errors.Is(err, guard.ErrOtherLog), errors.Is(err, guard.ErrTruncated):
		return fmt.Errorf("%w: %w: decide where the partition continues, and set its position with epochfence rewind", epoch.ErrUnhealthy, err)
	case errors.Is(err, guard.ErrOutcomeChanged):
		return fmt.Errorf("%w: %w", epoch.ErrTransient, err)
	}
	return err
}

// lost is the error of a read that a commit needs. A store out of reach is no message's fault.
func lost(err error) error {
	if errors.Is(err, epoch.ErrMissing) || errors.Is(err, epoch.ErrInDoubt) {
		return err
	}
	return fmt.Errorf("%w: %w", epoch.ErrInDoubt, err)
}
