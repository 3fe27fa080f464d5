package cassink

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/form"
	"github.com/epochfence/epochfence/operate"
)

// This file has the rows of operators over items: the audit log (log.go), dead letters (deadletters.go),
// signs of life, the outbox (operator.go), and the requests that owners poll. Package operate decides what rows mean. Each change
// is a write of its own, in the order that leaves nothing done without a record, or a request.

var _ operate.Ledger[*Tx] = (*Sink)(nil)

// Write implements [operate.Rows].
func (s *Sink) Write(ctx context.Context, cs ...operate.Change) error {
	for len(cs) > 0 {
		first, n := cs[0], 1
		var err error
		switch first.Kind {
		case operate.KindProcess:
			err = s.sign(ctx, first)
		case operate.KindLetter:
			err = s.changeRow(ctx, first)
		case operate.KindOutbox:
			err = s.changeEntry(ctx, first)
		case operate.KindEntry:
			var entries []operate.Row
			for n = 0; n < len(cs) && cs[n].Kind == operate.KindEntry && cs[n].Partition == first.Partition; n++ {
				entries = append(entries, cs[n].Row)
			}
			err = s.log(ctx, first.Partition, entries)
		}
		if err != nil {
			return fmt.Errorf("cassink: write a row of kind %s: %w", first.Kind, err)
		}
		cs = cs[n:]
	}
	return nil
}

// life is the item of a sign of life, which its own process replaces.
type life struct {
	form.Version
	operate.Row
}

// sign writes or deletes the sign of life of a process.
func (s *Sink) sign(ctx context.Context, c operate.Change) error {
	if c.Remove {
		stored, err := s.store.Get(ctx, s.keys.process(c.Name))
		if err != nil || !stored.Live {
			return err
		}
		var before life
		if err := form.Parse(stored.Value, &before); err == nil && c.Revision != 0 && before.Revision != c.Revision {
			return nil
		}
		return s.store.Delete(ctx, stored)
	}
	return replace(ctx, s.store, s.keys.process(c.Name), func(l *life) error {
		before := l.Row
		l.Row = c.Row
		l.Changed, l.Revision = now(), before.Revision+1
		if l.At = before.At; l.At.IsZero() {
			l.At = l.Changed
		}
		return nil
	})
}

// changeRow changes or deletes a dead letter.
func (s *Sink) changeRow(ctx context.Context, c operate.Change) error {
	if c.ID == 0 {
		return errors.New("a dead letter is added in the transaction that moves past its message")
	}
	asks := c.State == operate.StateRequested && !c.Remove
	if asks { // before the letter, because one that is requested is not requested again
		if err := s.request(ctx, c.Row, true); err != nil {
			return doubtful(err)
		}
	}
	err := s.changeOne(ctx, c)
	switch {
	case errors.Is(err, operate.ErrNoDeadLetter):
		return fmt.Errorf("dead letter %d of %s: %w", c.ID, c.Partition, operate.ErrRowChanged)
	case err != nil || asks:
		return err
	}
	// At best effort: a request without its dead letter is ignored, and so is one before the dead letter is due again.
	_ = s.request(ctx, c.Row, c.State == operate.StateDeferred && !c.Remove)
	return nil
}

func (s *Sink) changeOne(ctx context.Context, c operate.Change) error {
	owners := c.State == operate.StateFailed || c.State == operate.StateDeferred
	fits := func(l *letter) error {
		if l.Revision != c.Revision {
			return fmt.Errorf("dead letter %d of %s: %w", c.ID, c.Partition, operate.ErrRowChanged)
		}
		if l.Pending {
			if err := s.exists(ctx, *l); err != nil {
				return err
			}
		}
		if owners && !c.Remove {
			return nil
		}
		return s.isReplayed(ctx, *l)
	}
	if c.Remove {
		return s.discard(ctx, c, fits)
	}
	return s.changeLetter(ctx, c.Partition, c.ID, func(l *letter) error {
		if err := fits(l); err != nil {
			return err
		}
		l.Pending = false
		if owners {
			l.Under = epoch.ClaimID{}
		}
		l.State, l.Text, l.By, l.Body, l.Changed, l.Revision = c.State, c.Text, c.By, c.Body, now(), l.Revision+1
		return nil
	})
}

// exists returns an error unless a fence has a dead letter whose own item does not say that it exists.
func (s *Sink) exists(ctx context.Context, l letter) error {
	f, err := s.newest(ctx, l.Partition)
	if err != nil {
		return lost(err)
	}
	if slices.Contains(f.record.Pending, l.ID) {
		return nil
	}
	if l.never(f.record) {
		return errNever
	}
	return operate.ErrNoDeadLetter
}

