package cassink

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// This file is the outbox of a transaction, as package casoutbox sees it. Package outbox decides
// when an entry is sent, and entries.go keeps the items.

// MaxEntries limits the entries that wait in the outbox of a partition. A message that adds one
// more is retried until an entry is gone: its error is an [epoch.ErrTransient]. Background work may
// add more: OnAnswer and OnRefused of the relay can add entries while the outbox is full. A transaction that adds more than
// MaxEntries fails with [epoch.ErrTooLarge].
const MaxEntries = 4096

// Outbox is the outbox of a transaction's partition, for package casoutbox. An entry exists while the
// lists of the fence have its id. Its item is written before the fence, and deleted after it.
type Outbox struct{ tx *Tx }

// Outbox returns the outbox of p, which must be the transaction's partition.
func (tx *Tx) Outbox(p epoch.Partition) (Outbox, error) {
	if p != tx.goal.Partition {
		return Outbox{}, fmt.Errorf("cassink: the outbox of %s: the transaction is of %s", p, tx.goal.Partition)
	}
	return Outbox{tx}, nil
}

// Add adds an entry. It gets its ID and Partition when it is committed.
func (o Outbox) Add(e operate.OutboxEntry) error {
	tx, p := o.tx, o.tx.goal.Partition
	if err := tx.usable(); err != nil {
		return err
	}
	e.Partition, e.AddedAt = p, now()
	at := entryItem{entry: e}
	note, err := at.note()
	if err == nil {
		err = tx.sink.facts.Check(tx.sink.keys.entry(p, newID()), e.Body, note)
	}
	if err != nil {
		return fmt.Errorf("cassink: add an entry to the outbox of %s: %w", p, err)
	}
	if err = tx.joins(at); err == nil {
		return nil
	}
	tx.sink.forget(p) // an operator may have discarded some
	return tx.fail(fmt.Errorf("cassink: add an entry to the outbox of %s: %w", p, err))
}

// joins adds an entry unless the outbox is full.
func (tx *Tx) joins(at entryItem) error {
	tx.mu.Lock()
	defer tx.mu.Unlock()
	switch {
	case tx.ended:
		return errEnded
	case len(tx.added) >= MaxEntries:
		return fmt.Errorf("%w: a transaction adds %d at most", epoch.ErrTooLarge, MaxEntries)
	case !tx.goal.held && len(tx.lists.Entries)+len(tx.added) >= MaxEntries:
		return fmt.Errorf("%w: %d wait to be sent, the limit", epoch.ErrTransient, MaxEntries)
	}
	tx.added = append(tx.added, at)
	return nil
}

// Scan returns at most limit entries with higher IDs than after, by ID, also those that the transaction
// has added. Entries are committed in the order of their IDs.
func (o Outbox) Scan(ctx context.Context, after int64, limit int) ([]operate.OutboxEntry, error) {
	o.tx.sweep(ctx)
	found, _, err := o.pick(ctx, func(ids []int64) ([]int64, error) {
		ids = slices.DeleteFunc(ids, func(id int64) bool { return id <= after })
		return ids[:min(len(ids), limit)], nil
	})
	return found, err
}

// Load returns the entries with these ids that exist.
func (o Outbox) Load(ctx context.Context, ids []int64) ([]operate.OutboxEntry, error) {
	found, _, err := o.pick(ctx, func(all []int64) ([]int64, error) {
		return slices.DeleteFunc(all, func(id int64) bool { return !slices.Contains(ids, id) }), nil
	})
	return found, err
}

// Next returns the first entry of each key of the map after, among the entries with IDs in
// (after[key], last]. A key without such an entry is left out.
func (o Outbox) Next(ctx context.Context, last int64, after map[string]int64) ([]operate.OutboxEntry, error) {
	found, _, err := o.pick(ctx, func(ids []int64) (first []int64, err error) {
		done := map[string]bool{}
		for _, id := range ids {
			if id > last || len(done) == len(after) {
				break
			}
			key, exists, err := o.keyOf(ctx, id)
			if err != nil {
				return nil, err
			}
			if above, wanted := after[key]; exists && wanted && id > above && !done[key] {
				first, done[key] = append(first, id), true
			}
		}
		return first, nil
	})
	return found, err
}

// pick reads the entries that choose returns of all, and again if some of them turn out to be discarded. It
// also returns how many there are.
func (o Outbox) pick(ctx context.Context, choose func(all []int64) ([]int64, error)) ([]operate.OutboxEntry, int, error) {
	for {
		all, err := o.ids(ctx)
		if err != nil {
			return nil, 0, err
		}
		n := len(all)
		wanted, err := choose(all)
		if err != nil {
			return nil, 0, err
		}
		found, err := o.read(ctx, wanted)
		if err != nil || len(found) == len(wanted) {
			return found, n, err
		}
	}
}

