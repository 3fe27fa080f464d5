package cassink

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/guard"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/form"
	"github.com/epochfence/epochfence/internal/waits"
	"github.com/epochfence/epochfence/operate"
)

// This file keeps the audit log, in which an entry about a write of the fence comes first, and counts if the
// fence names it. It decides where the ids of dead letters and outbox entries are: in an item of their own,
// and in the fence what has changed since, so that the fence stays small.

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
	return repeated(ctx, func() error {
		value := P(new(T))
		stored, err := read(ctx, store, key, value)
		if err == nil {
			err = do(value)
		}
		var text []byte
		if err == nil {
			text, err = form.Text(value)
		}
		if err == nil {
			_, err = store.Swap(ctx, stored, text, nil)
		}
		return err
	})
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

// lists are what a partition has beside its position. They may be long, so they have an item of their own.
// The fence has what has joined and left them since that item was written.
type lists struct {
	// Dead are the dead letters that may be replayed, the last ones if they are very many.
	Dead []guard.DeadLetter `json:",omitempty"`

	// Entries are the ids of the entries of the outbox.
	Entries []int64 `json:",omitempty"`

	// Replayed are dead letters whose replay has added entries, and which may be there still.
	Replayed []int64 `json:",omitempty"`
}

const (
	keptDead = 1000

	// mostRiding limits what a fence has of the lists, beside what the last transaction has changed.
	mostRiding = 64
)

// kept is the item of the lists.
type kept struct {
	form.Kept
	stored cas.Item
	Number int64 // of its writes
	lists
}

// riding is what a fence has of the lists. No id joins twice, so an item of the lists may have some of it.
type riding struct {
	Joined lists   `json:",omitzero"`
	Left   []int64 `json:",omitempty"`

	// Upon is the number of the item of the lists that the fence's last owner knew. A reader wants an item with
	// this number or a higher one.
	Upon int64 `json:",omitempty"`
}

func (r *riding) len() int {
	return len(r.Joined.Dead) + len(r.Joined.Entries) + len(r.Joined.Replayed) + len(r.Left)
}

// leave removes dead letters or entries from the lists.
func (r *riding) leave(ids ...int64) {
	r.Joined = r.Joined.without(ids)
	r.Left = slices.Concat(r.Left, ids)
}

// settle leaves out what the item of the lists has, if that was written after the fence was. A process that
// was paused before it writes the item, from an older fence, is refused then.
func (r *riding) settle(k kept) {
	if k.Number > r.Upon {
		known := k.Dead
		r.Joined.Dead = slices.DeleteFunc(slices.Clone(r.Joined.Dead), func(d guard.DeadLetter) bool {
			return slices.Contains(known, d) || len(known) == keptDead && d.ID < known[0].ID
		})
		r.Joined.Entries = besides(r.Joined.Entries, k.Entries)
		r.Joined.Replayed = besides(r.Joined.Replayed, k.Replayed)
		r.Left = slices.DeleteFunc(slices.Clone(r.Left), func(id int64) bool { return !k.has(id) })
	}
	r.Upon = k.Number
}

// besides returns those of the ids that are not among others.
func besides(ids, others []int64) []int64 {
	return slices.DeleteFunc(slices.Clone(ids), func(id int64) bool { return slices.Contains(others, id) })
}

func (l lists) has(id int64) bool {
	return slices.Contains(l.Entries, id) || slices.Contains(l.Replayed, id) ||
		slices.ContainsFunc(l.Dead, func(d guard.DeadLetter) bool { return d.ID == id })
}

func (l lists) without(ids []int64) lists {
	if len(ids) == 0 {
		return l
	}
	return lists{
		Dead:     slices.DeleteFunc(slices.Clone(l.Dead), func(d guard.DeadLetter) bool { return slices.Contains(ids, d.ID) }),
		Entries:  besides(l.Entries, ids),
		Replayed: besides(l.Replayed, ids),
	}
}

// after returns the lists as a fence has changed them.
func (l lists) after(r riding) lists {
	if r.len() == 0 {
		return l
	}
	all := lists{
		Dead: slices.Compact(slices.SortedFunc(slices.Values(slices.Concat(l.Dead, r.Joined.Dead)), func(a, b guard.DeadLetter) int {
			return cmp.Compare(a.ID, b.ID)
		})),
		Entries:  union(l.Entries, r.Joined.Entries),
		Replayed: union(l.Replayed, r.Joined.Replayed),
	}.without(r.Left)
	all.Dead = all.Dead[max(len(all.Dead)-keptDead, 0):]
	all.Replayed = all.Replayed[max(len(all.Replayed)-keptDead, 0):]
	return all
}

func union(a, b []int64) []int64 {
	return slices.Compact(slices.Sorted(slices.Values(slices.Concat(a, b))))
}

// whole adds the lists to a fence that was read.
func (s *Sink) whole(ctx context.Context, at item) (item, error) {
	k, err := s.readLists(ctx, at.record)
	if err != nil {
		return item{}, err
	}
	at.kept, at.lists = k, k.after(at.record.riding)
	return at, nil
}

// readLists reads the item of the lists until it has what the fence relies on. If the store has lost that, which
// only a write can tell from an answer that lags, what is left is taken.
func (s *Sink) readLists(ctx context.Context, r record) (k kept, err error) {
	key := s.keys.lists(r.Partition)
	if r.Upon == 0 && r.riding.len() == 0 {
		return kept{stored: cas.Item{Key: key}}, nil // the item was not written, or has nothing that the fence needs
	}
	pause := waits.New(10*time.Millisecond, 500*time.Millisecond)
	for end := time.Now().Add(lagging); ; {
		k = kept{}
		if k.stored, err = read(ctx, s.store, key, &k); err != nil || k.Number >= r.Upon {
			return k, err
		}
		if time.Now().After(end) {
			k.Number = r.Upon
			if k, err = s.writeLists(ctx, k); !errors.Is(err, cas.ErrConflict) {
				return k, err
			}
		}
		if !waits.Sleep(ctx, pause.Next()) {
			return kept{}, fmt.Errorf("%w: item %q is older than the fence", ctx.Err(), key)
		}
	}
}

func (s *Sink) writeLists(ctx context.Context, k kept) (kept, error) {
	value, err := form.Text(&k)
	if err != nil {
		return k, err
	}
	k.stored, err = s.store.Swap(ctx, k.stored, value, nil)
	return k, err
}

// moveOut moves what a fence has of the lists to their item once it is much, and has its dead letters say that
// they exist. The next write of the fence leaves it out. What fails is repeated after that write.
//
// The item of the lists was read before the fence was written, and is replaced if it is the same still. So
// what is written here is true, however late.
func (s *Sink) moveOut(ctx context.Context, at item) {
	now := at
	if at.record.riding.len() > s.mostRiding {
		k := kept{Kept: at.kept.Kept, stored: at.kept.stored, Number: at.kept.Number + 1, lists: at.lists}
		var err error
		if now.kept, err = s.writeLists(ctx, k); err != nil {
			s.forget(at.record.Partition) // and have the item read
			return
		}
	}
	if s.confirmLetters(ctx, at.record) {
		now.record.Pending = nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if h, ok := s.held[at.record.Partition]; ok && h.stored.Version == at.stored.Version {
		s.held[at.record.Partition] = now // as the next write has it
	}
}
