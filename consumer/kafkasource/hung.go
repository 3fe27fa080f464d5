package kafkasource

import (
	"context"
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/epochfence/epochfence/internal/waits"
)

// This file decides when a member leaves its group because a handler hangs, and when it joins again.
//
// A member cannot give up a single partition: in the classic protocol the leader's balancer assigns
// partitions, and under KIP-848 the broker does. So if a handler hangs, the member drains its other
// partitions, leaves the group, and joins again after a pause. A member that is alone in its group
// stays, because nobody would take its partitions.
//
// After it has joined again, the member may be assigned the partition again. It does not claim it
// while the handler hangs, and leaves again soon, for twice as long each time.

const (
	// leastAway and mostAway limit the pause.
	leastAway = 10 * time.Second
	mostAway  = 5 * time.Minute

	// leastStay is how long the member stays in the group before it leaves again. A member that is
	// alone checks at this interval whether it still is.
	leastStay = 10 * time.Second
)

var (
	errHung     = errors.New("a call of the application or of the sink does not return; this process has left the group so that others get its partition")
	errReturned = errors.New("the handler of the partition has returned")
)

// groupClient is the client that is the member of the group. The process creates a new one each
// time that it joins.
type groupClient struct{ cl *kgo.Client }

func (s *Source) memberClient() *kgo.Client { return s.group.Load().cl }

// hung records that own has given up a partition until a handler returns.
func (s *Source) hung(t *tenure, until <-chan struct{}) {
	s.mu.Lock()
	if sl := s.slots[t.topicPartition]; sl != nil {
		sl.hung++
	}
	closing := s.closing
	s.mu.Unlock()
	if closing {
		return
	}
	s.log.Error("the partition was given up because a call for it does not return; this process leaves the group so that others get it, unless it is the only member", "topic", t.topic, "partition", t.number)
	s.lookForHung()
	go func() {
		select {
		case <-until:
		case <-s.over:
			return
		}
		s.unhung(t)
	}()
}

// unhung grants a partition again whose handler has returned, if we hold it.
func (s *Source) unhung(t *tenure) {
	s.mu.Lock()
	sl := s.slots[t.topicPartition]
	if sl.hung--; sl.hung == 0 && sl.held {
		if sl.tenure != nil {
			sl.tenure.Lose(errReturned)
		}
		if !s.contact.isLost() {
			s.grantHeld(s.joined.member)
		}
	}
	s.mu.Unlock()
	s.lookForHung()
}

func (s *Source) lookForHung() {
	waits.Notify(s.gaveUp)
}

// anyHung reports whether a handler hangs, and whether one hangs on a partition that we hold.
func (s *Source) anyHung() (some, held bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, sl := range s.slots {
		some = some || sl.hung > 0
		held = held || sl.hung > 0 && sl.held
	}
	return some, held
}

// attend runs until ctx ends or an error ends Run. It leaves the group while a handler hangs.
func (s *Source) attend(ctx, base context.Context) error {
	pause := waits.New(leastAway, mostAway)
	var due time.Time // when the member may leave
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-s.failed:
			return err
		case <-s.gaveUp:
		case <-timer.C:
		}
		some, held := s.anyHung()
		if !some {
			pause.Reset()
		}
		if !held {
			continue
		}
		if wait := time.Until(due); wait > 0 {
			timer.Reset(wait)
			continue
		}
		if s.isAlone(ctx) {
			s.log.Debug("a call does not return; its partition waits, as there is no other member that could have it")
		} else if err := s.stepAway(ctx, base, pause.Next()); err != nil || ctx.Err() != nil {
			return err
		}
		due = time.Now().Add(leastStay)
		timer.Reset(leastStay)
	}
}

// stepAway leaves the group in good order, and joins again after the pause or when no handler hangs
// any more.
func (s *Source) stepAway(ctx, base context.Context, pause time.Duration) error {
	s.log.Warn("leaving the group, as a call does not return; joining again later", "in", pause)
	s.mu.Lock()
	s.away = true
	s.member(errHung)
	s.mu.Unlock()
	ts := s.held()
	s.drain(ts)
	s.commits.flush(ts)
	s.mu.Lock()
	for _, sl := range s.slots {
		if sl.held = false; sl.tenure != nil {
			sl.tenure.Lose(errRevoked)
		}
	}
	s.mu.Unlock()
	s.leave()
	s.contact.left()
	if err := s.stayAway(ctx, pause); err != nil || ctx.Err() != nil {
		return err
	}
	s.mu.Lock()
	s.away, s.joined = false, joining{}
	s.mu.Unlock()
	return s.enter(base)
}

func (s *Source) stayAway(ctx context.Context, pause time.Duration) error {
	timer := time.NewTimer(pause)
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err := <-s.failed:
			return err
		case <-timer.C:
			return nil
		case <-s.gaveUp:
			if some, _ := s.anyHung(); !some {
				return nil
			}
		}
	}
}

// isAlone reports whether the group is known to have no other member.
func (s *Source) isAlone(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(ctx, s.commitTimeout())
	defer cancel()
	if _, speaks := s.contact.speaking(); speaks == nextGenProtocol {
		req := kmsg.NewPtrConsumerGroupDescribeRequest()
		req.Groups = []string{s.set.Group}
		resp, err := req.RequestWith(ctx, s.reader)
		return err == nil && len(resp.Groups) == 1 && resp.Groups[0].ErrorCode == 0 && len(resp.Groups[0].Members) == 1
	}
	req := kmsg.NewPtrDescribeGroupsRequest()
	req.Groups = []string{s.set.Group}
	resp, err := req.RequestWith(ctx, s.reader)
	return err == nil && len(resp.Groups) == 1 && resp.Groups[0].ErrorCode == 0 && len(resp.Groups[0].Members) == 1
}

// leaveForGood removes a static member from the group. kgo alone would leave its partitions
// assigned to it for the session timeout.
func (s *Source) leaveForGood(ctx context.Context, member string) {
	if s.set.instance == nil || member == "" {
		return
	}
	var err error
	if _, speaks := s.contact.speaking(); speaks == nextGenProtocol {
		req := kmsg.NewPtrConsumerGroupHeartbeatRequest()
		req.Group, req.MemberID, req.MemberEpoch, req.InstanceID = s.set.Group, member, -1, s.set.instance
		var resp *kmsg.ConsumerGroupHeartbeatResponse
		if resp, err = req.RequestWith(ctx, s.reader); err == nil {
			err = kerr.ErrorForCode(resp.ErrorCode)
		}
	} else {
		req := kmsg.NewPtrLeaveGroupRequest()
		req.Group, req.MemberID = s.set.Group, member
		m := kmsg.NewLeaveGroupRequestMember()
		m.MemberID, m.InstanceID = member, s.set.instance
		req.Members = append(req.Members, m)
		var resp *kmsg.LeaveGroupResponse
		if resp, err = req.RequestWith(ctx, s.reader); err == nil {
			err = kerr.ErrorForCode(resp.ErrorCode)
			for _, m := range resp.Members {
				err = errors.Join(err, kerr.ErrorForCode(m.ErrorCode))
			}
		}
	}
	if err != nil {
		s.log.Warn("could not tell the group that this static member leaves; the group removes it after the session timeout", "session_timeout", s.contact.lease().session, "err", err)
	}
}
