package lease

import (
	"context"
	"errors"
	"time"

	"github.com/epochfence/epochfence/cas"
)

// This file decides when another member counts as dead, and ends its registration. The store
// refuses that if the member has renewed it meanwhile.

// endDead ends the registrations that stood still for their TTL on our own clock: their members
// have seen their own terms pass. It deletes the values that have ended others for long enough that
// each member has seen them.
func (m *Member) endDead(now *picture) {
	for id, r := range now.members {
		if id == m.registration.id || m.ending[id] || time.Since(r.since) < m.patience(r) {
			continue
		}
		m.ending[id] = true
		m.workers.Go(func() {
			m.bury(id, r)
			m.mu.Lock()
			defer m.mu.Unlock()
			delete(m.ending, id)
		})
	}
}

func (m *Member) patience(r member) time.Duration {
	if r.Ended {
		return fullReads * m.termOf(r.memberRecord)
	}
	return m.termOf(r.memberRecord)
}

func (m *Member) bury(id string, r member) {
	ctx, cancel := context.WithTimeout(m.base, m.goodbyeLimit())
	defer cancel()
	key := m.keys.member(id)
	var (
		ended cas.Item
		err   error
	)
	if r.Ended {
		err = m.store.Delete(ctx, r.item)
		ended = cas.Item{Key: key}
	} else {
		ended, err = m.endOf(ctx, r.item, r.Name)
	}
	switch {
	case err == nil:
		if !r.Ended {
			m.log.Info("a member has not renewed its registration for its TTL: its leases are free", "registration", id, "name", shorten(r.Name), "TTL", m.termOf(r.memberRecord))
		}
		m.troubles.Well(key)
		m.view.learn(ended)
	case errors.Is(err, cas.ErrConflict): // it is alive, or another member was faster
		m.lookAgain(ctx, key)
	default:
		m.trouble(key, "cannot yet end a registration that nobody renews", err, "key", key)
		m.troubles.Left(key) // the next balance tries again
	}
}

func (m *Member) lookAgain(ctx context.Context, key string) {
	if now, err := m.store.Get(ctx, key); err == nil {
		m.view.learn(now)
	}
}
