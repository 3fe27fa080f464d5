package guard

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/epoch"
)

// This file makes the changes of one message at once, for handlers of any sink, as batches of one
// change. It remembers that a message has failed.

// Message makes the changes of one message. It is safe for concurrent use.
type Message struct {
	store cas.Store
	stamp Stamp

	observe func(Event)

	mu      sync.Mutex
	changed map[string]bool
	err     error
}

// At returns the changes of a message that a handler got. If it did not come from a consumer, Update
// returns an error.
func At(store cas.Store, m epoch.Message) *Message {
	s, err := StampOf(m)
	changes := New(store, s)
	changes.err = err
	return changes
}

// Under returns the changes of one step of the work under a lock, which has no message: claim is
// lease.Claimed.Fence of its holder. An item is changed once for each step, whoever has the lock then.
// The caller numbers the steps, from 0, such as by the day of a nightly job: a holder repeats the step
// that the one before it may have left unfinished, and begins the next when all of it is done. If an
// Update returns [ErrPassed], a later step has changed the item, and this one is over.
//
// Within the work of lease.Claimed.Do, return what Update returns: after an [ErrStale] by a holder whose
// database has lost epochs, Do claims above the item's.
func Under(store cas.Store, claim epoch.Fence, step int64) *Message {
	changes := New(store, Stamp{
		Partition: claim.Partition, Log: claim.Log, Era: claim.SetUnder, Epoch: claim.Epoch, Offset: epoch.Offset(step), Mark: epoch.NoMark,
	})
	if claim.Epoch == 0 || step < 0 {
		changes.err = fmt.Errorf("guard: step %d of %s under epoch %d: want a step from 0, under a claim", step, claim.Partition, claim.Epoch)
	}
	return changes
}

// New returns the changes of the message with this stamp.
func New(store cas.Store, s Stamp) *Message {
	return &Message{store: store, stamp: s, changed: map[string]bool{}}
}

// Observe makes Update call f with an [Event] once the change of the item is decided, and returns m.
// Call it before Update.
//
// Each Update calls f once at most, before it returns. Nothing is decided, and f is not called, if Update
// returns the error of an earlier Update or of [At], an error of change or of a read, [ErrTwice], [ErrOutcome], [cas.ErrKey], [cas.ErrTooLarge], or
// [cas.ErrFull] without ErrDoubt. A message that is delivered again is decided again.
//
// After [ErrDoubt] the decision is [InDoubt]. If the message is delivered again and not refused then, [Repeated]
// means that the change was written, and [Changed] that it is written now. If the process ends between a write and the
// call of f, this decision has no event. The message is delivered again then, and the decision is Repeated.
//
// Update waits for f, so f must return soon. f must not panic. Calls overlap if calls of Update overlap.
func (m *Message) Observe(f func(Event)) *Message {
	m.observe = f
	return m
}

// Update is [Apply] for an item that the message changes once. After an error of the store or of
// this package, each later Update returns it too, because the message has to be delivered again. That
// is not so for an error that change has returned.
func (m *Message) Update(ctx context.Context, key string, change Change) (outcome []byte, err error) {
	if err := m.begin(key); err != nil {
		return nil, err
	}
	outcome, err = m.apply(ctx, key, change)
	if _, declined := errors.AsType[*declinedError](err); err != nil && !declined {
		m.fail(err)
	}
	return outcome, err
}

// apply changes an item. It makes a change again whose outcome has become another one, and reports only
// the last decision.
func (m *Message) apply(ctx context.Context, key string, change Change) ([]byte, error) {
	doubted := false
	for {
		b := Begin(m.store, m.stamp)
		b.observe, b.doubted = m.observe, doubted
		outcome, e, err := b.update(ctx, m.stamp.at(), key, change)
		b.report(e)
		if err != nil {
			return nil, err
		}
		events, err := b.write(ctx)
		if errors.Is(err, ErrOutcomeChanged) {
			doubted = doubted || errors.Is(err, ErrDoubt)
			continue
		}
		b.report(events...)
		if err != nil {
			return nil, err
		}
		return outcome, nil
	}
}

func (m *Message) begin(key string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return m.err
	}
	if m.changed[key] {
		m.err = fmt.Errorf("guard: apply %s@%d to %q: %w", m.stamp.Partition, m.stamp.Offset, key, ErrTwice)
		return m.err
	}
	m.changed[key] = true
	return nil
}

func (m *Message) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err == nil {
		m.err = err
	}
}

// Err returns the first error that Update has returned because of the store or this package, or nil.
// The position must not pass the message unless Err returns nil, or [ErrPassed].
func (m *Message) Err() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.err
}
