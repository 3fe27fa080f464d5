package sinktest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/epochfence/epochfence/epoch"
)

// This file has the histories of calls that run beside each other in one transaction.

var besides = []history{
	{"calls beside each other are open at one time, and all that they write is committed", "R1", besideCommits},
	{"of calls beside each other one fails: nothing is committed, and its error is returned", "R1", besideFails},
	{"of calls beside each other one ends its goroutine: nothing is committed", "R1", besideGoexit},
	{"the transaction of a call is of no use after the call, while others beside it use theirs", "R1", besideKept},
	{"calls beside each other hang: both are abandoned, and what they still write is refused", "R12 L7", besideHangs},
	{"calls beside each other under a replaced claim are refused", "R1", besideStale},
}

var errGoexit = errors.New("a call ended its goroutine")

// besideAll runs each call on a goroutine of its own.
func besideAll(calls int, call func(i int) error) error {
	errs := make([]error, calls)
	var all sync.WaitGroup
	for i := range calls {
		errs[i] = errGoexit
		all.Go(func() { errs[i] = call(i) })
	}
	all.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// beside runs calls for as many messages beside each other. Each appends to a list of its own, and once all
// have done so does what then says.
func (t *tenure) beside(o epoch.TxOptions, calls int, then func(ctx context.Context, tx any, i int) error) error {
	w, a := t.w, t.advance(calls)
	var open atomic.Int32
	all := make(chan struct{})
	do := make([]func(context.Context, any) error, calls)
	for i := range do {
		do[i] = func(ctx context.Context, tx any) error {
			err := w.db.Append(ctx, tx, besideList(i), "first")
			if open.Add(1) == int32(calls) {
				close(all)
			}
			if err != nil {
				return err
			}
			select {
			case <-all:
				return then(ctx, tx, i)
			case <-w.ctx.Done():
				return errors.New("the calls beside it have not begun")
			}
		}
	}
	o.Beside = besideAll
	err := t.sink.Commit(w.ctx, []epoch.Advance{a}, o, do...)
	if err == nil {
		t.moves(a)
	}
	return err
}

func besideList(i int) string { return fmt.Sprint("beside ", i) }

func (w *world) wantBeside(calls int, want ...string) {
	w.Helper()
	for i := range calls {
		w.wantList(besideList(i), want...)
	}
}

func besideCommits(w *world) {
	ta := w.owned(5)
	for range 2 {
		if err := ta.beside(epoch.TxOptions{}, 5, func(ctx context.Context, tx any, i int) error {
			return w.db.Append(ctx, tx, besideList(i), "second")
		}); err != nil {
			w.Fatal(err)
		}
	}
	ta.wantFence()
	w.wantBeside(5, "first", "second", "first", "second")
	ta.applies(1)
}

func besideFails(w *world) {
	ta, failure := w.owned(5), errors.New("out of stock")
	err := ta.beside(epoch.TxOptions{}, 4, func(ctx context.Context, tx any, i int) error {
		if i == 2 {
			return failure
		}
		return w.db.Append(ctx, tx, besideList(i), "second")
	})
	if !errors.Is(err, failure) || len(class(err)) > 0 {
		w.Errorf("err = %v, want that of the call", err)
	}
	ta.wantFence()
	w.wantBeside(4)
	ta.applies(1)
}

func besideGoexit(w *world) {
	ta := w.owned(5)
	err := ta.beside(epoch.TxOptions{}, 3, func(ctx context.Context, tx any, i int) error {
		if i == 0 {
			runtime.Goexit()
		}
		return w.db.Append(ctx, tx, besideList(i), "second")
	})
	if !errors.Is(err, errGoexit) || len(class(err)) > 0 {
		w.Errorf("err = %v, want that of TxOptions.Beside", err)
	}
	ta.wantFence()
	w.wantBeside(3)
	ta.applies(1)
}

func besideKept(w *world) {
	ta := w.owned(5)
	kept := make(chan any, 1)
	err := ta.beside(epoch.TxOptions{}, 2, func(ctx context.Context, tx any, i int) error {
		if i == 0 {
			kept <- tx
			return nil
		}
		old := <-kept
		// The call may still be about to return.
		for w.appends(ctx, old, besideList(i), "before its call returned") == nil && w.ctx.Err() == nil {
			runtime.Gosched()
		}
		return w.db.Append(ctx, tx, besideList(i), "second")
	})
	if err != nil {
		// A write that was running as its call returned fails the transaction.
		w.wantBeside(2)
		return
	}
	last, err := w.db.List(w.ctx, besideList(1))
	if err != nil || len(last) < 2 || last[len(last)-1] != "second" {
		w.Errorf("the list has %q, %v", last, err)
	}
}

func besideHangs(w *world) {
	ta := w.owned(5)
	abandoned, abandon := context.WithCancel(context.Background())
	defer abandon()
	var late [2]error
	err := ta.beside(epoch.TxOptions{Abandoned: abandoned}, 2, func(ctx context.Context, tx any, i int) error {
		abandon()
		late[i] = w.appendsUntilRefused(context.WithoutCancel(ctx), tx)
		return nil
	})
	if !errors.Is(err, epoch.ErrAbandoned) || len(class(err)) > 0 {
		w.Errorf("err = %v, want ErrAbandoned and no refusal", err)
	}
	for i, err := range late {
		if !errors.Is(err, epoch.ErrAbandoned) {
			w.Errorf("a write of call %d returned %v, want ErrAbandoned", i, err)
		}
	}
	w.wantBeside(2)
	w.wantList("late")
	ta.applies(1)
	w.wantEffects(orders0, "0@5")
}

func besideStale(w *world) {
	ta := w.owned(5)
	tb := w.process("B").claims(orders0, 6)
	err := ta.beside(epoch.TxOptions{}, 3, func(context.Context, any, int) error { return nil })
	w.wantOnly(err, epoch.ErrStale, "A, under a claim that B has replaced")
	w.wantBeside(3)
	tb.applies(1)
}
