package cassink

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/backoff"
	"github.com/epochfence/epochfence/operate"
)

// MaxEntries limits the entries that wait in the outbox of a partition, and those of one transaction. A
// message that adds one more is retried until an entry is gone: its error is an [epoch.ErrTransient].
// Background work may add more, because answers may have to be followed by entries.
const MaxEntries = 4096

// Outbox is the outbox of a transaction's partition, for package casoutbox. An entry exists while the
// fence has its id. Its item is written before the fence, and deleted after it.
type Outbox struct{ tx *Tx }

// Outbox returns the outbox of p, which must be the transaction's partition.
func (tx *Tx) Outbox(p epoch.Partition) (Outbox, error) {
	if p != tx.goal.Partition {
		return Outbox{}, fmt.Errorf("cassink: the outbox of %s: the transaction is of %s", p, tx.goal.Partition)
	}
	return Outbox{tx}, nil
}

// entryItem is an entry and the item that has it. The value of the item is the body, and the note the rest.
type entryItem struct {
	stored cas.Item
	entry  operate.OutboxEntry
}

func (at entryItem) note() ([]byte, error) {
	at.entry.Body = nil
	return json.Marshal(at.entry)
}

func (at *entryItem) decode() error {
	if err := json.Unmarshal(at.stored.Note, &at.entry); err != nil {
		return fmt.Errorf("item %q is no entry of an outbox: %w", at.stored.Key, err)
	}
	at.entry.Body = at.stored.Value
	return nil
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
	case !tx.goal.held && len(tx.record.Entries)+len(tx.added) >= MaxEntries:
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

// Next returns for each Key in after the first entry with an ID above after[Key] and at most last,
// if there is one.
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

// Retries returns the entries that operators want to be sent now. The requests are gone when the
// transaction has committed.
func (o Outbox) Retries(ctx context.Context) (ids []int64, err error) {
	if err := o.tx.usable(); err != nil {
		return nil, err
	}
	var all requests
	if _, err := read(ctx, o.tx.sink.store, o.tx.sink.keys.requests(), &all); err != nil {
		return nil, o.tx.fail(err)
	}
	for _, r := range all.Retries {
		if r.Partition == o.tx.goal.Partition {
			ids = append(ids, r.ID)
		}
	}
	o.tx.mu.Lock()
	defer o.tx.mu.Unlock()
	o.tx.retried = ids
	return ids, nil
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
	k := tx.sink.knownOf(tx.goal.Partition, tx.goal.Claim)
	tx.mu.Lock()
	defer tx.mu.Unlock()
	at.record.changeEntries(tx.added, tx.deleted)
	return slices.DeleteFunc(at.record.Entries, k.isGone), nil
}

func (r *record) changeEntries(added []entryItem, deleted []int64) {
	r.Entries = slices.DeleteFunc(slices.Clone(r.Entries), func(id int64) bool { return slices.Contains(deleted, id) })
	for _, at := range added {
		if !at.isNew() && !slices.Contains(deleted, at.entry.ID) {
			r.Entries = append(r.Entries, at.entry.ID)
		}
		r.LastEntry = max(r.LastEntry, at.entry.ID)
	}
}

func (r *record) hasAll(ids []int64) bool {
	return !slices.ContainsFunc(ids, func(id int64) bool { return !slices.Contains(r.Entries, id) })
}

// replayed remembers a dead letter whose replay adds entries until its item says that it is gone. If that is
// not written, it is replayed again, and must not add them again.
func (r *record) replayed(t *transaction) {
	if len(t.added) == 0 {
		return
	}
	for _, at := range t.replays {
		r.Replayed = append(slices.Clone(r.Replayed), at.letter.ID)
	}
	r.Replayed = r.Replayed[max(len(r.Replayed)-keptDead, 0):]
}

// isEntry reports whether the outbox has an entry with this id.
func (t *transaction) isEntry(id int64) bool {
	t.sink.mu.Lock()
	defer t.sink.mu.Unlock()
	return slices.Contains(t.record.Entries, id) || slices.Contains(t.sink.held[t.goal.Partition].record.Entries, id)
}

// changes reports whether the fence is to be written.
func (t *transaction) changes() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.replay != 0 || len(t.added) > 0 || len(t.deleted) > 0 || len(t.letters) > 0
}

