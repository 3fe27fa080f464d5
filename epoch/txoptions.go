package epoch

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// TxOptions are what the caller of Commit and CommitHeld asks of the transaction. The zero
// TxOptions ask for nothing. A sink that wraps another sink passes them on.
type TxOptions struct {
	// LockWait limits how long the transaction waits for each lock, because other transactions wait
	// for this one meanwhile. If a lock is not granted within LockWait, the sink returns
	// [ErrTransient]. A sink keeps its own limit if that is lower. A sink that cannot limit its
	// waits other than by the context's deadline ignores LockWait. Zero means no limit.
	LockWait time.Duration

	// Abandoned is a context whose end abandons the transaction. The context of the call should end
	// earlier, so that a handler that returns at its deadline gets an orderly rollback. Nil means
	// that nobody abandons the transaction. Sinks call [TxOptions.AfterAbandoned].
	Abandoned context.Context

	// Beside runs the calls of a Commit beside each other. It calls call(i), on any goroutine, at most once for
	// each i in [0, calls), and returns when all of these have returned. If one fails, or ends its goroutine, Beside
	// returns an error. Nil means one after the other. A caller sets Beside only if the sink's [Facts] allow it.
	// Sinks call [TxOptions.Each].
	Beside func(calls int, call func(i int) error) error
}

// Each is for sinks. It runs the calls of a Commit: as Beside does or, if that is nil, in order until one fails.
func (o TxOptions) Each(calls int, call func(i int) error) error {
	if o.Beside != nil {
		return o.Beside(calls, call)
	}
	for i := range calls {
		if err := call(i); err != nil {
			return err
		}
	}
	return nil
}

// AfterAbandoned is for sinks. It calls f in its own goroutine when the transaction is abandoned. A
// call may still be running then and may never return. f must end the transaction at once: it closes
// the connection or rolls back, so that the server keeps no lock, and it refuses everything that the
// calls send later. Commit itself returns [ErrAbandoned] when the running call returns.
//
// Call stop on every way out of Commit. The first stop returns true if f will not be called. If it
// returns false, f was started, and the sink must commit nothing. Each later stop returns
// false. If o.Abandoned is nil, f is never called, and stop always returns true.
func (o TxOptions) AfterAbandoned(f func()) (stop func() bool) {
	if o.Abandoned == nil {
		return func() bool { return true }
	}
	return context.AfterFunc(o.Abandoned, f)
}

// ErrAbandoned is returned by Commit and CommitHeld when the transaction was abandoned: see
// [TxOptions.AfterAbandoned]. Nothing is committed. If the methods of TX return errors, the
// statements that a call sends in an abandoned transaction fail with an error that matches
// ErrAbandoned.
var ErrAbandoned = errors.New("the transaction was abandoned: a call of its handler did not return after its context had ended")

// Abandoned is for sinks. It returns the error of an abandoned Commit whose call has returned err,
// which may be nil. It keeps only the text of err, because err may match [ErrInDoubt]: the
// connection is gone, but nothing is in doubt, because nothing is committed.
func Abandoned(err error) error {
	if err == nil || errors.Is(err, ErrAbandoned) && !errors.Is(err, ErrInDoubt) {
		return ErrAbandoned
	}
	return fmt.Errorf("%w; then it returned: %s", ErrAbandoned, err.Error())
}
