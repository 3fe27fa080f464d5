package consumer

import (
	"errors"
	"runtime/debug"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/text/inert"
)

// This file keeps a failure inside its message (L6): a panic, a Goexit or an error with hostile
// methods becomes a plain error. verdict.go decides what that error means for the message.

// guard calls f, a user's function, and turns a panic into an error, so that one message cannot
// take down the process and its other partitions. The error that f returns is user code as well;
// guard makes it inert, so that nothing later calls its methods.
func guard(f func() error) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = newPanicError(v, debug.Stack())
		}
	}()
	return inert.Error(f())
}

// errGoexit is the failure of a message whose handler called runtime.Goexit, as FailNow of a test
// does. Goexit cannot be stopped, so each transaction has its own goroutine; see [loop.start].
var errGoexit = errors.New("the handler ended its goroutine: it called runtime.Goexit, or FailNow of a test")

// maskedError is a handler's error on its way through the sink. It hides the sink's own errors,
// because a handler may use another fenced store, whose "stale" or "in doubt" says nothing about
// this transaction. It shows all other errors, so that a sink can distinguish a deadlock from a mistake.
type maskedError struct{ err error }

func (e *maskedError) Error() string { return e.err.Error() }

// Inert marks e as safe: guard made its error inert.
func (e *maskedError) Inert(inert.Mark) {}

func (e *maskedError) Is(target error) bool {
	switch target {
	case epoch.ErrStale, epoch.ErrMoved, epoch.ErrMissing, epoch.ErrInDoubt, epoch.ErrTxEndedByHandler, epoch.ErrOwnTransaction:
		return false
	}
	return errors.Is(e.err, target)
}

func (e *maskedError) As(target any) bool {
	switch target.(type) {
	case **epoch.StaleError, **epoch.MovedError, **epoch.MissingError, **epoch.CallError:
		return false
	}
	return errors.As(e.err, target)
}
