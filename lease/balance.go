package lease

import (
	"cmp"
	"context"
	"errors"
	"time"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/internal/waits"
)

// This file takes and gives back the resources of Run as plan.go has decided. The store decides
// each attempt: it accepts a swap or refuses it.

// slot is a resource that this process serves, or that Acquire wants. At most one lease of it is used
// at a time: busy is true from before the lease is requested until after it was given back.
type slot struct {
	Resource
	fairness

	// Guarded by Member.mu.
	busy     bool
	held     *Held
	strange  bool      // a log line says that its key holds no lease
	declined bool      // own returned early; other members may take the resource
	hung     bool      // a handler does not return; declined stays true until it has
	notUntil time.Time // no attempt before this time, after a failure
	failure  error     // that one
	free     time.Time // when this member first saw that nobody holds it; zero while somebody does
}

// handoff is a resource that this member gave back so that another member can take it.
type handoff struct {
	Resource
	held  *Held
	since time.Time
}

// balance takes free resources of this member's share, gives surplus ones back, and releases leases
// that nothing uses.
func (m *Member) balance() {
	m.mu.Lock()
	defer m.mu.Unlock()
	was, now := m.seen, m.view.snapshot() // under m.mu, so that it has all leases that are used
	if m.closing {
		return
	}
	m.resetDeclined(now)
	me := m.registration
	if me.err() != nil {
		return
	}
	if was != nil && len(m.Resources) > 0 {
		m.learnFromDeaths(was, now)
	}
	m.endTrial(now)
	g := m.group(now)
	if m.own != nil {
		m.follow(g.plan(me.id), now, me)
	}
	if r, known := now.members[me.id]; known && r.Ended {
		waits.Notify(m.changed) // somebody has ended our registration; a renewal asks the store
	}
	m.endDead(now)
	m.forgetDisbelieved(now)
	m.verifyHeld(now)
	m.releaseOrphans(now)
	m.releaseUnserved(now)
}

// follow does what a plan says.
func (m *Member) follow(plan decision, now *picture, me *registration) {
	capacity := mostMoving
	for _, sl := range m.slots {
		if sl.busy && sl.held == nil {
			capacity--
		}
	}
	for _, p := range plan.take {
		if sl := m.slots[p]; capacity > 0 && sl != nil && !sl.busy && time.Now().After(sl.notUntil) {
			capacity--
			m.markBusy(sl, func() { m.use(sl, now.leases[p], me) })
		}
	}
	m.handOff(now, plan.give)
}

// mostMoving limits how many resources a member takes at a time, and how many it gives back.
const mostMoving = 64

func (m *Member) group(now *picture) *group {
	me := m.registration.id
	g := &group{
		members: map[string]memberRecord{me: m.record()},
		held:    map[Resource]string{}, free: map[Resource]time.Duration{}, busy: map[Resource]bool{},
		grace: min(time.Second, m.TTL/3), idle: 2 * m.TTL,
	}
	for id, r := range now.members {
		if !m.isMine(id) && !r.Ended { // earlier registrations of this process do not count
			g.members[id] = m.believed(id, r.memberRecord)
		}
	}
	for p, h := range now.leases {
		if now.isHeld(h) && !m.isMine(h.Member) && !m.isAbandoned(h) {
			g.held[p] = h.Member
		}
	}
	for p, sl := range m.slots {
		if h := now.leases[p]; sl.strange || h.isStrange || now.isNewer(h) {
			m.reportStrange(sl, h, now.isNewer(h))
		}
		_, taken := g.held[p]
		switch {
		case taken:
			if !sl.free.IsZero() {
				m.troubles.Left(p.String())
			}
			sl.free = time.Time{}
			continue
		case sl.busy:
			sl.free = time.Time{}
			g.held[p] = me
			g.busy[p] = sl.held == nil || !sl.held.isHeld()
			continue
		case sl.free.IsZero():
			sl.free = time.Now()
		}
		g.free[p] = time.Since(sl.free)
	}
	return g
}

// resetDeclined retries declined resources and handoffs after the members have changed.
func (m *Member) resetDeclined(now *picture) {
	was := m.seen
	m.seen = now
	if was == nil || !now.membersChangedSince(was) {
		return
	}
	if m.pace == 0 {
		clear(m.handing)
	}
	m.pace = 1
	for _, sl := range m.slots {
		if sl.declined && !sl.hung {
			sl.declined = false
			waits.Notify(m.changed)
		}
	}
}

