package consumer

import (
	"log/slog"
	"sync"
	"time"
)

// standby is after how long a member that has no partition says so: it is not slow.
const standby = 5 * time.Second

// membership tells observers, and operators, whether this process is a member of the group,
// once for each change.
type membership struct {
	observe func(Event)
	log     *slog.Logger
	idle    func() bool // no partition is this process's

	mu      sync.Mutex
	told    bool // something
	in      bool
	done    bool // Run is over
	waiting *time.Timer
}

// changed takes what the source says.
func (m *membership) changed(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if in := err == nil; m.done || m.told && in == m.in {
		return
	}
	m.told, m.in = true, err == nil
	if m.in {
		m.log.Info("joined the group")
		m.waiting = time.AfterFunc(standby, m.stand)
		m.observe(Joined{})
	} else {
		if m.waiting != nil {
			m.waiting.Stop()
		}
		m.observe(Left{Cause: err})
	}
}

// stand says that this member waits for the others.
func (m *membership) stand() {
	if m.idle() {
		m.log.Info("no partition is assigned to this member of the group: it waits until one that others have is free")
	}
}

// over: the source's Run has returned.
func (m *membership) over(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.done = true
	if m.in {
		m.waiting.Stop()
		m.observe(Left{Cause: err})
	}
}
