package sinktest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/suites/verdict"
)

// toy is a sink in which every guard can be taken out. It is sound as newToy
// makes it.
type toy struct {
	mu     sync.Mutex
	fences epoch.Fences
	lists  map[string][]string
	listed int // times that a list was read

	seed    func(fs epoch.Fences, starts []epoch.Start) error
	claim   func(fs epoch.Fences, seen epoch.Fence, c epoch.Claim) (epoch.Fence, error)
	advance func(fs epoch.Fences, as []epoch.Advance) error
	hold    func(fs epoch.Fences, h epoch.Hold) error
	held    func(ctx context.Context, h epoch.Hold, o epoch.TxOptions, apply func(context.Context, *toyTx) error) error
	commit  func(ctx context.Context, as []epoch.Advance, o epoch.TxOptions, apply func(context.Context, *toyTx) error) error
	append  func(tx *toyTx, list, value string) error
	look    func(fs epoch.Fences, ps []epoch.Partition) (epoch.Fences, error)

	open         func() epoch.Sink[*toyTx]
	unseenEscape bool
	unfenced     bool // a commit without an advance is taken
	twice        bool // two advances of one partition are only judged after apply
	deaf         bool // to abandonment, and writes are taken
	lingering    bool // likewise, but writes are refused
	inTurn       bool // calls run one after the other, whatever they are asked for
	forgiving    bool // of a call that fails, only the writes are dropped
	lasting      bool // a call's transaction is of use after the call
	lockable     bool // Append can be made to wait
	locked       atomic.Bool
	lockedOut    error // why an Append has waited in vain
}

// toyTx is what a transaction of a toy has written.
type toyTx struct {
	db          *toy
	list, value []string
	ended       atomic.Bool
	escaped     bool
	abandoned   *atomic.Bool
}

func newToy() *toy {
	db := &toy{fences: epoch.Fences{}, lists: map[string][]string{}, lockedOut: epoch.ErrTransient}
	db.seed = epoch.Fences.Seed
	db.claim = epoch.Fences.Claim
	db.advance = epoch.Fences.Advance
	db.commit = db.soundCommit
	db.hold = epoch.Fences.Hold
	db.held = db.soundHeld
	db.append = (*toyTx).soundAppend
	db.look = soundLook
	db.open = func() epoch.Sink[*toyTx] { return toySink{db} }
	return db
}

