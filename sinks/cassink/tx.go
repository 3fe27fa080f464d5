package cassink

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/guard"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/sql/stopat"
	"github.com/epochfence/epochfence/operate"
)

// This file is the view that a handler has of a transaction. It decides which messages may change
// items, and which errors are the fault of the message. Package guard makes the changes.

// Tx is a handler's view of a transaction. It is safe for concurrent use until its handler returns.
type Tx struct {
	*transaction
	ended bool // under mu
}

// transaction collects what the calls of one Commit change.
type transaction struct {
	sink   *Sink
	stop   stopat.Stop // called before each use by a handler
	items  cas.Store
	record record // as it was at the beginning
	fence  epoch.Fence
	lists  lists
	goal   goal

	mu        sync.Mutex
	batches   []*guard.Batch // one, or one for each entry of the outbox whose answer changes items
	abandoned bool
	err       error // of the store or of package guard: the call has failed, whatever it returns
	calling   int   // the index of the call that has failed
	passed    *guard.PassedError
	letters   []letterItem
	underWay  int // calls of Update

	replay  int64         // the dead letter or entry of the outbox for which items are changed, or 0
	replays []letterItem  // to be deleted
	entries []operate.Row // of the audit log, about replays

	joining sync.Mutex  // held while entries are written
	added   []entryItem // to the outbox
	deleted []int64     // from the outbox
	retried []int64     // entries whose requests were read

	turn chan struct{} // of the writes of the fence in this process, if this transaction has it
	over bool
}

var (
	errEnded   = errors.New("cassink: the transaction is used after its handler has returned")
	errMistake = errors.New("a mistake of the handler")
)

func (s *Sink) begin(ctx context.Context, at item, g goal, items cas.Store) *transaction {
	t := &transaction{sink: s, stop: stopat.Of(ctx), items: items, record: at.record, fence: at.record.Fence, lists: at.lists, goal: g}
	t.batches = []*guard.Batch{t.newBatch(0)}
	return t
}

func (t *transaction) newBatch(replay int64) *guard.Batch {
	stamp := stampOf(t.record, t.goal.From)
	stamp.Replay = replay
	b := guard.Begin(t.items, stamp, t.lists.Dead...)
	b.Keep(t.isEntry)
	b.Observe(t.sink.observe)
	return b
}

func stampOf(r record, from epoch.Offset) guard.Stamp {
	return guard.Stamp{Partition: r.Partition, Log: r.Log, Era: r.SetUnder, Act: r.Act, Epoch: r.Epoch, Offset: from}
}

// Update changes an item of the store for the message m, once however often m is delivered (see the
// limits in the documentation of the package), and returns
// the outcome of the change. change may be called several times. Another message of the transaction sees
// the change, and nobody else does before all handlers have returned.
//
// In OnAnswer and OnRefused of an outbox, m is the message that outbox.Sent.Message returns: an answer
// changes each item once, however often it is recorded. Answers do not see each other's changes before they
// are written.
//
// A second Update of one item for one message returns [guard.ErrTwice]. After an error other than
// change's and [guard.ErrPassed], the transaction fails, whatever the handler returns.
func (tx *Tx) Update(ctx context.Context, m epoch.Message, key string, change guard.Change) (outcome []byte, err error) {
	batch, err := tx.use(m, key)
	if err != nil {
		return nil, err
	}
	defer tx.used()
	var declined error
	outcome, err = batch.Update(ctx, epoch.Position{Offset: m.Offset, Mark: m.Mark}, key, func(old guard.State) (guard.State, []byte, error) {
		now, outcome, err := change(old)
		declined = err
		return now, outcome, err
	})
	if err != nil && declined == nil {
		err = tx.fail(err)
	}
	return outcome, err
}

// Read returns an item as the messages of this transaction have left it. The store may lag behind. A
// decision that depends on it may be another one when the message is delivered again: decide in the
// change function of Update.
func (tx *Tx) Read(ctx context.Context, key string) (guard.State, error) {
	if err := tx.usable(); err != nil {
		return guard.State{}, err
	}
	state, err := tx.current().Read(ctx, key)
	if err != nil {
		return guard.State{}, tx.fail(err)
	}
	return state, nil
}

// Load reads items together, so that Update and Read need not ask the store for one after the
// other. Call it at the beginning of a handler that changes many items, such as one of
// consumer.Batches. Which items it reads has no effect on what is written.
func (tx *Tx) Load(ctx context.Context, keys ...string) error {
	if err := tx.usable(); err != nil {
		return err
	}
	if err := tx.current().Load(ctx, keys...); err != nil {
		return tx.fail(err)
	}
	return nil
}

// use returns the batch for a change by m.
func (tx *Tx) use(m epoch.Message, key string) (*guard.Batch, error) {
	if err := tx.usable(); err != nil {
		return nil, err
	}
	if why := tx.mistake(m, key); why != "" {
		return nil, tx.fail(fmt.Errorf("cassink: update %q for %s@%d: %w: %s", key, m.Partition, m.Offset, errMistake, why))
	}
	tx.mu.Lock()
	defer tx.mu.Unlock()
	if tx.ended {
		return nil, errEnded
	}
	if m.Replay != tx.replay {
		if tx.replay == 0 {
			tx.batches = nil // of Read alone
		}
		tx.replay = m.Replay
		tx.batches = append(tx.batches, tx.newBatch(m.Replay))
	}
	tx.underWay++
	return tx.batches[len(tx.batches)-1], nil
}

