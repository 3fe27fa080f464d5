package epoch

import (
	"context"
	"errors"
	"fmt"
)

// ErrAbandoned is returned by Commit and CommitHeld when the transaction was abandoned: see
// [AfterAbandoned]. Nothing is committed. Statements that a call sends in an abandoned
// transaction fail with an error that matches it, wherever a TX returns errors.
var ErrAbandoned = errors.New("the transaction was abandoned: a call of its handler did not return after its context had ended")

// Abandoned is for sinks. It returns the error of a Commit that was abandoned, after its call
// has returned err, or nil. Of err it takes the text alone: what it says of a connection that
// is gone is not so of the transaction, of which nothing is committed.
func Abandoned(err error) error {
	if err == nil || errors.Is(err, ErrAbandoned) && !errors.Is(err, ErrInDoubt) {
		return ErrAbandoned
	}
	return fmt.Errorf("%w; then it returned: %s", ErrAbandoned, err.Error())
}

type abandonedKey struct{}

// WithAbandonment returns a context for a Commit or CommitHeld that is abandoned when
// abandoned ends. A deadline cannot say so: the context of a transaction ends first, and a
// handler that returns then is in time for an orderly rollback.
func WithAbandonment(ctx, abandoned context.Context) context.Context {
	return context.WithValue(ctx, abandonedKey{}, abandoned)
}

// AfterAbandoned is for sinks. It calls f in its own goroutine when the Commit or CommitHeld
// that was given ctx is abandoned, while calls are running that may never return. f ends the
// transaction at once: it closes the connection or rolls back, so that no lock is left on the
// server, and refuses everything that the calls send from then on. Commit itself returns, with
// [ErrAbandoned], when the running call does.
//
// stop reports whether f will not be called. If it returns false, f was started, and nothing
// may be committed any more.
func AfterAbandoned(ctx context.Context, f func()) (stop func() bool) {
	abandoned, ok := ctx.Value(abandonedKey{}).(context.Context)
	if !ok {
		return func() bool { return true }
	}
	return context.AfterFunc(abandoned, f)
}
