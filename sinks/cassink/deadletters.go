package cassink

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"time"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/guard"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/form"
	"github.com/epochfence/epochfence/operate"
)

// This file keeps each dead letter in an item, or in several if its content does not fit; it counts
// once the fence has its id. ledger.go changes and lists them.

// letter is a dead letter. The value of its item is that of the message, and the note is the rest. If that does not
// fit, the content of the message is in other items, in parts.
type letter struct {
	form.Kept
	operate.Row

	// Pending means that the letter was written before the position, and exists only if the fence
	// has its id.
	Pending bool `json:"pending,omitempty"`

	Written epoch.Epoch `json:"written,omitempty"` // the epoch of its transaction, or 0 if an earlier version has written it
	Parts   int         `json:"parts,omitempty"`   // of the content, or 0

	// Under is the claim under which its changes are or were written, until the replay has failed.
	Under epoch.ClaimID `json:"under,omitzero"`
}

// errNever is the error for a letter that a process has left behind which died before it wrote the position.
var errNever = fmt.Errorf("%w: its transaction was not committed", operate.ErrNoDeadLetter)

// never reports whether a pending letter that the fence does not have will never exist: a later claim refuses its transaction.
func (l letter) never(r record) bool {
	return l.Written != 0 && l.Written < r.Epoch && l.Partition == r.Partition
}

// letterItem is a dead letter and the item that has it.
type letterItem struct {
	stored cas.Item
	letter letter
}

// DeadLetter stores m in the transaction tx, with everything needed to apply it later. Use it as
// OnFailure of consumer.Handlers.
func (s *Sink) DeadLetter(ctx context.Context, tx *Tx, m epoch.Message, e epoch.Epoch, cause error) error {
	return operate.PutAside(ctx, s, tx, m, e, cause)
}

// newID returns an id above all earlier ids of this process, and mostly above those of others: milliseconds
// and a random number of ten bits. It has at most 53 bits, as numbers in JSON.
func newID() int64 { return newIDAbove(0) }

func newIDAbove(other int64) int64 {
	begin := time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)
	by := max(time.Since(begin).Milliseconds(), 1)<<10 | rand.Int64N(1<<10)
	for {
		last := given.Load()
		if id := max(by, last+1, other+1); given.CompareAndSwap(last, id) {
			return id
		}
	}
}

var given atomic.Int64

func (r *record) add(ls []letterItem) {
	for _, at := range ls {
		r.LastEntry = max(r.LastEntry, at.letter.ID) // no entry gets the id of a dead letter
		r.Pending = append(r.Pending, at.letter.ID)
		r.Joined.Dead = append(slices.Clone(r.Joined.Dead), guard.DeadLetter{ID: at.letter.ID, Era: r.SetUnder, Offset: at.letter.Offset})
	}
}

// confirmLetters has the dead letters of a fence say that they exist, and reports whether all do.
func (s *Sink) confirmLetters(ctx context.Context, r record) bool {
	for _, id := range r.Pending {
		err := s.changeLetter(ctx, r.Partition, id, func(l *letter) error {
			if !l.Pending {
				return operate.ErrNothingToDo
			}
			l.Pending = false
			return nil
		})
		if err != nil && !errors.Is(err, operate.ErrNoDeadLetter) && !errors.Is(err, operate.ErrNothingToDo) {
			return false
		}
	}
	return true
}

// addLetters writes the dead letters of a transaction, which do not exist before its position is written.
func (t *transaction) addLetters(ctx context.Context) error {
	for i, at := range t.letters {
		at.letter.Pending = true
		at.stored = cas.Item{Key: t.sink.keys.letter(at.letter.Partition, at.letter.ID)}
		parts, err := t.sink.divide(&at.letter)
		if err == nil {
			t.letters[i], err = t.sink.swapLetter(ctx, at) // before its parts, so that whoever finds it deletes them
		}
		for n, part := range parts {
			if err == nil {
				_, err = t.sink.store.Swap(ctx, cas.Item{Key: t.sink.keys.part(at.letter.Partition, at.letter.ID, n+1)}, part, nil)
			}
		}
		if err == nil && at.letter.State == operate.StateDeferred { // before the position, which makes both exist
			if err = t.sink.request(ctx, at.letter.Row, true); errors.Is(err, errDeferred) {
				return err
			}
		}
		if err != nil {
			return doubtful(err)
		}
	}
	return nil
}

