package natssource

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/internal/tenures"
)

// slot is a partition that this process serves. At most one goroutine runs a tenure of it at a
// time: busy is true from before the lease is requested until after it was given back.
type slot struct {
	streamPartition
	log *streamLog

	// Guarded by Source.mu.
	busy     bool
	tenure   *tenure
	strange  bool      // a log line says that its key holds no lease
	declined bool      // own returned early; other members may take the partition
	hung     bool      // a handler does not return; declined stays true until it has
	notUntil time.Time // no attempt before this time, after a failure
	free     time.Time // when this member first saw that nobody holds it; zero while somebody does
}

// handoff is a partition that this member gave back so that another member can take it.
type handoff struct {
	streamPartition
	tenure *tenure
	since  time.Time
}

// balance takes free partitions, gives surplus ones back, and releases leases without a tenure.
func (s *Source) balance() {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := s.view.snapshot() // under s.mu, so that it has the leases of all running tenures
	if s.closing {
		return
	}
	s.resetDeclined(now)
	g := s.group(now)
	me := s.registration
	if me.err() != nil {
		return
	}
	next := g.plan(me.id)
	for _, p := range next.take {
		if sl := s.slots[p]; sl != nil && !sl.busy && time.Now().After(sl.notUntil) {
			s.markBusy(sl, func() { s.runTenure(sl, now.leases[p], me) })
		}
	}
	if now.gone[me.id] > 0 {
		notify(s.changed) // somebody may have removed our registration; a renewal asks the leader
	}
	s.buryDead(now)
	s.forgetDisbelieved(now)
	s.verifyHeld(now)
	s.releaseOrphans(now)
	s.releaseUnserved(now)
	s.handOff(now, next.give)
}

func (s *Source) group(now *picture) *group {
	me := s.registration.id
	g := &group{
		members: map[string]memberRecord{me: s.recordLocked()},
		held:    map[streamPartition]string{}, free: map[streamPartition]time.Duration{}, busy: map[streamPartition]bool{},
		grace: min(time.Second, s.LeaseTTL/3), idle: 2 * s.LeaseTTL,
	}
	for id, m := range now.members {
		if !s.isMine(id) { // earlier registrations of this process do not count
			g.members[id] = s.believed(id, m.memberRecord)
		}
	}
	for p, h := range now.leases {
		if now.isHeld(h) && !s.isMine(h.member) && !s.isAbandoned(h) {
			g.held[p] = h.member
		}
	}
	for p, sl := range s.slots {
		if h := now.leases[p]; sl.strange || h.isStrange() {
			s.reportStrange(sl, h)
		}
		_, taken := g.held[p]
		switch {
		case taken:
			if !sl.free.IsZero() {
				s.bucket.troubles.Left(p.String())
			}
			sl.free = time.Time{}
			continue
		case sl.busy:
			sl.free = time.Time{}
			g.held[p] = me
			g.busy[p] = sl.tenure == nil || !sl.tenure.Held()
			continue
		case sl.free.IsZero():
			sl.free = time.Now()
		}
		g.free[p] = time.Since(sl.free)
	}
	return g
}

// resetDeclined retries declined partitions and handoffs after the members have changed.
func (s *Source) resetDeclined(now *picture) {
	was := s.seen
	s.seen = now
	if was == nil || !now.membersChangedSince(was) {
		return
	}
	if s.refused {
		s.refused, s.handing = false, nil
	}
	for _, sl := range s.slots {
		if sl.declined && !sl.hung {
			sl.declined = false
			notify(s.changed)
		}
	}
}

// verifyHeld checks our leases whose key has another value, or none, in the view. Leases are not
// renewed, so nothing else would notice before the next claim.
func (s *Source) verifyHeld(now *picture) {
	for p, sl := range s.slots {
		t := sl.tenure
		if t == nil || t.Lost() != nil {
			continue
		}
		if h := now.leases[p]; h.live && h.nonce == t.lease.nonce {
			continue
		}
		if t.verifying.CompareAndSwap(false, true) {
			s.workers.Go(func() { t.verify(t.under.held) })
		}
	}
}

// releaseOrphans releases leases that name this process and that no tenure holds. They are left by
// a tenure that lost contact or by a write that landed late.
func (s *Source) releaseOrphans(now *picture) {
	for p, h := range now.leases {
		sl := s.slots[p]
		if !h.live || !s.isMine(h.member) || sl == nil || sl.busy || time.Now().Before(sl.notUntil) {
			continue
		}
		s.markBusy(sl, func() {
			ctx, cancel := context.WithTimeout(s.base, s.goodbyeLimit())
			defer cancel()
			rev, err := s.bucket.release(ctx, s.keys.lease(p), h.rev)
			if err == nil {
				s.view.learn(p, entry{rev: rev})
			} else {
				s.lookAgain(ctx, p)
			}
			s.markFree(sl, err != nil)
		})
	}
}

