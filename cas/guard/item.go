package guard

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/waits"
)

// This file makes the changes of one item, and finds out what became of a write whose answer was
// lost. history.go decides whether a message may change the item.

// item is an item in a batch.
type item struct {
	batch *Batch
	key   string

	turn     chan struct{} // has one element while nobody uses what follows
	loaded   bool
	seen     cas.Item
	note     note
	state    State // after the changes
	made     []made
	then     note // with all changes that were made, and its text, or nil
	text     []byte
	repeated map[epoch.Offset]bool // messages whose change was made before
	events   []Event               // of write
}

func newItem(b *Batch, key string) *item {
	it := &item{batch: b, key: key, turn: make(chan struct{}, 1)}
	it.unlock()
	return it
}

// observed reports whether events are wanted.
func (it *item) observed() bool { return it.batch.observe != nil }

// made is a change that is not written yet.
type made struct {
	change
	make  Change
	state State       // after it, if it has an outcome
	seen  epoch.Epoch // see [Event]
}

// lock waits for the item's turn. A change that reads or changes its own item waits until ctx ends.
func (it *item) lock(ctx context.Context) error {
	if it.tryLock() {
		return nil
	}
	select {
	case <-it.turn:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (it *item) tryLock() bool {
	select {
	case <-it.turn:
		return true
	default:
		return false
	}
}

func (it *item) unlock() { it.turn <- struct{}{} }

// load reads the item, unless that was done.
func (it *item) load(ctx context.Context) error {
	if it.loaded {
		return nil
	}
	pause := waits.New(5*time.Millisecond, time.Second)
	for n := 1; ; n++ {
		found, err := it.get(ctx)
		if err == nil {
			return it.take(found)
		}
		if n == tries || errors.Is(err, cas.ErrKey) || errors.Is(err, cas.ErrForeign) || !waits.Sleep(ctx, pause.Next()) {
			return err
		}
	}
}

func (it *item) take(found cas.Item) (err error) {
	if it.note, err = noteOf(found); err != nil {
		return err
	}
	it.seen, it.loaded, it.text = found, true, nil
	it.state = State{Exists: found.Live && !it.note.Absent, Value: found.Value}
	return nil
}

// takeFirst takes an item that was read, unless that was done before.
func (it *item) takeFirst(ctx context.Context, found cas.Item) error {
	if err := it.lock(ctx); err != nil {
		return err
	}
	defer it.unlock()
	if it.loaded {
		return nil
	}
	return it.take(found)
}

func (it *item) read(ctx context.Context) (State, error) {
	if err := it.lock(ctx); err != nil {
		return State{}, err
	}
	defer it.unlock()
	if err := it.load(ctx); err != nil {
		return State{}, err
	}
	return State{it.state.Exists, bytes.Clone(it.state.Value)}, nil
}

// update makes a change, unless it was made before. The event is undecided if the change was made,
// because it is not written yet.
func (it *item) update(ctx context.Context, at epoch.Position, do Change) (outcome []byte, made bool, e Event, err error) {
	if err := it.lock(ctx); err != nil {
		return nil, false, Event{}, err
	}
	defer it.unlock()
	if err := it.load(ctx); err != nil {
		return nil, false, Event{}, err
	}
	if n := len(it.made); n > 0 && it.made[n-1].At == at.Offset || it.repeated[at.Offset] {
		return nil, false, Event{}, ErrTwice
	} else if n > 0 && it.made[n-1].At > at.Offset {
		return nil, false, Event{}, ErrOrder
	}
	before := len(it.made)
	outcome, err = it.apply(at, do)
	made = len(it.made) > before
	switch {
	case !it.observed():
	case err != nil:
		e = it.refused(at, it.batch.doubted, err)
	case !made:
		e = it.found(at, it.batch.doubted)
	}
	return bytes.Clone(outcome), made, e, err
}

// apply makes one change to what is known of the item.
func (it *item) apply(at epoch.Position, do Change) ([]byte, error) {
	before, err := it.compare(at)
	if err != nil {
		return nil, err
	}
	if before != nil {
		if it.repeated == nil {
			it.repeated = map[epoch.Offset]bool{}
		}
		it.repeated[at.Offset] = true
		return before.Outcome, nil
	}
	now, outcome, err := do(State{it.state.Exists, bytes.Clone(it.state.Value)})
	if err != nil {
		return nil, &declinedError{err}
	}
	if len(outcome) > MaxOutcome {
		return nil, ErrOutcome
	}
	if !now.Exists {
		now.Value = nil
	}
	outcome = bytes.Clone(outcome)
	it.state = State{now.Exists, bytes.Clone(now.Value)} // the handler may use its buffers again
	was, _ := it.note.of(it.batch.first.Partition)
	m := made{change: change{At: at.Offset, Mark: at.Mark, Outcome: outcome}, make: do, seen: was.Epoch}
	if len(outcome) > 0 {
		m.state = it.state // because it may be written without later changes: see rounds
	}
	it.made, it.text = append(it.made, m), nil
	return outcome, nil
}

// compare compares a message with the note of the item. It returns the message's own change if the item
// has it, and nil if the change is to be made.
func (it *item) compare(at epoch.Position) (*change, error) {
	s := it.batch.first.of(at)
	was, known := it.note.of(s.Partition)
	if known {
		return s.after(was, it.batch.dead)
	}
	if len(it.note.Histories) >= MaxPartitions {
		return nil, ErrPartitions
	}
	return nil, nil
}

// tries limits how often a request whose outcome is not known is repeated.
const tries = 4

// tried is one request for the item, and its result.
type tried struct {
	n      int // of the changes
	note   note
	stored cas.Item
	err    error
}

// write writes the changes that were made up to the last message, which has an outcome or is the last of all. A write
// that is repeated over the same version has the same content, because an earlier one may land late. The first
// request may have been made before, together with those of other items.
func (it *item) write(ctx context.Context, last epoch.Offset, first *tried) (ended error) {
	if err := it.lock(ctx); err != nil {
		return fmt.Errorf("%w: %w", ErrDoubt, err)
	}
	defer it.unlock()
	pause, doubts, undecided := waits.New(5*time.Millisecond, time.Second), 0, it.made
	settle := func(err error) { it.settle(upTo(undecided, last), doubts > 0 || it.batch.doubted, err) }
	defer func() {
		if ended != nil {
			settle(ended)
		}
	}()
	for {
		t := first
		if first = nil; t == nil {
			if len(upTo(it.made, last)) == 0 {
				return nil
			}
			t = it.swap(ctx, last)
		}
		err := t.err
		switch {
		case err == nil:
			settle(nil)
			it.wrote(t)
			return nil
		case errors.Is(err, cas.ErrConflict): // somebody was faster, or an answer lags
		case errors.Is(err, cas.ErrTooLarge), errors.Is(err, cas.ErrKey), errors.Is(err, cas.ErrFull):
			if doubts > 0 {
				return fmt.Errorf("%w, and then: %w", ErrDoubt, err) // an earlier request may still be carried out
			}
			return err
		default:
			if doubts++; doubts == tries {
				return fmt.Errorf("%w: %w", ErrDoubt, err)
			}
		}
		if !waits.Sleep(ctx, pause.Next()) {
			return fmt.Errorf("%w: %w", ErrDoubt, errors.Join(ctx.Err(), err))
		}
		found, err := it.get(ctx)
		if errors.Is(err, cas.ErrForeign) {
			if doubts > 0 || it.batch.doubted {
				return fmt.Errorf("%w, and then: %w", ErrDoubt, err) // it has replaced what was written, or not
			}
			return err
		}
		if err != nil || found.Version == it.seen.Version {
			continue // the next swap tells
		}
		if undecided, err = it.makeAgain(found, doubts > 0 || it.batch.doubted); err != nil {
			if doubts > 0 && !errors.Is(err, ErrPassed) && !errors.Is(err, ErrStale) {
				return fmt.Errorf("%w, and then: %w", ErrDoubt, err) // the answer may be older than that write
			}
			return err
		}
	}
}

func upTo(changes []made, last epoch.Offset) []made {
	i := slices.IndexFunc(changes, func(m made) bool { return m.At > last })
	if i < 0 {
		return changes
	}
	return changes[:i]
}

// makeAgain makes the changes again over an item that others, or this batch, have written meanwhile. It
// returns the changes that the item does not have.
func (it *item) makeAgain(found cas.Item, doubted bool) ([]made, error) {
	before := it.made
	it.made = nil
	if err := it.take(found); err != nil {
		return before, err
	}
	for i, m := range before {
		at := epoch.Position{Offset: m.At, Mark: m.Mark}
		outcome, err := it.apply(at, it.contained(m.make))
		if _, declined := errors.AsType[*declinedError](err); declined || err == nil && !bytes.Equal(outcome, m.Outcome) {
			err = ErrOutcomeChanged
		}
		if err != nil {
			return slices.Concat(it.made, before[i:]), err
		}
		if n := len(it.made); n > 0 && it.made[n-1].At == m.At {
			it.made[n-1].make = m.make // without what contains it
		} else if it.observed() {
			it.events = append(it.events, it.found(at, doubted))
		}
	}
	return it.made, nil
}

var errNoReturn = errors.New("the change did not return")

// contained returns a change for a goroutine that is not the handler's: it may panic there, or end it.
// It is not called beside another one, because the changes of a handler may share its variables.
func (it *item) contained(do Change) Change {
	return func(old State) (now State, outcome []byte, err error) {
		it.batch.again.Lock()
		defer it.batch.again.Unlock()
		err = errNoReturn
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			defer func() { _ = recover() }() // it will panic in the handler, when the message is delivered again
			now, outcome, err = do(old)
		}()
		<-ended
		return now, outcome, err
	}
}

// declinedError is an error that a change function has returned. Nothing is asked of that: its methods
// may panic.
type declinedError struct{ err error }

func (e *declinedError) Error() string { return e.err.Error() }
func (e *declinedError) Unwrap() error { return e.err }

func (it *item) get(ctx context.Context) (cas.Item, error) {
	ctx, cancel := limited(ctx)
	defer cancel()
	return it.batch.store.Get(ctx, it.key)
}

// swap makes one request.
func (it *item) swap(ctx context.Context, last epoch.Offset) *tried {
	w, t := it.prepare(last)
	if t.err == nil {
		ctx, cancel := limited(ctx)
		defer cancel()
		t.stored, t.err = it.batch.store.Swap(ctx, w.Seen, w.Value, w.Note)
	}
	return t
}

// prepare returns what a request for the changes up to the last message writes.
func (it *item) prepare(last epoch.Offset) (cas.Write, *tried) {
	writes, state := upTo(it.made, last), it.state
	if len(writes) < len(it.made) {
		state = writes[len(writes)-1].state
	} else if it.text != nil {
		return cas.Write{Seen: it.seen, Value: state.Value, Note: it.text}, &tried{n: len(writes), note: it.then}
	}
	t := &tried{n: len(writes), note: it.next(writes, state)}
	var text []byte
	if text, t.err = json.Marshal(&t.note); len(writes) == len(it.made) {
		it.then, it.text = t.note, text
	}
	return cas.Write{Seen: it.seen, Value: state.Value, Note: text}, t
}

func (it *item) wrote(t *tried) {
	it.seen, it.note, it.made, it.text = t.stored, t.note, it.made[t.n:], nil
}

// next returns the note with changes that were made.
func (it *item) next(writes []made, after State) note {
	changes := make([]change, len(writes))
	for i, m := range writes {
		changes[i] = m.change
	}
	return it.note.with(it.batch.first, changes, !after.Exists, it.batch.dead, it.batch.keeps)
}

// shareOfNote is which part of the room in a note, with its reciprocal, the changes of several messages
// may take.
const shareOfNote = 8

func (it *item) fits(f cas.Facts) error {
	<-it.turn
	defer it.unlock()
	if len(it.made) == 0 || f.MaxValue == 0 && f.MaxNote == 0 {
		return nil
	}
	w, t := it.prepare(it.made[len(it.made)-1].At)
	if err := cmp.Or(t.err, f.Check(it.key, w.Value, w.Note)); err != nil {
		return err
	}
	if f.MaxNote == 0 || len(it.made) == 1 {
		return nil
	}
	others, err := it.note.without(it.batch.first.Partition)
	if err != nil {
		return err
	}
	if own, room := len(w.Note)-others, f.MaxNote-others; own > room/shareOfNote {
		return fmt.Errorf("%w: the changes of %d messages need %d bytes of its note, and %d are free", cas.ErrTooLarge, len(it.made), own, room)
	}
	return nil
}

// limited limits one request, so that a lost answer leaves time for another.
func limited(ctx context.Context) (context.Context, context.CancelFunc) {
	limit := 5 * time.Second
	if end, ok := ctx.Deadline(); ok {
		limit = min(limit, max(time.Until(end)/3, 100*time.Millisecond))
	}
	return context.WithTimeout(ctx, limit)
}
