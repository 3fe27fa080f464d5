package memsink

import (
	"context"
	"fmt"
	"slices"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// This file shows and changes fences and dead letters for operators. Package operate decides what
// an action does.

// Operator operates the fences of a database. It is safe for concurrent use.
type Operator struct{ sink *Sink }

var _ operate.Operator = (*Operator)(nil)

// Operator returns an operator of the database of s. It has no hooks.
func (s *Sink) Operator() *Operator { return &Operator{s} }

func (o *Operator) within(ctx context.Context, do func(st *state) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	o.sink.db.mu.Lock()
	defer o.sink.db.mu.Unlock()
	return do(&o.sink.db.state)
}

// Partitions implements [operate.Operator].
func (o *Operator) Partitions(ctx context.Context, f operate.Filter) (found []operate.Partition, err error) {
	err = o.within(ctx, func(st *state) error {
		for _, fence := range st.fences {
			if f.Selects(fence) {
				found = append(found, st.partition(fence))
			}
		}
		return nil
	})
	slices.SortFunc(found, func(a, b operate.Partition) int { return a.Fence.Partition.Compare(b.Fence.Partition) })
	if err != nil {
		return nil, fmt.Errorf("memsink: list fences: %w", err)
	}
	return found, nil
}

func (st *state) partition(f epoch.Fence) operate.Partition {
	p := operate.Partition{Fence: f, AdvancedAt: st.advanced[f.Partition], Now: now()}
	for _, l := range st.dead {
		if l.Message.Partition == f.Partition {
			p.DeadLetters++
		}
	}
	for _, d := range st.decisions {
		if d.Partition == f.Partition && d.Kind.ReplacesClaim() {
			p.ClaimedAt = d.At
		}
	}
	return p
}

// Partition implements [operate.Operator].
func (o *Operator) Partition(ctx context.Context, p epoch.Partition) (found operate.Partition, err error) {
	err = o.within(ctx, func(st *state) error {
		f, err := st.fences.Read(p)
		if err == nil {
			found = st.partition(f)
		}
		return err
	})
	if err != nil {
		return operate.Partition{}, fmt.Errorf("memsink: read fence %s: %w", p, err)
	}
	return found, nil
}

// Act implements [operate.Operator].
func (o *Operator) Act(ctx context.Context, a operate.Act) (after epoch.Fence, err error) {
	err = o.within(ctx, func(st *state) error {
		a.At = now()
		before := st.fences[a.Partition]
		if after, err = a.ApplyTo(st.fences); err != nil {
			return err
		}
		st.decide(a.Decided(before, after))
		return nil
	})
	if err != nil {
		return epoch.Fence{}, fmt.Errorf("memsink: %s %s: %w", a.Kind, a.Partition, err)
	}
	return after, nil
}

// History implements [operate.Operator].
func (o *Operator) History(ctx context.Context, q operate.HistoryQuery) (found []operate.Decision, err error) {
	err = o.within(ctx, func(st *state) error {
		for _, d := range slices.Backward(st.decisions) {
			if len(found) < operate.Limit(q.Limit) && q.Selects(d) {
				found = append(found, d)
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("memsink: read the audit log: %w", err)
	}
	return found, nil
}

// DeadLetters implements [operate.Operator].
func (o *Operator) DeadLetters(ctx context.Context, q operate.DeadLetterQuery) (found []operate.DeadLetter, err error) {
	err = o.within(ctx, func(st *state) error {
		for _, l := range st.dead {
			if len(found) < operate.Limit(q.Limit) && q.Selects(l) {
				l.Message.Key, l.Message.Value, l.Message.Headers = nil, nil, nil
				found = append(found, l)
			}
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("memsink: list dead letters: %w", err)
	}
	return found, nil
}

func (st *state) letter(id int64) (int, error) {
	i := slices.IndexFunc(st.dead, func(l operate.DeadLetter) bool { return l.ID == id })
	if i < 0 {
		return i, operate.ErrNoDeadLetter
	}
	return i, nil
}

// DeadLetter implements [operate.Operator].
func (o *Operator) DeadLetter(ctx context.Context, id int64) (found operate.DeadLetter, err error) {
	err = o.within(ctx, func(st *state) error {
		i, err := st.letter(id)
		if err == nil {
			found = st.dead[i]
		}
		return err
	})
	if err != nil {
		return operate.DeadLetter{}, fmt.Errorf("memsink: read dead letter %d: %w", id, err)
	}
	return found, nil
}

// DoDeadLetter implements [operate.Operator].
func (o *Operator) DoDeadLetter(ctx context.Context, a operate.DeadLetterAct) (after operate.DeadLetter, err error) {
	err = o.within(ctx, func(st *state) error {
		if err := a.Check(); err != nil {
			return err
		}
		i, err := st.letter(a.Seen.ID)
		if err != nil {
			return err
		}
		before := st.dead[i]
		if after, err = a.Done(before); err != nil {
			return err
		}
		switch a.Kind {
		case operate.Replay:
			after.RequestedAt = now()
			st.dead[i] = after
		case operate.Withdraw:
			st.dead[i] = after
		case operate.Discard:
			st.dead = slices.Delete(st.dead, i, i+1)
		}
		st.decide(a.Decided(before, st.fences[before.Message.Partition]))
		return nil
	})
	if err != nil {
		return operate.DeadLetter{}, fmt.Errorf("memsink: %s dead letter %d of %s: %w", a.Kind, a.Seen.ID, a.Seen.Message.Partition, err)
	}
	return after, nil
}
