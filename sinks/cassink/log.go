package cassink

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/form"
	"github.com/epochfence/epochfence/internal/waits"
	"github.com/epochfence/epochfence/operate"
)

// This file keeps the audit log. An entry about a write of the fence comes first, and counts if the
// fence names it.

// keptDecisions limits the entries of the audit log that are kept of each partition.
const keptDecisions = 500

// auditLog is the item of a partition's entries, oldest first. A field that an older process must not drop
// is one of Row.Body.
type auditLog struct {
	form.Kept
	Entries []logged
}

// logged is an entry of the audit log.
type logged struct {
	operate.Row

	// OfFence means that the entry is about a write of the fence that comes after it, and After is the LastID of the
	// fence before. The entry is true if the fence, or a later one that is true, names it.
	OfFence bool  `json:"of_fence,omitempty"`
	After   int64 `json:"after,omitempty"`
}

// announce adds an entry to the audit log, before the write of the fence that it is about. The log is no
// part of the fence, which would grow with it.
func (s *Sink) announce(ctx context.Context, r *record, d operate.Decision) error {
	last, e := r.LastID, operate.EntryOf(d).Row
	err := s.addToLog(ctx, r.Partition, func(old []logged) []logged {
		if i := slices.IndexFunc(old, func(e logged) bool { return e.ID > last }); i >= 0 { // may be true, soon
			old = append(trueOf(old[:i], last), old[i:]...)
		} else {
			old = trueOf(old, last)
		}
		e.At, e.Changed, e.ID = now(), now(), max(newID(), lastID(old)+1, last+1)
		return append(old, logged{Row: e, OfFence: true, After: last})
	})
	if err == nil {
		r.LastID = e.ID
	}
	return err
}

// log adds entries that are about no write of the fence. They become the last, also if the clock of this
// process is behind.
func (s *Sink) log(ctx context.Context, p epoch.Partition, es []operate.Row) error {
	return s.addToLog(ctx, p, func(old []logged) []logged {
		for _, e := range es {
			e.At, e.Changed, e.ID = now(), now(), max(newID(), lastID(old)+1)
			old = append(old, logged{Row: e})
		}
		return old
	})
}

func (s *Sink) addToLog(ctx context.Context, p epoch.Partition, add func(old []logged) []logged) error {
	return replace(ctx, s.store, s.keys.log(p), func(log *auditLog) error {
		all := add(log.Entries)
		log.Entries = nil
		beside, err := form.Text(log)
		log.Entries = recent(all, keptDecisions, s.facts, len(beside))
		return err
	})
}

// trueOf returns the entries of a log, oldest first, that are true if the fence has this LastID.
func trueOf(log []logged, last int64) []logged {
	var found []logged
	for _, e := range slices.Backward(log) {
		if e.OfFence && e.ID > last {
			continue // its write was refused, or has not landed
		}
		if e.OfFence {
			last = e.After
		}
		found = append(found, e)
	}
	slices.Reverse(found)
	return found
}

// mostBytes limits the value of an item that has the newest of something, so that every store can have it.
const mostBytes = 128 << 10

// recent returns the last elements, at most so many, and as many as an item may have with so many bytes beside them.
func recent[T any](all []T, most int, f cas.Facts, beside int) []T {
	room, n := mostBytes, 0
	if f.MaxValue > 0 {
		room = min(room, f.MaxValue)
	}
	for room -= beside; n < min(len(all), most); n++ {
		text, err := json.Marshal(all[len(all)-1-n])
		if room -= len(text) + 1; err != nil || room < 0 {
			break
		}
	}
	return all[len(all)-n:]
}

func lastID(ds []logged) (last int64) {
	for _, d := range ds {
		last = max(last, d.ID)
	}
	return last
}

// replace replaces the value of an item by what do makes of it.
func replace[T any, P interface {
	*T
	form.Form
}](ctx context.Context, store cas.Store, key string, do func(value P) error) error {
	pause := waits.New(5*time.Millisecond, 500*time.Millisecond)
	for {
		value := P(new(T))
		stored, err := read(ctx, store, key, value)
		if err != nil {
			return err
		}
		if err := do(value); err != nil {
			return err
		}
		text, err := form.Text(value)
		if err != nil {
			return err
		}
		if _, err = store.Swap(ctx, stored, text, nil); err == nil || !errors.Is(err, cas.ErrConflict) {
			return err
		}
		if !waits.Sleep(ctx, pause.Next()) {
			return ctx.Err()
		}
	}
}

func read(ctx context.Context, store cas.Store, key string, value form.Form) (cas.Item, error) {
	stored, err := store.Get(ctx, key)
	if err != nil || !stored.Live {
		return stored, err
	}
	if err := form.Parse(stored.Value, value); err != nil {
		return stored, fmt.Errorf("%w: item %q: %w", epoch.ErrUnhealthy, key, err)
	}
	return stored, nil
}

// entries returns the log of a partition, or of all, oldest first.
func (s *Sink) entries(ctx context.Context, p *epoch.Partition) ([]operate.Row, error) {
	if p != nil {
		at, err := fenceIn(s.readFence(ctx, *p), *p)
		if err != nil && !errors.Is(err, epoch.ErrMissing) {
			return nil, err
		}
		var log auditLog
		if _, err := read(ctx, s.store, s.keys.log(*p), &log); err != nil {
			return nil, err
		}
		return rowsOf(log.Entries, at.record.LastID), nil
	}
	records, err := s.records(ctx)
	if err != nil {
		return nil, err
	}
	last := map[string]int64{}
	for _, r := range records {
		last[s.keys.log(r.Partition)] = r.LastID
	}
	items, err := s.list(ctx, s.keys.logs())
	if err != nil {
		return nil, err
	}
	var all []operate.Row
	for _, it := range items {
		var log auditLog
		if err := form.Parse(it.Value, &log); it.Live && err != nil {
			all = append(all, s.unreadable(operate.KindEntry, s.keys.logs(), it.Key, err))
			continue
		}
		all = append(all, rowsOf(log.Entries, last[it.Key])...)
	}
	return all, nil
}

func rowsOf(log []logged, last int64) (rows []operate.Row) {
	for _, e := range trueOf(log, last) {
		rows = append(rows, e.Row)
	}
	return rows
}
