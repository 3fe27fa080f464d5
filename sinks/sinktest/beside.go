package sinktest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/epochfence/epochfence/epoch"
)

// This file has the histories of calls that run beside each other in one transaction.

var besides = []history{
	{"calls beside each other are open at one time; all that they write is committed, or nothing if one fails or ends its goroutine", "R1", besideEnds},
	{"the transaction of a call is of no use after the call, while others beside it use theirs", "R1", besideKept},
	{"calls beside each other hang: both are abandoned, and what they still write is refused", "R12 L7", besideHangs},
}

var errGoexit = errors.New("a call ended its goroutine")

// besideAll runs each call on a goroutine of its own.
func besideAll(calls int, call func(i int) error) error {
	errs := slices.Repeat([]error{errGoexit}, calls)
	var all sync.WaitGroup
	for i := range calls {
		all.Go(func() { errs[i] = call(i) })
	}
	all.Wait()
	return errors.Join(errs...)
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

func besideEnds(w *world) {
	ta, failure := w.owned(5), errors.New("out of stock")
	var there []string
	for _, how := range []struct {
		want error
		end  func() error
	}{{nil, func() error { return nil }}, {failure, func() error { return failure }}, {errGoexit, func() error { runtime.Goexit(); return nil }}} {
		err := ta.beside(epoch.TxOptions{}, 4, func(ctx context.Context, tx any, i int) error {
			if err := w.db.Append(ctx, tx, besideList(i), "second"); err != nil || i != 2 {
				return err
			}
			return how.end()
		})
		w.Wantf(errors.Is(err, how.want) && len(class(err)) <= 0, "err = %v, want %v", err, how.want)
		if ta.wantFence(); how.want == nil {
			there = append(there, "first", "second")
		}
		for i := range 4 {
			w.wantList(besideList(i), there...)
		}
	}
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
		w.wantList(besideList(1)) // a write that was running as its call returned fails the transaction
		return
	}
	last, err := w.db.List(w.ctx, besideList(1))
	w.Wantf(err == nil && len(last) >= 2 && last[len(last)-1] == "second", "the list has %q, %v", last, err)
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
	w.Wantf(errors.Is(err, epoch.ErrAbandoned) && len(class(err)) <= 0, "err = %v, want ErrAbandoned and no refusal", err)
	for i, err := range late {
		w.Wantf(errors.Is(err, epoch.ErrAbandoned), "a write of call %d returned %v, want ErrAbandoned", i, err)
	}
	w.wantList(besideList(0))
	w.wantList("late")
	ta.applies(1)
	w.wantEffects(orders0, "0@5")
}
