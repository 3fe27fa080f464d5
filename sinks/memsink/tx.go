package memsink

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// This file is the view that a handler has of a transaction. sink.go decides whether it commits.

// Tx is a handler's view of a transaction. The transaction sees its writes at once, and others see
// all of them after the commit. A Tx is safe for concurrent use until its handler returns. After
// that, its methods panic. They also panic once the transaction was abandoned, with an error that
// matches [epoch.ErrAbandoned].
type Tx struct {
	*transaction
	ended bool // under mu
}

type transaction struct {
	db   *database
	as   []epoch.Advance
	life int

	mu        sync.Mutex
	abandoned bool
	read      map[name]int // what was read, with the commit that had last changed it
	values    map[string]value
	lists     map[string][]string
	changes   []operate.Change // of rows for operators
}

type value struct {
	value   string
	deleted bool
}

func (db *database) begin(as []epoch.Advance) *transaction {
	db.mu.Lock()
	defer db.mu.Unlock()
	return &transaction{
		db: db, as: as, life: db.life,
		read:   map[name]int{},
		values: map[string]value{},
		lists:  map[string][]string{},
	}
}

func (t *transaction) callAll(ctx context.Context, o epoch.TxOptions, calls []func(context.Context, *Tx) error) error {
	return o.Each(len(calls), func(i int) error {
		if t.isAbandoned() {
			return epoch.ErrAbandoned
		}
		return t.call(ctx, calls[i])
	})
}

func (t *transaction) isAbandoned() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.abandoned
}

func (t *transaction) call(ctx context.Context, do func(context.Context, *Tx) error) error {
	tx := &Tx{transaction: t}
	defer tx.end() // also when do panics
	return do(ctx, tx)
}

func (t *transaction) abandon() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.abandoned = true
}

func (tx *Tx) end() {
	tx.mu.Lock()
	defer tx.mu.Unlock()
	tx.ended = true
}

func (tx *Tx) use() (done func()) {
	tx.mu.Lock()
	if tx.abandoned {
		tx.mu.Unlock()
		panic(fmt.Errorf("memsink: Tx used: %w", epoch.ErrAbandoned))
	}
	if tx.ended {
		tx.mu.Unlock()
		panic("memsink: Tx used after its handler returned")
	}
	return tx.mu.Unlock
}

// note remembers the version of n at its first read. If n changes before the commit, even between
// two reads, the transaction is refused.
func (tx *Tx) note(n name) {
	if _, ok := tx.read[n]; !ok {
		tx.read[n] = tx.db.state.changed[n]
	}
}

// Get returns the value of key, and whether it has one.
func (tx *Tx) Get(key string) (string, bool) {
	defer tx.use()()
	if v, ok := tx.values[key]; ok {
		return v.value, !v.deleted
	}
	tx.db.mu.Lock()
	defer tx.db.mu.Unlock()
	tx.note(name{name: key})
	v, ok := tx.db.state.values[key]
	return v, ok
}

// Put sets the value of key.
func (tx *Tx) Put(key, val string) {
	defer tx.use()()
	tx.values[key] = value{value: val}
}

// Delete removes key and its value, if there is one.
func (tx *Tx) Delete(key string) {
	defer tx.use()()
	tx.values[key] = value{deleted: true}
}

// Append adds values at the end of a list, which need not exist. Two transactions may append to one
// list without a conflict.
func (tx *Tx) Append(list string, values ...string) {
	defer tx.use()()
	tx.lists[list] = append(tx.lists[list], values...)
}

// List returns the values of a list. The values of this transaction come last.
func (tx *Tx) List(list string) []string {
	defer tx.use()()
	tx.db.mu.Lock()
	defer tx.db.mu.Unlock()
	tx.note(name{list: true, name: list})
	return slices.Concat(tx.db.state.lists[list], tx.lists[list])
}
