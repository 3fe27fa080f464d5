package cassink

import (
	"context"
	"errors"
	"fmt"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/guard"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/form"
)

// This file decides the order of a transaction: handlers, items, dead letters and entries, and last
// the fence, by which the others exist. The transactions of one process write a fence one after
// another. Package guard decides about each item.

// Commit implements [epoch.Sink]. It runs calls, writes the items that they have changed, and then the
// position.
func (s *Sink) Commit(ctx context.Context, as []epoch.Advance, o epoch.TxOptions, calls ...func(ctx context.Context, tx *Tx) error) error {
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
	if err := s.commit(ctx, goal{Advance: as[0]}, o, calls); err != nil {
		return fmt.Errorf("cassink: commit %s: %w", as[0].Partition, err)
	}
	return nil
}

// CommitHeld implements [epoch.Holding]. The transaction has no message, so it changes items of the store
// only for an entry of the outbox: see [Tx.Update].
func (s *Sink) CommitHeld(ctx context.Context, h epoch.Hold, o epoch.TxOptions, apply func(ctx context.Context, tx *Tx) error) error {
	g := goal{Advance: epoch.Advance{Partition: h.Partition, Claim: h.Claim, Mark: epoch.NoMark}, held: true}
	if err := s.commit(ctx, g, o, []func(context.Context, *Tx) error{apply}); err != nil {
		return fmt.Errorf("cassink: commit under the claim of %s: %w", h.Partition, err)
	}
	return nil
}

// goal is what a transaction asks of the fence.
type goal struct {
	epoch.Advance
	held bool // under the claim, wherever the position is
}

// after returns the fence after the transaction, or the error of one that does not fit.
func (g goal) after(f epoch.Fence) (epoch.Fence, error) {
	if g.held {
		return f, f.Holds(epoch.Hold{Partition: g.Partition, Claim: g.Claim})
	}
	return f.Advanced(g.Advance)
}

