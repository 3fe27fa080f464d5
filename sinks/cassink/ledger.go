package cassink

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/form"
	"github.com/epochfence/epochfence/operate"
)

// This file has the rows of operators over items: the audit log (log.go), dead letters (deadletters.go),
// signs of life, and the outbox (operator.go). requests.go has what owners are asked to do with them. Package operate decides
// what rows mean. Each change is a write of its own, in the order that leaves nothing done without a record, or a request.

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
