package lease

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// Acquire waits for the lease of a single resource, such as a lock, and returns it once this
// process has it. The name must not be in Options.Resources. The caller must call [Held.Release] at
// the end, also after the lease was lost. A process has one lease of a resource at a time.
// [Resource.Number] is 0.
//
// It returns ctx's error when ctx has ended first, and [ErrClosed] once the context of [Member.Run] has
// ended, or after [Member.Close]. Callers that wait get the lease in no order.
func (m *Member) Acquire(ctx context.Context, name string) (*Held, error) {
	h, err := m.await(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("lease: acquire %q: %w", name, err)
	}
	return h, nil
}

// TryAcquire is [Member.Acquire] without the wait: it returns [ErrHeld] if another member, or this
// process, has the lease, or this member has just lost its registration. In a store that reports no changes, it may still do so for a tenth of TTL
// after a release.
func (m *Member) TryAcquire(name string) (*Held, error) {
	sl, err := m.slotOf(name)
	if err == nil {
		var h *Held
		by := call{began: time.Now(), alone: true}
		if h, err = m.tryAcquire(sl, by); h != nil {
			return h, nil
		}
		switch {
		case m.base.Err() != nil:
			err = ErrClosed
		case err == nil:
			err = ErrHeld
		}
		m.tellNotAcquired(sl, by, err)
	}
	return nil, fmt.Errorf("lease: acquire %q: %w", name, err)
}

func (m *Member) await(ctx context.Context, name string) (*Held, error) {
	sl, err := m.slotOf(name)
	if err != nil {
		return nil, err
	}
	by := call{began: time.Now(), alone: true}
	h, err := m.queue(ctx, sl, &by)
	if err != nil {
		m.tellNotAcquired(sl, by, err)
	}
	return h, err
}

// call is a call that wants a lease.
type call struct {
	began  time.Time
	alone  bool // for a resource that Run does not share
	queued bool // Waiting was reported
}

func (m *Member) tellNotAcquired(sl *slot, by call, err error) {
	m.Observe(NotAcquired{Resource: sl.Resource, Waited: time.Since(by.began), Queued: by.queued, Err: err})
}

func (m *Member) queue(ctx context.Context, sl *slot, by *call) (*Held, error) {
	tick := time.NewTicker(min(time.Second, m.TTL/10))
	defer tick.Stop()
	for {
		woken := m.wake.next()
		if h, err := m.tryAcquire(sl, *by); h != nil || err != nil {
			return h, err
		}
		if !by.queued {
			by.queued = true
			m.Observe(Waiting{Resource: sl.Resource})
		}
		select {
		case <-woken:
		case <-tick.C:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-m.base.Done():
			return nil, ErrClosed
		}
	}
}

// slotOf returns the slot of a resource that Run does not share.
func (m *Member) slotOf(name string) (*slot, error) {
	if _, shared := m.Resources[name]; shared || name == "" {
		return nil, errors.New("want a name that Options.Resources does not have")
	}
	r := Resource{Name: name}
	m.mu.Lock()
	defer m.mu.Unlock()
	sl := m.slots[r]
	if sl == nil {
		sl = &slot{Resource: r}
		m.slots[r] = sl
	}
	return sl, nil
}

// tryAcquire takes the lease if it is free.
func (m *Member) tryAcquire(sl *slot, by call) (*Held, error) {
	m.mu.Lock()
	now, me := m.view.snapshot(), m.registration
	last := now.leases[sl.Resource]
	if m.closing {
		m.mu.Unlock()
		return nil, ErrClosed
	}
	if me.err() != nil || sl.busy || time.Now().Before(sl.notUntil) ||
		now.isHeld(last) && !m.isMine(last.Member) && !m.isAbandoned(last) {
		m.mu.Unlock()
		return nil, nil
	}
	sl.busy = true
	m.mu.Unlock()
	item, again := m.acquire(sl.Resource, last, me)
	if item == nil {
		m.markFree(sl, !again)
		return nil, nil
	}
	h := m.newHeld(sl, item, me, by)
	m.mu.Lock()
	defer m.mu.Unlock()
	sl.held = h
	if m.closing {
		h.giveBack()
	}
	return h, nil
}
