package natssource

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"regexp"
	"time"
)

// Anybody who may write to the bucket can put foreign values into our keys. Members believe a value
// only as far as a member can have written it. A foreign value that was not rewritten for LeaseTTL,
// or a registration that was not renewed for termOf, belongs to nobody: a member replaces it with a
// swap at the revision that stood there. The swap is refused if its writer is alive after all.

const (
	// mostRecord is more than any lease or position takes, in bytes.
	mostRecord = 16 << 10

	// mostServed limits the partitions that a registration may claim, because each member computes
	// shares over all of them. The limit is higher if this member serves many partitions itself.
	mostServed = 1 << 14

	// mostMember limits the bytes of a registration. A registration that declines mostServed
	// partitions fits.
	mostMember = 8 << 20
)

// memberID matches the ids of registrations: one token of a key.
var memberID = regexp.MustCompile(`^[a-zA-Z0-9_-]{1,64}$`)

func leaseOf(value []byte) (record, bool) {
	var r record
	if len(value) > mostRecord || json.Unmarshal(value, &r) != nil || !memberID.MatchString(r.Member) {
		return record{}, false
	}
	return r, true
}

// registrationOf parses the value of a member's key. An invalid value serves nothing.
func registrationOf(value []byte) memberRecord {
	var r memberRecord
	if len(value) > mostMember || json.Unmarshal(value, &r) != nil {
		return memberRecord{}
	}
	return r
}

func positionOf(value []byte) (mirror, error) {
	m := mirror{Next: -1}
	if len(value) > mostRecord {
		return mirror{}, fmt.Errorf("it has %d bytes", len(value))
	}
	err := json.Unmarshal(value, &m)
	if err == nil && m.Next < 0 {
		err = errors.New(`it has no "next"`)
	}
	return m, err
}

// isStrange reports whether the key holds something that is no lease.
func (h holder) isStrange() bool { return h.live && h.member == "" }

func (h holder) stoodFor() time.Duration { return time.Since(h.since) }

// isAbandoned reports whether something that is no lease has stood in the key for LeaseTTL.
func (s *Source) isAbandoned(h holder) bool { return h.isStrange() && h.stoodFor() >= s.LeaseTTL }

// reportStrange logs that somebody keeps rewriting a lease's key with something that is no lease.
// Otherwise the lease would have been taken by now.
func (s *Source) reportStrange(sl *slot, h holder) {
	p, key := sl.streamPartition, s.keys.lease(sl.streamPartition)
	switch {
	case h.isStrange() && time.Since(h.strange) >= 3*s.LeaseTTL:
		sl.strange = true
		s.bucket.troubles.Add(s.log, slog.LevelError, key, key, "somebody writes something that is no lease into the key of a lease again and again, and the partition is idle for that",
			"stream", p.stream, "partition", p.number, "key", key, "remedy", s.bucket.removal(key))
	case !h.isStrange() && sl.strange:
		sl.strange = false
		s.bucket.troubles.Well(key)
	}
}

func (b *bucket) removal(key string) string { return fmt.Sprintf("nats kv del %s %s", b.name, key) }

// believed returns the part of a registration that a member can have written. A registration that
// claims more partitions than there can be serves none here.
func (s *Source) believed(id string, r memberRecord) memberRecord {
	key, sum, most := s.keys.member(id), int64(0), max(mostServed, 16*int64(len(s.slots)))
	for _, n := range r.Streams {
		sum += int64(n)
		if n < 0 {
			sum = most + 1
			break
		}
	}
	if sum <= most && int64(len(r.Declined)) <= sum {
		return r
	}
	s.disbelieved[id] = true
	s.bucket.troubles.Add(s.log, slog.LevelError, key, key, "a registration claims partitions that there cannot be, and is taken for one that serves none",
		"key", key, "name", shorten(r.Name), "remedy", s.bucket.removal(key))
	return memberRecord{Name: r.Name}
}

// forgetDisbelieved ends the log lines about registrations that are gone.
func (s *Source) forgetDisbelieved(now *picture) {
	for id := range s.disbelieved {
		if _, there := now.members[id]; !there {
			delete(s.disbelieved, id)
			s.bucket.troubles.Well(s.keys.member(id))
		}
	}
}

// termOf returns how long after a renewal a registration is over, whatever the bucket does.
func (s *Source) termOf(r memberRecord) time.Duration {
	ttl := s.LeaseTTL
	if r.TTL > 0 && r.TTL <= int(mostWait/time.Second) {
		ttl = max(ttl, time.Duration(r.TTL)*time.Second)
	}
	return ttl + max(ttl/4, time.Second) // so that the bucket can expire it first
}

// buryDead removes registrations that nobody renews and that the bucket keeps, because they were
// written without a TTL or the bucket's settings keep them longer. Their members have seen their
// own terms pass.
func (s *Source) buryDead(now *picture) {
	if nc := s.JetStream.Conn(); !nc.IsConnected() || nc.Stats().Reconnects != now.over {
		return // the picture is from before a reconnect
	}
	for id, m := range now.members {
		if id == s.registration.id || time.Since(m.since) < s.termOf(m.memberRecord) || s.burying[id] {
			continue
		}
		s.burying[id] = true
		s.workers.Go(func() {
			s.bury(id, m)
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.burying, id)
		})
	}
}

func (s *Source) bury(id string, m member) {
	ctx, cancel := context.WithTimeout(s.base, s.goodbyeLimit())
	defer cancel()
	key := s.keys.member(id)
	said := s.bucket.troubles.Of(key) != ""
	rev, err := s.bucket.bury(ctx, key, m.rev)
	switch {
	case err == nil:
		if !said {
			s.log.Warn("a registration was not renewed for its term, and the bucket has not let it expire: it is taken away, and what is leased under it is free",
				"key", key, "name", shorten(m.Name), "term", s.termOf(m.memberRecord))
		}
		s.view.learnMember(id, entry{rev: rev})
	case errors.Is(err, errSwapped): // it is alive, or gone
		if now, err := s.bucket.get(ctx, key); err == nil {
			s.view.learnMember(id, now)
		}
	default:
		s.bucket.trouble(key, "cannot take away a registration that nobody renews yet", err, "key", key)
		s.bucket.troubles.Left(key) // the next balance tries again
	}
}
