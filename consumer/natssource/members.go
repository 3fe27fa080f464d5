package natssource

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/internal/tenures"
	"github.com/epochfence/epochfence/internal/backoff"
)

// memberRecord is the value of a member's key, its registration. The key expires.
type memberRecord struct {
	Name     string           `json:"name"`
	Streams  map[string]int32 `json:"streams"`            // number of partitions by stream; none when the member leaves
	Declined []string         `json:"declined,omitempty"` // partitions from which own returned early
	TTL      int              `json:"ttl,omitempty"`      // seconds that the registration lasts after a renewal
	Nonce    string           `json:"nonce,omitempty"`    // by which the member recognises its own record
}

func (r memberRecord) equal(other memberRecord) bool {
	return maps.Equal(r.Streams, other.Streams) && slices.Equal(r.Declined, other.Declined)
}

func newMemberID() string { return rand.Text()[:16] }

// registration is a member's time in the group. Each lease of the member names its id and lasts as
// long as the registration. An id is registered once, so a registration that is gone stays gone,
// and a member that has seen this may take its leases.
type registration struct {
	id   string
	key  *heldKey
	fits []byte // the last value that the bucket accepted

	held context.Context // ends with the registration
	lose context.CancelCauseFunc
}

func (s *Source) newRegistration() *registration {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.registered++
	id := s.member
	if s.registered > 1 {
		id = fmt.Sprintf("%s-%d", s.member, s.registered)
	}
	r := &registration{id: id, key: newHeldKey(s.bucket, s.keys.member(id), s.LeaseTTL)}
	r.held, r.lose = context.WithCancelCause(s.base)
	return r
}

// isMine reports whether the id is that of a registration of this process.
func (s *Source) isMine(id string) bool {
	return id == s.member || strings.HasPrefix(id, s.member+"-")
}

// over ends the registration, and so all tenures under it.
func (r *registration) over(why error) { r.lose(tenures.Lost(why)) }

// err returns why the registration is over, or nil. It checks the clock and does not wait for a
// timer, because a process that was suspended may get here before its timer runs.
func (r *registration) err() error {
	if r.held.Err() == nil && r.key.left() <= 0 {
		r.over(errRanOut)
	}
	if r.held.Err() != nil {
		return context.Cause(r.held)
	}
	return nil
}

// register makes this process a member, under a new id. It may be called again after an error.
func (s *Source) register(ctx context.Context) error {
	for {
		if s.joining == nil {
			s.joining = s.newRegistration()
		}
		r := s.joining
		r.fits = s.registrationValue(r)
		_, err := r.key.acquire(ctx, 0, r.fits)
		if err == nil {
			s.joining = nil
			s.mu.Lock()
			s.registration = r
			s.mu.Unlock()
			return nil
		}
		if !errors.Is(err, errSwapped) && !errors.Is(err, consumer.ErrLost) {
			return fmt.Errorf("natssource: register in bucket %q: %w", s.bucket.name, err)
		}
		s.joining = nil // it was written and has expired since: its id is used up
	}
}

func (s *Source) registrationValue(r *registration) []byte {
	record := s.memberRecord()
	record.Nonce = r.key.nonce
	data, _ := json.Marshal(record) // strings and numbers
	return data
}

// renewRegistration extends the registration and updates its value. If a full bucket has no room
// for a larger value, it writes the last accepted value, and the other members learn of the change
// later.
func (s *Source) renewRegistration(ctx context.Context, r *registration) error {
	value, adopted := s.registrationValue(r), r.key.adopted
	_, err := r.key.renew(ctx, func() []byte { return value })
	var full *fullError
	if errors.As(err, &full) && len(value) > len(r.fits) {
		s.bucket.trouble(asMember, "what this member serves is not told to others yet", err)
		value = r.fits
		_, err = r.key.renew(ctx, func() []byte { return value })
	}
	switch {
	case err == nil:
		r.fits = value
	case errors.Is(err, consumer.ErrLost):
		r.over(fmt.Errorf("%w: %v", errUnregistered, err)) //nolint:errorlint // it is not the lease that was taken
	}
	if r.key.adopted != adopted || r.held.Err() != nil {
		s.view.refresh() // the bucket itself may be another one
	}
	return err
}

