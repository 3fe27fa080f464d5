package epoch

import (
	"context"
	"errors"
	"fmt"
)

// ErrAbandoned is returned by Commit and CommitHeld when the transaction was abandoned: see
// [AfterAbandoned]. Nothing is committed. If the methods of TX return errors, the statements that a
// call sends in an abandoned transaction fail with an error that matches ErrAbandoned.
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

type abandonedKey struct{}

// WithAbandonment returns a context for a Commit or CommitHeld. The end of the second context
// abandons the transaction. ctx should end earlier, so that a handler that returns at its deadline
// gets an orderly rollback.
func WithAbandonment(ctx, abandoned context.Context) context.Context {
	return context.WithValue(ctx, abandonedKey{}, abandoned)
}

// AfterAbandoned is for sinks. It calls f in its own goroutine when the Commit or CommitHeld of ctx
// is abandoned. A call may still be running then and may never return. f must end the transaction
// at once: it closes the connection or rolls back, so that the server keeps no lock, and it refuses
// everything that the calls send later. Commit itself returns [ErrAbandoned] when the running call
// returns.
//
// Call stop on every way out of Commit. The first stop returns true if f will not be called. If it
// returns false, f was started, and the sink must commit nothing. Each later stop returns
// false. Without [WithAbandonment] f is never called, and stop always returns true.
func AfterAbandoned(ctx context.Context, f func()) (stop func() bool) {
	abandoned, ok := ctx.Value(abandonedKey{}).(context.Context)
	if !ok {
		return func() bool { return true }
	}
	return context.AfterFunc(abandoned, f)
}
