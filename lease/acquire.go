package lease

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/internal/form"
	"github.com/epochfence/epochfence/internal/waits"
)

// This file decides whether a call of Acquire gets the lease now, waits, or fails, and which of the
// members that wait goes first. The store decides each attempt.

// Acquire waits for the lease of a single resource, such as a lock, and returns it once this
// process has it. The name must not be in Options.Resources. The caller must call [Held.Release] at
// the end, also after the lease was lost. A process has one lease of a resource at a time.
// [Resource.Number] is 0.
//
// It returns ctx's error when ctx has ended first, and [ErrClosed] once the context of [Member.Run] has
// ended, or after [Member.Close]. It returns an error if ctx is that of [Work] under the lease, which
// would wait for itself.
//
// Callers that wait in one process get the lease in the order of their calls. Members get it in no
// order, but a member that takes it again and again leaves it to others that wait.
func (m *Member) Acquire(ctx context.Context, name string) (*Held, error) {
	h, err := m.await(ctx, name)
	if err != nil {
		return nil, fmt.Errorf("lease: acquire %q: %w", name, err)
	}
	return h, nil
}

// TryAcquire is [Member.Acquire] without the wait: it returns [ErrHeld] if another member, or this
// process, has the lease or waits for it, or this member has just lost its registration. In a store
// that reports no changes, it may still do so for a tenth of TTL after a release. TryAcquire returns
// [ErrUnanswered] if the store does not answer, after 5 s or half of TTL.
func (m *Member) TryAcquire(name string) (*Held, error) {
	sl, err := m.slotOf(name)
	if err == nil {
		var h *Held
		by := &call{began: time.Now(), alone: true}
		if h, err = m.tryAcquire(sl, by); err == nil {
			return h, nil
		}
		m.reportNotAcquired(sl, by, err)
	}
	return nil, fmt.Errorf("lease: acquire %q: %w", name, err)
}

func (m *Member) await(ctx context.Context, name string) (*Held, error) {
	sl, err := m.slotOf(name)
	if err != nil {
		return nil, err
	}
	if ctx.Value(inWork{sl}) != nil {
		return nil, errors.New("the work of this lease would wait for itself; use the transaction of that work")
	}
	by := &call{began: time.Now(), alone: true}
	h, err := m.queue(ctx, sl, by)
	if err != nil {
		m.reportNotAcquired(sl, by, err)
	}
	return h, err
}

// call is a call that wants a lease.
type call struct {
	began  time.Time
	alone  bool // for a resource that Run does not share
	queued bool // Waiting was reported
}

func (m *Member) reportNotAcquired(sl *slot, by *call, err error) {
	m.Observe(NotAcquired{Resource: sl.Resource, Waited: time.Since(by.began), Queued: by.queued, Err: err})
}

