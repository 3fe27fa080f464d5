package lease

import (
	"context"
	"time"
)

// A process that crashes and is started again and again would be given its share each time, and leave
// it idle for a TTL each time. So when a member has died soon after it joined, its group puts new
// members on trial: they serve nothing until they have lived for twice as long as that one did.

const (
	mostTrial = 20            // TTLs
	memory    = 3 * mostTrial // TTLs for which the last such death counts
)

// begin puts this process on trial if the group wants it.
func (m *Member) begin(context.Context) error {
	now := m.view.snapshot()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.opened = time.Now()
	m.onTrial = m.trialLeft(now) > 0
	if m.onTrial {
		m.log.Warn("a member of the group has died soon after it joined: this one waits before it takes resources", "for", m.trialLeft(now).Round(time.Millisecond))
	}
	return nil
}

// endTrial ends the trial once its time has passed, or if a resource would be idle for it. m.mu is
// held.
func (m *Member) endTrial(now *picture) {
	if m.onTrial && m.trialLeft(now) <= 0 {
		m.onTrial = false
		notify(m.changed)
	}
}

func (m *Member) trialLeft(now *picture) time.Duration {
	trial, served := time.Duration(0), map[string]int32{}
	for id, r := range now.members {
		if m.isMine(id) || r.Ended {
			continue
		}
		trial = max(trial, min(time.Duration(r.Trial)*time.Millisecond, mostTrial*m.TTL))
		for name, n := range r.Serves {
			served[name] = max(served[name], n)
		}
	}
	for name, n := range m.Resources {
		if n > served[name] {
			return 0
		}
	}
	if len(m.Resources) == 0 { // it only has locks
		return 0
	}
	return trial - time.Since(m.opened)
}

// learnFromDeaths looks for members that are gone without having left. m.mu is held.
func (m *Member) learnFromDeaths(was, now *picture) {
	for id, r := range was.members {
		if len(r.Serves) == 0 && r.Trial == 0 { // it has left, or only had locks
			continue
		}
		left := time.Since(r.since) < m.termOf(r.memberRecord)*2/3 // or it would have renewed since
		if left || r.Ended || m.isMine(id) || now.isRegistered(id) || !r.first.After(m.opened) {
			continue
		}
		trial := time.Duration(0)
		if time.Now().Before(m.trialUntil) {
			trial = m.trial
		}
		lived := r.since.Sub(r.first) + m.TTL/3 // at most
		if lived > trial+mostTrial/2*m.TTL {
			continue
		}
		m.trial, m.trialUntil = min(2*lived, mostTrial*m.TTL), time.Now().Add(memory*m.TTL)
		notify(m.changed)
		m.log.Warn("a member has died soon after it joined: for a while, new members serve nothing until they have lived for longer",
			"registration", id, "name", shorten(r.Name), "lived", lived.Round(time.Millisecond), "longer", m.trial.Round(time.Millisecond), "while", memory*m.TTL)
	}
}
