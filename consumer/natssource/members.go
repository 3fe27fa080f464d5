package natssource

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/epochfence/epochfence/internal/backoff"
)

// memberRecord is the value of a member's key. It expires like a lease.
type memberRecord struct {
	Name     string           `json:"name"`
	Streams  map[string]int32 `json:"streams"`            // the number of partitions of each that it serves
	Declined []string         `json:"declined,omitempty"` // partitions that own has returned from early
}

func (r memberRecord) equal(other memberRecord) bool {
	return maps.Equal(r.Streams, other.Streams) && slices.Equal(r.Declined, other.Declined)
}

// newMemberID is short enough to be read, and random.
func newMemberID() string { return rand.Text()[:16] }

// register writes our record.
func (s *Source) register(ctx context.Context) error {
	data, _ := json.Marshal(s.memberRecord()) // strings and numbers
	_, err := s.bucket.write(ctx, s.keys.member(s.member), data, s.LeaseTTL)
	if err != nil {
		return fmt.Errorf("natssource: register in bucket %q: %w", s.bucket.name, err)
	}
	return nil
}

// stayRegistered renews our record until ctx ends, and writes it at once when it
// has changed. Then it removes it.
func (s *Source) stayRegistered(ctx context.Context) {
	every := s.LeaseTTL / 3
	for {
		timer := time.NewTimer(jitter(every))
		select {
		case <-timer.C:
		case <-s.changed:
		case <-ctx.Done():
			timer.Stop()
			s.deregister()
			return
		}
		timer.Stop()
		asked := time.Now()
		limited, cancel := context.WithTimeout(ctx, every)
		err := s.register(limited)
		cancel()
		if err == nil {
			s.isMember(asked)
		} else if ctx.Err() == nil {
			s.isSilent(s.LeaseTTL, err)
			s.trouble("membership not renewed, trying again", err)
			backoff.Sleep(ctx, jitter(every/4))
			notify(s.changed)
		}
	}
}

// isMember notes that our record was written, by a request of that time.
func (s *Source) isMember(asked time.Time) {
	s.membership.Lock()
	defer s.membership.Unlock()
	s.renewed = asked
	s.in(nil)
}

// isSilent says that we are no member any more as far as we know, unless our record was
// written within that time.
func (s *Source) isSilent(within time.Duration, why error) {
	s.membership.Lock()
	defer s.membership.Unlock()
	if silent := time.Since(s.renewed); silent >= within {
		s.in(fmt.Errorf("the membership was not renewed for %v: %w", silent.Round(time.Millisecond), why))
	}
}

// deregister takes our record away, so that the others share out anew.
func (s *Source) deregister() {
	ctx, cancel := context.WithTimeout(s.base, s.goodbyeLimit())
	defer cancel()
	if _, err := s.bucket.remove(ctx, s.keys.member(s.member)); err != nil {
		s.trouble("not deregistered; the group will miss this member after the lease's TTL", err)
	}
}

// goodbyeLimit bounds each of the last requests. What is not given back by then
// expires.
func (s *Source) goodbyeLimit() time.Duration { return min(2*time.Second, s.LeaseTTL/2) }