// releaseUnserved releases leases that name this process, of partitions that it does not serve.
// Nobody else could release them.
func (s *Source) releaseUnserved(now *picture) {
	for p, h := range now.leases {
		if s.slots[p] != nil || !h.live || !s.isMine(h.member) || s.releasing[p] {
			continue
		}
		s.releasing[p] = true
		s.workers.Go(func() {
			ctx, cancel := context.WithTimeout(s.base, s.goodbyeLimit())
			defer cancel()
			if rev, err := s.bucket.release(ctx, s.keys.lease(p), h.rev); err == nil {
				s.log.Warn("a lease named this member, which does not serve its partition: it was released", "key", s.keys.lease(p))
				s.view.learn(p, entry{rev: rev})
			} else {
				s.lookAgain(ctx, p)
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.releasing, p)
		})
	}
}

// handOff gives one partition back, and the next one only after another member has taken it. If
// nobody takes it within LeaseTTL, handOff waits until the members change: another partition would
// only be idle, too.
func (s *Source) handOff(now *picture, give *streamPartition) {
	if h := s.handing; h != nil {
		at := now.leases[h.streamPartition]
		switch {
		case now.isHeld(at) && !s.isMine(at.member):
			s.handing, s.refused = nil, false
		case !s.refused && s.isOursAgain(h):
			s.handing = nil // the member that was to take it is gone, and there may be others
		case time.Since(h.since) < s.LeaseTTL:
			return
		case !s.refused:
			s.log.Warn("nobody takes the partition that was given back; giving back no other until a member joins or leaves", "stream", h.stream, "partition", h.number)
			s.refused = true
		}
	}
	if give == nil || s.refused {
		return
	}
	sl := s.slots[*give]
	if sl == nil || sl.tenure == nil || sl.tenure.Revoked() {
		return
	}
	s.log.Info("giving a partition back, as others have fewer", "stream", sl.stream, "partition", sl.number)
	s.handing = &handoff{streamPartition: *give, tenure: sl.tenure, since: time.Now()}
	sl.tenure.drain()
}

func (s *Source) isOursAgain(h *handoff) bool {
	sl := s.slots[h.streamPartition]
	return sl != nil && sl.tenure != nil && sl.tenure != h.tenure
}

// markBusy runs f on its own goroutine. f must end with markFree.
func (s *Source) markBusy(sl *slot, f func()) {
	sl.busy = true
	s.workers.Go(f)
}

func (s *Source) markFree(sl *slot, failed bool) {
	s.mu.Lock()
	sl.busy, sl.tenure = false, nil
	if failed {
		sl.notUntil = time.Now().Add(jitter(max(s.LeaseTTL/10, 100*time.Millisecond)))
	}
	s.mu.Unlock()
	notify(s.wake)
}

func (s *Source) runTenure(sl *slot, last holder, me *registration) {
	l, again := s.acquire(sl.streamPartition, last, me)
	if l == nil {
		s.markFree(sl, !again)
		return
	}
	t := s.newTenure(sl.streamPartition, sl.log, l, me)
	s.mu.Lock()
	sl.tenure = t
	closing := s.closing
	s.mu.Unlock()
	if closing {
		t.Revoke()
	}
	early := t.run(s.own)
	if until := t.GivenUp(); early || until != nil {
		s.decline(sl, until)
	}
	err := t.giveBack()
	s.markFree(sl, err != nil)
}

// acquire takes a lease that the view shows as free, or as ours without a tenure. If it cannot,
// again reports whether to retry at once.
func (s *Source) acquire(p streamPartition, last holder, me *registration) (l *heldKey, again bool) {
	ctx, cancel := context.WithTimeout(me.held, min(readLimit, s.LeaseTTL/2))
	defer cancel()
	// The lease was not released. If it names this member, an acquisition lost its answer or a
	// release failed, and no tenure uses the lease: the slot was free.
	if last.live && last.member != me.id && !s.isAbandoned(last) {
		gone, err := s.isGone(ctx, last.member)
		if err != nil {
			s.bucket.trouble(p.String(), "cannot find out whether a member is gone yet", err, "stream", p.stream, "partition", p.number, "by", last.member)
		}
		if !gone {
			return nil, false
		}
	}
	l = newHeldKey(s.bucket, s.keys.lease(p), 0)
	value := s.newRecord(me.id, l.nonce).json()
	said := s.bucket.troubles.Of(l.key) != ""
	now, err := l.acquire(ctx, last.rev, value)
	switch {
	case err == nil:
		s.bucket.troubles.Well(p.String())
		if last.isStrange() && !said {
			s.log.Warn("the key of a lease held something that is no lease, which nobody had written anew for the lease's term: it was overwritten, and the partition taken",
				"stream", p.stream, "partition", p.number, "key", l.key, "stood", last.stoodFor().Round(time.Millisecond))
		}
		s.view.learn(p, entry{rev: l.rev, live: true, value: value})
		return l, false
	case errors.Is(err, errSwapped):
		s.bucket.troubles.Well(p.String())
		return nil, s.view.learn(p, now) // the view was late
	}
	s.bucket.trouble(p.String(), "cannot take the lease yet", err, "stream", p.stream, "partition", p.number)
	s.view.refresh()
	return nil, false
}

