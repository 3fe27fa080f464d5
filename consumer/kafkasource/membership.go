package kafkasource

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/internal/text/process"
)

// This file decides when tenures begin, are drained and are lost, from what kgo reports about the
// group. Package consumer decides what a tenure does meanwhile.

// slot is a partition that the group has assigned to us at least once.
type slot struct {
	held   bool // as kgo has reported last
	hung   int  // its handlers that do not return
	tenure *tenure
}

func (sl *slot) live() bool { return sl.tenure != nil && sl.tenure.Lost() == nil }

type joining struct {
	member string
	number int32 // generation or member epoch
}

// assigned is kgo's OnPartitionsAssigned. kgo calls it at the end of every rebalance, with or
// without new partitions. It must not wait.
//
// If the group removes the member in the middle of a cooperative rebalance, kgo joins again under a
// new member id and does not report the partitions that it still has as lost. Another member may
// have had them in between. So tenures under another member id end here, and new ones begin.
//
// kgo may also report an assignment so late that the group has assigned the partitions to another
// member since. Contact is overdue then, and tenures begin only after a check with the coordinator.
func (s *Source) assigned(_ context.Context, cl *kgo.Client, added map[string][]int32) {
	<-s.ready
	member, number := cl.GroupMetadata()
	s.joins(joining{member, number})
	s.hold(added, member)
	if s.contact.overdue() || !s.grantInContact(member) {
		s.contactRegained()
	}
	s.log.Debug("assigned", "member", member, "generation", number, "added", added)
}

// grantInContact begins a tenure of each partition that has none, unless contact is lost. If
// contact is lost later, contactLost ends these tenures.
func (s *Source) grantInContact(member string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.contact.isLost() {
		return false
	}
	if !s.closing && !s.away {
		s.member(nil)
	}
	s.grantHeld(member)
	return true
}

// joins records the membership that kgo reports. Under KIP-848 kgo also reports when it restarts
// its session without having reached the coordinator. So only a changed membership, which comes
// from the coordinator, counts as contact.
func (s *Source) joins(now joining) {
	_, speaks := s.contact.speaking()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.joined != now {
		switch {
		case s.joined.member == now.member:
		case speaks == nextGenProtocol:
			go s.heartbeatSoon(othersGive)
		case s.joined.number > 0 && s.rejoins != nil: // kgo has not reported that the member before was removed
			go s.leaveAgain(now.member)
		}
		s.joined = now
		s.contact.joined()
	}
}

// hold records the partitions that kgo has reported as ours, for this member id. It runs before the
// check of contact, so that the grant after the check includes all of them.
func (s *Source) hold(added map[string][]int32, member string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for topic, ps := range added {
		for _, p := range ps {
			sl := s.slots[topicPartition{topic, p}]
			if sl == nil {
				sl = &slot{}
				s.slots[topicPartition{topic, p}] = sl
			}
			if sl.held = true; sl.hung > 0 {
				s.lookForHung()
			}
		}
	}
	for _, sl := range s.slots {
		if sl.held && sl.tenure != nil && sl.tenure.member != member {
			sl.tenure.Lose(errNewMember)
		}
	}
}

// grantHeld begins a tenure for each partition that we hold and that is new or whose tenure was
// lost. A partition stays idle if own has given it up, or while a handler of it does not return.
func (s *Source) grantHeld(member string) {
	for p, sl := range s.slots {
		if sl.held && sl.hung == 0 && !sl.live() {
			s.grant(p, sl, member)
		}
	}
}

func (s *Source) grant(p topicPartition, sl *slot, member string) {
	if s.closing || s.away {
		return
	}
	t := s.newTenure(p, member, sl.tenure)
	sl.tenure = t
	s.tenures.Go(func() { t.run(s.own) })
}

// revoked is kgo's OnPartitionsRevoked. The group waits for it to return.
func (s *Source) revoked(_ context.Context, _ *kgo.Client, ps map[string][]int32) {
	<-s.ready
	ts := s.release(ps)
	s.drain(ts)
	s.commits.flush(ts)
	for _, t := range ts {
		t.Lose(errRevoked)
	}
}

// lostAll is kgo's OnPartitionsLost. Other members may have the partitions already. If it was no silence
// but a removal, others get them when the group has computed its assignments. Transactions under way are
// nearly always sooner, and if not, the fence refuses them.
func (s *Source) lostAll(_ context.Context, _ *kgo.Client, ps map[string][]int32) {
	<-s.ready
	ts := s.release(ps)
	s.notMember(errRevoked)
	removed := s.finish(ts)
	for _, t := range ts {
		t.Lose(errRevoked)
	}
	if removed {
		s.stayOut()
	}
}

// finishing is how long transactions under way may take after a removal. A KIP-848 group computes
// assignments once a second (group.consumer.assignment.interval.ms).
const finishing = time.Second

