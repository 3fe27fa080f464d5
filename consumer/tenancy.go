package consumer

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/epochfence/epochfence/epoch"
)

// This file has what the goroutine of a tenure, the loop and background work share: values that
// never change, waits that the tenure ends, and the claim, which any of them may end first.

// tenancy is the fixed part of a tenure, for its goroutine, the loop and background work.
type tenancy[TX any] struct {
	run       *runner[TX]
	tenure    Tenure
	loop      *loop[TX]
	partition epoch.Partition
	logger    *slog.Logger
	timeout   time.Duration
	lease     context.Context // ends when the lease is lost
	outcome   chan outcome    // one for each batch that was offered
	applied   []chan struct{} // of each background work: see [Background.Applied]
	caught    atomic.Bool     // a transaction was under way when the lease was lost
}

// outcome is how a claim, or a batch under it, has ended. next decides what follows.
type outcome struct {
	action action
	err    error
	above  epoch.Epoch // with claimAbove
	beside bool        // the transaction moves no position: it was of background work or a replay
	own    bool        // the sink still has our fence: the transaction that was refused had changed it itself
	hang   *hang       // with abandon
	looked bool        // with giveUp: a look at an idle partition found it, and no transaction was refused
}

// running reports whether the tenure may begin something: it is neither revoked nor lost.
func (t *tenancy[TX]) running(ctx context.Context) bool {
	select {
	case <-t.tenure.Draining():
		return false
	case <-ctx.Done():
		return false
	default:
		return true
	}
}

// untilRevoked returns a context that also ends when the partition is revoked, for what must not
// outlast the beginning of a drain.
func (t *tenancy[TX]) untilRevoked(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	go func() {
		select {
		case <-t.tenure.Draining():
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// forever is a wait that only the end of the tenure ends.
const forever time.Duration = -1

func (t *tenancy[TX]) wait(ctx context.Context, d time.Duration) { t.waitOr(ctx, d, nil) }

// waitOr returns after d, when the tenure is over, or when until is closed.
func (t *tenancy[TX]) waitOr(ctx context.Context, d time.Duration, until <-chan struct{}) {
	if d == 0 {
		return
	}
	var elapsed <-chan time.Time
	if d != forever {
		timer := time.NewTimer(d)
		defer timer.Stop()
		elapsed = timer.C
	}
	select {
	case <-elapsed:
	case <-until:
	case <-t.tenure.Draining():
	case <-ctx.Done():
	}
}

// trouble logs an incident of the partition, without repeating a line that others have caused as
// well.
func (t *tenancy[TX]) trouble(level slog.Level, what string, err error, args ...any) {
	t.run.troubles.add(t.logger, level, t.partition, what, err, args...)
}

// claim is one claim while it lasts. It is safe for concurrent use.
type claim struct {
	context.Context // ends with the claim, or when the lease is lost
	end             context.CancelCauseFunc
}

// newClaim returns a claim that ends at the latest when the lease is lost.
func newClaim(lease context.Context) *claim {
	ctx, end := context.WithCancelCause(lease)
	return &claim{ctx, end}
}

// brokenClaimError ends a claim from elsewhere: background work, or a look at the fence.
type brokenClaimError struct{ outcome }

func (*brokenClaimError) Error() string { return "the claim has ended" }

// breakWith ends the claim and all waits of the tenure. The first reason counts.
func (c *claim) breakWith(out outcome) { c.end(&brokenClaimError{out}) }

// broken returns why the claim was ended from elsewhere, or nil.
func (c *claim) broken() *brokenClaimError {
	var b *brokenClaimError
	if c != nil && errors.As(context.Cause(c), &b) {
		return b
	}
	return nil
}
