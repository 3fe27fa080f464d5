// Package casoutbox keeps an [outbox] in the store of a [cassink.Sink]: in etcd, Redis, DynamoDB and
// others. An entry exists from the write of the fence that moves the position past its message
// until the write of the fence that records its answer:
//
//	box, err := outbox.New(casoutbox.Store{}, outbox.Options[*cassink.Tx]{})
//
// Messages add entries until [cassink.MaxEntries] of a partition wait. Further messages that add
// entries wait for them. An entry must fit into an item of the store, see [cas.Facts].
//
// Each entry costs a write and a deletion. Each transaction that records answers costs a write of
// the fence. The fence has the IDs of the entries that wait, about 15 bytes each. OnAnswer and
// OnRefused change items of the store once for each entry:
//
//	tx.Update(ctx, sent.Message(), "payment/"+id, change)
//
// [outbox]: https://pkg.go.dev/github.com/epochfence/epochfence/outbox
// [cas.Facts]: https://pkg.go.dev/github.com/epochfence/epochfence/cas#Facts
package casoutbox

import (
	"context"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/sinks/cassink"
)

// Store is an [outbox.Store] for the transactions of any [cassink.Sink]. [cassink.Sink.Operator] is its
// operator. The zero Store is valid.
type Store struct{}

var _ outbox.Store[*cassink.Tx] = Store{}

// Add implements [outbox.Store]. An entry that is too large for the store is a [cas.ErrTooLarge].
//
// [cas.ErrTooLarge]: https://pkg.go.dev/github.com/epochfence/epochfence/cas#ErrTooLarge
func (Store) Add(_ context.Context, tx *cassink.Tx, m epoch.Message, e outbox.Entry) error {
	box, err := tx.Outbox(m.Partition)
	if err != nil {
		return err
	}
	return box.Add(operate.OutboxEntry{
		Offset: m.Offset, Key: e.Key, Scope: e.Scope, IdempotencyKey: e.IdempotencyKey, Method: e.Method, URL: e.URL, Header: e.Header, Body: e.Body,
	})
}

// Scan implements [outbox.Store]. Entries are committed in the order of their IDs.
func (Store) Scan(ctx context.Context, tx *cassink.Tx, p epoch.Partition, from outbox.Cursor, limit int) (all []outbox.Row, _ outbox.Cursor, err error) {
	at := outbox.Cursor{ID: from.ID}
	for size := 0; len(all) < limit && !at.More; at.More = size >= outbox.ScanBytes {
		some := min(limit-len(all), 16) // the sink reads as many beside each other
		found, err := rows(in(tx, p, func(box cassink.Outbox) ([]operate.OutboxEntry, error) { return box.Scan(ctx, at.ID, some) }))
		for _, row := range found {
			size, at.ID = size+row.Size(), row.ID
		}
		if all = append(all, found...); err != nil || len(found) < some {
			return all, at, err
		}
	}
	return all, at, nil
}

// Load implements [outbox.Store].
func (Store) Load(ctx context.Context, tx *cassink.Tx, p epoch.Partition, ids []int64) ([]outbox.Row, error) {
	return rows(in(tx, p, func(box cassink.Outbox) ([]operate.OutboxEntry, error) { return box.Load(ctx, ids) }))
}

// Next implements [outbox.Store].
func (Store) Next(ctx context.Context, tx *cassink.Tx, p epoch.Partition, at outbox.Cursor, after []outbox.Place) ([]outbox.Row, error) {
	above := map[string]int64{}
	for _, a := range after {
		above[a.Key] = a.ID
	}
	return rows(in(tx, p, func(box cassink.Outbox) ([]operate.OutboxEntry, error) { return box.Next(ctx, at.ID, above) }))
}

// Delete implements [outbox.Store].
func (Store) Delete(ctx context.Context, tx *cassink.Tx, p epoch.Partition, ids []int64) ([]int64, error) {
	return in(tx, p, func(box cassink.Outbox) ([]int64, error) { return box.Delete(ctx, ids) })
}

// Count implements [outbox.Store].
func (Store) Count(ctx context.Context, tx *cassink.Tx, p epoch.Partition, limit int) (entries int, oldest time.Time, err error) {
	box, err := tx.Outbox(p)
	if err != nil {
		return 0, oldest, err
	}
	entries, oldest, err = box.Count(ctx)
	return min(entries, limit), oldest, err
}

// Retries implements [outbox.Store].
func (Store) Retries(ctx context.Context, tx *cassink.Tx, p epoch.Partition, ids []int64) ([]int64, error) {
	return in(tx, p, func(box cassink.Outbox) ([]int64, error) { return box.Retries(ctx, ids) })
}

func in[T any](tx *cassink.Tx, p epoch.Partition, do func(box cassink.Outbox) ([]T, error)) ([]T, error) {
	box, err := tx.Outbox(p)
	if err != nil {
		return nil, err
	}
	return do(box)
}

func rows(es []operate.OutboxEntry, err error) ([]outbox.Row, error) {
	found := make([]outbox.Row, len(es))
	for i, e := range es {
		found[i] = outbox.Row{ID: e.ID, Offset: e.Offset, Entry: outbox.Entry{
			Key: e.Key, Scope: e.Scope, IdempotencyKey: e.IdempotencyKey, Method: e.Method, URL: e.URL, Header: e.Header, Body: e.Body,
		}}
	}
	return found, err
}