func (s *Source) lookAgain(ctx context.Context, p streamPartition) {
	if now, err := s.bucket.get(ctx, s.keys.lease(p)); err == nil {
		s.view.learn(p, now)
	}
}

// decline leaves the partition to other members. If until is not nil, this member may take it again
// once until is closed.
func (s *Source) decline(sl *slot, until <-chan struct{}) {
	s.mu.Lock()
	sl.declined, sl.hung = true, until != nil
	s.mu.Unlock()
	notify(s.changed)
	if until != nil {
		s.log.Error("a partition was given up because a handler of it does not return; others may have it, and this member takes it again once that has", "stream", sl.stream, "partition", sl.number)
		go s.untilReturned(sl, until)
		return
	}
	s.log.Info("a partition was given up before it was revoked; it is left to others, or idle until a member joins or leaves", "stream", sl.stream, "partition", sl.number)
}

func (s *Source) untilReturned(sl *slot, until <-chan struct{}) {
	select {
	case <-until:
	case <-s.base.Done():
		return
	}
	s.mu.Lock()
	sl.declined, sl.hung = false, false
	s.mu.Unlock()
	notify(s.changed)
	notify(s.wake)
}

// run calls own. It reports whether own returned before the partition was revoked or lost.
func (t *tenure) run(own func(context.Context, consumer.Tenure)) (early bool) {
	defer t.OnceLost(t.abandon)()
	t.Run(func(ctx context.Context) {
		if t.err() == nil {
			own(ctx, t)
		}
	})
	early = t.Held()
	return early
}

// abandon releases the lease of a lost tenure if own does not return within LeaseTTL.
func (t *tenure) abandon() {
	select {
	case <-t.Over():
		return
	case <-t.s.base.Done():
		return
	case <-time.After(t.s.LeaseTTL):
	}
	ctx, cancel := context.WithTimeout(t.s.base, t.s.goodbyeLimit())
	defer cancel()
	if rev, err := t.lease.release(ctx); err == nil {
		t.s.view.learn(t.streamPartition, entry{rev: rev})
	} else if !errors.Is(err, consumer.ErrLost) {
		t.s.bucket.trouble(t.String(), "lease not released; it lasts as long as this member is registered", err, "stream", t.stream, "partition", t.number)
		t.s.bucket.troubles.Left(t.String())
	}
}

func (t *tenure) giveBack() error {
	defer t.Lose(tenures.ErrEnded)
	ctx, cancel := context.WithTimeout(t.s.base, t.s.goodbyeLimit())
	defer cancel()
	if lost := t.Lost(); lost == nil {
		t.publish(ctx)
	} else if errors.Is(lost, errTaken) {
		t.s.lookAgain(ctx, t.streamPartition)
		return nil
	}
	rev, err := t.lease.release(ctx)
	switch {
	case err == nil:
		t.s.view.learn(t.streamPartition, entry{rev: rev})
	case errors.Is(err, consumer.ErrLost):
		t.s.lookAgain(ctx, t.streamPartition)
		return nil
	default:
		t.s.bucket.trouble(t.String(), "lease not released; it lasts as long as this member is registered", err, "stream", t.stream, "partition", t.number)
		t.s.bucket.troubles.Left(t.String())
	}
	return err
}

func (s *Source) streamRenewed(log *streamLog) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range slices.SortedFunc(maps.Keys(s.slots), streamPartition.compare) {
		if t := s.slots[p].tenure; t != nil && t.log == log && t.incarnation != log.incarnation() {
			s.log.Error("the stream was deleted and created again", "stream", t.stream, "partition", t.number)
			t.Lose(errOtherStream)
		}
	}
}

func (s *Source) running() []*tenure {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ts []*tenure
	for _, sl := range s.slots {
		if sl.tenure != nil {
			ts = append(ts, sl.tenure)
		}
	}
	return ts
}
