package sinktest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"runtime"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

var handlers = []history{
	{"a handler's error is returned, and nothing is committed", "R1", handlerError},
	{"a handler's error whose methods panic, or that is a typed nil, is an error as any other", "L6", hostileErrors},
	{"a handler's panic reaches the caller, nothing is committed, and the sink works on", "R12", handlerPanic},
	{"a handler that ends its goroutine commits nothing, and the sink works on", "R12", handlerGoexit},
	{"a context that ended before commits nothing", "R12", contextEndedBefore},
	{"a context that ends in the handler commits nothing, even if the handler does not care", "R12", contextEndsWithin},
	{"a handler that returns long after its time was up is not excused", "L2", lateHandler},
	{"a wait for another transaction's lock until time is up is transient", "R12", lockedUntilTimeIsUp},
	{"a transaction is of no use when its handler has returned", "R1", transactionKept},
	{"what a transaction writes is seen by nobody until it commits", "R1", isolation},
}

var cutOff = history{
	"a commit cut off at any moment is there whole or not at all, and only an error in doubt leaves open which", "R5 R12", cutOffAnywhere,
}

type ownError struct{ code int }

func (e *ownError) Error() string { return "out of stock" }

func handlerError(w *world) {
	ta := w.owned(5)
	own := &ownError{code: 409}
	as := ta.advance(2)
	err := ta.runs(w.ctx, as, ta.writes(as, func() error { return own }))
	var found *ownError
	w.Wantf(errors.Is(err, own) && errors.As(err, &found) && found.code == 409 && len(class(err)) == 0, "err = %v, want the handler's own and no refusal", err)
	ta.wantFence()
	w.wantEffects(orders0, "")
	ta.applies(2)
	w.wantEffects(orders0, "0-1@5")
}

func handlerPanic(w *world) {
	ta := w.owned(5)
	func() {
		defer func() {
			r := recover()
			w.Wantf(r == "out of stock", "recovered %v, want the handler's own panic", r)
		}()
		as := ta.advance(2)
		err := ta.runs(w.ctx, as, ta.writes(as, func() error { panic("out of stock") }))
		w.Errorf("Commit returned %v, want the handler's panic", err)
	}()
	ta.wantFence()
	w.wantEffects(orders0, "")
	ta.applies(2)
	tb := w.process("B").claims(orders0, 6)
	tb.applies(1)
	w.wantEffects(orders0, "0-1@5 2@6")
}

func handlerGoexit(w *world) {
	ta := w.owned(5)
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		as := ta.advance(2)
		err := ta.runs(w.ctx, as, ta.writes(as, func() error {
			runtime.Goexit() // as t.FailNow does
			return nil
		}))
		w.Errorf("Commit returned %v after its goroutine had ended", err)
	}()
	<-ended
	ta.wantFence()
	ta.applies(2)
	w.wantEffects(orders0, "0-1@5")
}

func contextEndedBefore(w *world) {
	ta := w.owned(5)
	ctx, cancel := context.WithCancel(w.ctx)
	cancel()
	as := ta.advance(1)
	err := ta.runs(ctx, as, ta.writes(as, nil))
	w.Wantf(errors.Is(err, context.Canceled), "Commit: err = %v, want the context's", err)
	if _, err := ta.sink.Claim(ctx, ta.Fence, epoch.NewClaim(lease(orders0, 6, "A"))); !errors.Is(err, context.Canceled) {
		w.Errorf("Claim: err = %v, want the context's", err)
	}
	if _, err := epoch.FenceOf(ctx, ta.sink, orders0); !errors.Is(err, context.Canceled) {
		w.Errorf("Fence: err = %v, want the context's", err)
	}
	if err := ta.sink.Seed(ctx, []epoch.Start{start(orders1, 0, 0)}); !errors.Is(err, context.Canceled) {
		w.Errorf("Seed: err = %v, want the context's", err)
	}
	ta.wantFence()
	w.wantEffects(orders0, "")
	ta.applies(1)
}

