package kafkasource

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// slot is a partition that the group has given us at least once.
type slot struct {
	held   bool // by what kgo last told us
	tenure *tenure
}

// assigned is kgo's OnPartitionsAssigned. It is called at the end of every
// rebalance, whether it brought us anything or not, and must not wait.
//
// kgo joins again by itself after the group has let it go in the middle of a
// cooperative rebalance, under a new member id and without a word about the
// partitions it still has. In between they may have been somebody else's. So
// tenures under another member id end here, and begin anew.
func (s *Source) assigned(_ context.Context, cl *kgo.Client, added map[string][]int32) {
	<-s.ready
	member, number := cl.GroupMetadata()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.joined = true
	for topic, ps := range added {
		for _, p := range ps {
			sl := s.slots[place{topic, p}]
			if sl == nil {
				sl = &slot{}
				s.slots[place{topic, p}] = sl
			}
			if !sl.held {
				sl.held = true
				s.grant(place{topic, p}, sl, member)
			}
		}
	}
	s.regrant(member)
	s.log.Debug("assigned", "member", member, "generation", number, "added", added)
}

// regrant begins a tenure for each partition that we hold and whose tenure was
// lost all the same, or belongs to an earlier membership.
func (s *Source) regrant(member string) {
	for p, sl := range s.slots {
		if !sl.held || sl.tenure == nil {
			continue
		}
		if sl.tenure.member != member {
			sl.tenure.lose(errNewMember)
		}
		if sl.tenure.ctx.Err() != nil {
			s.grant(p, sl, member)
		}
	}
}

func (s *Source) grant(p place, sl *slot, member string) {
	if s.closing {
		return
	}
	var previous <-chan struct{}
	if sl.tenure != nil {
		previous = sl.tenure.done
	}
	t := s.newTenure(p, member, previous)
	sl.tenure = t
	s.tenures.Go(func() { t.run(s.own) })
}

// revoked is kgo's OnPartitionsRevoked: the group asks for partitions, and
// waits for this to return.
func (s *Source) revoked(_ context.Context, _ *kgo.Client, ps map[string][]int32) {
	<-s.ready
	ts := s.release(ps)
	for _, t := range ts {
		t.drain()
	}
	s.await(ts)
	s.commits.flush(ts)
	for _, t := range ts {
		t.lose(errRevoked)
	}
}

// lostAll is kgo's OnPartitionsLost: they are somebody else's already, or may
// be at any moment.
func (s *Source) lostAll(_ context.Context, _ *kgo.Client, ps map[string][]int32) {
	<-s.ready
	for _, t := range s.release(ps) {
		t.lose(errRevoked)
	}
}

// release returns the tenures of partitions that we no longer hold.
func (s *Source) release(ps map[string][]int32) []*tenure {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ts []*tenure
	for topic, numbers := range ps {
		for _, n := range numbers {
			if sl := s.slots[place{topic, n}]; sl != nil && sl.held {
				sl.held = false
				if sl.tenure != nil {
					ts = append(ts, sl.tenure)
				}
			}
		}
	}
	return ts
}

// await waits until the tenures have ended. Those that take longer than a drain
// may are cancelled: the group moves on without them.
func (s *Source) await(ts []*tenure) {
	limit := time.NewTimer(s.contact.lease().drain)
	defer limit.Stop()
	for i, t := range ts {
		select {
		case <-t.done:
		case <-limit.C:
			for _, t := range ts[i:] {
				if !t.ended() {
					s.log.Error("the partition was not given back in time; its transaction is cancelled", "topic", t.topic, "partition", t.number)
					t.lose(errDrainOverrun)
				}
			}
			return
		}
	}
}

// held returns the tenures of the partitions we hold that may still publish.
func (s *Source) held() []*tenure {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ts []*tenure
	for _, sl := range s.slots {
		if sl.held && sl.tenure != nil && sl.tenure.ctx.Err() == nil {
			ts = append(ts, sl.tenure)
		}
	}
	return ts
}

// contactLost cancels everything: the group has given us up, or is about to.
func (s *Source) contactLost(silent time.Duration) {
	ts := s.held()
	if len(ts) == 0 {
		return
	}
	why := fmt.Errorf("the group's coordinator has acknowledged nothing for %v", silent.Round(time.Millisecond))
	s.log.Error("lost contact with the group; giving up all partitions", "silent", silent, "partitions", len(ts))
	for _, t := range ts {
		t.lose(why)
	}
}

// contactBack begins anew with the partitions that the group has left with us.
// If it has not, it will say so in a moment, and confirms nothing until then.
func (s *Source) contactBack() {
	go func() { // not on the goroutine that reads the broker's answers
		<-s.ready
		member, _ := s.group.GroupMetadata()
		s.mu.Lock()
		defer s.mu.Unlock()
		s.regrant(member)
	}()
}

// groupHook hears of errors that cost the membership.
type groupHook struct{ s *Source }

// OnGroupManageError implements [kgo.HookGroupManageError].
func (h groupHook) OnGroupManageError(err error) {
	s := h.s
	s.mu.Lock()
	joined := s.joined
	s.mu.Unlock()
	switch {
	case errors.Is(err, kerr.FencedInstanceID):
		s.fail(s.fenced(err))
	case !joined && refuses(err):
		s.fail(fmt.Errorf("kafkasource: group %q does not take us in: %w", s.set.Group, err))
	default:
		s.log.Warn("not in the group; joining again", "err", err)
	}
}

// refuses tells the errors of a first join that no waiting resolves.
func refuses(err error) bool {
	for _, e := range []error{
		kerr.GroupAuthorizationFailed, kerr.TopicAuthorizationFailed, kerr.ClusterAuthorizationFailed,
		kerr.InvalidGroupID, kerr.InvalidSessionTimeout, kerr.InconsistentGroupProtocol,
		kerr.GroupMaxSizeReached, kerr.UnsupportedAssignor, kerr.InvalidRequest, kerr.UnsupportedVersion,
	} {
		if errors.Is(err, e) {
			return true
		}
	}
	return isCredentials(err)
}

func (s *Source) fenced(err error) error {
	instance := ""
	if s.set.instance != nil {
		instance = *s.set.instance
	}
	return fmt.Errorf("kafkasource: group %q: another process has joined as instance %q; "+
		"this one must not go on, give each process an instance id of its own: %w", s.set.Group, instance, err)
}

// heartbeat sends one of our own, for [contact.quiet].
func (s *Source) heartbeat(ctx context.Context) {
	member, generation := s.group.GroupMetadata()
	if member == "" || generation <= 0 {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, s.contact.lease().session/3)
	defer cancel()
	req := kmsg.NewPtrHeartbeatRequest()
	req.Group = s.set.Group
	req.MemberID, req.Generation, req.InstanceID = member, generation, s.set.instance
	resp, err := req.RequestWith(ctx, s.group)
	if err != nil {
		return
	}
	// The hook has counted it. A no does not count.
	if err := kerr.ErrorForCode(resp.ErrorCode); err != nil && !errors.Is(err, kerr.RebalanceInProgress) {
		s.contact.revert()
	}
}

// owner names this process in the fence.
func (s *Source) owner(member string) string {
	owner := s.set.clientID + "/" + member
	if s.set.instance != nil {
		owner += "/" + *s.set.instance
	}
	return owner
}