// stayRegistered renews the registration until ctx ends, at once when its value has changed, and
// registers again when it is over. At the end it removes the registration.
func (s *Source) stayRegistered(ctx context.Context) {
	every := s.LeaseTTL / 3
	for pause := jitter(every); ; {
		r := s.current()
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-s.changed:
		case <-r.held.Done():
		case <-ctx.Done():
			timer.Stop()
			s.deregister(r)
			return
		}
		timer.Stop()
		asked := time.Now()
		limited, cancel := context.WithTimeout(ctx, every)
		err := s.remain(limited, r)
		cancel()
		pause = jitter(every)
		if err == nil {
			s.isMember(asked)
			s.bucket.troubles.Well(asMember)
			s.bucket.troubles.Well(r.id)
		} else if ctx.Err() == nil {
			s.isSilent(s.LeaseTTL, err)
			s.bucket.trouble(asMember, "membership not renewed, trying again", err, "left", max(r.key.left(), 0).Round(time.Millisecond))
			pause = jitter(every / 8)
			if r.held.Err() != nil {
				backoff.Sleep(ctx, pause) // r.held has ended, so select does not wait
			}
		}
	}
}

func (s *Source) remain(ctx context.Context, r *registration) error {
	if r.err() == nil {
		err := s.renewRegistration(ctx, r)
		if err == nil || r.err() == nil {
			return err
		}
	}
	s.bucket.troubles.Add(s.log, slog.LevelWarn, r.id, "unregistered", "this member is not registered any more, and has lost what it had leased; registering anew", "err", r.err())
	if err := s.register(ctx); err != nil {
		return err
	}
	notify(s.wake)
	return nil
}

// watchClock ends the registration when it expires on our own clock. A lost connection alone does
// not end it.
func (s *Source) watchClock(ctx context.Context) {
	for ctx.Err() == nil {
		r := s.current()
		for r.err() == nil && backoff.Sleep(ctx, r.key.left()) {
		}
		s.isSilent(s.LeaseTTL/2, errRanOut) // or it ended otherwise, and we register again soon
		for s.current() == r && backoff.Sleep(ctx, s.LeaseTTL/20) {
		}
	}
}

func (s *Source) current() *registration {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.registration
}

// isMember reports that we are a member, because of a renewal that was sent at asked.
func (s *Source) isMember(asked time.Time) {
	s.membership.Lock()
	defer s.membership.Unlock()
	s.renewed = asked
	s.in(nil)
}

// isSilent reports that we are no member any more, unless renewed within that time.
func (s *Source) isSilent(within time.Duration, why error) {
	s.membership.Lock()
	defer s.membership.Unlock()
	if silent := time.Since(s.renewed); silent >= within {
		s.in(fmt.Errorf("the membership was not renewed for %v: %w", silent.Round(time.Millisecond), why))
	}
}

// deregister removes the registration. Leases that still name it become free.
func (s *Source) deregister(r *registration) {
	ctx, cancel := context.WithTimeout(s.base, s.goodbyeLimit())
	defer cancel()
	if _, err := s.bucket.remove(ctx, r.key.key); err != nil {
		s.bucket.trouble(asMember, "not deregistered; the group will miss this member after the lease's TTL", err)
	}
}

// goodbyeLimit limits each of the last requests. A key that is not given back by then expires.
func (s *Source) goodbyeLimit() time.Duration { return min(2*time.Second, s.LeaseTTL/2) }

// isGone reports whether a registration is known to be over. Its absence from the view does not
// suffice, because the view may be late or come from a replica. A marker in its key suffices, from
// any server, because an id is registered once. If the key does not exist, isGone writes a marker
// with a swap that the leader accepts only in that case.
func (s *Source) isGone(ctx context.Context, id string) (bool, error) {
	s.asking.Lock() // one request serves all partitions
	defer s.asking.Unlock()
	if s.view.snapshot().gone[id] > 0 {
		return true, nil
	}
	now, err := s.bucket.get(ctx, s.keys.member(id))
	if err == nil && now.rev == 0 {
		now.rev, err = s.bucket.bury(ctx, s.keys.member(id), 0)
		if errors.Is(err, errSwapped) {
			return false, nil // it exists after all, or another member wrote the marker
		}
	}
	if err != nil {
		return false, err
	}
	s.view.learnMember(id, now)
	return !now.live, nil
}
