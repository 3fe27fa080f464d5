package lease

import (
	"slices"
	"time"

	"github.com/epochfence/epochfence/cas"
)

// A member sees the release of another member late, unless the store reports changes. So a member that
// takes a lease again and again would keep it from all others. A member that has waited for a tenth of TTL
// says so in its registration. A member that has taken the lease for as long then leaves it to those who
// wait.

// turns is the part of a slot that is about callers of Acquire. It is guarded by Member.mu.
type turns struct {
	queue  []*call // in this process
	wanted bool    // the registration says that this process waits

	since     time.Time // when this process began to take the lease, with no other holder since
	released  string    // the version that our last release has left
	leftUntil time.Time // until when it is left to others
}

// begin notes that this process has taken the lease from an item.
func (t *turns) begin(from cas.Item) {
	if from.Version != t.released {
		t.since = time.Now()
	}
}

// isLeft reports whether this process leaves the lease to others, none of which has had it since.
func (t *turns) isLeft(now cas.Item) bool {
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
		m.wake.fire() // another call may be the first now
	case sl.wanted:
		sl.wanted = false
		notify(m.changed)
	}
}

// want tells the other members that this one waits for a lease.
func (m *Member) want(sl *slot) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !sl.wanted {
		sl.wanted = true
		notify(m.changed)
	}
}

// endTurn notes the release of a lease, and leaves it to others for a while if this process has had its turn
// and others wait: until they have looked.
func (m *Member) endTurn(sl *slot, released cas.Item) {
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
