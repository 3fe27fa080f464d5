package consumer

import "sync"

// membership tells observers whether this process is a member of the group, once for
// each change.
type membership struct {
	observe func(Event)

	mu   sync.Mutex
	told bool // something
	in   bool
	done bool // Run is over
}

// is takes what the source says.
func (m *membership) is(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if in := err == nil; m.done || m.told && in == m.in {
		return
	}
	m.told, m.in = true, err == nil
	if m.in {
		m.observe(Joined{})
	} else {
		m.observe(Left{Cause: err})
	}
}

// over: the source's Run has returned.
func (m *membership) over(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.done = true
	if m.in {
		m.observe(Left{Cause: err})
	}
}