// verifyHeld checks our leases whose key has another value, or none, in the view. Leases are not
// renewed, so nothing else would notice before the next Confirm.
func (m *Member) verifyHeld(now *picture) {
	for p, sl := range m.slots {
		h := sl.held
		if h == nil || h.held.Err() != nil {
			continue
		}
		if l := now.leases[p]; l.item.Live && l.Nonce == h.item.nonce {
			continue
		}
		if h.verifying.CompareAndSwap(false, true) {
			m.workers.Go(h.verify)
		}
	}
}

// releaseOrphans releases leases that name this process and that it does not use. They are left by
// one that lost contact or by a write that landed late.
func (m *Member) releaseOrphans(now *picture) {
	for p, h := range now.leases {
		sl := m.slots[p]
		if !h.item.Live || !m.isMine(h.Member) || sl == nil || sl.busy || time.Now().Before(sl.notUntil) {
			continue
		}
		m.markBusy(sl, func() { m.markFree(sl, failure(m.releaseOrphan(h))) })
	}
}

func (m *Member) releaseOrphan(h holder) error {
	ctx, cancel := context.WithTimeout(m.base, m.goodbyeLimit())
	defer cancel()
	item, err := m.store.Swap(ctx, h.item, leaseRecord{Generation: generationOf(h.item) + 1}.json(), nil)
	if err == nil {
		m.view.learn(item)
	} else {
		m.lookAgain(ctx, h.item.Key)
	}
	return err
}

// releaseUnserved releases leases that name this process, of resources that it does not serve.
// Nobody else could release them.
func (m *Member) releaseUnserved(now *picture) {
	for p, h := range now.leases {
		if m.slots[p] != nil || !h.item.Live || !m.isMine(h.Member) || m.releasing[p] {
			continue
		}
		m.releasing[p] = true
		m.workers.Go(func() {
			if m.releaseOrphan(h) == nil {
				m.log.Warn("the store had this member as the holder of a lease whose resource it does not serve; the lease was released", "key", h.item.Key)
			}
			m.mu.Lock()
			defer m.mu.Unlock()
			delete(m.releasing, p)
		})
	}
}

// handOff gives resources back: the first one alone, and one more at a time with each that another
// member has taken. If nobody takes any within TTL, handOff waits until the members change: another
// resource would only be idle, too.
func (m *Member) handOff(now *picture, give []Resource) {
	last := m.taken
	var oldest *handoff
	for r, h := range m.handing {
		switch at := now.leases[r]; {
		case now.isHeld(at) && !m.isMine(at.Member):
			delete(m.handing, r)
			m.pace, m.taken = min(m.pace+1, mostMoving), time.Now()
			last = m.taken
			continue
		case m.pace > 0 && m.isOursAgain(h):
			delete(m.handing, r) // the member that was to take it is gone, and there may be others
			continue
		case h.since.After(last):
			last = h.since
		}
		if oldest == nil || h.since.Before(oldest.since) {
			oldest = h
		}
	}
	if oldest != nil && m.pace > 0 && time.Since(last) >= m.TTL {
		m.log.Warn("nobody takes the resource that was given back; giving back no other until a member joins or leaves", "resource", oldest.String())
		m.pace = 0
	}
	for _, p := range give[:max(0, min(len(give), m.pace-len(m.handing)))] {
		sl := m.slots[p]
		if sl == nil || sl.held == nil || !sl.held.isHeld() {
			continue
		}
		m.log.Info("giving a resource back, because others have fewer", "resource", sl.String())
		m.handing[p] = &handoff{Resource: p, held: sl.held, since: time.Now()}
		sl.held.giveBack()
	}
}

func (m *Member) isOursAgain(h *handoff) bool {
	sl := m.slots[h.Resource]
	return sl != nil && sl.held != nil && sl.held != h.held
}

// markBusy runs f on its own goroutine. f must end with markFree.
func (m *Member) markBusy(sl *slot, f func()) {
	sl.busy = true
	m.workers.Go(f)
}