func (s *Sink) discard(ctx context.Context, c operate.Change, fits func(l *letter) error) error {
	at, err := s.letter(ctx, c.Partition, c.ID)
	if err == nil {
		err = fits(&at.letter)
	}
	if err != nil {
		return err
	}
	if err := s.deleteLetter(ctx, at); errors.Is(err, cas.ErrConflict) {
		return fmt.Errorf("dead letter %d of %s: %w", c.ID, c.Partition, operate.ErrRowChanged)
	} else if err != nil {
		return doubtful(err)
	}
	_, err = s.change(ctx, c.Partition, func(r *record) error {
		if r.riding.len() >= mostRiding {
			return operate.ErrNothingToDo // the owner lists it for longer
		}
		r.leave(c.ID)
		return nil
	})
	if err != nil && !errors.Is(err, epoch.ErrMissing) && !errors.Is(err, operate.ErrNothingToDo) {
		return err
	}
	return nil
}

// WriteIn implements [operate.Ledger]. A dead letter that is removed was replayed: it is deleted after the items
// and the fence were written. If that fails, the message is replayed again, which changes nothing twice.
func (s *Sink) WriteIn(ctx context.Context, tx *Tx, cs ...operate.Change) error {
	if err := tx.usable(); err != nil {
		return err
	}
	for _, c := range cs {
		if tx.goal.Partition != c.Partition {
			return fmt.Errorf("cassink: write a row of %s: this transaction is not under a claim of that partition", c.Partition)
		}
		if err := s.writeIn(ctx, tx, c); err != nil {
			return err
		}
	}
	return nil
}

func (s *Sink) writeIn(ctx context.Context, tx *Tx, c operate.Change) error {
	if c.Kind == operate.KindLetter && c.ID != 0 {
		at, err := s.letter(ctx, c.Partition, c.ID)
		switch {
		case errors.Is(err, operate.ErrNoDeadLetter), err == nil && at.letter.Revision != c.Revision:
			return fmt.Errorf("cassink: dead letter %d of %s: %w", c.ID, c.Partition, operate.ErrRowChanged)
		case err != nil:
			return lost(err)
		}
		tx.mu.Lock()
		defer tx.mu.Unlock()
		tx.replays = append(tx.replays, at)
		if slices.Contains(tx.lists.Replayed, c.ID) {
			tx.added = nil // it has added them
		}
		return nil
	}
	tx.mu.Lock()
	defer tx.mu.Unlock()
	if c.Kind == operate.KindEntry {
		tx.entries = append(tx.entries, c.Row)
		return nil
	}
	l := letter{Row: c.Row, Written: tx.record.Epoch}
	l.ID, l.At, l.Changed = newIDAbove(tx.record.LastEntry), now(), now()
	tx.letters = append(tx.letters, letterItem{letter: l})
	return nil
}

// beginReplays marks the dead letters whose changes are about to be written, so that nobody discards one
// in the middle of that.
func (t *transaction) beginReplays(ctx context.Context) error {
	for i, at := range t.replays {
		at.letter.Under, at.letter.Pending = t.goal.Claim, false // it exists, or nobody would have been given it
		at, err := t.sink.swapLetter(ctx, at)
		if errors.Is(err, cas.ErrConflict) {
			return fmt.Errorf("replay dead letter %d of %s: %w", at.letter.ID, at.letter.Partition, operate.ErrRowChanged)
		}
		if err != nil {
			return doubtful(err)
		}
		t.replays[i] = at
	}
	return nil
}

// isReplayed returns an error while the owner of the partition may be writing the changes of a dead letter.
func (s *Sink) isReplayed(ctx context.Context, l letter) error {
	if l.Under == (epoch.ClaimID{}) {
		return nil
	}
	at, err := s.newest(ctx, l.Partition)
	switch {
	case errors.Is(err, epoch.ErrMissing):
		return nil
	case err != nil:
		return err
	case at.record.Claim == l.Under:
		return fmt.Errorf("%w: its replay is under way; if that does not end, evict the owner first", operate.ErrDeadLetterChanged)
	}
	return nil
}

