package guard

import (
	"context"
	"fmt"
	"sync"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/epoch"
)

// Message makes the changes of one message. It is safe for concurrent use.
type Message struct {
	store cas.Store
	stamp Stamp

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

// New returns the changes of the message with this stamp.
func New(store cas.Store, s Stamp) *Message {
	return &Message{store: store, stamp: s, changed: map[string]bool{}}
}

// Update is [Apply] for an item that the message changes once. After an error of the store or of
// this package, each later Update returns it too, because the message has to be delivered again. That
// is not so for an error that change has returned.
func (m *Message) Update(ctx context.Context, key string, change Change) (outcome []byte, err error) {
	if err := m.begin(key); err != nil {
		return nil, err
	}
	var declined error
	outcome, err = Apply(ctx, m.store, key, m.stamp, func(old State) (State, []byte, error) {
		now, outcome, err := change(old)
		declined = err
		return now, outcome, err
	})
	if err != nil && declined == nil {
		m.fail(err)
	}
	return outcome, err
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
