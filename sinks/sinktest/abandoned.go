package sinktest

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// This file has the histories of calls that are given up, of transactions that are frozen and must
// block nobody, and of calls that run beside each other in one transaction.

var abandoned = []history{
	{"a handler that hangs is abandoned: the next owner claims and commits, and what it still writes is refused", "R12 L7", abandonedAfterWrites},
	{"a handler that hangs before its first write is abandoned: what it writes then is refused", "R12 L7", abandonedBeforeWrites},
	{"a transaction that nobody abandons commits like any other", "R12", notAbandoned},
}

// calls are the rules of transactions of several messages.
var calls = []history{
	{"a transaction of two calls is abandoned in the first: the second does not run", "R12 L7", abandonedBetweenCalls},
}

type hang struct {
	w         *world
	abandon   context.CancelFunc
	returns   chan struct{} // closed to let the handler continue
	late      error         // of the handler's writes after that
	committed chan error
}

// hangs runs a transaction whose handler hangs. If writes is true, the handler first writes its
// effects. When it continues, it writes to a list and returns nil.
func (t *tenure) hangs(messages int, writes bool) *hang {
	t.w.Helper()
	w, a := t.w, t.advance(messages)
	h := &hang{w: w, returns: make(chan struct{}), committed: make(chan error, 1)}
	abandoned, abandon := context.WithCancel(context.Background())
	ctx, cancel := context.WithCancel(w.ctx)
	hanging := make(chan error, 1)
	go func() {
		var err error
		defer func() {
			hanging <- err // in case the handler is never called
			h.committed <- err
		}()
		err = t.runsWith(ctx, a, epoch.TxOptions{Abandoned: abandoned}, func(ctx context.Context, tx any) error {
			if writes {
				if err := w.effects(ctx, tx, a, t.Epoch); err != nil {
					return err
				}
			}
			hanging <- nil
			select {
			case <-h.returns:
			case <-w.ctx.Done(): // the history has failed
			}
			h.late = w.appendsUntilRefused(context.WithoutCancel(ctx), tx)
			return nil
		})
	}()
	w.NoErrorf(<-hanging, "%s begins", t.name)
	h.abandon = func() {
		cancel() // its deadline comes first
		abandon()
	}
	return h
}

// appends calls Append. It returns a panic as an error, and a panic with an error as that error.
func (w *world) appends(ctx context.Context, tx any, list, value string) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = fmt.Errorf("panic: %v", v)
			if e, ok := v.(error); ok {
				err = e
			}
		}
	}()
	return w.db.Append(ctx, tx, list, value)
}

// appendsUntilRefused writes until the write is refused, because a transaction is abandoned a
// moment later. A write that is running at that moment may fail in another way.
func (w *world) appendsUntilRefused(ctx context.Context, tx any) (err error) {
	for failed, tries := 0, 0; failed < 1000 && tries < 5000 && w.ctx.Err() == nil && !errors.Is(err, epoch.ErrAbandoned); tries++ {
		if err = w.appends(ctx, tx, "late", "a zombie's"); err != nil {
			failed++
		}
		<-time.After(time.Millisecond)
	}
	return err
}

// ends lets the handler continue, and checks that its transaction has no effect.
func (h *hang) ends() {
	h.w.Helper()
	if len(h.committed) > 0 {
		h.w.Errorf("the sink's method returned while the handler runs: %v", <-h.committed)
		h.committed <- errors.New("returned before")
	}
	close(h.returns)
	err := <-h.committed
	h.w.Wantf(errors.Is(err, epoch.ErrAbandoned) && len(class(err)) == 0, "an abandoned transaction ends with %v, want ErrAbandoned and no refusal", err)
	h.w.Wantf(errors.Is(h.late, epoch.ErrAbandoned), "a write in an abandoned transaction returned %v, want ErrAbandoned", h.late)
	h.w.wantList("late")
}

func abandonedAfterWrites(w *world) {
	w.seed(orders0, orders1)
	a, b := w.process("A"), w.process("B")
	ta, other := a.claims(orders0, 5), a.claims(orders1, 5)
	ta.applies(2)
	h := ta.hangs(2, true)
	h.abandon()
	other.applies(2) // through the same sink
	tb := b.claims(orders0, 6)
	tb.applies(3)
	h.ends()
	w.wantOnly(ta.tries(1), epoch.ErrStale, "A, after all of that")
	tb.applies(1)
	w.wantEffects(orders0, "0-1@5 2-5@6")
	w.wantEffects(orders1, "0-1@5")
}

func abandonedBeforeWrites(w *world) {
	ta := w.owned(5)
	h := ta.hangs(2, false)
	h.abandon()
	// A may continue with the partition at once: the abandoned transaction can no longer commit.
	ta.applies(1)
	h.ends()
	ta.applies(2)
	ta.wantFence()
	w.wantEffects(orders0, "0-2@5")
}