func contextEndsWithin(w *world) {
	w.seed(orders0)
	a := w.process("A")
	for name, apply := range map[string]func(ctx context.Context, tx any, as epoch.Advance, cancel func()) error{
		"before it writes": func(ctx context.Context, tx any, as epoch.Advance, cancel func()) error {
			cancel()
			_ = w.effects(ctx, tx, as, 1)
			return nil
		},
		"after it wrote": func(ctx context.Context, tx any, as epoch.Advance, cancel func()) error {
			if err := w.effects(ctx, tx, as, 1); err != nil {
				return err
			}
			cancel()
			return nil
		},
	} {
		ta := a.claims(orders0, 5)
		ctx, cancel := context.WithCancel(w.ctx)
		as := ta.advance(1)
		err := ta.runs(ctx, as, func(ctx context.Context, tx any) error {
			return apply(ctx, tx, as, cancel)
		})
		cancel()
		w.Wantf(errors.Is(err, context.Canceled) || errors.Is(err, epoch.ErrInDoubt), "%s: err = %v, want the context's or %q", name, err, epoch.ErrInDoubt)
		again := a.claims(orders0, 5) // this claim refuses everything in flight
		w.Wantf(again.Next == ta.Next, "%s: the fence is at offset %d, want %d", name, again.Next, ta.Next)
		w.wantEffects(orders0, "")
	}
	ta := a.claims(orders0, 100)
	ta.applies(1)
	w.wantEffects(orders0, "0@100")
}

// lateHandler waits for no lock, so that only the handler itself is late. A sink may have to ask its
// server whether that is so, and a server that does not answer in time leaves it open: then the handler
// is late once more.
func lateHandler(w *world) {
	ta := w.owned(5)
	var err error
	for range 5 {
		if err = ta.late(); !errors.Is(err, epoch.ErrTransient) {
			break
		}
	}
	if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, epoch.ErrTransient) || errors.Is(err, epoch.ErrUnhealthy) || len(class(err)) > 0 {
		w.Errorf("err = %v, want that the time was up, no refusal and no excuse", err)
	}
	w.wantEffects(orders0, "")
	ta.applies(1)
	w.wantEffects(orders0, "0@5")
}

func (t *tenure) late() error {
	w, as := t.w, t.advance(1)
	ctx, cancel := context.WithTimeout(w.ctx, w.patience/450) // 400 ms, and short for a database in memory
	defer cancel()
	over := ctx.Done() // the caller's context: the sink chooses the handler's
	return t.runs(ctx, as, t.writes(as, func() error {
		<-over
		<-time.After(w.patience / 300) // longer than its deadline, which is in the first half
		return nil
	}))
}

// cutOffAnywhere cancels the context of a commit a little later each time, from before the commit
// begins until after it ends.
func cutOffAnywhere(w *world) {
	w.seed(orders0)
	a := w.process("A")
	var story []string
	var took time.Duration // by an uncancelled commit
	for round := range 50 {
		ta := a.claims(orders0, 1)
		cut := time.Duration(round) * took / 20
		if round == 0 {
			cut = patience
		}
		ctx, cancel := context.WithTimeout(w.ctx, cut)
		as := ta.advance(2)
		began := time.Now()
		err := ta.runs(ctx, as, ta.writes(as, nil))
		cancel()
		if err == nil {
			took = max(took, time.Since(began))
		}
		again := a.claims(orders0, 1) // everything in flight has committed, or never will
		there, err2 := w.db.List(w.ctx, orders0.String())
		if err2 != nil {
			w.Fatal(err2)
		}
		switch landed := len(there) > len(story); {
		case !w.held && landed && again.Next != as.To, (w.held || !landed) && again.Next != as.From:
			w.Fatalf("cut off after %v: the fence is at offset %d after an advance from %d to %d; committed: %v, the position held: %v",
				cut, again.Next, as.From, as.To, landed, w.held)
		case !landed && err == nil:
			w.Fatalf("cut off after %v: acknowledged, but not committed", cut)
		case landed && err != nil && !errors.Is(err, epoch.ErrInDoubt):
			w.Fatalf("cut off after %v: committed, although the error was a definite one: %v", cut, err)
		case landed:
			story = append(story, effect(as.From, ta.Epoch), effect(as.From+1, ta.Epoch))
		}
		w.wantList(orders0.String(), story...)
	}
}