func (s *Sink) commit(ctx context.Context, g goal, o epoch.TxOptions, calls []func(context.Context, *Tx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	at, err := s.fits(ctx, g)
	if err != nil {
		return err
	}
	if g.held {
		g.From, g.To = at.record.Next, at.record.Next
	}
	l, items := s.looks(ctx, at)
	t := s.begin(ctx, at, g, items)
	defer t.close()
	if err := s.apply(ctx, at, t, o, calls, l); err != nil {
		t.dropEntries(ctx)
		return err
	}
	return s.finish(ctx, t)
}

// apply runs the calls, and writes the items that they have changed.
func (s *Sink) apply(ctx context.Context, at item, t *transaction, o epoch.TxOptions, calls []func(context.Context, *Tx) error, l *look) error {
	g := t.goal
	stop := o.AfterAbandoned(t.abandon)
	defer stop()
	err := t.callAll(ctx, calls)
	passed, failed := t.failed()
	switch {
	case !stop():
		return epoch.Abandoned(err)
	case err != nil && failed == nil && passed == nil: // the handler's
		return err
	case ctx.Err() != nil:
		return ctx.Err()
	}
	if err := l.stillOurs(ctx, g); err != nil {
		s.forget(g.Partition)
		return err
	}
	switch {
	case failed != nil:
		return &epoch.CallError{Call: t.calling, Err: s.explain(ctx, g, failed)}
	case err != nil:
		t.giveTurn()
		return s.moves(ctx, at, g, passed.Position)
	}
	if err := t.write(ctx); err != nil {
		return s.explain(ctx, g, err)
	}
	return nil
}

// fits returns the fence as this process knows it, or as it is if that does not fit.
func (s *Sink) fits(ctx context.Context, g goal) (item, error) {
	at, err := s.ours(ctx, g.Partition, g.Claim)
	if err != nil {
		return item{}, lost(err)
	}
	if _, err := g.after(at.record.Fence); err == nil {
		return at, nil
	}
	s.forget(g.Partition)
	if at, err = s.ours(ctx, g.Partition, g.Claim); err != nil {
		return item{}, lost(err)
	}
	_, err = g.after(at.record.Fence)
	return at, err
}

// finish writes the dead letters, the entries of the outbox, and then the fence, by which they exist.
func (s *Sink) finish(ctx context.Context, t *transaction) error {
	if t.goal.held && !t.changes() {
		s.tidy(ctx, t)
		return nil
	}
	err := t.addLetters(ctx)
	if err == nil {
		err = t.writeEntries(ctx)
	}
	if err == nil {
		err = s.advance(ctx, t)
	}
	switch {
	case err == nil:
		s.tidy(ctx, t)
		return s.finishReplay(ctx, t)
	case !errors.Is(err, epoch.ErrInDoubt):
		t.dropLetters(ctx)
		t.dropEntries(ctx)
	}
	return err
}

// advance writes the fence, with what has joined or left its lists.
func (s *Sink) advance(ctx context.Context, t *transaction) error {
	p := t.goal.Partition
	if err := t.takeTurn(ctx); err != nil {
		return err
	}
	at, err := s.ours(ctx, p, t.goal.Claim)
	if err != nil {
		return lost(err)
	}
	for {
		next, err := t.goal.after(at.record.Fence)
		if err != nil {
			return err
		}
		if !at.lists.hasAll(t.deleted) {
			return fmt.Errorf("%w: an operator has discarded an outbox entry whose answer this transaction was to record", epoch.ErrTransient)
		}
		r := at.record
		r.Fence = next
		if t.goal.To != t.goal.From {
			r.AdvancedAt = now()
		}
		r.settle(at.kept)
		r.add(t.letters)
		r.changeEntries(t.added, t.deleted)
		r.replayed(t)
		after, err := s.swap(ctx, at.stored, r)
		if err == nil {
			after.kept, after.lists = at.kept, at.lists
			if t.changes() {
				after.lists = at.kept.after(r.riding)
			}
			s.hold(after)
			s.moveOut(ctx, after)
			return nil
		}
		s.forget(p)
		if !errors.Is(err, cas.ErrConflict) {
			return err
		}
		stored := at.stored
		if at, err = s.newer(ctx, p, stored); err == nil {
			at, err = s.whole(ctx, at)
		}
		if err != nil {
			return lost(err)
		}
	}
}

// moves sets the position behind messages that were applied completely, as an item says, and that the
// fence does not know: it was restored from a backup. None of this transaction is written.
func (s *Sink) moves(ctx context.Context, at item, g goal, to epoch.Offset) error {
	g.To, g.Mark = to, epoch.NoMark
	t := s.begin(ctx, at, g, s.store)
	defer t.close()
	if err := s.advance(ctx, t); err != nil {
		return err
	}
	return &epoch.MovedError{Partition: g.Partition, From: g.From, Next: to}
}

// explain returns the error of a transaction whose items were not all written.
func (s *Sink) explain(ctx context.Context, g goal, err error) error {
	switch {
	case errors.Is(err, guard.ErrStale):
		at, again := s.newest(ctx, g.Partition)
		s.forget(g.Partition)
		if again != nil {
			return lost(fmt.Errorf("%w, after: %v", again, err)) //nolint:errorlint // a refusal that was not looked into
		}
		if err := at.record.Holds(epoch.Hold{Partition: g.Partition, Claim: g.Claim}); err != nil {
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
	if errors.Is(err, epoch.ErrMissing) || errors.Is(err, epoch.ErrInDoubt) || errors.Is(err, form.ErrUnreadable) {
		return err
	}
	return fmt.Errorf("%w: %w", epoch.ErrInDoubt, err)
}

// takeTurn waits until no other transaction of this process writes the fence. So entries are committed in
// the order of their ids, and no write is refused because of another one of this process.
func (t *transaction) takeTurn(ctx context.Context) error {
	if t.hasTurn() {
		return nil
	}
	turn := t.sink.turnOf(t.goal.Partition)
	select {
	case turn <- struct{}{}:
	case <-ctx.Done():
		return fmt.Errorf("%w: another transaction of this process writes the fence: %w", epoch.ErrTransient, ctx.Err())
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.abandoned || t.over {
		<-turn
		return errors.Join(epoch.ErrAbandoned, errEnded)
	}
	t.turn = turn
	return nil
}

func (s *Sink) turnOf(p epoch.Partition) chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	turn, ok := s.turns[p]
	if !ok {
		turn = make(chan struct{}, 1)
		s.turns[p] = turn
	}
	return turn
}

func (t *transaction) hasTurn() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.turn != nil
}

// close ends the transaction, for goroutines of its handler, too.
func (t *transaction) close() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.over = true
	t.pass()
}

func (t *transaction) giveTurn() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.pass()
}

// pass lets another transaction write the fence.
func (t *transaction) pass() {
	if t.turn != nil {
		<-t.turn
		t.turn = nil
	}
}
