package batches_test

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/outbox"
)

// orders is the partition of a database.
var orders = epoch.Partition{Group: "billing", Topic: "orders", Number: 3}

// database is one in memory: the entries of one partition, and its fence. Its lock guards its fields.
type database struct {
	sync.Mutex
	State State
	Last  int64 // ID of an entry
	Owner epoch.Epoch
	Asked []int64 // entries that an operator wants retried
	Begun int     // transactions
	Read  int     // the most entries that a transaction has read

	method string
}

// State is what a transaction changes. A test that keeps one and sets it later loses the commits in between.
type State struct {
	Rows   map[int64]outbox.Row
	Added  map[int64]int // the commit of each entry
	Commit int
}

// tx is a transaction of a database.
type tx struct {
	db   *database
	read int
	State
}

// newDatabase returns an empty database for entries of this Method.
func newDatabase(method string) *database {
	return &database{method: method, State: State{Rows: map[int64]outbox.Row{}, Added: map[int64]int{}}}
}

// Do runs a transaction. A claim's needs the fence; that of a handler has epoch 0.
func (db *database) Do(under epoch.Epoch, apply func(*tx) error) error {
	db.Lock()
	defer db.Unlock()
	db.Begun++
	t := &tx{db: db, State: db.State}
	t.Rows, t.Added, t.Commit = maps.Clone(t.Rows), maps.Clone(t.Added), t.Commit+1
	if err := apply(t); err != nil {
		return err
	}
	if under != 0 && under != db.Owner {
		return &epoch.StaleError{Partition: orders}
	}
	db.State = t.State
	return nil
}

// Left returns all entries, in the order of their IDs.
func (db *database) Left() []outbox.Row {
	db.Lock()
	defer db.Unlock()
	return slices.SortedFunc(maps.Values(db.State.Rows), func(a, b outbox.Row) int { return cmp.Compare(a.ID, b.ID) })
}

// Records returns the entries of the relay, without what it keeps for itself.
func (db *database) Records() []outbox.Row {
	return slices.DeleteFunc(db.Left(), func(row outbox.Row) bool { return row.Method != db.method })
}

// Discard deletes an entry, as an operator does.
func (db *database) Discard(id int64) {
	_ = db.Do(0, func(t *tx) error { delete(t.Rows, id); return nil })
}

// table is the [outbox.Store] of a database.
type table struct{}

// Add implements [outbox.Store].
func (table) Add(_ context.Context, t *tx, m epoch.Message, e outbox.Entry) error {
	t.db.Last++
	t.Rows[t.db.Last], t.Added[t.db.Last] = outbox.Row{ID: t.db.Last, Offset: m.Offset, Entry: e}, t.Commit
	return nil
}

// Retries implements [outbox.Store].
func (table) Retries(_ context.Context, t *tx, _ epoch.Partition, ids []int64) (asked []int64, err error) {
	var others []int64
	for _, id := range t.db.Asked {
		if _, there := t.Rows[id]; slices.Contains(ids, id) {
			asked = append(asked, id)
		} else if there {
			others = append(others, id)
		}
	}
	t.db.Asked = others
	return asked, nil
}

// Scan implements [outbox.Store].
func (table) Scan(_ context.Context, t *tx, _ epoch.Partition, from outbox.Cursor, limit int) (all []outbox.Row, _ outbox.Cursor, err error) {
	seen, _ := strconv.Atoi(from.Seen)
	for id, commit := range t.Added {
		if _, there := t.Rows[id]; there && id <= from.ID && commit > seen {
			from.ID = id - 1
		}
	}
	at, size := outbox.Cursor{ID: from.ID, Seen: strconv.Itoa(t.Commit)}, 0
	for _, id := range slices.Sorted(maps.Keys(t.Rows)) {
		if id > from.ID && len(all) < limit && !at.More {
			all = append(all, t.Rows[id])
			size += len(t.Rows[id].Body)
			at.ID, at.More = id, size >= outbox.ScanBytes
		}
	}
	t.read += len(all)
	t.db.Read = max(t.db.Read, t.read)
	return all, at, nil
}

// Next implements [outbox.Store].
func (table) Next(_ context.Context, t *tx, _ epoch.Partition, at outbox.Cursor, after []outbox.Place) (all []outbox.Row, err error) {
	seen, _ := strconv.Atoi(at.Seen)
	for _, a := range after {
		for _, id := range slices.Sorted(maps.Keys(t.Rows)) {
			if id > a.ID && t.Rows[id].Key == a.Key {
				if t.Added[id] <= seen && id <= at.ID {
					all = append(all, t.Rows[id])
				}
				break
			}
		}
	}
	return all, nil
}

// Load implements [outbox.Store].
func (table) Load(_ context.Context, t *tx, _ epoch.Partition, ids []int64) (all []outbox.Row, err error) {
	for _, id := range ids {
		if row, ok := t.Rows[id]; ok {
			all = append(all, row)
		}
	}
	return all, nil
}

// Count implements [outbox.Store].
func (table) Count(_ context.Context, t *tx, _ epoch.Partition, limit int) (int, time.Time, error) {
	return min(len(t.Rows), limit), time.Time{}, nil
}

// Delete implements [outbox.Store].
func (table) Delete(_ context.Context, t *tx, _ epoch.Partition, ids []int64) (there []int64, err error) {
	for _, id := range ids {
		if _, ok := t.Rows[id]; ok {
			there = append(there, id)
			delete(t.Rows, id)
		}
	}
	return there, nil
}