func abandonedBetweenCalls(w *world) {
	ta := w.owned(5)
	ended, abandon := context.WithCancel(context.Background())
	second := false
	err := ta.sink.Commit(w.ctx, []epoch.Advance{ta.advance(2)}, epoch.TxOptions{Abandoned: ended},
		func(ctx context.Context, tx any) error {
			abandon()
			_ = w.appendsUntilRefused(ctx, tx)
			return nil
		},
		func(context.Context, any) error {
			second = true
			return nil
		})
	w.Wantf(errors.Is(err, epoch.ErrAbandoned), "an abandoned transaction ends with %v, want ErrAbandoned", err)
	w.Wantf(!second, "the second call ran in an abandoned transaction")
	w.wantList("late")
	ta.applies(1)
	w.wantEffects(orders0, "0@5")
}

func notAbandoned(w *world) {
	ta := w.owned(5)
	ended, abandon := context.WithCancel(context.Background())
	as := ta.advance(2)
	err := ta.runsWith(w.ctx, as, epoch.TxOptions{Abandoned: ended}, ta.writes(as, nil))
	abandon() // too late
	w.NoErrorf(err, "a transaction that may be abandoned")
	if !w.held {
		ta.moves(as)
	}
	ta.applies(1)
}

// unblocked are the histories of RunUnblocked. The other two need a capability of the sink.
var unblocked = []history{
	{"frozen with the transaction open, after its writes: the next owner claims and commits, the frozen one is refused", "R4 R12", frozenAfterWrites},
}

var unblockedTogether = []history{
	{"frozen with two partitions in one transaction: the other partition's next owner continues too", "R4 R12", frozenWithTwo},
}

var unblockedHeld = []history{
	{"frozen with a held claim, after its writes: the next owner claims and commits, the frozen one is refused", "R4 R12", heldFrozenAfterWrites},
	{"a held claim and a commit of the same partition pass beside each other, whichever begins first", "R4", heldBesideCommit},
}

func frozenAfterWrites(w *world) {
	ta := w.owned(5)
	a := ta.process
	b := w.process("B")
	ta.applies(2)
	var tb *tenure
	as := []epoch.Advance{ta.advance(2)}
	err := a.commit(as, ta.writes(as[0], func() error {
		// A is frozen here. Meanwhile:
		tb = b.claims(orders0, 6)
		tb.applies(3)
		return nil
	}))
	w.wantRefused(err, "A thaws and commits")
	ta.refused(epoch.ErrStale, 2)
	tb.applies(1)
	w.wantEffects(orders0, "0-1@5 2-5@6")
}

func frozenWithTwo(w *world) {
	w.seed(orders0, orders1)
	a, b := w.process("A"), w.process("B")
	t0, t1 := a.claims(orders0, 5), a.claims(orders1, 5)
	as := []epoch.Advance{t0.advance(2), t1.advance(2)}
	err := a.commit(as, func(ctx context.Context, tx any) error {
		for _, one := range as {
			if err := w.effects(ctx, tx, one, 5); err != nil {
				return err
			}
		}
		b.claims(orders1, 6).applies(1)
		return nil
	})
	w.wantRefused(err, "A thaws and commits")
	w.wantEffects(orders0, "")
	w.wantEffects(orders1, "0@6")
	again := a.claims(orders0, 7) // A still has orders/0, in doubt
	again.applies(2)
	w.wantEffects(orders0, "0-1@7")
}

func heldFrozenAfterWrites(w *world) {
	ta := w.owned(5)
	b := w.process("B")
	var tb *tenure
	err := ta.holds(w.ctx, func(ctx context.Context, tx any) error {
		if err := w.db.Append(ctx, tx, "outbox of A", "frozen"); err != nil {
			return err
		}
		// A is frozen here. Meanwhile:
		tb = b.claims(orders0, 6)
		tb.applies(1)
		return nil
	})
	w.wantRefused(err, "A thaws and commits")
	tb.applies(1)
	w.wantList("outbox of A")
	w.wantEffects(orders0, "0-1@6")
}

func heldBesideCommit(w *world) {
	ta := w.owned(5)
	for n := range 3 {
		value := strconv.Itoa(n)
		err := ta.holds(w.ctx, func(ctx context.Context, tx any) error {
			if err := w.db.Append(ctx, tx, "outbox", value); err != nil {
				return err
			}
			ta.applies(1)
			return nil
		})
		w.NoErrorf(err, "a commit began and ended within a transaction that holds the claim")
		as := ta.advance(1)
		err = ta.commit([]epoch.Advance{as}, ta.writes(as, func() error { return ta.writesHeld(value) }))
		w.NoErrorf(err, "a transaction that holds the claim began and ended within a commit")
		ta.moves(as)
		ta.wantFence()
	}
	w.wantList("outbox", "0", "0", "1", "1", "2", "2")
	w.wantEffects(orders0, "0-5@5")
}

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