func (t *transaction) used() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.underWay--
}

// mistake returns why m must not change the item in this transaction, or "".
func (t *transaction) mistake(m epoch.Message, key string) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	a := t.goal
	switch {
	case m.Partition != a.Partition:
		return fmt.Sprintf("the transaction is of %s", a.Partition)
	case a.held && (m.Replay == 0 || !slices.Contains(t.lists.Entries, m.Replay)):
		return "background work has no message, and changes items only for an entry of the outbox: give it the message of outbox.Sent"
	case m.Replay == 0 && (m.Offset < a.From || m.Offset >= a.To):
		return fmt.Sprintf("the transaction has messages of [%d, %d)", a.From, a.To)
	case m.Replay != 0 && !a.held && (a.From != a.To || t.replay != 0 && m.Replay != t.replay):
		return fmt.Sprintf("the transaction is not the replay of dead letter %d", m.Replay)
	case t.sink.keys.has(key):
		return fmt.Sprintf("keys below %q are the sink's own", t.sink.keys.prefix)
	}
	return ""
}

func (tx *Tx) usable() error {
	tx.mu.Lock()
	defer tx.mu.Unlock()
	switch {
	case tx.abandoned:
		return epoch.ErrAbandoned
	case tx.ended:
		return errEnded
	}
	return cmp.Or(tx.err, tx.stop())
}

// current returns the batch, which the first change of a replay replaces.
func (t *transaction) current() *guard.Batch {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.batches[len(t.batches)-1]
}

// fail makes the transaction fail, or marks the message as passed.
func (t *transaction) fail(err error) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if p, ok := errors.AsType[*guard.PassedError](err); ok {
		t.passed = p
		return err
	}
	if !isOfTheMessage(err) {
		err = lostUnlessSaid(err)
	}
	if t.err == nil {
		t.err = err
	}
	return err
}

// isOfTheMessage reports whether the handler can avoid the error.
func isOfTheMessage(err error) bool {
	for _, is := range []error{
		errMistake, guard.ErrTwice, guard.ErrOrder, guard.ErrNew, guard.ErrOutcome, guard.ErrPartitions, cas.ErrKey, cas.ErrForeign, operate.ErrRowChanged,
	} {
		if errors.Is(err, is) {
			return true
		}
	}
	return false
}

// lostUnlessSaid adds to an error of the store that the outcome is not known.
func lostUnlessSaid(err error) error {
	for _, said := range []error{
		guard.ErrStale, guard.ErrFenceLost, guard.ErrOtherLog, guard.ErrTruncated, guard.ErrOutcomeChanged, cas.ErrConflict,
		epoch.ErrTransient, epoch.ErrTooLarge, epoch.ErrStale, epoch.ErrMissing, epoch.ErrUnhealthy,
	} {
		if errors.Is(err, said) {
			return err
		}
	}
	return doubtful(err)
}

func (t *transaction) abandon() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.abandoned = true
	t.pass()
}

func (t *transaction) callAll(ctx context.Context, calls []func(context.Context, *Tx) error) error {
	for i, call := range calls {
		err := t.call(ctx, call)
		if _, failed := t.failed(); err != nil || failed != nil {
			t.calling = i
			return err
		}
		if err := t.skips(len(calls)); err != nil {
			return err
		}
	}
	return nil
}

func (t *transaction) failed() (*guard.PassedError, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.passed, t.err
}

func (t *transaction) call(ctx context.Context, do func(context.Context, *Tx) error) error {
	t.mu.Lock()
	abandoned := t.abandoned
	t.passed = nil
	t.mu.Unlock()
	if abandoned {
		return epoch.ErrAbandoned
	}
	tx := &Tx{transaction: t}
	defer tx.end()
	err := do(ctx, tx)
	tx.end()
	t.mu.Lock()
	defer t.mu.Unlock()
	switch {
	case t.err != nil:
		return nil // callAll returns it, whatever the call has returned
	case err == nil && t.underWay > 0:
		t.err = fmt.Errorf("cassink: %w: it has returned while Update runs; wait for the goroutines that change items", errMistake)
		return nil
	case t.passed != nil:
		return nil // all of it was applied
	}
	return err
}

func (tx *Tx) end() {
	tx.mu.Lock()
	defer tx.mu.Unlock()
	tx.ended = true
}

// skips returns an error if a message of the call was applied before, and the call may have others
// that were not.
func (t *transaction) skips(calls int) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.passed == nil || calls > 1 || t.passed.Position >= t.goal.To {
		return nil
	}
	return t.passed
}

// write writes the items.
func (t *transaction) write(ctx context.Context) error {
	err := t.each(func(b *guard.Batch) error { return b.Fits(t.sink.facts) })
	if err == nil {
		err = t.beginReplays(ctx)
	}
	if err == nil {
		err = t.each(func(b *guard.Batch) error { return b.Write(ctx) })
	}
	if err == nil || isOfTheMessage(err) {
		return err
	}
	return lostUnlessSaid(err)
}

func (t *transaction) each(do func(b *guard.Batch) error) error {
	for _, b := range t.batches {
		if err := do(b); err != nil {
			return err
		}
	}
	return nil
}