// finishReplay deletes the dead letters that the transaction has replayed, and records it, at best effort.
func (s *Sink) finishReplay(ctx context.Context, t *transaction) error {
	for _, at := range t.replays {
		err := s.deleteLetter(ctx, at)
		if errors.Is(err, cas.ErrConflict) {
			return fmt.Errorf("replay dead letter %d of %s: %w", at.letter.ID, at.letter.Partition, operate.ErrRowChanged)
		}
		if err != nil {
			return doubtful(err)
		}
		s.removed(at.letter)
		_ = s.request(ctx, at.letter.Row, false)
	}
	if len(t.entries) > 0 {
		_ = s.log(ctx, t.goal.Partition, t.entries)
	}
	return nil
}

// removed has the next write of the fence leave out a dead letter that is gone.
func (s *Sink) removed(l letter) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if at, ok := s.held[l.Partition]; ok {
		at.record.leave(l.ID)
		at.lists = at.lists.without([]int64{l.ID})
		s.held[l.Partition] = at
	}
}

// requests is what owners of partitions poll: a number that changes with each act, and the replays that
// were requested.
type requests struct {
	form.Kept
	Acts    int64
	Replays []requested `json:",omitempty"`
	Retries []requested `json:",omitempty"` // of entries of the outbox

	// Deferred are the dead letters to replay once they are due. An earlier version leaves them alone.
	Deferred []due `json:",omitempty"`
}

// due is a dead letter that is replayed from a time of the clock of the process that has deferred it.
type due struct {
	requested
	At time.Time
}

// mostDeferred limits what all partitions have deferred, because it is in one item. A partition that would defer one
// more waits until others are replayed. It must not halt: a halted partition replays nothing.
const mostDeferred = 1000

var errDeferred = fmt.Errorf("%w: %d messages are deferred, which is all that a cassink keeps", epoch.ErrTransient, mostDeferred)

// requested names a dead letter, or an entry of the outbox.
type requested struct {
	Partition epoch.Partition
	ID        int64
}

// request adds a dead letter to what owners of partitions poll, or removes it.
func (s *Sink) request(ctx context.Context, r operate.Row, wanted bool) error {
	this := requested{r.Partition, r.ID}
	return replace(ctx, s.store, s.keys.requests(), func(all *requests) error {
		all.Replays = slices.DeleteFunc(all.Replays, func(r requested) bool { return r == this })
		all.Deferred = slices.DeleteFunc(all.Deferred, func(d due) bool { return d.requested == this })
		switch later := r.State == operate.StateDeferred; {
		case wanted && later && len(all.Deferred) >= mostDeferred:
			return errDeferred
		case wanted && later:
			all.Deferred = append(all.Deferred, due{this, now().Add(r.Delay())})
		case wanted:
			all.Replays = append(all.Replays, this)
		}
		return nil
	})
}

// Requests implements [operate.Ledger].
func (s *Sink) Requests(ctx context.Context, ps []epoch.Partition) (acts int64, letters []operate.Row, err error) {
	fail := func(err error) (int64, []operate.Row, error) {
		return 0, nil, fmt.Errorf("cassink: look for requests about %d partitions: %w", len(ps), err)
	}
	var all requests
	if _, err = read(ctx, s.store, s.keys.requests(), &all); err != nil {
		return fail(err)
	}
	slices.SortFunc(all.Replays, func(a, b requested) int { return cmp.Compare(a.ID, b.ID) })
	slices.SortFunc(all.Deferred, func(a, b due) int { return a.At.Compare(b.At) })
	listed := map[requested]due{}
	for _, d := range all.Deferred {
		if listed[d.requested] = d; !now().Before(d.At) {
			all.Replays = append(all.Replays, d.requested)
		}
	}
	of := map[epoch.Partition]int{}
	for _, r := range all.Replays {
		if !slices.Contains(ps, r.Partition) || of[r.Partition] == operate.ReplaysEach || len(letters) == operate.ReplaysMost {
			continue
		}
		at, err := s.letter(ctx, r.Partition, r.ID)
		if err == nil && at.letter.Pending {
			err = s.exists(ctx, at.letter)
		}
		if d, is := listed[r]; is {
			s.unlist(ctx, d, at, err)
		}
		if err == nil {
			at.letter, err = s.wholeLetter(ctx, at.letter)
		}
		if errors.Is(err, operate.ErrNoDeadLetter) || errors.Is(err, form.ErrUnreadable) {
			continue // an operator who looks at it is told why
		}
		if err != nil {
			return fail(err)
		}
		if at.letter.IsWanted(now()) {
			of[r.Partition]++
			letters = append(letters, at.letter.Row)
		}
	}
	slices.SortFunc(letters, func(a, b operate.Row) int { return cmp.Compare(a.ID, b.ID) })
	return all.Acts, letters, nil
}