// finish waits until tenures have ended, for a moment, if the group has removed this member, and reports
// whether it has. After a loss of contact it does not: others may have the partitions for long.
func (s *Source) finish(ts []*tenure) (removed bool) {
	if s.contact.overdue() {
		return false
	}
	for _, t := range ts {
		t.Revoke()
	}
	ctx, cancel := context.WithTimeout(s.base, finishing)
	defer cancel()
	member, generation := s.memberClient().GroupMetadata()
	if !errors.Is(s.stillMember(ctx, member, generation), kerr.UnknownMemberID) {
		return false
	}
	for _, t := range ts {
		select {
		case <-t.Over():
		case <-t.WhenLost():
		case <-ctx.Done():
		}
	}
	return true
}

// notMember reports to Run's caller that the group has removed us, or is about to.
func (s *Source) notMember(why error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.joined.number = 0
	if !s.closing && !s.away {
		s.member(why)
	}
}

// release marks partitions as no longer held, and returns their tenures.
func (s *Source) release(ps map[string][]int32) []*tenure {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ts []*tenure
	for topic, numbers := range ps {
		for _, n := range numbers {
			if sl := s.slots[topicPartition{topic, n}]; sl != nil && sl.held {
				sl.held = false
				if sl.tenure != nil {
					ts = append(ts, sl.tenure)
				}
			}
		}
	}
	return ts
}

// drain revokes tenures and waits until they have ended. It cancels tenures that exceed the drain
// limit, because the group continues without them then.
func (s *Source) drain(ts []*tenure) {
	limit := s.contact.lease().drain
	for _, t := range ts {
		t.RevokeWithin(limit, func() {
			s.log.Error("the partition was not given back in time; its transaction is cancelled", "topic", t.topic, "partition", t.number)
		})
	}
	for _, t := range ts {
		select {
		case <-t.Over():
		case <-t.WhenLost():
		}
	}
}

// held returns the live tenures of the partitions that we hold. They may still publish.
func (s *Source) held() []*tenure {
	s.mu.Lock()
	defer s.mu.Unlock()
	var ts []*tenure
	for _, sl := range s.slots {
		if sl.held && sl.live() {
			ts = append(ts, sl.tenure)
		}
	}
	return ts
}

// running returns the live tenures of the partitions that we hold or are giving back.
func (s *Source) running() []*tenure {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.runningLocked()
}

func (s *Source) runningLocked() []*tenure {
	var ts []*tenure
	for _, sl := range s.slots {
		if sl.live() {
			ts = append(ts, sl.tenure)
		}
	}
	return ts
}

func (s *Source) contactLost(silent time.Duration) {
	why := fmt.Errorf("%w: the group's coordinator has acknowledged nothing for %v", consumer.ErrLeaseExpired, silent.Round(time.Millisecond))
	s.mu.Lock()
	if !s.closing && !s.away && s.contact.isLost() {
		s.member(why)
	}
	ts := s.runningLocked()
	s.mu.Unlock()
	if len(ts) == 0 {
		s.log.Warn("lost contact with the group", "silent", silent)
		return
	}
	s.log.Error("lost contact with the group; giving up all partitions", "silent", silent, "partitions", len(ts))
	for _, t := range ts {
		t.Lose(why)
	}
	s.regainIfDue()
}

// regainIfDue is called after tenures were lost because contact was lost. If contact was back
// before that, nobody else grants their partitions again.
func (s *Source) regainIfDue() {
	if s.contact.claimRegain() {
		s.contactRegained()
	}
}

// contactRegained checks, after contact was lost, whether we are still a member, and if so grants
// the partitions again that the group has left with us. It is called on the goroutine that reads
// the coordinator's answers, so it must not wait for an answer.
func (s *Source) contactRegained() {
	s.contact.checkBegins()
	go func() {
		defer s.contact.checkEnds()
		<-s.ready
		member, generation := s.memberClient().GroupMetadata()
		if err := s.stillMember(s.base, member, generation); err != nil {
			s.log.Debug("in contact again, but not a member", "member", member, "err", err)
			return // kgo gets the same error and joins again, or the next answer starts another check
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if now, _ := s.memberClient().GroupMetadata(); now == member && !s.closing && !s.away && s.contact.regain() {
			s.member(nil)
			s.grantHeld(member)
		}
	}()
}

// renewed ends the tenures whose topic has another id now, and begins new tenures of the new log.
func (s *Source) renewed() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for p, sl := range s.slots {
		if !sl.held || !sl.live() {
			continue
		}
		id := s.topics.known(p.topic)
		if was := sl.tenure.topicID(); was != ([16]byte{}) && was != id {
			s.log.Error("the topic was deleted and created again", "topic", p.topic, "partition", p.number)
			sl.tenure.Lose(errOtherTopic)
			s.grant(p, sl, sl.tenure.member)
		}
	}
}