// writeEntries writes the items of the entries that the transaction has added, with ids above all others
// of the partition.
func (t *transaction) writeEntries(ctx context.Context) error {
	t.joining.Lock()
	defer t.joining.Unlock()
	t.mu.Lock()
	added := slices.Clone(t.added)
	t.mu.Unlock()
	if !slices.ContainsFunc(added, entryItem.isNew) {
		return nil
	}
	if err := t.takeTurn(ctx); err != nil {
		return err
	}
	at, err := t.sink.fits(ctx, t.goal)
	if err != nil {
		return err
	}
	last := at.record.LastEntry
	var writers errgroup.Group
	writers.SetLimit(sideBySide)
	for i := range added {
		if added[i].isNew() {
			last = newIDAbove(last)
			added[i].entry.ID = last
			writers.Go(func() (err error) {
				added[i], err = t.sink.writeEntry(ctx, added[i])
				return err
			})
		}
	}
	err = writers.Wait()
	t.mu.Lock()
	defer t.mu.Unlock()
	copy(t.added, added)
	return err
}

func (at entryItem) isNew() bool { return at.entry.ID == 0 }

func (s *Sink) writeEntry(ctx context.Context, at entryItem) (entryItem, error) {
	note, err := at.note()
	if err != nil {
		return at, err
	}
	key := s.keys.entry(at.entry.Partition, at.entry.ID)
	at.stored, err = s.store.Swap(ctx, cas.Item{Key: key}, at.entry.Body, note)
	if errors.Is(err, cas.ErrConflict) {
		return at, fmt.Errorf("%w: entry %d is another one's: %w", epoch.ErrTransient, at.entry.ID, err)
	}
	if err != nil {
		return at, doubtful(err)
	}
	return at, nil
}

// dropEntries deletes the items of entries that were not committed, at best effort.
func (t *transaction) dropEntries(ctx context.Context) {
	t.mu.Lock()
	added := slices.Clone(t.added)
	t.mu.Unlock()
	for _, at := range added {
		if at.stored.Live {
			_ = t.sink.store.Delete(ctx, at.stored)
		}
	}
}

// tidy remembers the entries that the transaction has added, and deletes the items of those that are gone
// and the requests about them, at best effort: nobody takes them for entries.
func (s *Sink) tidy(ctx context.Context, t *transaction) {
	p := t.goal.Partition
	k := s.knownOf(p, t.goal.Claim)
	for _, at := range t.added {
		k.learn(at)
	}
	if len(t.retried) > 0 {
		_ = s.retry(ctx, p, t.retried, false)
	}
	var deleting errgroup.Group
	deleting.SetLimit(sideBySide)
	for _, id := range t.deleted {
		stored := k.forget(id)
		deleting.Go(func() (err error) {
			if !stored.Live {
				if stored, err = s.store.Get(ctx, s.keys.entry(p, id)); err != nil || !stored.Live {
					return err
				}
			}
			return s.store.Delete(ctx, stored)
		})
	}
	_ = deleting.Wait()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.added = nil // nothing drops them any more
}

// sweep deletes items of the outbox that are no entries, once under each claim: their transaction has failed,
// or their process has died before it has deleted them. No later entry has an id up to the highest there was.
func (t *transaction) sweep(ctx context.Context) {
	s, p := t.sink, t.goal.Partition
	if s.knownOf(p, t.goal.Claim).wasSwept() {
		return
	}
	at, err := s.fits(ctx, t.goal)
	if err != nil {
		return
	}
	for it, err := range s.store.List(ctx, s.keys.entries(p)) {
		if err != nil {
			return
		}
		id, err := strconv.ParseInt(strings.TrimPrefix(it.Key, s.keys.entries(p)), 10, 64)
		if err == nil && id <= at.record.LastEntry && !slices.Contains(at.record.Entries, id) {
			_ = s.store.Delete(ctx, it)
		}
	}
}