func (db *toy) soundCommit(ctx context.Context, as []epoch.Advance, o epoch.TxOptions, apply func(context.Context, *toyTx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if len(as) == 0 && !db.unfenced {
		return errors.New("toy: no advance")
	}
	given := map[epoch.Partition]bool{}
	for _, a := range as {
		if given[a.Partition] && !db.twice {
			return fmt.Errorf("toy: %s twice", a.Partition)
		}
		given[a.Partition] = true
	}
	return db.transact(ctx, o, func() error { return db.advance(db.fences, as) }, apply)
}

func (db *toy) soundHeld(ctx context.Context, h epoch.Hold, o epoch.TxOptions, apply func(context.Context, *toyTx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return db.transact(ctx, o, func() error { return db.hold(db.fences, h) }, apply)
}

func (db *toy) transact(ctx context.Context, o epoch.TxOptions, fenced func() error, apply func(context.Context, *toyTx) error) error {
	tx := &toyTx{db: db, abandoned: &atomic.Bool{}}
	defer tx.ended.Store(true)
	stop := o.AfterAbandoned(func() { tx.abandoned.Store(!db.deaf) })
	defer stop()
	err := apply(ctx, tx)
	if !stop() && !db.deaf && !db.lingering {
		return epoch.Abandoned(err)
	}
	if err != nil {
		return fmt.Errorf("toy: apply: %w", err)
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	db.mu.Lock()
	defer db.mu.Unlock()
	if tx.escaped && !db.unseenEscape {
		return epoch.ErrTxEndedByHandler
	}
	if err := fenced(); err != nil {
		return fmt.Errorf("toy: %w", err)
	}
	tx.land()
	return nil
}

// unlocked lets others have the lock until ok, or for some looks, and takes it
// again. It reports whether ok.
func (db *toy) unlocked(looks int, ok func() bool) bool {
	for range looks {
		if ok() {
			return true
		}
		db.mu.Unlock()
		<-time.After(10 * time.Microsecond)
		db.mu.Lock()
	}
	return false
}

func soundLook(fs epoch.Fences, ps []epoch.Partition) (epoch.Fences, error) { return fs.Look(ps), nil }

// call runs one call with a view of its own, which ends with it.
func (tx *toyTx) call(ctx context.Context, do func(context.Context, *toyTx) error) error {
	if tx.abandoned.Load() {
		return epoch.ErrAbandoned
	}
	view := &toyTx{db: tx.db, abandoned: tx.abandoned}
	defer func() { view.ended.Store(!tx.db.lasting) }()
	if tx.db.lasting {
		view = tx
	}
	if err := do(ctx, view); err != nil {
		if tx.db.forgiving {
			return nil
		}
		return err
	}
	if view != tx {
		tx.db.mu.Lock()
		defer tx.db.mu.Unlock()
		tx.list, tx.value = append(tx.list, view.list...), append(tx.value, view.value...)
		tx.escaped = tx.escaped || view.escaped
	}
	return nil
}

// land makes the writes visible. The caller holds the lock.
func (tx *toyTx) land() {
	for i, list := range tx.list {
		tx.db.lists[list] = append(tx.db.lists[list], tx.value[i])
	}
	tx.list, tx.value = nil, nil
}

func (tx *toyTx) soundAppend(list, value string) error {
	if tx.abandoned != nil && tx.abandoned.Load() {
		return epoch.ErrAbandoned
	}
	if tx.ended.Load() {
		return errors.New("toy: transaction has ended")
	}
	tx.list, tx.value = append(tx.list, list), append(tx.value, value)
	return nil
}

// database is the toy as the suite sees it.
func (db *toy) database() Database[any] {
	var lock func(testing.TB) func()
	if db.lockable {
		lock = func(testing.TB) func() {
			db.locked.Store(true)
			return func() { db.locked.Store(false) }
		}
	}
	return erase(Database[*toyTx]{
		Open: func(testing.TB) epoch.Sink[*toyTx] { return db.open() },
		Lock: lock,
		Append: func(ctx context.Context, tx *toyTx, list, value string) error {
			if db.locked.Load() {
				<-ctx.Done()
				return errors.Join(db.lockedOut, ctx.Err())
			}
			return db.append(tx, list, value)
		},
		List: func(_ context.Context, list string) ([]string, error) {
			db.mu.Lock()
			defer db.mu.Unlock()
			db.listed++
			return slices.Clone(db.lists[list]), nil
		},
		Commit: func(_ context.Context, tx *toyTx) error {
			db.mu.Lock()
			defer db.mu.Unlock()
			tx.escaped = true
			tx.land()
			return nil
		},
	})
}

type toySink struct{ db *toy }

func (s toySink) Look(ctx context.Context, ps []epoch.Partition) (epoch.Fences, error) {
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	return s.db.look(s.db.fences, ps)
}

func (s toySink) Facts() epoch.Facts {
	return epoch.Facts{Guarantee: epoch.Transactional, Beside: true}
}

func (s toySink) Seed(ctx context.Context, starts []epoch.Start) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	return s.db.seed(s.db.fences, starts)
}

func (s toySink) Claim(ctx context.Context, seen epoch.Fence, c epoch.Claim) (epoch.Fence, error) {
	if err := ctx.Err(); err != nil {
		return epoch.Fence{}, err
	}
	s.db.mu.Lock()
	defer s.db.mu.Unlock()
	return s.db.claim(s.db.fences, seen, c)
}

func (s toySink) Commit(ctx context.Context, as []epoch.Advance, o epoch.TxOptions, calls ...func(context.Context, *toyTx) error) error {
	return s.db.commit(ctx, as, o, func(ctx context.Context, tx *toyTx) error {
		if s.db.inTurn {
			o.Beside = nil
		}
		return o.Each(len(calls), func(i int) error { return tx.call(ctx, calls[i]) })
	})
}

func (s toySink) CommitHeld(ctx context.Context, h epoch.Hold, o epoch.TxOptions, apply func(context.Context, *toyTx) error) error {
	return s.db.held(ctx, h, o, apply)
}

// outcome plays h on the databases that create makes, and reports whether it
// failed and what it said.
func outcome(t *testing.T, h history, limit time.Duration, create func() *toy) (failed bool, said string) {
	return verdict.Of(t, func(t testing.TB) {
		h.playOn(t, limit, func(testing.TB) Database[any] { return create().database() })
	})
}
