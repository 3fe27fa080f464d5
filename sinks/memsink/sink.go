package memsink

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// This file is the database: one state under a lock. Commit refuses a transaction that has read
// what others changed. epoch.Fences decides about claims and positions.

// ErrConflict is returned when another transaction has changed a key or list that this one had
// read. Nothing was committed. The error also matches [epoch.ErrTransient].
var ErrConflict = errors.New("a value that the transaction read was changed by another transaction")

// Sink is one process's view of a database in memory. Make one with [New]. It is safe for
// concurrent use. Any number of transactions may be open at a time, and none waits for another.
type Sink struct {
	db    *database
	hooks atomic.Pointer[Hooks]
}

// The suite skips the histories of what a sink does not implement, so the compiler checks it here.
var (
	_ epoch.Sink[*Tx]    = (*Sink)(nil)
	_ epoch.Holding[*Tx] = (*Sink)(nil)
)

// database is shared by several sinks. mu is never held while a handler or a hook runs.
type database struct {
	mu    sync.Mutex
	state state
	lives map[string]operate.Row // signs of life, by their Name; not part of a snapshot
	life  int                    // counts restores: a transaction does not outlive one

	replaced chan struct{} // closed by the next restore
}

type state struct {
	fences epoch.Fences
	values map[string]string
	lists  map[string][]string
	tables map[operate.Kind]table // see ledger.go

	advanced map[epoch.Partition]time.Time

	// changed holds, for each key and list, the commit that changed it last.
	changed map[name]int
	commits int
}

// name is a key or a list; the two do not share names.
type name struct {
	list bool
	name string
}

// New returns a sink on a new, empty database.
func New() *Sink {
	return &Sink{db: &database{replaced: make(chan struct{}), lives: map[string]operate.Row{}, state: state{
		fences:  epoch.Fences{},
		values:  map[string]string{},
		lists:   map[string][]string{},
		tables:  map[operate.Kind]table{},
		changed: map[name]int{}, advanced: map[epoch.Partition]time.Time{},
	}}}
}

// Open returns another process's sink on the same database, without hooks.
func (s *Sink) Open() *Sink { return &Sink{db: s.db} }