// read returns those of the entries with these ids that exist, in this order.
func (o Outbox) read(ctx context.Context, ids []int64) ([]operate.OutboxEntry, error) {
	s, g := o.tx.sink, o.tx.goal
	found, exist := make([]operate.OutboxEntry, len(ids)), make([]bool, len(ids))
	k := s.knownOf(g.Partition, g.Claim)
	var readers errgroup.Group
	readers.SetLimit(sideBySide)
	for i, id := range ids {
		readers.Go(func() error {
			at, err := o.tx.entry(ctx, id)
			if errors.Is(err, operate.ErrNoOutboxEntry) {
				k.gone(id)
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
	k := o.tx.sink.knownOf(o.tx.goal.Partition, o.tx.goal.Claim)
	if at, ok := k.has(id); ok {
		return at.key, true, nil
	}
	found, err := o.read(ctx, []int64{id})
	if err != nil || len(found) == 0 {
		return "", false, err
	}
	return found[0].Key, true, nil
}

// entry reads an entry that the fence has, as far as this process knows. An operator may have discarded it,
// and the store may answer late.
func (t *transaction) entry(ctx context.Context, id int64) (at entryItem, err error) {
	if at, ok := t.own(id); ok {
		return at, nil
	}
	s, p := t.sink, t.goal.Partition
	pause := backoff.New(10*time.Millisecond, 500*time.Millisecond)
	for end, asked := time.Now().Add(lagging), false; ; {
		if at.stored, err = s.store.Get(ctx, s.keys.entry(p, id)); err != nil {
			return at, lost(err)
		}
		if at.stored.Live {
			return at, at.decode()
		}
		if !asked {
			if err := t.isThere(ctx, id); err != nil {
				return at, err
			}
			asked = true
		}
		if time.Now().After(end) || !backoff.Sleep(ctx, pause.Next()) {
			return at, fmt.Errorf("%w: the store has lost item %q of the outbox: epochfence outbox discard %d lets the others go on",
				epoch.ErrUnhealthy, at.stored.Key, id)
		}
	}
}

// own returns an entry that the transaction has added.
func (t *transaction) own(id int64) (entryItem, bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := slices.IndexFunc(t.added, func(at entryItem) bool { return at.entry.ID == id })
	if i < 0 {
		return entryItem{}, false
	}
	return t.added[i], true
}

// isThere asks for the fence as it is, and returns [operate.ErrNoOutboxEntry] if it has no such entry.
func (t *transaction) isThere(ctx context.Context, id int64) error {
	now, err := t.sink.newest(ctx, t.goal.Partition)
	t.sink.forget(t.goal.Partition) // it has another version
	if err != nil {
		return lost(err)
	}
	if _, err := t.goal.after(now.record.Fence); err != nil {
		return err
	}
	if !slices.Contains(now.record.Entries, id) {
		return operate.ErrNoOutboxEntry
	}
	return nil
}

// known is what this process has read of the entries of a partition, under one claim.
type known struct {
	claim epoch.ClaimID
	sink  *Sink
	of    map[int64]knownEntry
	ended map[int64]bool // entries that were discarded
	swept bool
}

type knownEntry struct {
	key    string
	stored cas.Item // without its value and note
}

func (s *Sink) knownOf(p epoch.Partition, claim epoch.ClaimID) *known {
	s.mu.Lock()
	defer s.mu.Unlock()
	k, ok := s.outboxes[p]
	if !ok || k.claim != claim {
		k = &known{claim: claim, sink: s, of: map[int64]knownEntry{}, ended: map[int64]bool{}}
		s.outboxes[p] = k
	}
	return k
}

func (k *known) wasSwept() bool {
	k.sink.mu.Lock()
	defer k.sink.mu.Unlock()
	was := k.swept
	k.swept = true
	return was
}

func (k *known) learn(at entryItem) {
	k.sink.mu.Lock()
	defer k.sink.mu.Unlock()
	at.stored.Value, at.stored.Note = nil, nil
	k.of[at.entry.ID] = knownEntry{at.entry.Key, at.stored}
}

func (k *known) gone(id int64) {
	k.sink.mu.Lock()
	defer k.sink.mu.Unlock()
	delete(k.of, id)
	k.ended[id] = true
}

func (k *known) isGone(id int64) bool {
	k.sink.mu.Lock()
	defer k.sink.mu.Unlock()
	return k.ended[id]
}

func (k *known) has(id int64) (knownEntry, bool) {
	k.sink.mu.Lock()
	defer k.sink.mu.Unlock()
	at, ok := k.of[id]
	return at, ok
}

func (k *known) forget(id int64) cas.Item {
	k.sink.mu.Lock()
	defer k.sink.mu.Unlock()
	at := k.of[id]
	delete(k.of, id)
	return at.stored
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