// Delete deletes the entries with these ids, and returns the IDs of those that existed.
func (o Outbox) Delete(ctx context.Context, ids []int64) ([]int64, error) {
	there, err := o.ids(ctx)
	if err != nil {
		return nil, err
	}
	there = slices.DeleteFunc(there, func(id int64) bool { return !slices.Contains(ids, id) })
	o.tx.mu.Lock()
	defer o.tx.mu.Unlock()
	o.tx.deleted = append(o.tx.deleted, there...)
	return there, nil
}

// Count returns the number of entries, and when the first of them was added, or zero.
func (o Outbox) Count(ctx context.Context) (entries int, oldest time.Time, err error) {
	first, entries, err := o.pick(ctx, func(ids []int64) ([]int64, error) { return ids[:min(len(ids), 1)], nil })
	if err != nil || len(first) == 0 {
		return 0, oldest, err
	}
	return entries, first[0].AddedAt, nil
}

// Retries returns those of the entries with these ids that operators want to be sent now. Their requests, and those
// for entries that do not exist any more, are gone when the transaction has committed.
func (o Outbox) Retries(ctx context.Context, ids []int64) (wanted []int64, err error) {
	if err := o.tx.usable(); err != nil {
		return nil, err
	}
	var all requests
	if _, err := read(ctx, o.tx.sink.store, o.tx.sink.keys.requests(), &all); err != nil {
		return nil, o.tx.fail(err)
	}
	var done []int64
	for _, r := range all.Retries {
		if r.Partition == o.tx.goal.Partition {
			done = append(done, r.ID)
		}
	}
	if len(done) == 0 {
		return nil, nil
	}
	there, err := o.ids(ctx)
	if err != nil {
		return nil, err
	}
	done = slices.DeleteFunc(done, func(id int64) bool {
		return !slices.Contains(ids, id) && slices.Contains(there, id) // another relay's
	})
	o.tx.mu.Lock()
	defer o.tx.mu.Unlock()
	o.tx.retried = done
	return slices.DeleteFunc(slices.Clone(done), func(id int64) bool { return !slices.Contains(ids, id) }), nil
}

// ids returns the ids of the entries as the transaction has left them.
func (o Outbox) ids(ctx context.Context) ([]int64, error) {
	tx := o.tx
	if err := tx.usable(); err != nil {
		return nil, err
	}
	if err := tx.writeEntries(ctx); err != nil {
		return nil, tx.fail(err)
	}
	at, err := tx.sink.fits(ctx, tx.goal)
	if err != nil {
		return nil, tx.fail(err)
	}
	k := tx.sink.cacheOf(tx.goal.Partition, tx.goal.Claim)
	tx.mu.Lock()
	defer tx.mu.Unlock()
	at.record.changeEntries(tx.added, tx.deleted)
	return slices.DeleteFunc(slices.Clone(at.kept.after(at.record.riding).Entries), k.isGone), nil
}

// read returns those of the entries with these ids that exist, in this order.
func (o Outbox) read(ctx context.Context, ids []int64) ([]operate.OutboxEntry, error) {
	s, g := o.tx.sink, o.tx.goal
	found, exist := make([]operate.OutboxEntry, len(ids)), make([]bool, len(ids))
	k := s.cacheOf(g.Partition, g.Claim)
	var readers errgroup.Group
	readers.SetLimit(sideBySide)
	for i, id := range ids {
		readers.Go(func() error {
			at, err := o.tx.entry(ctx, id)
			if errors.Is(err, operate.ErrNoOutboxEntry) {
				k.put(id, cachedEntry{gone: true})
				return nil
			}
			if err == nil {
				found[i], exist[i] = at.entry, true
				k.learn(at)
			}
			return err
		})
	}
	if err := readers.Wait(); err != nil {
		return nil, o.tx.fail(fmt.Errorf("cassink: read the outbox of %s: %w", g.Partition, err))
	}
	var all []operate.OutboxEntry
	for i, e := range found {
		if exist[i] {
			all = append(all, e)
		}
	}
	return all, nil
}

// keyOf returns the Key of an entry, and whether the entry exists.
func (o Outbox) keyOf(ctx context.Context, id int64) (key string, exists bool, err error) {
	k := o.tx.sink.cacheOf(o.tx.goal.Partition, o.tx.goal.Claim)
	if at := k.entry(id); at.stored.Live {
		return at.key, true, nil
	}
	found, err := o.read(ctx, []int64{id})
	if err != nil || len(found) == 0 {
		return "", false, err
	}
	return found[0].Key, true, nil
}
