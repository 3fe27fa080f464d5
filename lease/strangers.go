package lease

import (
	"log/slog"
	"time"
)

// This file decides what becomes of values that no member can have written.

// isAbandoned reports whether something that is no lease has stood in the key for TTL.
func (m *Member) isAbandoned(h holder) bool {
	return h.item.Live && h.isStrange && time.Since(h.since) >= m.TTL
}

// reportStrange logs that somebody keeps replacing a lease by something that is no lease. Otherwise
// the lease would have been taken by now.
func (m *Member) reportStrange(sl *slot, h holder) {
	key := m.keys.resource(sl.Resource)
	switch {
	case h.isStrange && time.Since(h.strange) >= 3*m.TTL:
		sl.strange = true
		m.troubles.Add(m.log, slog.LevelError, key, key, "somebody writes something that is no lease into the key of a lease again and again, and the resource is idle for that",
			"resource", sl.String(), "key", key, "remedy", m.Removal(key))
	case !h.isStrange && sl.strange:
		sl.strange = false
		m.troubles.Well(key)
	}
}

// believed returns the part of a registration that a member can have written. A registration that
// claims more resources than there can be serves none here.
func (m *Member) believed(id string, r memberRecord) memberRecord {
	key, sum, most := m.keys.member(id), int64(0), max(mostServed, 16*int64(len(m.slots)))
	for _, n := range r.Serves {
		sum += int64(n)
		if n < 0 {
			sum = most + 1
			break
		}
	}
	if sum <= most && int64(len(r.Declined)) <= sum {
		return r
	}
	m.disbelieved[id] = true
	m.troubles.Add(m.log, slog.LevelError, key, key, "a registration claims an impossible number of resources, and is treated as one that serves none",
		"key", key, "name", shorten(r.Name), "remedy", m.Removal(key))
	return memberRecord{Name: r.Name}
}

// forgetDisbelieved ends the log lines about registrations that are gone.
func (m *Member) forgetDisbelieved(now *picture) {
	for id := range m.disbelieved {
		if !now.isRegistered(id) {
			delete(m.disbelieved, id)
			m.troubles.Well(m.keys.member(id))
		}
	}
}
