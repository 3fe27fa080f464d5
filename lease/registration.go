package lease

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/internal/waits"
)

// This file keeps this process a member, and decides when its registration is over (R13), and what
// proves that the registration of another member is gone. Whether a renewal has failed, owned.go decides.

func newMemberID() string { return rand.Text()[:16] }

// registration is a member's time in the group. Each lease of the member names its id and lasts as
// long as the registration. An id is registered once, so a registration that is gone stays gone,
// and a member that has seen this may take its leases.
type registration struct {
	id   string
	item *owned
	fits []byte // the last value that the store accepted

	held context.Context // ends with the registration
	lose context.CancelCauseFunc
}

func (m *Member) newRegistration() *registration {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.registered++
	id := m.id
	if m.registered > 1 {
		id = fmt.Sprintf("%s-%d", m.id, m.registered)
	}
	r := &registration{id: id, item: newOwned(m.store, m.keys.member(id), m.TTL)}
	r.item.dies = true
	r.held, r.lose = context.WithCancelCause(m.base)
	return r
}

// isMine reports whether the id is that of a registration of this process.
func (m *Member) isMine(id string) bool { return id == m.id || strings.HasPrefix(id, m.id+"-") }

// over ends the registration, and so all leases under it.
func (r *registration) over(why error) { r.lose(lost(why)) }

// err returns why the registration is over, or nil. It checks the clock and does not wait for a
// timer, because a process that was suspended may get here before its timer runs.
func (r *registration) err() error {
	if r.held.Err() == nil && r.item.left() <= 0 {
		r.over(ErrExpired)
	}
	if r.held.Err() != nil {
		return context.Cause(r.held)
	}
	return nil
}

// register makes this process a member, under a new id. It may be called again after an error.
func (m *Member) register(ctx context.Context) error {
	for {
		if m.joining == nil {
			m.joining = m.newRegistration()
		}
		r := m.joining
		r.fits = m.registrationValue(r)
		item, err := r.item.acquire(ctx, cas.Item{Key: r.item.key}, always(r.fits))
		if err == nil {
			m.joining = nil
			m.mu.Lock()
			m.registration = r
			m.mu.Unlock()
			m.view.learn(item)
			return nil
		}
		if !errors.Is(err, cas.ErrConflict) && !errors.Is(err, ErrLost) {
			return fmt.Errorf("register: %w", err)
		}
		m.joining = nil // it was written and has been ended since: its id is used up
	}
}

// always is a value that has no generation.
func always(data []byte) value { return func(int64) []byte { return slices.Clone(data) } }

func (m *Member) registrationValue(r *registration) []byte {
	m.mu.Lock()
	defer m.mu.Unlock()
	record := m.record()
	record.Nonce = r.item.nonce
	data, _ := json.Marshal(record) // strings and numbers
	return data
}

// record returns what the others read of this member. m.mu is held.
func (m *Member) record() memberRecord {
	r := memberRecord{Name: m.Name, TTL: m.TTL.Milliseconds(), Note: m.note}
	if time.Now().Before(m.trialUntil) {
		r.Trial = m.trial.Milliseconds()
	} else if m.onTrial {
		r.Trial = 1 // so that others do not take it for a member that leaves
	}
	if m.closing || m.onTrial {
		return r
	}
	r.Serves = m.Resources
	for _, sl := range m.slots {
		if _, shared := m.Resources[sl.Name]; sl.declined && shared {
			r.Declined = append(r.Declined, sl.String())
		}
		if sl.wanted {
			r.Wants = append(r.Wants, sl.Name)
		}
	}
	slices.Sort(r.Declined)
	slices.Sort(r.Wants)
	return r
}

// renewRegistration extends the registration and updates its value. If the store has no space for a
// larger value, it writes the last accepted value, and the other members learn of the change later.
func (m *Member) renewRegistration(ctx context.Context, r *registration) error {
	data, adopted := m.registrationValue(r), r.item.adopted
	item, err := r.item.renew(ctx, always(data))
	if err != nil && !errors.Is(err, ErrLost) && len(data) > len(r.fits) {
		m.trouble(asMember, "what this member serves is not told to others yet", err)
		data = r.fits
		item, err = r.item.renew(ctx, always(data))
	}
	switch {
	case err == nil:
		r.fits = data
		m.view.learn(item)
	case errors.Is(err, ErrLost):
		r.over(fmt.Errorf("%w: %v", errUnregistered, err)) //nolint:errorlint // it is not the lease that was taken
	}
	if r.item.adopted != adopted || r.held.Err() != nil {
		m.view.refresh() // the store itself may be another one
	}
	return err
}

// stayRegistered renews the registration until ctx ends, at once when its value has changed, and
// registers again when it is over. At the end it removes the registration.
func (m *Member) stayRegistered(ctx context.Context) {
	every := m.TTL / 3
	for pause := waits.Jitter(every); ; {
		r := m.current()
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-m.changed:
		case <-r.held.Done():
		case <-ctx.Done():
			timer.Stop()
			r.over(ErrClosed)
			m.deregister(r)
			m.membership.Lock()
			m.reportLeft(ErrClosed)
			m.membership.Unlock()
			return
		}
		timer.Stop()
		asked := time.Now()
		limited, cancel := context.WithTimeout(ctx, every)
		err := m.remain(limited, r)
		cancel()
		pause = waits.Jitter(every)
		if err == nil {
			m.isMember(asked)
			m.troubles.Well(asMember)
			m.troubles.Well(r.id)
			m.reportRenewed(r)
		} else if ctx.Err() == nil {
			m.isSilent(m.TTL, err)
			m.trouble(asMember, "membership not renewed, trying again", err, "left", max(r.item.left(), 0).Round(time.Millisecond))
			pause = waits.Jitter(every / 8)
			if r.held.Err() != nil {
				waits.Sleep(ctx, pause) // r.held has ended, so select does not wait
			}
		}
	}
}