// Look implements [epoch.Sink].
func (s *Sink) Look(ctx context.Context, ps []epoch.Partition) (epoch.Fences, error) {
	hook := s.hook().Look
	if one := s.hook().Fence; one != nil && len(ps) == 1 {
		hook = func(ctx context.Context, ps []epoch.Partition, do func() error) error { return one(ctx, ps[0], do) }
	}
	var found epoch.Fences
	err := run(ctx, hook, ps, func() error {
		s.db.mu.Lock()
		defer s.db.mu.Unlock()
		found = s.db.state.fences.Look(ps)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("memsink: read fence %s: %w", epoch.Names(ps), err)
	}
	return found, nil
}

// Facts implements [epoch.Sink]. The next [Sink.Restore] closes the channel Replaced.
func (s *Sink) Facts() epoch.Facts {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	return epoch.Facts{Guarantee: epoch.Transactional, Beside: true, Replaced: s.db.replaced}
}

// Seed implements [epoch.Sink].
func (s *Sink) Seed(ctx context.Context, starts []epoch.Start) error {
	err := run(ctx, s.hook().Seed, starts, func() error {
		s.db.mu.Lock()
		defer s.db.mu.Unlock()
		return s.db.state.fences.Seed(starts)
	})
	if err != nil {
		return fmt.Errorf("memsink: seed: %w", err)
	}
	return nil
}

// Claim implements [epoch.Sink].
func (s *Sink) Claim(ctx context.Context, seen epoch.Fence, c epoch.Claim) (epoch.Fence, error) {
	var f epoch.Fence
	err := run(ctx, s.hook().Claim, c, func() (err error) {
		s.db.mu.Lock()
		defer s.db.mu.Unlock()
		before := s.db.state.fences[c.Partition]
		if f, err = s.db.state.fences.Claim(seen, c); err != nil {
			return err
		}
		s.db.state.write(operate.EntryOf(operate.Claimed(before, f, operate.TraceID(ctx))))
		return nil
	})
	if err != nil {
		return epoch.Fence{}, fmt.Errorf("memsink: claim %s: %w", c.Partition, err)
	}
	return f, nil
}

// Commit implements [epoch.Sink]. It returns [ErrConflict] if another transaction has changed what
// this one read.
func (s *Sink) Commit(ctx context.Context, as []epoch.Advance, o epoch.TxOptions, calls ...func(ctx context.Context, tx *Tx) error) error {
	if len(as) == 0 {
		return errors.New("memsink: commit: no partition to advance; an unfenced transaction is Update's")
	}
	as = slices.SortedStableFunc(slices.Values(as), func(a, b epoch.Advance) int { return a.Partition.Compare(b.Partition) })
	for i := 1; i < len(as); i++ {
		if as[i].Partition == as[i-1].Partition {
			return fmt.Errorf("memsink: commit: %s is given twice; want one advance for each partition", as[i].Partition)
		}
	}
	err := transact(ctx, s.db, as, o, s.hook().Commit, as, func(fs epoch.Fences) error { return fs.Advance(as) }, calls...)
	if err != nil {
		return fmt.Errorf("memsink: commit %s%s: %w", as[0].Partition, andMore(as), err)
	}
	return nil
}

// CommitHeld implements [epoch.Holding].
func (s *Sink) CommitHeld(ctx context.Context, h epoch.Hold, o epoch.TxOptions, apply func(ctx context.Context, tx *Tx) error) error {
	err := transact(ctx, s.db, nil, o, s.hook().CommitHeld, h, func(fs epoch.Fences) error { return fs.Hold(h) }, apply)
	if err != nil {
		return fmt.Errorf("memsink: commit %s under its claim: %w", h.Partition, err)
	}
	return nil
}

func andMore(as []epoch.Advance) string {
	if len(as) == 1 {
		return ""
	}
	return fmt.Sprintf(" and %d more", len(as)-1)
}

// Update runs apply in a transaction of its own, without a fence and without hooks, for what a test
// does before or beside the consumer.
func (s *Sink) Update(ctx context.Context, apply func(ctx context.Context, tx *Tx) error) error {
	if err := transact(ctx, s.db, nil, epoch.TxOptions{}, nil, struct{}{}, func(epoch.Fences) error { return nil }, apply); err != nil {
		return fmt.Errorf("memsink: update: %w", err)
	}
	return nil
}

// transact runs a transaction, with hook between the calls and the commit. fenced checks the
// fences, and moves those of as.
func transact[T any](ctx context.Context, db *database, as []epoch.Advance, o epoch.TxOptions, hook Hook[T], about T, fenced func(epoch.Fences) error,
	calls ...func(context.Context, *Tx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	tx := db.begin(as)
	stop := o.AfterAbandoned(tx.abandon)
	defer stop() // also when a call panics
	err := tx.callAll(ctx, o, calls)
	if !stop() {
		return epoch.Abandoned(err)
	}
	if err != nil {
		return err
	}
	return run(ctx, hook, about, func() error { return db.commit(tx, fenced) })
}

func (db *database) commit(tx *transaction, fenced func(epoch.Fences) error) error {
	db.mu.Lock()
	defer db.mu.Unlock()
	if tx.life != db.life {
		return fmt.Errorf("%w: the database was restored while the transaction was open", epoch.ErrInDoubt)
	}
	for n, seen := range tx.read {
		if db.state.changed[n] != seen {
			return fmt.Errorf("%q: %w: %w", n.name, epoch.ErrTransient, ErrConflict)
		}
	}
	if err := db.state.check(tx.changes); err != nil {
		return err
	}
	if err := fenced(db.state.fences); err != nil {
		return err
	}
	for _, a := range tx.as {
		db.state.advanced[a.Partition] = now()
	}
	db.state.write(tx.changes...)
	db.state.commits++
	for key, v := range tx.values {
		if v.deleted {
			delete(db.state.values, key)
		} else {
			db.state.values[key] = v.value
		}
		db.state.changed[name{name: key}] = db.state.commits
	}
	for list, more := range tx.lists {
		db.state.lists[list] = append(db.state.lists[list], more...)
		db.state.changed[name{list: true, name: list}] = db.state.commits
	}
	return nil
}

// Get returns the committed value of key, and whether it has one.
func (s *Sink) Get(key string) (string, bool) {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	v, ok := s.db.state.values[key]
	return v, ok
}

// Values returns all keys with their committed values.
func (s *Sink) Values() map[string]string {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	return maps.Clone(s.db.state.values)
}

// List returns what was committed to a list, in the order of the commits.
func (s *Sink) List(list string) []string {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	return slices.Clone(s.db.state.lists[list])
}

// Fences returns all fences, as committed.
func (s *Sink) Fences() epoch.Fences {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	return maps.Clone(s.db.state.fences)
}

// Snapshot is a copy of a database at one moment. See [Sink.Restore].
type Snapshot struct{ state state }

// Snapshot copies the database as committed.
func (s *Sink) Snapshot() Snapshot {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	return Snapshot{s.db.state.clone()}
}

// Restore puts the database back to a snapshot, for every sink on it. Transactions that are open
// meanwhile end with [epoch.ErrInDoubt], as if they had lost their connection. A snapshot may be
// restored repeatedly.
func (s *Sink) Restore(from Snapshot) {
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	s.db.state = from.state.clone()
	s.db.life++
	close(s.db.replaced)
	s.db.replaced = make(chan struct{})
}

func (st state) clone() state {
	st.fences = maps.Clone(st.fences)
	st.values = maps.Clone(st.values)
	st.lists = maps.Clone(st.lists)
	for list, vs := range st.lists {
		st.lists[list] = slices.Clone(vs)
	}
	st.tables = maps.Clone(st.tables)
	for kind, t := range st.tables {
		st.tables[kind] = table{slices.Clone(t.rows), t.last}
	}
	st.changed = maps.Clone(st.changed)
	st.advanced = maps.Clone(st.advanced)
	return st
}