// dropLetters deletes the dead letters of a transaction that was refused, at best effort.
func (t *transaction) dropLetters(ctx context.Context) {
	for _, at := range t.letters {
		if at.stored.Live {
			_ = t.sink.deleteLetter(ctx, at)
			if at.letter.State == operate.StateDeferred {
				_ = t.sink.request(ctx, at.letter.Row, false)
			}
		}
	}
}

func (s *Sink) swapLetter(ctx context.Context, at letterItem) (letterItem, error) {
	value, note, err := at.letter.item()
	if err != nil {
		return at, err
	}
	at.stored, err = s.store.Swap(ctx, at.stored, value, note)
	return at, err
}

// changeLetter replaces a dead letter by what do makes of it.
func (s *Sink) changeLetter(ctx context.Context, p epoch.Partition, id int64, do func(l *letter) error) error {
	return repeated(ctx, func() error {
		at, err := s.letter(ctx, p, id)
		if err == nil {
			err = do(&at.letter)
		}
		if err != nil {
			return err
		}
		if _, err = s.swapLetter(ctx, at); err != nil {
			return doubtful(err)
		}
		return nil
	})
}

func (s *Sink) letter(ctx context.Context, p epoch.Partition, id int64) (at letterItem, err error) {
	if at.stored, err = s.store.Get(ctx, s.keys.letter(p, id)); err != nil {
		return at, err
	}
	return at, at.decode()
}

func (at *letterItem) decode() error {
	if !at.stored.Live {
		return operate.ErrNoDeadLetter
	}
	if err := form.Parse(at.stored.Note, &at.letter); err != nil {
		return fmt.Errorf("%w: dead letter %q: %w", epoch.ErrUnhealthy, at.stored.Key, err)
	}
	at.letter.Value = at.stored.Value
	return nil
}

// content is what is divided of a dead letter that does not fit into an item.
type content struct{ Key, Value, Headers []byte }

// moreOfNote is room for what is added to the note of a dead letter later: requests, and the error of a replay.
const moreOfNote = 16 << 10

// item returns the value and the note of a dead letter's item.
func (l letter) item() (value, note []byte, err error) {
	if l.Parts > 0 {
		l.Key, l.Value, l.Headers = nil, nil, nil
	}
	value, l.Value = l.Value, nil
	note, err = form.Text(&l)
	return value, note, err
}

// divide returns the content of a dead letter for items of its own, if it does not fit into one with the rest.
func (s *Sink) divide(l *letter) (parts [][]byte, err error) {
	value, note, err := l.item()
	if err != nil {
		return nil, err
	}
	key := s.keys.letter(l.Partition, l.ID)
	if s.facts.Check(key, value, note) == nil && (s.facts.MaxNote == 0 || len(note)+moreOfNote <= s.facts.MaxNote) {
		return nil, nil
	}
	text, err := json.Marshal(content{l.Key, l.Value, l.Headers})
	if err != nil {
		return nil, err
	}
	size := s.facts.MaxValue
	if size == 0 {
		size = len(text)
	}
	parts = slices.Collect(slices.Chunk(text, size))
	l.Parts = len(parts)
	return parts, nil
}

// wholeLetter adds the content to a dead letter whose item does not have it.
func (s *Sink) wholeLetter(ctx context.Context, l letter) (letter, error) {
	var text bytes.Buffer
	for n := range l.Parts {
		it, err := s.store.Get(ctx, s.keys.part(l.Partition, l.ID, n+1))
		if err != nil {
			return l, err
		}
		if !it.Live {
			return l, fmt.Errorf("%w: its part %q is not there", operate.ErrNoDeadLetter, it.Key)
		}
		text.Write(it.Value)
	}
	if l.Parts == 0 {
		return l, nil
	}
	var c content
	if err := json.Unmarshal(text.Bytes(), &c); err != nil {
		return l, fmt.Errorf("the parts of dead letter %d of %s: %w", l.ID, l.Partition, err)
	}
	l.Key, l.Value, l.Headers = c.Key, c.Value, c.Headers
	return l, nil
}

// deleteLetter deletes a dead letter, and then its parts, at best effort.
func (s *Sink) deleteLetter(ctx context.Context, at letterItem) error {
	err := s.store.Delete(ctx, at.stored)
	if err == nil {
		s.deleteParts(ctx, at.letter)
	}
	return err
}

func (s *Sink) deleteParts(ctx context.Context, l letter) {
	for n := range l.Parts {
		if it, err := s.store.Get(ctx, s.keys.part(l.Partition, l.ID, n+1)); err == nil && it.Live {
			_ = s.store.Delete(ctx, it)
		}
	}
}
