package cassink

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"golang.org/x/sync/errgroup"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/form"
	"github.com/epochfence/epochfence/internal/text/secret"
	"github.com/epochfence/epochfence/operate"
)

// This file lists fences and dead letters, carries out operators' actions on fences, and has the entries of
// the outbox as rows. Package operate decides what an action does. The owner of a partition sends its
// entries.

var _ operate.Admin = (*Sink)(nil)

// Operator returns an operator of the sink. It is safe for concurrent use.
func (s *Sink) Operator() operate.Operator { return operate.On(s) }

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

// unreadable returns a row that says of an item that it cannot be read, so that it does not hide others.
func (s *Sink) unreadable(kind operate.Kind, prefix, key string, err error) operate.Row {
	r := operate.Row{Kind: kind, Text: err.Error(), Now: now()}
	r.Partition, r.ID, _ = s.keys.parse(prefix, key)
	if errors.Is(err, form.ErrNewer) {
		r.Body = fmt.Appendf(nil, `{"v":%d}`, form.Newest+1)
	}
	return r
}

// records returns all fences. One that cannot be read has its partition, and why.
func (s *Sink) records(ctx context.Context) (found []record, err error) {
	items, err := s.list(ctx, s.keys.fences())
	if err != nil {
		return nil, err
	}
	for _, it := range items {
		if !it.Live {
			continue
		}
		p, _, ok := s.keys.parse(s.keys.fences(), it.Key)
		if r, err := decode(it); err == nil && r.Partition == p {
			found = append(found, r)
		} else if ok {
			r = record{LastID: math.MaxInt64, unreadable: cmp.Or(err, errors.New("it is about another partition"))}
			r.Partition = p
			found = append(found, r)
		}
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
			at.letter = letter{Row: s.unreadable(operate.KindLetter, s.keys.letters(), it.Key, err)}
		}
		if !at.letter.Pending || exists[at.letter.ID] {
			found = append(found, at.letter)
		} else if slices.ContainsFunc(records, at.letter.never) { // which were read before
			_ = s.deleteLetter(ctx, at)
		}
	}
	slices.SortFunc(found, func(a, b letter) int { return cmp.Compare(a.ID, b.ID) })
	return found, nil
}

func (s *Sink) allLetters(ctx context.Context) ([]letter, error) {
	records, err := s.records(ctx)
	if err != nil {
		return nil, err
	}
	return s.deadLetters(ctx, s.keys.letters(), records...)
}

func (r record) shown(letters []letter) operate.Partition {
	p := operate.Partition{Fence: r.Fence, ClaimedAt: r.ClaimedAt, AdvancedAt: r.AdvancedAt, Now: now()}
	if r.unreadable != nil {
		p.Unreadable = r.unreadable.Error()
	}
	for _, l := range letters {
		if l.Partition == r.Partition && l.State != operate.StateDeferred {
			p.DeadLetters++
		}
	}
	return p
}

// Partitions implements [operate.Admin].
func (s *Sink) Partitions(ctx context.Context, f operate.Filter, p *epoch.Partition) ([]operate.Partition, error) {
	found, err := s.partitions(ctx, f, p)
	if err != nil {
		return nil, fmt.Errorf("cassink: list fences: %w", err)
	}
	return found, nil
}

func (s *Sink) partitions(ctx context.Context, f operate.Filter, p *epoch.Partition) (found []operate.Partition, err error) {
	var records []record
	prefix := s.keys.letters()
	if p != nil {
		at, err := s.fence(ctx, *p)
		if errors.Is(err, epoch.ErrMissing) {
			return nil, nil
		}
		if err != nil {
			return nil, err
		}
		records, prefix = []record{at.record}, s.keys.lettersOf(*p)
	} else if records, err = s.records(ctx); err != nil {
		return nil, err
	}
	letters, err := s.deadLetters(ctx, prefix, records...)
	if err != nil {
		return nil, err
	}
	for _, r := range records {
		if p != nil || f.Selects(r.Fence) {
			found = append(found, r.shown(letters))
		}
	}
	slices.SortFunc(found, func(a, b operate.Partition) int { return a.Fence.Partition.Compare(b.Fence.Partition) })
	return found, nil
}

// Act implements [operate.Admin]. Its entry in the audit log is written first, and counts once the action is done.
func (s *Sink) Act(ctx context.Context, a operate.Act) (epoch.Fence, error) {
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
		return epoch.Fence{}, fmt.Errorf("cassink: act: %w", err)
	}
	_ = replace(ctx, s.store, s.keys.requests(), func(r *requests) error { // or the owner finds out with its next write
		r.Acts++
		return nil
	})
	return at.record.Fence, nil
}