// unlist takes from the list what nothing will come of, as reading it has shown. It would take room for ever.
func (s *Sink) unlist(ctx context.Context, d due, at letterItem, err error) {
	switch state := at.letter.State; {
	case errors.Is(err, errNever) && s.deleteLetter(ctx, at) == nil:
	case now().Sub(d.At) < time.Hour: // the read may lag
		return
	case errors.Is(err, operate.ErrNoDeadLetter) && !at.stored.Live: // whoever has deleted it failed to do this
	case err == nil && state != operate.StateDeferred && state != operate.StateRequested: // or to change it
	default:
		return
	}
	_ = replace(ctx, s.store, s.keys.requests(), func(all *requests) error {
		all.Deferred = slices.DeleteFunc(all.Deferred, func(now due) bool { return now.requested == d.requested && now.At.Equal(d.At) })
		return nil
	})
}

// CountDeferred counts what is listed as deferred of partitions that are ours, for [operate.Records].
func (s *Sink) CountDeferred(ctx context.Context, ours func(p epoch.Partition) bool) (int, error) {
	var all requests
	_, err := read(ctx, s.store, s.keys.requests(), &all)
	all.Deferred = slices.DeleteFunc(all.Deferred, func(d due) bool { return !ours(d.Partition) })
	return len(all.Deferred), err
}

// Rows implements [operate.Rows]. It reads all items of the kind, or those of a partition.
func (s *Sink) Rows(ctx context.Context, q operate.RowQuery) ([]operate.Row, error) {
	found, err := s.rows(ctx, q)
	if err != nil {
		return nil, fmt.Errorf("cassink: read rows of kind %s: %w", q.Kind, err)
	}
	return found, nil
}

func (s *Sink) rows(ctx context.Context, q operate.RowQuery) (found []operate.Row, err error) {
	var all []operate.Row
	type key struct {
		epoch.Partition
		id int64
	}
	letters := map[key]letter{}
	switch q.Kind {
	case operate.KindOutbox:
		return s.outboxRows(ctx, q)
	case operate.KindEntry:
		all, err = s.entries(ctx, q.Partition)
	case operate.KindProcess:
		all, err = s.lives(ctx)
	case operate.KindLetter:
		var ls []letter
		ls, err = s.lettersOf(ctx, q)
		for _, l := range ls {
			letters[key{l.Partition, l.ID}], all = l, append(all, l.Row)
		}
	}
	if err != nil {
		return nil, err
	}
	if found = q.Page(all); q.Kind != operate.KindLetter || !q.Content {
		return found, nil
	}
	for i, r := range found {
		l, err := s.wholeLetter(ctx, letters[key{r.Partition, r.ID}])
		if err != nil {
			return nil, err
		}
		found[i].Key, found[i].Value, found[i].Headers = l.Key, l.Value, l.Headers
	}
	return found, nil
}

// lettersOf reads all dead letters, or only the one that q names.
func (s *Sink) lettersOf(ctx context.Context, q operate.RowQuery) ([]letter, error) {
	if q.Partition == nil || q.ID == 0 {
		return s.allLetters(ctx)
	}
	at, err := s.letter(ctx, *q.Partition, q.ID)
	if err == nil && at.letter.Pending {
		err = s.exists(ctx, at.letter)
	}
	switch {
	case errors.Is(err, operate.ErrNoDeadLetter), errors.Is(err, epoch.ErrMissing):
		return nil, nil
	case err != nil:
		return nil, err
	}
	return []letter{at.letter}, nil
}

func (s *Sink) lives(ctx context.Context) (found []operate.Row, err error) {
	items, err := s.list(ctx, s.keys.processes())
	if err != nil {
		return nil, err
	}
	for _, it := range items {
		if !it.Live {
			continue
		}
		var l life
		if err := form.Parse(it.Value, &l); err != nil {
			r := s.unreadable(operate.KindProcess, s.keys.processes(), it.Key, err)
			r.Name, r.Text = strings.TrimPrefix(it.Key, s.keys.processes()), ""
			if errors.Is(err, form.ErrNewer) { // its columns mean the same
				r.Partition, r.By, r.At, r.Changed, r.Revision = l.Partition, l.By, l.At, l.Changed, l.Revision
			}
			l.Row = r
		}
		l.Now = now()
		found = append(found, l.Row)
	}
	return found, nil
}