func (m *Member) queue(ctx context.Context, sl *slot, by *call) (*Held, error) {
	m.enqueue(sl, by)
	defer m.dequeue(sl, by)
	tick := time.NewTicker(min(time.Second, m.TTL/10))
	defer tick.Stop()
	for {
		woken := m.wake.Next()
		h, err := m.tryAcquire(sl, by)
		if err == nil || errors.Is(err, ErrClosed) {
			return h, err
		}
		if !by.queued {
			by.queued = true
			m.Observe(Waiting{Resource: sl.Resource})
		}
		select {
		case <-woken:
		case <-tick.C:
			m.want(sl)
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
func (m *Member) tryAcquire(sl *slot, by *call) (*Held, error) {
	me, last, err := m.reserve(sl, by)
	if err != nil {
		return nil, err
	}
	item, err := m.acquire(sl.Resource, last, me)
	if err != nil {
		m.markFree(sl, err)
		return nil, err
	}
	h := m.newHeld(sl, item, me, by)
	m.mu.Lock()
	defer m.mu.Unlock()
	sl.begin(last.item)
	sl.held = h
	if m.closing {
		h.giveBack()
	}
	return h, nil
}

// reserve makes the slot busy for a call, unless there is an obstacle.
func (m *Member) reserve(sl *slot, by *call) (*registration, holder, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.view.mu.Lock()
	defer m.view.mu.Unlock()
	now, me := m.view.now, m.registration
	err := m.obstacle(sl, by, now, me)
	sl.busy = sl.busy || err == nil
	return me, now.leases[sl.Resource], err
}

// obstacle returns why a call cannot have the lease now, as far as this member knows. m.mu and that of the view are held.
func (m *Member) obstacle(sl *slot, by *call, now *picture, me *registration) error {
	last := now.leases[sl.Resource]
	switch over := me.err(); {
	case m.closing || m.base.Err() != nil:
		return ErrClosed
	case errors.Is(over, cas.ErrUnsuitable):
		return failure(over)
	case over != nil && me.item.left() <= 0:
		return failure(ErrExpired)
	case over != nil || sl.busy || sl.isLeft(last.item) || len(sl.queue) > 0 && sl.queue[0] != by:
		return ErrHeld
	case time.Now().Before(sl.notUntil):
		return sl.failure
	case now.isNewer(last):
		return fmt.Errorf("%w: %w", ErrHeld, form.ErrNewer)
	case now.isHeld(last) && !m.isMine(last.Member) && !m.isAbandoned(last):
		return ErrHeld
	}
	return nil
}

// A member sees the release of another member late, unless the store reports changes. So a member that
// takes a lease again and again would keep it from all others. A member that has waited for a tenth of TTL
// says so in its registration. A member that has taken the lease for as long then leaves it to those who
// wait.

// fairness is the part of a slot that decides among callers of Acquire. It is guarded by Member.mu.
type fairness struct {
	queue  []*call // in this process
	wanted bool    // the registration says that this process waits

	since     time.Time // when this process began to take the lease, with no other holder since
	released  string    // the version that our last release has left
	leftUntil time.Time // until when it is left to others
}

// begin notes that this process has taken the lease from an item.
func (t *fairness) begin(from cas.Item) {
	if from.Version != t.released {
		t.since = time.Now()
	}
}

// isLeft reports whether this process leaves the lease to others, none of which has had it since.
func (t *fairness) isLeft(now cas.Item) bool {
	return now.Version == t.released && time.Now().Before(t.leftUntil)
}

func (m *Member) enqueue(sl *slot, by *call) {
	m.mu.Lock()
	defer m.mu.Unlock()
	sl.queue = append(sl.queue, by)
}

func (m *Member) dequeue(sl *slot, by *call) {
	m.mu.Lock()
	defer m.mu.Unlock()
	sl.queue = slices.DeleteFunc(sl.queue, func(c *call) bool { return c == by })
	switch {
	case len(sl.queue) > 0:
		m.wake.Fire() // another call may be the first now
	case sl.wanted:
		sl.wanted = false
		waits.Notify(m.changed)
	}
}

// want notifies the other members that this one waits for a lease.
func (m *Member) want(sl *slot) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !sl.wanted {
		sl.wanted = true
		waits.Notify(m.changed)
	}
}

// noteRelease notes the release of a lease. If this process has had the lease for long and others wait,
// it leaves the lease to them until they have looked.
func (m *Member) noteRelease(sl *slot, released cas.Item) {
	m.mu.Lock()
	defer m.mu.Unlock()
	sl.released = released.Version
	look := m.othersLook(sl.Name)
	if look > 0 && time.Since(sl.since) >= look {
		sl.leftUntil = time.Now().Add(2 * look)
		sl.since = sl.leftUntil
	}
}

// othersLook returns how often those of the members look that wait for a lease, or 0 if none does.
func (m *Member) othersLook(name string) (every time.Duration) {
	m.view.mu.Lock()
	defer m.view.mu.Unlock()
	for id, r := range m.view.now.members {
		if !r.Ended && !m.isMine(id) && slices.Contains(r.Wants, name) {
			every = max(every, m.termOf(r.memberRecord)/10)
		}
	}
	return every
}
