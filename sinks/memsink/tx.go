package memsink

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// This file is the view that a handler has of a transaction, and puts the faults of a test between a process
// and its database. sink.go has the steps that they wrap, and decides whether a transaction commits.

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

// Hook stands between a process and one step in its database. It gets the subject of the step and
// the step itself, and returns in the step's place:
//
//	return do()                          // nothing wrong
//	<-thawed; return do()                // the process is frozen before the step
//	do(); return epoch.ErrInDoubt        // the step is taken, its answer lost
//	return epoch.ErrInDoubt              // the step never arrives
//	late = do; return epoch.ErrInDoubt   // the test calls late() when it likes: still in flight
//	return errors.New("out of stock")    // refused
//	return epoch.ErrTransient            // refused, for a reason that passes
//	return epoch.ErrUnhealthy            // refused, for a reason that somebody has to fix
//
// The step runs at most once, on the goroutine that calls do. A second call of do is an error, and
// so is a hook that returns nil without a call. ctx is the caller's, and is checked before the hook
// is called: a step that a hook holds back counts as sent, and takes effect even after ctx has
// ended. Several goroutines may call a hook at a time.
type Hook[T any] func(ctx context.Context, about T, do func() error) error

// Hooks are the faults of one sink. A nil hook runs the step.
type Hooks struct {
	// Fence stands before the read of one fence, with which a claim begins. Look stands before the other reads, with
	// which a consumer watches partitions that have nothing to commit, and where Fence is not set before each.
	Fence Hook[epoch.Partition]
	Look  Hook[[]epoch.Partition]

	Seed Hook[[]epoch.Start]

	// Claim stands before the swap: a process frozen here has confirmed.
	Claim Hook[epoch.Claim]

	// Commit stands between the handler and the fence: a process frozen here
	// has its transaction open.
	Commit Hook[[]epoch.Advance]

	// CommitHeld is Commit for a transaction that moves no position.
	CommitHeld Hook[epoch.Hold]

	// Record stands before a consumer's writes to the audit log, Hangs before its reads of what
	// hung, and Requests before its polls for the requests of operators.
	Record   Hook[[]operate.Decision]
	Hangs    Hook[epoch.Partition]
	Requests Hook[[]epoch.Partition]

	Alive Hook[operate.Process]
}

// Script replaces the hooks of this sink, for steps that begin from now on. Other sinks on the same
// database keep theirs.
func (s *Sink) Script(h Hooks) { s.hooks.Store(&h) }

func (s *Sink) hook() Hooks {
	if h := s.hooks.Load(); h != nil {
		return *h
	}
	return Hooks{}
}

// run checks ctx before the hook only, so that a process frozen beyond its deadline does its worst
// when it thaws.
func run[T any](ctx context.Context, hook Hook[T], about T, step func() error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if hook == nil {
		return step()
	}
	var (
		mu     sync.Mutex
		taken  bool
		result error
	)
	err := hook(ctx, about, func() error {
		mu.Lock()
		defer mu.Unlock()
		if taken {
			return errors.New("the hook took the step twice")
		}
		taken = true
		result = step()
		return result
	})
	if err != nil {
		return err
	}
	mu.Lock()
	defer mu.Unlock()
	if !taken {
		return errors.New("the hook returned nil without taking the step")
	}
	return result // a hook cannot turn a refusal into a success
}
