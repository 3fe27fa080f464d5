package lease

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/internal/form"
	"github.com/epochfence/epochfence/internal/text/inert"
	"github.com/epochfence/epochfence/internal/waits"
)

// This file decides when a lease is free, and when another member counts as dead, whose registration it
// then ends: the store refuses that if the member has renewed it meanwhile. Whoever knows sooner that a
// member has died calls End. The file also decides what becomes of values that no member can have written.
// balance.go takes what is free.

// isHeld reports whether somebody has a lease, as far as is known. A lease is free after it was
// released, or if the registration that it names is missing or was ended.
func (p *picture) isHeld(h holder) bool {
	return h.item.Live && (h.isStrange || p.isNewer(h) || h.Member != "" && p.isRegistered(h.Member))
}

// isNewer reports whether a newer version has written a lease that would be free otherwise. It may mean
// something else now, so this process does not take it.
func (p *picture) isNewer(h holder) bool {
	return h.item.Live && h.V > form.Newest && (h.Member == "" || !p.isRegistered(h.Member))
}

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
			m.endRegistration(id, r)
			m.mu.Lock()
			defer m.mu.Unlock()
			delete(m.ending, id)
		})
	}
}

// termOf returns how long after it was last renewed a registration lasts, for other members. A TTL
// that no member can have does not count.
func (m *Member) termOf(r memberRecord) time.Duration {
	if r.TTL < 0 || r.TTL > mostTTL.Milliseconds() {
		return m.TTL
	}
	return max(m.TTL, time.Duration(r.TTL)*time.Millisecond)
}

// patience returns how long a registration may stand still, on our own clock (R11), before it is ended,
// or deleted if it was ended.
func (m *Member) patience(r member) time.Duration {
	if r.Ended {
		return fullReads * m.termOf(r.memberRecord)
	}
	return m.termOf(r.memberRecord)
}

// endRegistration ends a registration, or deletes one that was ended before. A member that is alive
// after all has renewed it meanwhile, so the store refuses: nothing is taken from it.
func (m *Member) endRegistration(id string, r member) {
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
		ended, err = m.endOf(ctx, r.item, memberRecord{Name: r.Name})
	}
	switch {
	case err == nil:
		if !r.Ended {
			m.log.Info("a member has not renewed its registration for its TTL: its leases are free", "registration", id, "name", inert.Short(r.Name), "TTL", m.termOf(r.memberRecord))
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

// Registration returns the id of this member's registration, or "" while it has none.
func (m *Member) Registration() string {
	if r := m.current(); r.err() == nil {
		return r.id
	}
	return ""
}

// End ends the registration of another member that is thought to be dead, without waiting for its TTL, and
// frees its leases. If that member is alive, it loses them, and registers anew under another id. The result is
// nil also if the registration was over before. why is for the log.
func (m *Member) End(ctx context.Context, registration, why string) error {
	err := errors.New("it is no registration of another member")
	if memberID.MatchString(registration) && !m.isMine(registration) {
		err = m.endSuspect(ctx, registration, why)
	}
	if err != nil {
		return fmt.Errorf("lease: end the registration %q: %w", inert.Short(registration), err)
	}
	if _, reports := m.store.(cas.Watcher); !reports {
		m.view.refresh() // it may lack leases that the member took since
	}
	return nil
}

// endSuspect ends a registration as it is in the store now, also if the member has just renewed it.
func (m *Member) endSuspect(ctx context.Context, id, why string) error {
	for pause := waits.New(5*time.Millisecond, 200*time.Millisecond); ; waits.Sleep(ctx, pause.Next()) {
		now, err := m.store.Get(ctx, m.keys.member(id))
		if err != nil {
			return err
		}
		r := registrationOf(now.Value)
		if isOver := !now.Live || r.Ended; !isOver {
			now, err = m.endOf(ctx, now, memberRecord{Name: r.Name, Suspected: m.Name})
			if errors.Is(err, cas.ErrConflict) {
				continue // it was renewed, or the answer was old
			}
			if err != nil {
				return err
			}
			m.log.Warn("the registration of a member that is thought to be dead was ended: its leases are free", "registration", id, "name", inert.Short(r.Name), "why", why)
		}
		if now.Live || now.Version != "" { // else it may be a late answer
			m.view.learn(now)
		}
		return nil
	}
}

// Registered is a registration in the group.
type Registered struct {
	ID   string
	Name string // as in [Options], with host and process
	Note string // of [Member.Note]

	// Suspected names the member that has ended the registration with [Member.End]. It is empty while the
	// registration is not over.
	Suspected string
}

// Process is the same for all registrations of a process.
func (r Registered) Process() string { return processOf(r.ID) }

func processOf(registration string) string {
	id, _, _ := strings.Cut(registration, "-")
	return id
}

// Members returns the registrations of the group as this member last saw them, those of a process in their order:
// also its own, and for some TTLs those that were ended by [Member.End]. It sends no request.
func (m *Member) Members() []Registered {
	m.view.mu.Lock()
	defer m.view.mu.Unlock()
	var all []Registered
	for id, r := range m.view.now.members {
		if memberID.MatchString(id) && (!r.Ended || r.Suspected != "") {
			all = append(all, Registered{id, r.Name, r.Note, r.Suspected})
		}
	}
	slices.SortFunc(all, func(a, b Registered) int { // X-10 after X-9
		return cmp.Or(cmp.Compare(len(a.ID), len(b.ID)), cmp.Compare(a.ID, b.ID))
	})
	return all
}

// Note sets a text of up to a few hundred bytes in this member's registrations, for the other members.
func (m *Member) Note(text string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.note != text {
		m.note = text
		waits.Notify(m.changed)
	}
}

func (m *Member) lookAgain(ctx context.Context, key string) {
	if now, err := m.store.Get(ctx, key); err == nil {
		m.view.learn(now)
	}
}

// isAbandoned reports whether something that is no lease has stood in the key for TTL.
func (m *Member) isAbandoned(h holder) bool {
	return h.item.Live && h.isStrange && time.Since(h.since) >= m.TTL
}

// reportStrange logs that somebody keeps replacing a lease by something that is no lease. Otherwise
// the lease would have been taken by now. It also logs that nobody takes a lease of a newer version.
func (m *Member) reportStrange(sl *slot, h holder, isNewer bool) {
	key := m.keys.resource(sl.Resource)
	switch {
	case isNewer && time.Since(h.since) >= m.TTL:
		sl.strange = true
		m.troubles.Add(m.log, slog.LevelError, key, key, "a newer version has written the key of a lease, which this process therefore does not take, and no other process does",
			"resource", sl.String(), "key", key, "remedy", "update this process, or: "+m.Removal(key))
	case isNewer:
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
		"key", key, "name", inert.Short(r.Name), "remedy", m.Removal(key))
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