// lockedUntilTimeIsUp runs out of time because of a lock. The error must not look like a deadline,
// for which the message would be blamed.
func lockedUntilTimeIsUp(w *world) {
	if w.db.Lock == nil {
		w.Skip("nobody can be in the way of this sink's transactions")
	}
	ta := w.owned(5)
	unlock := w.db.Lock(w)
	as := ta.advance(1)
	// Long enough even for a loaded machine to reach the wait.
	ctx, cancel := context.WithTimeout(w.ctx, 2*time.Second)
	defer cancel()
	err := ta.runs(ctx, as, ta.writes(as, nil))
	// It is also in doubt if this process did not run when the sink's own timeout fired.
	if !errors.Is(err, epoch.ErrTransient) || len(class(err)) > 0 && !errors.Is(err, epoch.ErrInDoubt) {
		w.Errorf("err = %v, want %q and no refusal", err, epoch.ErrTransient)
	}
	unlock()
	ta.wantFence()
	ta.applies(1)
	w.wantEffects(orders0, "0@5")
}

func transactionKept(w *world) {
	ta := w.owned(5)
	var kept any
	for _, result := range []error{nil, errors.New("not this time")} {
		err := ta.runs(w.ctx, ta.advance(0), func(_ context.Context, tx any) error {
			kept = tx
			return result
		})
		if !errors.Is(err, result) {
			w.Fatal(err)
		}
		err = func() (err error) {
			defer func() {
				if r := recover(); r != nil {
					err = errors.New("it panicked, which will do")
				}
			}()
			return w.db.Append(w.ctx, kept, orders0.String(), "late")
		}()
		w.Wantf(err != nil, "a write through a transaction that had ended with %v was accepted", result)
	}
	ta.applies(1)
	w.wantEffects(orders0, "0@5")
}

func isolation(w *world) {
	ta := w.owned(5)
	as := ta.advance(2)
	err := ta.runs(w.ctx, as, ta.writes(as, func() error {
		w.wantEffects(orders0, "")
		ta.wantFence()
		return nil
	}))
	w.NoError(err)
	w.wantEffects(orders0, "0-1@5")
}

// hostileError panics in the methods that its fields select.
type hostileError struct{ inText, inIs, inAs, inUnwrap bool }

func (e hostileError) panics(in bool, method string) {
	if in {
		panic(method + " of a handler's error panicked")
	}
}

func (e hostileError) Error() string {
	e.panics(e.inText, "Error")
	return "out of stock"
}

func (e hostileError) Is(error) bool {
	e.panics(e.inIs, "Is")
	return false
}

func (e hostileError) As(any) bool {
	e.panics(e.inAs, "As")
	return false
}

func (e hostileError) Unwrap() error {
	e.panics(e.inUnwrap, "Unwrap")
	return nil
}

// codedError is a typed nil with the methods of a driver's error.
type codedError struct{ code int }

func (e *codedError) Error() string    { return fmt.Sprint("code ", e.code) }
func (e *codedError) Code() int        { return e.code }
func (e *codedError) SQLState() string { return fmt.Sprint(e.code) }

// hostileErrors: the methods of an error are the handler's code. A sink that calls them, for
// example through errors.Is, must survive their panics.
func hostileErrors(w *world) {
	ta := w.owned(5)
	var none *fs.PathError
	var coded *codedError
	for name, hostile := range map[string]error{
		"a typed nil":       none,
		"another typed nil": coded,
		"Error panics":      hostileError{inText: true},
		"Is panics":         hostileError{inIs: true},
		"As panics":         hostileError{inAs: true},
		"Unwrap panics":     hostileError{inUnwrap: true},
	} {
		for form, returned := range map[string]error{"bare": hostile, "wrapped": fmt.Errorf("reserve: %w", hostile)} {
			err := w.survives(name+", "+form, func() error {
				as := ta.advance(1)
				return ta.runs(w.ctx, as, ta.writes(as, func() error { return returned }))
			})
			w.Wantf(err != nil, "%s, %s: Commit returned nil", name, form)
		}
	}
	ta.wantFence()
	w.wantEffects(orders0, "")
	ta.applies(2)
	w.wantEffects(orders0, "0-1@5")
}

func (w *world) survives(what string, f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			w.Errorf("%s: it panicked: %v", what, v)
			err = errors.New("it panicked")
		}
	}()
	return f()
}
