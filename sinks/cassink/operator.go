package cassink

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// This file shows and changes fences and dead letters for operators. Package operate decides what
// an action does to a fence or a dead letter.

// Operator operates the fences of a store. It is safe for concurrent use.
type Operator struct{ sink *Sink }

var _ operate.Operator = (*Operator)(nil)

// Operator returns an operator of the sink.
func (s *Sink) Operator() *Operator { return &Operator{s} }

// list returns the items below a prefix, with their values.
func (s *Sink) list(ctx context.Context, prefix string) (found []cas.Item, err error) {
	for it, err := range s.store.List(ctx, prefix) {
		if err != nil {
			return nil, err
		}
		found = append(found, it)
	}
	if s.facts.ListsWhole {
		return found, nil
	}
	var readers errgroup.Group
	readers.SetLimit(sideBySide)
	for i := range found {
		readers.Go(func() (err error) {
			found[i], err = s.store.Get(ctx, found[i].Key)
			return err
		})
	}
	return found, readers.Wait()
}

func (s *Sink) records(ctx context.Context) (found []record, err error) {
	items, err := s.list(ctx, s.keys.fences())
	if err != nil {
		return nil, err
	}
	for _, it := range items {
		if !it.Live {
			continue
		}
		r, err := decode(it)
		if err != nil {
			return nil, err
		}
		found = append(found, r)
	}
	return found, nil
}

// deadLetters returns the dead letters below a prefix by id.
func (s *Sink) deadLetters(ctx context.Context, prefix string, records ...record) (found []letter, err error) {
	items, err := s.list(ctx, prefix)
	if err != nil {
		return nil, err
	}
	exists := map[int64]bool{}
	for _, r := range records {
		for _, id := range r.Pending {
			exists[id] = true
		}
	}
	for _, it := range items {
		at := letterItem{stored: it}
		if err := at.decode(); errors.Is(err, operate.ErrNoDeadLetter) {
			continue
		} else if err != nil {
			return nil, err
		}
		if !at.letter.Pending || exists[at.letter.ID] {
			found = append(found, at.letter)
		}
	}
	slices.SortFunc(found, func(a, b letter) int { return cmp.Compare(a.ID, b.ID) })
	return found, nil
}

func (r record) shown(letters []letter) operate.Partition {
	p := operate.Partition{Fence: r.Fence, ClaimedAt: r.ClaimedAt, AdvancedAt: r.AdvancedAt, Now: now()}
	for _, l := range letters {
		if l.Partition == r.Partition {
			p.DeadLetters++
		}
	}
	return p
}

// Partitions implements [operate.Operator].
func (o *Operator) Partitions(ctx context.Context, f operate.Filter) ([]operate.Partition, error) {
	records, err := o.sink.records(ctx)
	if err != nil {
		return nil, fmt.Errorf("cassink: list fences: %w", err)
	}
	letters, err := o.sink.deadLetters(ctx, o.sink.keys.letters(), records...)
	if err != nil {
		return nil, fmt.Errorf("cassink: list fences: %w", err)
	}
	var found []operate.Partition
	for _, r := range records {
		if f.Selects(r.Fence) {
			found = append(found, r.shown(letters))
		}
	}
	slices.SortFunc(found, func(a, b operate.Partition) int { return a.Fence.Partition.Compare(b.Fence.Partition) })
	return found, nil
}

// Partition implements [operate.Operator].
func (o *Operator) Partition(ctx context.Context, p epoch.Partition) (operate.Partition, error) {
	at, err := o.sink.fence(ctx, p)
	if err != nil {
		return operate.Partition{}, fmt.Errorf("cassink: read fence %s: %w", p, err)
	}
	letters, err := o.sink.deadLetters(ctx, o.sink.keys.lettersOf(p), at.record)
	if err != nil {
		return operate.Partition{}, fmt.Errorf("cassink: read fence %s: %w", p, err)
	}
	return at.record.shown(letters), nil
}

// Act implements [operate.Operator]. Its entry in the audit log is written first, and counts once the action is done.
func (o *Operator) Act(ctx context.Context, a operate.Act) (epoch.Fence, error) {
	s := o.sink
	a.At = now()
	at, err := s.change(ctx, a.Partition, func(r *record) error {
		before := r.Fence
		after, err := a.Apply(before)
		if err != nil {
			return err
		}
		if after.SetUnder != before.SetUnder {
			r.Act = after.Claim.String()[:8]
		}
		if err := s.announce(ctx, r, a.Decided(before, after)); err != nil {
			return fmt.Errorf("record it, before it is carried out: %w", doubtful(err))
		}
		r.Fence = after
		return nil
	})
	if err != nil {
		return epoch.Fence{}, fmt.Errorf("cassink: %s %s: %w", a.Kind, a.Partition, err)
	}
	_ = replace(ctx, s.store, s.keys.requests(), func(old requests) (requests, error) { // or the owner finds out with its next write
		old.Acts++
		return old, nil
	})
	return at.record.Fence, nil
}

