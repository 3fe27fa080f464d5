package kafkasource

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/internal/waits"
)

// This file removes another member from the group, and has this one take part in the rebalance that follows at
// once instead of at its next heartbeat. Package failover decides who is removed.

var (
	_ consumer.Rejoiner = (*Source)(nil)
	_ consumer.Hastener = (*Source)(nil)
)

// Member implements [consumer.Remover]. A process that is leaving the group, stays away from it because a
// handler hangs, or stays out of it after a removal, is no member.
func (s *Source) Member() (id string, session time.Duration, static bool) {
	static = s.set.instance != nil
	group := s.group.Load()
	if group == nil {
		return "", s.set.classic.session, static
	}
	if member, number := group.cl.GroupMetadata(); number > 0 && s.takesPart() && !s.out.Load() {
		id = member
	}
	return id, s.contact.lease().session, static
}

func (s *Source) takesPart() bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return !s.closing && !s.away
}

// Remove implements [consumer.Remover]. It never names an instance id, which would remove the static member
// that has come back under it.
func (s *Source) Remove(ctx context.Context, member, reason string) error {
	group := s.group.Load()
	if group == nil || member == "" {
		return fmt.Errorf("kafkasource: remove member %q of group %q: %w", member, s.set.Group, errNotJoined)
	}
	req := kmsg.NewPtrLeaveGroupRequest()
	req.Group, req.MemberID = s.set.Group, member // the latter for brokers before 2.4
	m := kmsg.NewLeaveGroupRequestMember()
	m.MemberID, m.Reason = member, &reason
	req.Members = append(req.Members, m)
	resp, err := req.RequestWith(ctx, s.reader)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
		for _, m := range resp.Members {
			err = errors.Join(err, kerr.ErrorForCode(m.ErrorCode))
		}
	}
	switch {
	case errors.Is(err, kerr.GroupAuthorizationFailed):
		err = fmt.Errorf("%w: %w", consumer.ErrMayNotRemove, err)
	case errors.Is(err, kerr.UnknownMemberID): // another process was faster
		err = nil
	}
	if err != nil {
		return fmt.Errorf("kafkasource: remove member %q of group %q: %w", member, s.set.Group, err)
	}
	s.hasten(ctx)
	return nil
}

// Hasten implements [consumer.Hastener]. In the classic protocol, kgo asks for itself alone, by its next heartbeat.
func (s *Source) Hasten() {
	if _, speaks := s.contact.speaking(); speaks == nextGenProtocol && s.group.Load() != nil {
		go s.heartbeatSoon(computing)
	}
}

// RejoinWhen implements [consumer.Rejoiner].
func (s *Source) RejoinWhen(ready func(context.Context) error) { s.rejoins = ready }

// stayOut waits, after a removal, until this process may join again. kgo joins again when it returns. After a loss of
// contact nobody waits: those who join an empty group wait for each other.
func (s *Source) stayOut() {
	if s.rejoins == nil {
		return
	}
	defer s.out.Store(false)
	for retry := waits.New(100*time.Millisecond, time.Second); s.takesPart(); waits.Sleep(s.stays, retry.Next()) {
		err := s.rejoins(s.stays)
		if err == nil || s.stays.Err() != nil {
			return
		}
		s.out.Store(true)
		s.contact.left()
		s.notMember(fmt.Errorf("removed from the group, which this process joins again once the sink answers: %w", err))
		s.troubles.Add(s.log, slog.LevelWarn, topicPartition{}, "removed", "removed from the group; joining again once the sink answers", "err", err)
	}
}

// leaveAgain removes this process from the group unless it may join again. It was removed while it joined, after which
// kgo joins again at once. Once the rebalance is over, its next heartbeat is refused, and it stays out.
func (s *Source) leaveAgain(member string) {
	if waits.Sleep(s.stays, rebalancing) && s.takesPart() && s.rejoins(s.stays) != nil && s.stays.Err() == nil {
		_ = s.Remove(s.stays, member, "its sink does not answer it") // kgo has tried more than once
	}
}

// hasten has this member take part in the rebalance that is under way. In the classic protocol it joins again only
// while there is one: a leader that joins again begins another one.
func (s *Source) hasten(ctx context.Context) {
	cl := s.memberClient()
	member, number := cl.GroupMetadata()
	if number <= 0 || !s.takesPart() {
		return
	}
	if _, speaks := s.contact.speaking(); speaks == nextGenProtocol {
		go s.heartbeatSoon(computing)
	} else if err := s.classicHeartbeat(ctx, member, number); errors.Is(err, kerr.RebalanceInProgress) {
		cl.ForceRebalance()
	}
}

// Under KIP-848, members learn what they are assigned by heartbeats, of which brokers want one each 5 s. After a
// removal, the broker computes assignments in the background, for up to a second or so. A new member gets what the
// others give up, each at its own heartbeat: until the new one's next, nobody has it.
const (
	computing  = 3 * time.Second
	othersGive = 10 * time.Second

	rebalancing = 5 * time.Second // of most rebalances, both halves of a cooperative one

	firstHaste = 100 * time.Millisecond
	lastHaste  = 300 * time.Millisecond
)

// heartbeatSoon sends heartbeats for a while. No answer says that it has what the removal, or the new member, has led
// to: the epoch may also rise for what was before. A later call takes over from an earlier one.
func (s *Source) heartbeatSoon(lasts time.Duration) {
	s.mu.Lock()
	s.hasty++
	turn := s.hasty
	if until := time.Now().Add(lasts); until.After(s.hastyUntil) {
		s.hastyUntil = until
	}
	s.mu.Unlock()
	for pause := firstHaste; s.hastens(turn); pause = min(2*pause, lastHaste) {
		s.memberClient().ForceRebalance()
		select {
		case <-time.After(pause):
		case <-s.over:
			return
		}
	}
}

func (s *Source) hastens(turn int) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.hasty == turn && !time.Now().After(s.hastyUntil) && !s.closing && !s.away
}
