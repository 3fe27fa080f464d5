package lease

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/epochfence/epochfence/cas"
)

// This file decides when a lease of this process ends: lost, without progress (L7), drained too
// late, or released. owned.go writes its item, and decides whether a renewal that was refused or not
// answered has lost it.

// Held is a lease that this process has, or had. Its methods are safe for concurrent use.
type Held struct {
	Resource

	m     *Member
	slot  *slot
	item  *owned
	under *registration

	held   context.Context // ends when the lease is lost, with the cause
	lose   context.CancelCauseFunc
	kept   context.Context // ends when the resource is to be given back
	drain  context.CancelFunc
	keep   func() bool   // stops what follows a loss
	stall  *time.Timer   // nil if MaxStall sets no limit
	over   chan struct{} // closed when the holder has returned, or has called Release
	finish sync.Once

	progress  atomic.Int64 // nanoseconds since begun
	begun     time.Time
	verifying atomic.Bool
	declined  atomic.Bool

	// For events.
	alone    bool // of Acquire or TryAcquire
	claimed  atomic.Bool
	doing    atomic.Int32 // transactions under the claim that are under way
	caught   atomic.Bool  // the lease was lost during one
	renewals atomic.Int64
	ended    sync.Once
}

func (m *Member) newHeld(sl *slot, item *owned, under *registration, by *call) *Held {
	h := &Held{Resource: sl.Resource, m: m, slot: sl, item: item, under: under, over: make(chan struct{}), begun: time.Now(), alone: by.alone}
	m.Observe(Acquired{Resource: h.Resource, Generation: item.latest(), Waited: h.begun.Sub(by.began), Queued: by.queued})
	h.held, h.lose = context.WithCancelCause(under.held)
	h.kept, h.drain = context.WithCancel(context.Background())
	if m.MaxStall > 0 {
		h.stall = time.AfterFunc(time.Hour, h.checkProgress)
		h.stall.Reset(m.MaxStall) // checkProgress uses it
	}
	h.keep = context.AfterFunc(h.held, h.abandon)
	return h
}

// Context ends when the lease is lost or released. Its cause matches [ErrLost]. It ends nine tenths
// of TTL after the last acknowledged renewal was sent, at the latest. A process that was suspended
// may find it ended late: see [Held.Err] and [Held.Confirm].
func (h *Held) Context() context.Context { return h.held }

// Owner returns the owner that has, or had, the lease, as [Member.Owner] does.
func (h *Held) Owner() string { return h.m.Owner() }

// Draining returns a channel that is closed when the resource is to be given back, to another
// member or because Run's context has ended. Return, or call Release, within Term.
func (h *Held) Draining() <-chan struct{} { return h.kept.Done() }

// Generation returns a number that grows with each lease of the resource, and with each [Held.Confirm].
// It is a fencing token as far as the store keeps what it has acknowledged: see the table in
// docs/leases.md.
func (h *Held) Generation() int64 { return h.item.latest() }

// Err returns an [ErrLost] if the lease is known to be lost, also by this process's clock, and
// otherwise nil. nil does not prove that it is held: see [Held.Confirm].
func (h *Held) Err() error {
	_ = h.under.err() // it may end the registration, and the lease with it
	if h.held.Err() != nil {
		return lost(context.Cause(h.held))
	}
	return nil
}

// Confirm proves that this process had the lease when the store carried out a request that Confirm
// made: it replaces the lease's item, which the store accepts only if nobody has written the item since
// this member's last write. It returns the new generation,
// or an [ErrLost]. After another error the lease may still be held.
func (h *Held) Confirm(ctx context.Context) (generation int64, err error) {
	if generation, err = h.prove(ctx); err == nil {
		h.Progress()
	}
	return generation, err
}

// prove is Confirm, which is progress only if the holder calls it.
func (h *Held) prove(ctx context.Context) (generation int64, err error) {
	item, err := h.confirm(ctx)
	if over := h.Err(); over != nil {
		err = over // whatever the answer was: it may have come late
	}
	if err != nil {
		return 0, fmt.Errorf("lease: confirm %s: %w", h.Resource, err)
	}
	return generationOf(item), nil
}

