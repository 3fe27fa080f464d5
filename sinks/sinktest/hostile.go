package sinktest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
)

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
	w.seed(orders0)
	ta := w.process("A").claims(orders0, 5)
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
				return ta.runs(w.ctx, as, func(ctx context.Context, tx any) error {
					if err := w.effects(ctx, tx, as, ta.Epoch); err != nil {
						return err
					}
					return returned
				})
			})
			if err == nil {
				w.Errorf("%s, %s: Commit returned nil", name, form)
			}
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
