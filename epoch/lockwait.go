package epoch

import (
	"context"
	"time"
)

type lockWaitKey struct{}

// WithLockWait returns a context for a [Sink]'s Commit that asks it to wait for
// no lock longer than d, because others wait for this transaction meanwhile. A
// lock that is not granted by then is [ErrTransient]. A sink whose own bound is
// lower keeps it, and one that cannot bound its waits apart from ctx's deadline
// ignores d.
func WithLockWait(ctx context.Context, d time.Duration) context.Context {
	return context.WithValue(ctx, lockWaitKey{}, d)
}

// LockWait returns the bound that [WithLockWait] has set, and whether it has.
func LockWait(ctx context.Context) (time.Duration, bool) {
	d, ok := ctx.Value(lockWaitKey{}).(time.Duration)
	return d, ok
}
