package cassink

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/text/secret"
	"github.com/epochfence/epochfence/operate"
)

// This file shows outbox entries to operators, discards them and requests retries. The owner of
// the partition sends them.

var _ operate.Outbox = (*Operator)(nil)

// keptOutboxActs limits the records of what operators did to entries.
const keptOutboxActs = 500

// Entries implements [operate.Outbox]. Of an entry whose item the store has lost, only the ID and
// the partition are set.
func (o *Operator) Entries(ctx context.Context, q operate.OutboxQuery) ([]operate.OutboxEntry, error) {
	found, err := o.entries(ctx, q)
	if err != nil {
		return nil, fmt.Errorf("cassink: list entries of the outbox: %w", err)
	}
	return found, nil
}

func (o *Operator) entries(ctx context.Context, q operate.OutboxQuery) (found []operate.OutboxEntry, err error) {
	all, err := o.sink.listed(ctx)
	if err != nil {
		return nil, err
	}
	all = slices.DeleteFunc(all, func(r requested) bool {
		p := r.Partition
		return r.ID <= q.After || q.Number != nil && p.Number != *q.Number || !q.Selects(epoch.Fence{Origin: epoch.Origin{Partition: p}})
	})
	var asked requests
	if _, err := read(ctx, o.sink.store, o.sink.keys.requests(), &asked); err != nil {
		return nil, err
	}
	for _, r := range all {
		e, err := o.sink.shownEntry(ctx, r)
		switch {
		case errors.Is(err, operate.ErrNoOutboxEntry): // sent meanwhile
			continue
		case err != nil:
			return nil, err
		case q.Key != nil && e.Key != *q.Key:
			continue
		}
		e.URL, e.Header, e.Body = secret.Receiver(e.URL), nil, nil
		e.RetryRequested = slices.Contains(asked.Retries, r)
		if found = append(found, e); len(found) == operate.Limit(q.Limit) {
			break
		}
	}
	return found, nil
}

// listed returns the entries of all fences by ID.
func (s *Sink) listed(ctx context.Context) (all []requested, err error) {
	records, err := s.records(ctx)
	if err != nil {
		return nil, err
	}
	for _, r := range records {
		at, err := s.whole(ctx, item{record: r})
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
	now, err := s.readFence(ctx, r.Partition)
	if err == nil {
		now, err = s.whole(ctx, now)
	}
	if err == nil && !slices.Contains(now.lists.Entries, r.ID) {
		err = operate.ErrNoOutboxEntry
	}
	return operate.OutboxEntry{ID: r.ID, Partition: r.Partition}, err
}

// Entry implements [operate.Outbox].
func (o *Operator) Entry(ctx context.Context, id int64) (operate.OutboxEntry, error) {
	e, err := o.entry(ctx, id)
	if err != nil {
		return operate.OutboxEntry{}, fmt.Errorf("cassink: read entry %d of the outbox: %w", id, err)
	}
	return e, nil
}

func (o *Operator) entry(ctx context.Context, id int64) (e operate.OutboxEntry, err error) {
	all, err := o.sink.listed(ctx)
	if err != nil {
		return e, err
	}
	i := slices.IndexFunc(all, func(r requested) bool { return r.ID == id })
	if i < 0 {
		return e, operate.ErrNoOutboxEntry
	}
	var asked requests
	if _, err := read(ctx, o.sink.store, o.sink.keys.requests(), &asked); err != nil {
		return e, err
	}
	e, err = o.sink.shownEntry(ctx, all[i])
	e.RetryRequested = slices.Contains(asked.Retries, all[i])
	return e, err
}

// DoOutbox implements [operate.Outbox]. The record of the act is a write of its own, before the act: if
// the act fails then, the record stays.
func (o *Operator) DoOutbox(ctx context.Context, a operate.OutboxAct) error {
	if err := o.doOutbox(ctx, a); err != nil {
		return fmt.Errorf("cassink: %s entry %d of the outbox of %s: %w", a.Kind, a.Seen.ID, a.Seen.Partition, err)
	}
	return nil
}

func (o *Operator) doOutbox(ctx context.Context, a operate.OutboxAct) error {
	if err := a.Check(); err != nil {
		return err
	}
	s, p, id := o.sink, a.Seen.Partition, a.Seen.ID
	e, err := s.shownEntry(ctx, requested{p, id})
	if err != nil {
		return err
	}
	if e.IdempotencyKey != a.Seen.IdempotencyKey {
		return operate.ErrNoOutboxEntry
	}
	at, err := s.newest(ctx, p)
	if err == nil {
		at, err = s.whole(ctx, at)
	}
	if errors.Is(err, epoch.ErrMissing) || err == nil && !slices.Contains(at.lists.Entries, id) {
		return operate.ErrNoOutboxEntry
	}
	if err != nil {
		return err
	}
	err = replace(ctx, s.store, s.keys.outboxActs(), func(old []operate.OutboxRecord) ([]operate.OutboxRecord, error) {
		old = append(old, operate.OutboxRecord{
			At: now(), Kind: a.Kind, Entry: id, Partition: p, Scope: e.Scope, IdempotencyKey: e.IdempotencyKey, By: a.By, Reason: a.Reason,
		})
		return recent(old, keptOutboxActs, s.facts), nil
	})
	if err != nil {
		return fmt.Errorf("record it, before it is carried out: %w", err)
	}
	if a.Kind == operate.OutboxRetry {
		return s.retry(ctx, p, []int64{id}, true)
	}
	return s.discardEntry(ctx, p, id)
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

// OutboxHistory implements [operate.Outbox].
func (o *Operator) OutboxHistory(ctx context.Context, most int) (found []operate.OutboxRecord, err error) {
	if _, err = read(ctx, o.sink.store, o.sink.keys.outboxActs(), &found); err != nil {
		return nil, fmt.Errorf("cassink: read what operators did to the outbox: %w", err)
	}
	slices.Reverse(found)
	return found[:min(len(found), operate.Limit(most))], nil
}

// retry adds entries to those that operators want to be sent now, or removes them.
func (s *Sink) retry(ctx context.Context, p epoch.Partition, ids []int64, wanted bool) error {
	return replace(ctx, s.store, s.keys.requests(), func(old requests) (requests, error) {
		old.Retries = slices.DeleteFunc(old.Retries, func(r requested) bool { return r.Partition == p && slices.Contains(ids, r.ID) })
		for _, id := range ids {
			if wanted {
				old.Retries = append(old.Retries, requested{p, id})
			}
		}
		slices.SortFunc(old.Retries, func(a, b requested) int { return cmp.Compare(a.ID, b.ID) })
		return old, nil
	})
}
