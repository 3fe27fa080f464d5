package leasetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/lease"
	"github.com/epochfence/epochfence/sinks/memsink"
)

// Desk is a sink in which the work of a lock writes lines.
type Desk[TX any] struct {
	// Sink is used by all processes of a history.
	Sink epoch.Sink[TX]

	// Write writes a line in a transaction.
	Write func(ctx context.Context, tx TX, line string) error

	// Lines returns the lines that were committed, in any order.
	Lines func(t testing.TB) []string

	// Excludes reports that an open transaction keeps all others out of the database, as in SQLite.
	Excludes bool
}

const report = "report"

func inMemory(testing.TB) Desk[*memsink.Tx] {
	s := memsink.New()
	return Desk[*memsink.Tx]{
		Sink:  s,
		Write: func(_ context.Context, tx *memsink.Tx, line string) error { tx.Append(report, line); return nil },
		Lines: func(testing.TB) []string { return s.List(report) },
	}
}

// works is a world whose members work under one lock.
type works[TX any] struct {
	*world
	desk Desk[TX]

	lines sync.Mutex
	tried int
	done  []string // must have been committed, once
	doubt []string // may have been committed, once
}

// tries does work that writes a line of its own, and notes what has become of it.
func (w *works[TX]) tries(line string, do func(lease.Work[TX]) error) (e epoch.Epoch, err error) {
	w.lines.Lock()
	w.tried++
	line = fmt.Sprint(line, " ", w.tried)
	w.lines.Unlock()
	err = do(func(ctx context.Context, tx TX, under epoch.Epoch) error {
		e = under
		return w.desk.Write(ctx, tx, line)
	})
	w.lines.Lock()
	defer w.lines.Unlock()
	switch {
	case err == nil:
		w.done = append(w.done, line)
	case errors.Is(err, epoch.ErrInDoubt):
		w.doubt = append(w.doubt, line)
	}
	return e, err
}

// does works under the lock until the work is committed. A busy machine may cost a member its lease.
func (w *works[TX]) does(m *member, sink epoch.Sink[TX], line string) (e epoch.Epoch) {
	for {
		e, err := w.tries(line, w.under(m, sink))
		if err == nil {
			return e
		}
		if !errors.Is(err, lease.ErrLost) || w.ctx.Err() != nil {
			w.Errorf("%s: %v", line, err)
			return e
		}
	}
}

// addsUp compares what was committed with what the members were told.
func (w *works[TX]) addsUp() {
	got := w.desk.Lines(w)
	slices.Sort(got)
	for i, line := range got {
		w.Wantf(i <= 0 || line != got[i-1], "%q was committed twice", line)
		w.Wantf(slices.Contains(w.done, line) || slices.Contains(w.doubt, line), "%q was committed, and its member got an error", line)
	}
	for _, line := range w.done {
		w.Wantf(slices.Contains(got, line), "%q was not committed, and its member got no error", line)
	}
}

// frail is the sink of one process, which does not see by itself that its lease is over.
type frail[TX any] struct {
	epoch.Sink[TX]

	// abandons reports that a transaction whose work hangs is abandoned nevertheless.
	abandons bool

	mu            sync.Mutex
	claim, commit func(do func() error) error // what happens to the next one
	away          bool                        // the database is out of reach
}

var errAway = errors.New("the database is out of reach")

func (f *frail[TX]) isAway(away bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.away = away
}

// step calls do, or once what next points to.
func (f *frail[TX]) step(next *func(do func() error) error, do func() error) error {
	f.mu.Lock()
	var happens func(do func() error) error
	if next != nil {
		happens, *next = *next, nil
	}
	away := f.away
	f.mu.Unlock()
	switch {
	case away:
		return errAway
	case happens != nil:
		return happens(do)
	}
	return do()
}

func (f *frail[TX]) Look(ctx context.Context, ps []epoch.Partition) (got epoch.Fences, err error) {
	err = f.step(nil, func() error {
		got, err = f.Sink.Look(ctx, ps)
		return err
	})
	return got, err
}

func (f *frail[TX]) Claim(ctx context.Context, seen epoch.Fence, c epoch.Claim) (got epoch.Fence, err error) {
	err = f.step(&f.claim, func() error {
		got, err = f.Sink.Claim(context.WithoutCancel(ctx), seen, c)
		return err
	})
	return got, err
}

func (f *frail[TX]) Commit(ctx context.Context, as []epoch.Advance, o epoch.TxOptions, calls ...func(context.Context, TX) error) error {
	ctx = context.WithoutCancel(ctx)
	if !f.abandons {
		o.Abandoned = nil
	}
	return f.step(&f.commit, func() error { return f.Sink.Commit(ctx, as, o, calls...) })
}