type groupHook struct{ s *Source }

// OnGroupManageError implements [kgo.HookGroupManageError].
func (h groupHook) OnGroupManageError(err error) {
	s := h.s
	s.mu.Lock()
	joined := s.joined != joining{}
	s.mu.Unlock()
	switch {
	case errors.Is(err, kerr.FencedInstanceID):
		s.fail(s.fenced(err))
	case !joined && refuses(err):
		s.fail(fmt.Errorf("kafkasource: group %q does not take us in%s: %w", s.set.Group, toSet(err), err))
	default:
		s.troubles.Add(s.log, slog.LevelWarn, topicPartition{}, "membership", "not in the group; joining again", "err", err)
		s.notMember(err)
	}
}

// refuses reports whether an error of the first join does not pass by itself.
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

// toSet names the option that the coordinator refuses.
func toSet(err error) string {
	switch {
	case errors.Is(err, kerr.InvalidSessionTimeout):
		return "; set kgo.SessionTimeout to a value within the broker's group.min.session.timeout.ms and group.max.session.timeout.ms"
	case errors.Is(err, kerr.InconsistentGroupProtocol):
		return "; set kgo.Balancers and kgo.ServerSideBalancer as the group's other members have them"
	case errors.Is(err, kerr.UnsupportedAssignor):
		return "; set kgo.Balancers to an assignor that the broker has"
	}
	return ""
}

func (s *Source) fenced(err error) error {
	instance := ""
	if s.set.instance != nil {
		instance = *s.set.instance
	}
	return fmt.Errorf("kafkasource: group %q: another process has joined as instance %q; "+
		"this one must not continue, give each process an instance id of its own: %w", s.set.Group, instance, err)
}

func (s *Source) heartbeat() {
	member, generation := s.memberClient().GroupMetadata()
	_ = s.stillMember(s.base, member, generation)
}

// stillMember asks the coordinator whether we are a member, by a request that changes nothing. It
// returns nil only if the coordinator has confirmed it.
//
// In the classic protocol the request is a heartbeat, which restarts the session timeout. Under
// KIP-848 it is not a heartbeat. There its success shows that the last answer to a heartbeat was no
// error.
func (s *Source) stillMember(ctx context.Context, member string, generation int32) error {
	if member == "" || generation <= 0 {
		return errNotJoined
	}
	lease, speaks := s.contact.speaking()
	ctx, cancel := context.WithTimeout(ctx, lease.patience()/3)
	defer cancel()
	alive := time.Now()
	if speaks == nextGenProtocol {
		alive = s.contact.answered()
	}
	err := s.askMembership(ctx, speaks, member, generation)
	switch {
	case err == nil:
		s.contact.confirmAlive(alive)
	case speaks == classicProtocol:
		s.contact.discardPending() // the hook has seen the answer, and it was an error
	}
	return err
}

func (s *Source) askMembership(ctx context.Context, speaks protocol, member string, generation int32) error {
	if speaks == nextGenProtocol {
		// A heartbeat would take part in kgo's exchange of assignments. Under KIP-848, an
		// OffsetFetch of no topics checks the member too.
		req := kmsg.NewPtrOffsetFetchRequest()
		group := kmsg.NewOffsetFetchRequestGroup()
		group.Group, group.MemberID, group.MemberEpoch = s.set.Group, &member, generation
		group.Topics = []kmsg.OffsetFetchRequestGroupTopic{}
		req.Groups = append(req.Groups, group)
		resp, err := req.RequestWith(ctx, s.memberClient())
		if err != nil {
			return err
		}
		for _, g := range resp.Groups {
			return kerr.ErrorForCode(g.ErrorCode)
		}
		return errNotJoined
	}
	if err := s.classicHeartbeat(ctx, member, generation); !errors.Is(err, kerr.RebalanceInProgress) {
		return err
	}
	return nil
}

func (s *Source) classicHeartbeat(ctx context.Context, member string, generation int32) error {
	req := kmsg.NewPtrHeartbeatRequest()
	req.Group = s.set.Group
	req.MemberID, req.Generation, req.InstanceID = member, generation, s.set.instance
	resp, err := req.RequestWith(ctx, s.memberClient())
	if err != nil {
		return err
	}
	return kerr.ErrorForCode(resp.ErrorCode)
}

// Identity implements [consumer.Source].
func (s *Source) Identity() (group, name string) { return s.set.Group, s.name() }

// name returns the caller's client id, if any, with host and process id.
func (s *Source) name() string {
	if s.set.clientID == defaultClientID {
		return process.Name()
	}
	return process.Named(s.set.clientID)
}

func (s *Source) owner(member string) string {
	owner := s.name() + "/" + member
	if s.set.instance != nil {
		owner += "/" + *s.set.instance
	}
	return owner
}
