package outbox

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
)

// This file has what a handler calls: Add writes an entry in the handler's own transaction.
// entry.go decides which entries are accepted, and relay.go when they are sent.

// Box is an outbox: handlers add entries to it, and its Relay sends them. It is safe for concurrent
// use and needs no closing.
type Box[TX any] struct {
	store  Store[TX]
	o      Options[TX]
	client *http.Client

	climbs   climbs
	troubles troubles
}

// New returns a box over store.
func New[TX any](store Store[TX], o Options[TX]) (*Box[TX], error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	if store == nil {
		return nil, errors.New("outbox: New needs a store")
	}
	return &Box[TX]{store: store, o: o, client: newClient(o.Client, o.Concurrency)}, nil
}

// Add adds an entry in tx, the handler's transaction, for the partition of m, the handler's
// message. In OnAnswer and OnRefused, give it [Sent.Message], and in the work under a lock
// lease.Claimed.Message. [Box.Relay]
// sends the entry after the transaction has committed: set consumer.Handlers.Background to it, or
// under a lock call lease.Claimed.Background. An error that matches [ErrEntry] is [consumer.Permanent].
func (b *Box[TX]) Add(ctx context.Context, tx TX, m epoch.Message, e Entry) error {
	e, err := e.complete()
	if err != nil {
		return consumer.Permanent(err)
	}
	if err := b.store.Add(ctx, tx, m, e); err != nil {
		return fmt.Errorf("outbox: add an entry for the message %s at offset %d: %w", m.Partition, m.Offset, err)
	}
	return nil
}