func (m *Member) remain(ctx context.Context, r *registration) error {
	if r.err() == nil {
		err := m.renewRegistration(ctx, r)
		if err == nil || r.err() == nil {
			return err
		}
	}
	asked, cancel := context.WithTimeout(ctx, m.TTL/6) // half of ctx's time
	_, err := m.view.facts(asked)
	cancel()
	if errors.Is(err, cas.ErrUnsuitable) {
		return err
	}
	m.logIncident(r.id, "unregistered", "this member is not registered any more, and has lost what it had leased; registering anew", "err", r.err())
	if m.Ready != nil && !errors.Is(r.err(), ErrExpired) {
		if err := m.Ready(ctx); err != nil {
			return fmt.Errorf("not ready to register again: %w", err)
		}
	}
	if err := m.register(ctx); err != nil {
		return err
	}
	m.wake.Fire()
	return nil
}

// reportRenewed reports a renewal of the registration for each lease that it extends.
func (m *Member) reportRenewed(r *registration) {
	var extended []*Held
	m.mu.Lock()
	for _, sl := range m.slots {
		if h := sl.held; h != nil && h.under == r && h.held.Err() == nil {
			extended = append(extended, h)
		}
	}
	m.mu.Unlock()
	for _, h := range extended {
		h.renewals.Add(1)
		m.Observe(Renewed{Resource: h.Resource})
	}
}

// watchClock ends the registration when it expires on our own clock. A lost connection alone does
// not end it.
func (m *Member) watchClock(ctx context.Context) {
	for ctx.Err() == nil {
		r := m.current()
		for r.err() == nil && waits.Sleep(ctx, r.item.left()) {
		}
		m.isSilent(m.TTL/2, ErrExpired) // or it ended otherwise, and we register again soon
		for m.current() == r && waits.Sleep(ctx, m.TTL/20) {
		}
	}
}

func (m *Member) current() *registration {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.registration
}

// isMember reports that we are a member, because of a renewal that was sent at asked.
func (m *Member) isMember(asked time.Time) {
	m.membership.Lock()
	defer m.membership.Unlock()
	m.renewed = asked
	if !m.joined {
		m.joined = true
		m.Observe(Joined{})
	}
	m.Joined(nil)
}

// isSilent reports that we are no member any more, unless renewed within that time.
func (m *Member) isSilent(within time.Duration, why error) {
	m.membership.Lock()
	defer m.membership.Unlock()
	if silent := time.Since(m.renewed); silent >= within {
		err := fmt.Errorf("lease: the membership was not renewed for %v: %w", silent.Round(time.Millisecond), why)
		m.reportLeft(err)
		m.Joined(err)
	}
}

// reportLeft reports once that we are no member. m.membership is held.
func (m *Member) reportLeft(cause error) {
	if m.joined {
		m.joined = false
		m.Observe(Left{Cause: cause})
	}
}

// deregister removes the registration. Leases that still name it become free.
func (m *Member) deregister(r *registration) {
	ctx, cancel := context.WithTimeout(m.base, m.goodbyeLimit())
	defer cancel()
	if err := r.item.remove(ctx); err != nil && !errors.Is(err, ErrLost) {
		m.log.Warn("could not remove the registration of this member; the others take its leases over once its TTL has passed", "err", err)
	}
}

// goodbyeLimit limits each of the last requests. A key that is not given back by then expires.
func (m *Member) goodbyeLimit() time.Duration { return min(2*time.Second, m.TTL/2) }

// isGone reports whether a registration is known to be over. Its absence from the view does not
// suffice, because the view may be late. A value that ends it suffices, and so does the version of its
// deletion, because an id is registered once. If the key does not exist, isGone writes such a value with a swap that the store accepts
// only in that case.
func (m *Member) isGone(ctx context.Context, id string) (bool, error) {
	if err := m.asking.Acquire(ctx, 1); err != nil {
		return false, err
	}
	defer m.asking.Release(1)
	if m.view.hasEnded(id) {
		return true, nil
	}
	now, err := m.store.Get(ctx, m.keys.member(id))
	if err != nil {
		return false, err
	}
	if now.Live || now.Version != "" {
		m.view.learn(now)
		return !now.Live || registrationOf(now.Value).Ended, nil
	}
	if err := m.view.suitable(ctx); err != nil {
		return false, err // the store may have forgotten it
	}
	ended, err := m.endOf(ctx, now, memberRecord{})
	if errors.Is(err, cas.ErrConflict) {
		return false, nil // it exists after all, or another member wrote the value
	}
	if err != nil {
		return false, err
	}
	m.view.learn(ended)
	return true, nil
}

// endOf ends a registration that is still as seen.
func (m *Member) endOf(ctx context.Context, seen cas.Item, end memberRecord) (cas.Item, error) {
	end.Ended = true
	data, _ := json.Marshal(end) // strings
	return swapFor(ctx, m.store, seen, data, fullReads*m.TTL)
}
