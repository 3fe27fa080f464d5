package consumer

import (
	"log/slog"
	"sync"
	"time"
)

// This file reports, once for each change, whether this process is a member of its group. The
// source decides that. Partitions do not depend on it: they are granted and lost one by one.

// standby is how long a member waits for a partition before it logs that it has none.
const standby = 5 * time.Second

// membership reports each change of this process's membership in the group once.
type membership struct {
	observe func(Event)
	log     *slog.Logger
	idle    func() bool // reports whether this process has no partition

	mu       sync.Mutex
	reported bool // changed was called
	in       bool
	done     bool // Run is over
	waiting  *time.Timer
	cause    error // why it is no member, once reported
	life     *life // nil if the sink takes no signs of life
}

// left returns why this process is no member of the group, or nil if it is one or has not joined yet.
func (m *membership) left() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.cause
}

// changed is the joined of Source.Run. Sources may repeat themselves, so an unchanged membership is
// not reported again.
func (m *membership) changed(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if in := err == nil; m.done || m.reported && in == m.in {
		return
	}
	m.reported, m.in, m.cause = true, err == nil, err
	m.life.changed()
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

// stand logs that this member has no partition, so that an idle process is not taken for a broken
// one.
func (m *membership) stand() {
	if m.idle() {
		m.log.Info("no partition is assigned to this member of the group: it waits until one that others have is free")
	}
}

// over ends the reports: a source may still call changed while it returns.
func (m *membership) over(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.done = true
	if m.in {
		m.waiting.Stop()
		m.observe(Left{Cause: err})
	}
}
