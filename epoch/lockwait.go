package epoch

import (
	"context"
	"time"
)

type lockWaitKey struct{}

// WithLockWait returns a context that makes a [Sink]'s Commit wait at most d for each lock, because
// other transactions wait for this one meanwhile. If a lock is not granted within d, Commit returns
// [ErrTransient]. A sink keeps its own limit if that is lower. A sink that cannot limit its waits
// other than by ctx's deadline ignores d.
func WithLockWait(ctx context.Context, d time.Duration) context.Context {
	return context.WithValue(ctx, lockWaitKey{}, d)
}

// LockWait returns the limit that [WithLockWait] has set, if any.
func LockWait(ctx context.Context) (time.Duration, bool) {
	d, ok := ctx.Value(lockWaitKey{}).(time.Duration)
	return d, ok
}
