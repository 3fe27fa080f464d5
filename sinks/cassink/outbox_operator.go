package cassink

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/form"
	"github.com/epochfence/epochfence/internal/text/secret"
	"github.com/epochfence/epochfence/operate"
)

// This file has the entries of the outbox as rows of operators. The owner of the partition sends them.

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