func (h *Held) confirm(ctx context.Context) (cas.Item, error) {
	if err := h.Err(); err != nil {
		return cas.Item{}, err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	stop := context.AfterFunc(h.held, func() { cancel(context.Cause(h.held)) })
	defer stop()
	return h.renew(ctx)
}

func (h *Held) renew(ctx context.Context) (cas.Item, error) {
	item, err := h.item.renew(ctx, h.m.leaseValue(h.under, h.item))
	if errors.Is(err, ErrLost) {
		h.lose(err)
		h.m.view.refresh() // the store itself may be another one
	}
	return item, err
}

// Progress reports that the holder's work moves, see Options.MaxStall.
func (h *Held) Progress() { h.progress.Store(int64(time.Since(h.begun))) }

// checkProgress gives the lease up without progress for MaxStall.
func (h *Held) checkProgress() {
	stalled := time.Since(h.begun) - time.Duration(h.progress.Load())
	switch {
	case h.held.Err() != nil:
	case stalled >= h.m.MaxStall:
		h.m.log.Error("a lease is given up, as its holder has reported no progress", "resource", h.String(), "for", stalled.Round(time.Millisecond), "MaxStall", h.m.MaxStall)
		h.lose(lost(ErrStalled))
	default:
		h.stall.Reset(h.m.MaxStall - stalled)
	}
}

// Decline leaves a resource of Run to other members once it was given back. This member may take it
// again when the channel is closed or, if the channel is nil, when the members change.
func (h *Held) Decline(until <-chan struct{}) {
	h.declined.Store(true)
	h.m.decline(h.slot, until)
}

// Release gives the resource back. The lease is over even after an error. The member then tries
// again to give it back. Others get it at the latest when this member's registration ends, by
// [Member.Close] or because it expires. Further calls of Release do nothing.
func (h *Held) Release(ctx context.Context) error {
	var err error
	h.finish.Do(func() {
		ctx, cancel := context.WithTimeout(ctx, h.m.goodbyeLimit())
		defer cancel()
		why := context.Cause(h.held)
		h.keep()
		h.lose(lost(errEnded)) // before others can have it
		h.reportEnd()          // before the next Acquired
		err = h.release(ctx, why)
		close(h.over)
		h.m.markFree(h.slot, failure(err))
	})
	if err != nil {
		return fmt.Errorf("lease: release %s: %w", h.Resource, err)
	}
	return nil
}

// release writes that nobody has the lease, and keeps the generation. why is the reason for which it
// was lost before, or nil.
func (h *Held) release(ctx context.Context, why error) error {
	if errors.Is(why, errTaken) {
		h.m.lookAgain(ctx, h.item.key)
		return nil
	}
	item, err := h.item.release(ctx, func(generation int64) []byte { return leaseRecord{Generation: generation}.json() })
	switch {
	case err == nil:
		h.m.troubles.Well(h.String())
		h.m.view.learn(item)
		h.m.noteRelease(h.slot, item)
		return nil
	case errors.Is(err, ErrLost):
		h.m.lookAgain(ctx, h.item.key)
		return nil
	}
	h.m.trouble(h.String(), "lease not released yet", err, "resource", h.String())
	h.m.troubles.Left(h.String())
	return err
}

// abandon releases a lost lease if its holder does not return within TTL.
func (h *Held) abandon() {
	h.reportEnd()
	timer := time.NewTimer(h.m.TTL)
	defer timer.Stop()
	select {
	case <-h.over:
		return
	case <-h.m.base.Done():
		return
	case <-timer.C:
	}
	ctx, cancel := context.WithTimeout(h.m.base, h.m.goodbyeLimit())
	defer cancel()
	_ = h.release(ctx, context.Cause(h.held)) // it says so
}

// giveBack ends the lease, if it is not given back within Term.
func (h *Held) giveBack() {
	h.drain()
	timer := time.AfterFunc(h.m.Term(), func() {
		select {
		case <-h.over:
		default:
			h.m.log.Error("the resource was not given back in time; its lease is lost", "resource", h.String())
			h.lose(lost(ErrDrainOverrun))
		}
	})
	context.AfterFunc(h.held, func() { timer.Stop() })
}

// isHeld reports whether the lease is neither lost nor to be given back.
func (h *Held) isHeld() bool { return h.held.Err() == nil && h.kept.Err() == nil }

// verify renews the lease because the view has something else in its key.
func (h *Held) verify() {
	defer h.verifying.Store(false)
	ctx, cancel := context.WithTimeout(h.under.held, h.m.TTL/3)
	defer cancel()
	item, err := h.renew(ctx)
	switch {
	case err == nil:
		h.m.troubles.Well(h.String())
		h.m.view.learn(item)
	case !errors.Is(err, ErrLost):
		h.m.trouble(h.String(), "it is not known whether the lease is ours, asking again", err, "resource", h.String())
	}
}

// reportEnd reports once how the lease ended, which it has.
func (h *Held) reportEnd() {
	h.ended.Do(func() {
		if h.stall != nil {
			h.stall.Stop()
		}
		held, renewals, cause := time.Since(h.begun), int(h.renewals.Load()), context.Cause(h.held)
		if errors.Is(cause, errEnded) {
			h.m.Observe(Released{Resource: h.Resource, Held: held, Renewals: renewals})
			return
		}
		working := h.doing.Load() > 0 || h.caught.Load() || h.alone && !h.claimed.Load()
		h.m.Observe(Lost{Resource: h.Resource, Held: held, Renewals: renewals, Reason: reasonOf(cause), Cause: cause, Working: working})
	})
}

// atWork marks the lease as at work until the function that it returns is called.
func (h *Held) atWork() (end func()) {
	h.doing.Add(1)
	return func() {
		if h.Err() != nil { // or the end of the lease, which is reported by another goroutine, would not count
			h.caught.Store(true)
		}
		h.doing.Add(-1)
	}
}
