package operate

import (
	"context"
	"errors"
	"fmt"

	"github.com/epochfence/epochfence/epoch"
)

// This file is the operators' side of a sink, over its rows and one operation on a fence. operator.go
// has which actions on a dead letter are possible, act.go those on a fence, and outbox.go those on the outbox.

// On returns an operator of a sink.
func On(a Admin) Operator { return operator{a} }

type operator struct{ admin Admin }

// Partitions implements [Operator].
func (o operator) Partitions(ctx context.Context, f Filter) ([]Partition, error) {
	found, err := o.admin.Partitions(ctx, f, nil)
	if err != nil {
		return nil, fmt.Errorf("operate: list fences: %w", err)
	}
	return found, nil
}

// Partition implements [Operator].
func (o operator) Partition(ctx context.Context, p epoch.Partition) (Partition, error) {
	found, err := o.admin.Partitions(ctx, Filter{}, &p)
	if err == nil && len(found) == 0 {
		err = &epoch.MissingError{Partition: p}
	}
	if err != nil {
		return Partition{}, fmt.Errorf("operate: read fence %s: %w", p, err)
	}
	return found[0], nil
}

// Act implements [Operator].
func (o operator) Act(ctx context.Context, a Act) (epoch.Fence, error) {
	f, err := o.admin.Act(ctx, a)
	if err != nil {
		return epoch.Fence{}, fmt.Errorf("operate: %s %s: %w", a.Kind, a.Partition, err)
	}
	return f, nil
}

// History implements [Operator].
func (o operator) History(ctx context.Context, q HistoryQuery) ([]Decision, error) {
	rows := RowQuery{
		Kind: KindEntry, Partition: q.Partition, States: named(q.Kinds...), Before: q.Before, Until: q.Until, Newest: true, Limit: Limit(q.Limit),
	}
	if q.Claim != (epoch.ClaimID{}) {
		rows.Name = q.Claim.String()
	}
	found, err := readAs(ctx, o.admin, rows, DecisionOf)
	if err != nil {
		return nil, fmt.Errorf("operate: read the audit log: %w", err)
	}
	return found, nil
}

// Processes implements [Operator].
func (o operator) Processes(ctx context.Context, group string) ([]Process, error) {
	all, err := readAs(ctx, o.admin, RowQuery{Kind: KindProcess, Filter: Filter{Group: group}}, ProcessOf)
	if err != nil {
		return nil, fmt.Errorf("operate: list processes: %w", err)
	}
	var found []Process
	for _, p := range all {
		if p.Seen.IsZero() || p.Now.Sub(p.Seen) <= keptProcess { // zero: it cannot be read
			found = append(found, p)
		}
	}
	SortProcesses(found)
	return found, nil
}

// DeadLetters implements [Operator].
func (o operator) DeadLetters(ctx context.Context, q DeadLetterQuery) ([]DeadLetter, error) {
	rows := RowQuery{Kind: KindLetter, Filter: q.Filter, Number: q.Number, After: q.After, Limit: Limit(q.Limit)}
	switch {
	case q.Deferred:
		rows.States = []string{StateDeferred}
	case q.Requested:
		rows.States = []string{StateRequested}
	default:
		rows.States = []string{"", StateRequested, StateWithdrawn, StateFailed}
	}
	found, err := readAs(ctx, o.admin, rows, DeadLetterOf)
	if err != nil {
		return nil, fmt.Errorf("operate: list dead letters: %w", err)
	}
	return found, nil
}

// DeadLetter implements [Operator].
func (o operator) DeadLetter(ctx context.Context, id int64) (DeadLetter, error) {
	r, err := o.letter(ctx, id, nil, true)
	if err == nil {
		var l DeadLetter
		if l, err = DeadLetterOf(r); err == nil {
			return l, nil
		}
	}
	return DeadLetter{}, fmt.Errorf("operate: read dead letter %d: %w", id, err)
}

// letter reads a dead letter, of p if that is not nil.
func (o operator) letter(ctx context.Context, id int64, p *epoch.Partition, content bool) (Row, error) {
	if id <= 0 {
		return Row{}, ErrNoDeadLetter
	}
	rows, err := o.admin.Rows(ctx, RowQuery{Kind: KindLetter, ID: id, Partition: p, Content: content})
	if err == nil && len(rows) == 0 {
		err = ErrNoDeadLetter
	}
	if err != nil {
		return Row{}, err
	}
	return rows[0], nil
}

// DoDeadLetter implements [Operator].
func (o operator) DoDeadLetter(ctx context.Context, a DeadLetterAct) (DeadLetter, error) {
	l, err := o.doDeadLetter(ctx, a)
	if err != nil {
		return DeadLetter{}, fmt.Errorf("operate: %s dead letter %d of %s: %w", a.Kind, a.Seen.ID, a.Seen.Message.Partition, err)
	}
	return l, nil
}

func (o operator) doDeadLetter(ctx context.Context, a DeadLetterAct) (DeadLetter, error) {
	if err := a.Check(); err != nil {
		return DeadLetter{}, err
	}
	seen := a.Seen.Message
	r, err := o.letter(ctx, a.Seen.ID, &seen.Partition, false)
	if err != nil {
		return DeadLetter{}, err
	}
	before, b, err := letterOf(r)
	if err == nil && r.Offset != seen.Offset {
		err = ErrDeadLetterChanged
	}
	if err != nil {
		return DeadLetter{}, err
	}
	after, err := a.Done(before)
	if err != nil {
		return DeadLetter{}, err
	}
	change := Change{Row: r, Remove: true}
	switch a.Kind {
	case Replay:
		change = revised(r, after, b, StateRequested)
	case Withdraw:
		change = revised(r, after, b, StateWithdrawn)
	case Discard:
	}
	f, err := o.fence(ctx, r.Partition)
	if err != nil {
		return DeadLetter{}, err
	}
	// The entry of the audit log comes first, so that also in a store of items nothing is done without it.
	if err := o.admin.Write(ctx, EntryOf(a.Decided(before, f)), change); errors.Is(err, ErrRowChanged) {
		return DeadLetter{}, ErrDeadLetterChanged
	} else if err != nil {
		return DeadLetter{}, err
	}
	if a.Kind == Discard {
		return before, nil
	}
	if now, err := o.letter(ctx, r.ID, &seen.Partition, true); err == nil {
		return DeadLetterOf(now)
	}
	return after, nil // it was carried out: what became of it since is no error
}

// fence returns the fence of p, or a zero one if there is none.
func (o operator) fence(ctx context.Context, p epoch.Partition) (epoch.Fence, error) {
	found, err := o.admin.Look(ctx, []epoch.Partition{p})
	return found[p], err
}

func readAs[T any](ctx context.Context, rows Rows, q RowQuery, of func(Row) (T, error)) (found []T, err error) {
	all, err := rows.Rows(ctx, q)
	if err != nil {
		return nil, err
	}
	for _, r := range all {
		t, _ := of(r) // as much as can be read: no row, whoever has written it, hides the others
		found = append(found, t)
	}
	return found, nil
}
