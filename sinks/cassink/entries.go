package cassink

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/form"
	"github.com/epochfence/epochfence/internal/waits"
	"github.com/epochfence/epochfence/operate"
)

// This file writes, reads and sweeps the items of outbox entries, and remembers, under one claim,
// those that this process has read. log.go has which entries exist, and outbox.go is the view of
// package casoutbox.

// entryItem is an entry and the item that has it. The value of the item is the body, and the note the rest.
type entryItem struct {
	stored cas.Item
	entry  operate.OutboxEntry
}

// noted is the note of an entry's item, which nobody replaces.
type noted struct {
	form.Version
	operate.OutboxEntry
}

func (at entryItem) note() ([]byte, error) {
	at.entry.Body = nil
	return form.Text(&noted{OutboxEntry: at.entry})
}

func (at *entryItem) decode() error {
	n := noted{OutboxEntry: operate.OutboxEntry{Offset: -1}} // an earlier version stored none
	if err := form.Parse(at.stored.Note, &n); err != nil {
		return fmt.Errorf("%w: entry of the outbox %q: %w", epoch.ErrUnhealthy, at.stored.Key, err)
	}
	at.entry, at.entry.Body = n.OutboxEntry, at.stored.Value
	return nil
}

func (r *record) changeEntries(added []entryItem, deleted []int64) {
	r.Joined.Entries = slices.Clone(r.Joined.Entries)
	for _, at := range added {
		if !at.isNew() {
			r.Joined.Entries = append(r.Joined.Entries, at.entry.ID)
		}
		r.LastEntry = max(r.LastEntry, at.entry.ID)
	}
	r.leave(deleted...)
}

func (l lists) hasAll(ids []int64) bool { return len(besides(ids, l.Entries)) == 0 }

// replayed remembers a dead letter whose replay adds entries until its item says that it is gone. If that is
// not written, it is replayed again, and must not add them again.
func (r *record) replayed(t *transaction) {
	if len(t.added) == 0 {
		return
	}
	for _, at := range t.replays {
		r.Joined.Replayed = append(slices.Clone(r.Joined.Replayed), at.letter.ID)
	}
}

// isEntry reports whether the outbox has an entry with this id.
func (t *transaction) isEntry(id int64) bool {
	t.sink.mu.Lock()
	defer t.sink.mu.Unlock()
	return slices.Contains(t.lists.Entries, id) || slices.Contains(t.sink.held[t.goal.Partition].lists.Entries, id)
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
	var writes []cas.Write
	var of []*entryItem
	for i := range added {
		if at := &added[i]; at.isNew() {
			last = newIDAbove(last)
			at.entry.ID = last
			note, err := at.note()
			if err != nil {
				return err
			}
			seen := cas.Item{Key: t.sink.keys.entry(at.entry.Partition, last)}
			writes, of = append(writes, cas.Write{Seen: seen, Value: at.entry.Body, Note: note}), append(of, at)
		}
	}
	for some := range slices.Chunk(writes, mostWritten) {
		for i, r := range cas.SwapAll(ctx, t.sink.store, some) {
			switch of[i].stored = r.Item; {
			case err != nil || r.Err == nil:
			case errors.Is(r.Err, cas.ErrConflict):
				err = fmt.Errorf("%w: another transaction has written entry %d of the outbox: %w", epoch.ErrTransient, of[i].entry.ID, r.Err)
			default:
				err = doubtful(r.Err)
			}
		}
		if of = of[len(some):]; err != nil {
			break
		}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	copy(t.added, added)
	return err
}

// mostWritten limits the entries of one request, and so how long it takes and how many may be in doubt.
const mostWritten = 128

func (at entryItem) isNew() bool { return at.entry.ID == 0 }

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
	k := s.cacheOf(p, t.goal.Claim)
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
	if s.cacheOf(p, t.goal.Claim).wasSwept() {
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
		if err == nil && id <= at.record.LastEntry && !slices.Contains(at.lists.Entries, id) {
			_ = s.store.Delete(ctx, it)
		}
	}
}

// entry reads an entry that the fence has, as far as this process knows. An operator may have discarded it,
// and the store may answer late.
func (t *transaction) entry(ctx context.Context, id int64) (at entryItem, err error) {
	if at, ok := t.own(id); ok {
		return at, nil
	}
	s, p := t.sink, t.goal.Partition
	pause := waits.New(10*time.Millisecond, 500*time.Millisecond)
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
		if time.Now().After(end) || !waits.Sleep(ctx, pause.Next()) {
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
	if now, err = t.sink.whole(ctx, now); err != nil {
		return lost(err)
	}
	if !slices.Contains(now.lists.Entries, id) {
		return operate.ErrNoOutboxEntry
	}
	return nil
}

// entryCache is what this process has read of the entries of a partition, under one claim.
type entryCache struct {
	claim epoch.ClaimID
	sink  *Sink
	of    map[int64]cachedEntry
	swept bool
}

type cachedEntry struct {
	key    string
	stored cas.Item // without its value and note
	gone   bool     // it was discarded
}

func (s *Sink) cacheOf(p epoch.Partition, claim epoch.ClaimID) *entryCache {
	s.mu.Lock()
	defer s.mu.Unlock()
	k, ok := s.outboxes[p]
	if !ok || k.claim != claim {
		k = &entryCache{claim: claim, sink: s, of: map[int64]cachedEntry{}}
		s.outboxes[p] = k
	}
	return k
}

func (k *entryCache) wasSwept() bool {
	k.sink.mu.Lock()
	defer k.sink.mu.Unlock()
	was := k.swept
	k.swept = true
	return was
}

func (k *entryCache) learn(at entryItem) {
	at.stored.Value, at.stored.Note = nil, nil
	k.put(at.entry.ID, cachedEntry{key: at.entry.Key, stored: at.stored})
}

func (k *entryCache) put(id int64, at cachedEntry) {
	k.sink.mu.Lock()
	defer k.sink.mu.Unlock()
	if !k.of[id].gone { // its item may have been read before
		k.of[id] = at
	}
}

// entry returns what is known of an entry: the zero value if nothing is.
func (k *entryCache) entry(id int64) cachedEntry {
	k.sink.mu.Lock()
	defer k.sink.mu.Unlock()
	return k.of[id]
}

func (k *entryCache) isGone(id int64) bool { return k.entry(id).gone }

func (k *entryCache) forget(id int64) cas.Item {
	k.sink.mu.Lock()
	defer k.sink.mu.Unlock()
	at := k.of[id]
	delete(k.of, id)
	return at.stored
}