// outboxRows reads entries of the outbox. Of one whose item the store has lost, only the ID and the partition are
// set.
func (s *Sink) outboxRows(ctx context.Context, q operate.RowQuery) (found []operate.Row, err error) {
	all, err := s.listed(ctx)
	if err != nil {
		return nil, err
	}
	var asked requests
	if _, err := read(ctx, s.store, s.keys.requests(), &asked); err != nil {
		return nil, err
	}
	within := operate.RowQuery{Kind: q.Kind, ID: q.ID, Partition: q.Partition, Filter: q.Filter, Number: q.Number, After: q.After, Before: q.Before}
	for _, r := range all {
		if !within.Selects(operate.Row{Kind: q.Kind, ID: r.ID, Partition: r.Partition}) {
			continue // without reading it
		}
		e, err := s.shownEntry(ctx, r)
		if errors.Is(err, operate.ErrNoOutboxEntry) { // sent meanwhile
			continue
		}
		if errors.Is(err, form.ErrUnreadable) {
			row := s.unreadable(q.Kind, s.keys.entries(r.Partition), s.keys.entry(r.Partition, r.ID), err)
			row.ID, row.Partition = r.ID, r.Partition
			found = append(found, row)
			continue
		}
		if err != nil {
			return nil, err
		}
		e.RetryRequested = slices.Contains(asked.Retries, r)
		if !q.Content && e.URL != "" {
			e.URL = secret.Receiver(e.URL)
		}
		row := e.Row()
		row.Now = now()
		if q.Selects(row) {
			found = append(found, row)
		}
		if len(found) == q.Limit && q.Limit > 0 && !q.Newest {
			break
		}
	}
	return q.Page(found), nil
}

// changeEntry discards an entry, or has its owner send it now.
func (s *Sink) changeEntry(ctx context.Context, c operate.Change) error {
	err := s.changeShown(ctx, c)
	if errors.Is(err, operate.ErrNoOutboxEntry) || errors.Is(err, epoch.ErrMissing) {
		return fmt.Errorf("entry %d of the outbox of %s: %w", c.ID, c.Partition, operate.ErrRowChanged)
	}
	return err
}

func (s *Sink) changeShown(ctx context.Context, c operate.Change) error {
	e, err := s.shownEntry(ctx, requested{c.Partition, c.ID})
	if err != nil {
		return err
	}
	if e.IdempotencyKey != c.Name {
		return operate.ErrNoOutboxEntry
	}
	at, err := s.newest(ctx, c.Partition)
	if err == nil {
		at, err = s.whole(ctx, at)
	}
	if err == nil && !slices.Contains(at.lists.Entries, c.ID) {
		err = operate.ErrNoOutboxEntry
	}
	switch {
	case err != nil:
		return err
	case c.Remove:
		return s.discardEntry(ctx, c.Partition, c.ID)
	default:
		return s.retry(ctx, c.Partition, []int64{c.ID}, true)
	}
}

// listed returns the entries of all fences by ID.
func (s *Sink) listed(ctx context.Context) (all []requested, err error) {
	records, err := s.records(ctx)
	if err != nil {
		return nil, err
	}
	for _, r := range records {
		at, err := s.whole(ctx, item{record: r})
		if errors.Is(err, form.ErrUnreadable) {
			continue // the partition is listed as one that cannot be read, or its owner halts it
		}
		if err != nil {
			return nil, err
		}
		for _, id := range at.lists.Entries {
			all = append(all, requested{r.Partition, id})
		}
	}
	slices.SortFunc(all, func(a, b requested) int { return int(a.ID - b.ID) })
	return all, nil
}

// shownEntry reads an entry that a fence had.
func (s *Sink) shownEntry(ctx context.Context, r requested) (operate.OutboxEntry, error) {
	at := entryItem{}
	var err error
	if at.stored, err = s.store.Get(ctx, s.keys.entry(r.Partition, r.ID)); err != nil {
		return at.entry, err
	}
	if at.stored.Live {
		return at.entry, at.decode()
	}
	now, err := fenceIn(s.readFence(ctx, r.Partition), r.Partition)
	if err == nil {
		now, err = s.whole(ctx, now)
	}
	if err == nil && !slices.Contains(now.lists.Entries, r.ID) {
		err = operate.ErrNoOutboxEntry
	}
	return operate.OutboxEntry{ID: r.ID, Partition: r.Partition, Offset: -1}, err
}

func (s *Sink) discardEntry(ctx context.Context, p epoch.Partition, id int64) error {
	var k kept
	after, err := s.change(ctx, p, func(r *record) error {
		at, err := s.whole(ctx, item{record: *r})
		if err != nil {
			return err
		}
		if k = at.kept; !slices.Contains(at.lists.Entries, id) {
			return operate.ErrNoOutboxEntry
		}
		r.settle(k)
		r.leave(id)
		return nil
	})
	if err != nil {
		return err
	}
	after.kept, after.lists = k, k.after(after.record.riding)
	s.moveOut(ctx, after)
	if stored, err := s.store.Get(ctx, s.keys.entry(p, id)); err == nil && stored.Live {
		_ = s.store.Delete(ctx, stored) // or the next owner does it
	}
	return s.retry(ctx, p, []int64{id}, false)
}

// retry adds entries to those that operators want to be sent now, or removes them.
func (s *Sink) retry(ctx context.Context, p epoch.Partition, ids []int64, wanted bool) error {
	return replace(ctx, s.store, s.keys.requests(), func(all *requests) error {
		all.Retries = slices.DeleteFunc(all.Retries, func(r requested) bool { return r.Partition == p && slices.Contains(ids, r.ID) })
		for _, id := range ids {
			if wanted {
				all.Retries = append(all.Retries, requested{p, id})
			}
		}
		slices.SortFunc(all.Retries, func(a, b requested) int { return cmp.Compare(a.ID, b.ID) })
		return nil
	})
}