// DeadLetters implements [operate.Operator].
func (o *Operator) DeadLetters(ctx context.Context, q operate.DeadLetterQuery) ([]operate.DeadLetter, error) {
	all, err := o.sink.allLetters(ctx)
	if err != nil {
		return nil, fmt.Errorf("cassink: list dead letters: %w", err)
	}
	var found []operate.DeadLetter
	for _, l := range all {
		if d := l.shown(); len(found) < operate.Limit(q.Limit) && q.Selects(d) {
			d.Message.Key, d.Message.Value, d.Message.Headers = nil, nil, nil
			found = append(found, d)
		}
	}
	return found, nil
}

func (s *Sink) allLetters(ctx context.Context) ([]letter, error) {
	records, err := s.records(ctx)
	if err != nil {
		return nil, err
	}
	return s.deadLetters(ctx, s.keys.letters(), records...)
}

func (s *Sink) findLetter(ctx context.Context, id int64) (letter, error) {
	all, err := s.allLetters(ctx)
	if err != nil {
		return letter{}, err
	}
	i := slices.IndexFunc(all, func(l letter) bool { return l.ID == id })
	if i < 0 {
		return letter{}, operate.ErrNoDeadLetter
	}
	return s.wholeLetter(ctx, all[i])
}

// DeadLetter implements [operate.Operator].
func (o *Operator) DeadLetter(ctx context.Context, id int64) (operate.DeadLetter, error) {
	l, err := o.sink.findLetter(ctx, id)
	if err != nil {
		return operate.DeadLetter{}, fmt.Errorf("cassink: read dead letter %d: %w", id, err)
	}
	return l.shown(), nil
}

// DoDeadLetter implements [operate.Operator]. The entry in the audit log is a write of its own.
func (o *Operator) DoDeadLetter(ctx context.Context, a operate.DeadLetterAct) (operate.DeadLetter, error) {
	after, err := o.sink.act(ctx, a)
	if err != nil {
		return operate.DeadLetter{}, fmt.Errorf("cassink: %s dead letter %d of %s: %w", a.Kind, a.Seen.ID, a.Seen.Message.Partition, err)
	}
	return after.shown(), nil
}

func (s *Sink) act(ctx context.Context, a operate.DeadLetterAct) (letter, error) {
	if err := a.Check(); err != nil {
		return letter{}, err
	}
	at, err := s.letter(ctx, a.Seen.Message.Partition, a.Seen.ID)
	if err != nil {
		return letter{}, err
	}
	l := at.letter
	if l.Pending {
		f, err := s.newest(ctx, l.Partition)
		if err != nil {
			return letter{}, lost(err)
		}
		if !slices.Contains(f.record.Pending, l.ID) {
			return letter{}, operate.ErrNoDeadLetter
		}
	}
	before := l
	if a.Kind == operate.Discard {
		at, err := s.letter(ctx, l.Partition, l.ID)
		if err != nil {
			return letter{}, err
		}
		if _, err := a.Done(at.letter.shown()); err != nil {
			return letter{}, err
		}
		if err := s.isReplayed(ctx, at.letter); err != nil {
			return letter{}, err
		}
		if err := s.deleteLetter(ctx, at); errors.Is(err, cas.ErrConflict) {
			return letter{}, operate.ErrDeadLetterChanged
		} else if err != nil {
			return letter{}, doubtful(err)
		}
		_, err = s.change(ctx, l.Partition, func(r *record) error {
			if r.riding.len() >= mostRiding {
				return operate.ErrNothingToDo // the owner lists it for longer
			}
			r.leave(l.ID)
			return nil
		})
		if err != nil && !errors.Is(err, epoch.ErrMissing) && !errors.Is(err, operate.ErrNothingToDo) {
			return letter{}, err
		}
	} else {
		if a.Kind == operate.Replay { // before the letter, because one that is requested is not requested again
			if err := s.request(ctx, l, true); err != nil {
				return letter{}, doubtful(err)
			}
		}
		l, err = s.changeLetter(ctx, l.Partition, l.ID, func(l *letter) error {
			before, l.Pending = *l, false
			after, err := a.Done(l.shown())
			if err == nil {
				err = s.isReplayed(ctx, *l)
			}
			if err != nil {
				return err
			}
			l.Request, l.Requested, l.RequestedBy = after.Request, after.Requested, after.RequestedBy
			if l.Requested {
				l.RequestedAt = now()
			}
			return nil
		})
		if err != nil {
			return letter{}, err
		}
	}
	f, err := s.readFence(ctx, l.Partition)
	if err != nil && !errors.Is(err, epoch.ErrMissing) {
		return letter{}, lost(err)
	}
	d := a.Decided(before.shown(), f.record.Fence)
	if err := s.log(ctx, l.Partition, []operate.Decision{d}); err != nil {
		return letter{}, lost(err)
	}
	if a.Kind == operate.Replay {
		return l, nil
	}
	return l, s.request(ctx, l, false)
}