// markFree ends the use of a slot. After a failure it is used again after a pause.
func (m *Member) markFree(sl *slot, failure error) {
	m.mu.Lock()
	sl.busy, sl.held = false, nil
	if failure != nil && !errors.Is(failure, errLate) {
		sl.failure = failure
		sl.notUntil = time.Now().Add(waits.Jitter(max(m.TTL/10, 100*time.Millisecond)))
	}
	m.mu.Unlock()
	m.wake.Fire()
}

// use acquires a lease and calls own with it.
func (m *Member) use(sl *slot, last holder, me *registration) {
	by := &call{began: time.Now()}
	item, err := m.acquire(sl.Resource, last, me)
	if err != nil {
		m.markFree(sl, err)
		return
	}
	h := m.newHeld(sl, item, me, by)
	m.mu.Lock()
	sl.held = h
	closing := m.closing
	m.mu.Unlock()
	if !closing && h.isHeld() {
		m.own(h)
		if h.isHeld() && !h.declined.Load() { // or it was released
			m.decline(sl, nil)
		}
	}
	_ = h.Release(m.base) // it says so
}

// acquire takes a lease that the view shows as free, or as ours and not used. It returns ErrHeld,
// errLate if it may be tried again at once, or ErrUnanswered.
func (m *Member) acquire(p Resource, last holder, me *registration) (*owned, error) {
	ctx, cancel := context.WithTimeout(me.held, min(readLimit, m.TTL/2))
	defer cancel()
	// The lease was not released. If it names this process, an acquisition lost its answer, a release
	// failed, or the registration is over, and nothing uses the lease: the slot was free.
	if last.item.Live && last.Member != "" && !m.isMine(last.Member) {
		gone, err := m.isGone(ctx, last.Member)
		if err != nil {
			m.trouble(p.String(), "cannot yet find out whether a member is gone", err, "resource", p.String(), "by", last.Member)
		}
		if !gone {
			return nil, cmp.Or(failure(err), ErrHeld)
		}
	}
	item := newOwned(m.store, m.keys.resource(p), m.TTL)
	seen := last.item
	if seen.Key == "" {
		seen = cas.Item{Key: item.key}
	}
	if seen.Version == "" {
		if err := m.view.suitable(ctx); err != nil {
			return nil, failure(err)
		}
	}
	said := m.troubles.Of(item.key) != ""
	now, err := item.acquire(ctx, seen, m.leaseValue(me, item))
	switch {
	case err == nil:
		m.troubles.Well(p.String())
		if last.isStrange && !said {
			m.log.Warn("the key of a lease held something that is no lease, and nobody replaced it for the TTL: it was overwritten, and the resource taken",
				"resource", p.String(), "key", item.key, "stood", time.Since(last.since).Round(time.Millisecond))
		}
		m.view.learn(now)
		return item, nil
	case errors.Is(err, cas.ErrConflict):
		m.troubles.Well(p.String())
		if m.view.learn(now) && now.Version != seen.Version { // the view was late
			return nil, errLate
		}
		return nil, ErrHeld
	}
	m.trouble(p.String(), "cannot take the lease yet", err, "resource", p.String())
	m.view.refresh()
	return nil, failure(err)
}

func (m *Member) leaseValue(me *registration, item *owned) value {
	return func(generation int64) []byte {
		return leaseRecord{
			Owner: m.Name, Member: me.id, Nonce: item.nonce, Since: item.since.UTC().Format(time.RFC3339), Generation: generation,
		}.json()
	}
}

// decline leaves the resource to other members. If until is not nil, this member may take it again
// once until is closed.
func (m *Member) decline(sl *slot, until <-chan struct{}) {
	m.mu.Lock()
	sl.declined, sl.hung = true, until != nil
	m.mu.Unlock()
	waits.Notify(m.changed)
	if until == nil {
		m.log.Info("the function that had a resource returned before the resource had to be given back; other members can take the resource, or it stays idle until a member joins or leaves", "resource", sl.String())
		return
	}
	go func() {
		select {
		case <-until:
		case <-m.base.Done():
			return
		}
		m.mu.Lock()
		sl.declined, sl.hung = false, false
		m.mu.Unlock()
		waits.Notify(m.changed)
		m.wake.Fire()
	}()
}
