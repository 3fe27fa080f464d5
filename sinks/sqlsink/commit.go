package sqlsink

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"slices"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/sql/sqltx"
)

// This file runs the calls in one transaction, and checks and moves the fences at its end. tx.go
// decides what each call has done.

// Commit runs calls in a transaction, then moves the fences and commits. See
// [epoch.Sink].
//
// The transaction begins when a call first uses its [Tx]. From then on no other process can write
// to the database. If no call uses its Tx, the transaction begins at the fence.
func (s *Sink) Commit(ctx context.Context, as []epoch.Advance, o epoch.TxOptions, calls ...func(ctx context.Context, tx *Tx) error) error {
	if len(as) == 0 {
		return errors.New("sqlsink: commit: no partition to advance, so no fence to commit under")
	}
	// Key order: see rule R4 and [epoch.Partition.Compare].
	as = slices.SortedStableFunc(slices.Values(as), func(a, b epoch.Advance) int { return a.Partition.Compare(b.Partition) })
	for i := 1; i < len(as); i++ {
		if as[i].Partition == as[i-1].Partition {
			return fmt.Errorf("sqlsink: commit: %s is given twice; want one advance for each partition", as[i].Partition)
		}
	}
	for _, a := range as {
		if a.To < a.From {
			return fmt.Errorf("sqlsink: commit: advance %s from %d back to %d", a.Partition, a.From, a.To)
		}
	}
	err := s.transact(ctx, as, o, calls, func(ctx context.Context, t *sqltx.Tx) error { return s.advanceAll(ctx, t, as) })
	if err = s.explain(err); err != nil {
		if len(as) == 1 {
			return fmt.Errorf("sqlsink: commit %s: %w", as[0].Partition, err)
		}
		return fmt.Errorf("sqlsink: commit %s and %d more: %w", as[0].Partition, len(as)-1, err)
	}
	return nil
}

// CommitHeld runs apply in a transaction, then checks that the fence has the claim of h, and
// commits. See [epoch.Holding]. Like [Sink.Commit], it excludes other writers.
func (s *Sink) CommitHeld(ctx context.Context, h epoch.Hold, o epoch.TxOptions, apply func(ctx context.Context, tx *Tx) error) error {
	err := s.transact(ctx, nil, o, []func(context.Context, *Tx) error{apply}, func(ctx context.Context, t *sqltx.Tx) error { return s.hold(ctx, t, h) })
	if err = s.explain(err); err != nil {
		return fmt.Errorf("sqlsink: commit %s under its claim: %w", h.Partition, err)
	}
	return nil
}

// transact runs calls in a transaction, then fenced, which checks the fences and moves those of as.
// Then it commits.
func (s *Sink) transact(ctx context.Context, as []epoch.Advance, o epoch.TxOptions, calls []func(context.Context, *Tx) error,
	fenced func(context.Context, *sqltx.Tx) error) (err error) {
	if err := ctx.Err(); err != nil {
		return err
	}
	shared := s.newShared(ctx, as, len(calls))
	defer func() { err = shared.end(err) }() // also when a call panics: rolls back whatever is open
	if err := shared.runAll(ctx, o, calls); err != nil {
		return err
	}
	t := shared.guard.Tx()
	if t == nil { // no call has used its Tx
		if t, err = s.transactions.Begin(ctx); err != nil {
			return shared.doubt(err)
		}
		defer t.End()
	} else if err := shared.prove(t); err != nil {
		return shared.doubt(err)
	}
	// From here on nothing waits. The context is checked once more, right before COMMIT.
	if err := fenced(context.WithoutCancel(ctx), t); err != nil {
		if own := shared.ownSetting(err); own != nil {
			return &epoch.CallError{Call: 0, Err: own}
		}
		return shared.doubt(err)
	}
	return t.Commit(ctx)
}

// hold checks that the fence has the claim of h, and excludes other claims until the commit.
func (s *Sink) hold(ctx context.Context, t *sqltx.Tx, h epoch.Hold) error {
	f, err := s.read(ctx, t.Conn, s.q.fence+s.d.forUpdate(), h.Partition)
	if err != nil {
		return err
	}
	return f.Holds(h)
}

func (s *Sink) advanceAll(ctx context.Context, t *sqltx.Tx, as []epoch.Advance) error {
	if len(as) == 1 {
		return s.advance(ctx, t, as[0], func(args ...any) (sql.Result, error) {
			return t.Conn.ExecContext(ctx, s.q.advance, args...)
		})
	}
	stmt, err := t.Conn.PrepareContext(ctx, s.q.advance)
	if err != nil {
		return err
	}
	defer func() { _ = stmt.Close() }()
	for _, a := range as {
		err := s.advance(ctx, t, a, func(args ...any) (sql.Result, error) { return stmt.ExecContext(ctx, args...) })
		if err != nil {
			return err
		}
	}
	return nil
}

// advance moves one fence. Rule R3: a refusal is an error, so that no COMMIT follows.
func (s *Sink) advance(ctx context.Context, t *sqltx.Tx, a epoch.Advance, update func(args ...any) (sql.Result, error)) error {
	if a.Claim != (epoch.ClaimID{}) { // which an unclaimed fence has
		r, err := update(int64(a.To), int64(a.Mark), int64(a.To), int64(a.To),
			a.Partition.Group, a.Partition.Topic, a.Partition.Number, a.Claim[:], int64(a.From))
		if err = oneRow(r, err); !errors.Is(err, errNoRow) {
			return err
		}
	}
	f, err := s.read(ctx, t.Conn, s.q.fence+s.d.forUpdate(), a.Partition)
	if err != nil {
		return err
	}
	if _, err := f.Advanced(a); err != nil {
		return err
	}
	return fmt.Errorf("advance %s: %w", a.Partition, errNoRow)
}
