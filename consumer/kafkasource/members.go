package kafkasource

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/waits"
	"github.com/epochfence/epochfence/operate"
)

// This file tells operators what Kafka knows of partitions: where their logs begin and end, and which member of
// the group has them. That one may be a consumer without a fence, which the sink cannot know. It also removes
// another member from the group, and has this one take part in the rebalance that follows at once instead of at
// its next heartbeat. Package failover decides who is removed.

// Member is a member of a group, with its partitions.
type Member struct {
	ID, Host   string
	Partitions []epoch.Partition
}

// Owns reports whether the member has claimed f, of one of its partitions: the owner in a fence has the member's id
// behind the name of the process.
func (m Member) Owns(f epoch.Fence) bool { return strings.Contains(f.Owner+"/", "/"+m.ID+"/") }

// Members returns the members of a group that have partitions. They are not known, and settled is false, while a
// classic group rebalances. It needs DESCRIBE on the group.
func Members(ctx context.Context, client *kadm.Client, group string) (members []Member, settled bool, err error) {
	classic, err := client.DescribeGroups(ctx, group)
	if err != nil {
		return nil, false, err
	}
	one := classic[group] // a KIP-848 group is described as dead or not found
	if one.Err != nil && !errors.Is(one.Err, kerr.GroupIDNotFound) {
		return nil, false, one.Err
	}
	add := func(id, host string, has kadm.TopicsSet) {
		m := Member{ID: id, Host: host}
		has.Each(func(topic string, n int32) {
			m.Partitions = append(m.Partitions, epoch.Partition{Group: group, Topic: topic, Number: n})
		})
		if len(m.Partitions) > 0 {
			members = append(members, m)
		}
	}
	for _, m := range one.Members {
		has := kadm.TopicsSet{}
		if assigned, ok := m.Assigned.AsConsumer(); ok {
			for _, t := range assigned.Topics {
				has.Add(t.Topic, t.Partitions...)
			}
		}
		add(m.MemberID, m.ClientHost, has)
	}
	if len(one.Members) > 0 {
		return members, one.State == "Stable", nil
	}
	modern, err := client.DescribeConsumerGroups(ctx, group)
	if errors.Is(err, kerr.UnsupportedVersion) { // a broker without KIP-848
		return nil, true, nil
	}
	if err != nil {
		return nil, false, err
	}
	other := modern[group]
	if other.Err != nil && !errors.Is(other.Err, kerr.GroupIDNotFound) && !errors.Is(other.Err, kerr.UnsupportedVersion) {
		return nil, false, other.Err
	}
	for _, m := range other.Members {
		add(m.MemberID, m.ClientHost, m.Assignment)
	}
	return members, true, nil
}

// Logs asks Kafka for the logs of fences, for the Logs of statusz.Options. client may be any client of the cluster,
// and needs DESCRIBE on the topics and groups. Partitions that Kafka does not have are left out.
func Logs(client *kgo.Client) func(context.Context, []epoch.Fence) (map[epoch.Partition]operate.Extent, error) {
	return func(ctx context.Context, fences []epoch.Fence) (map[epoch.Partition]operate.Extent, error) {
		admin := kadm.NewClient(client)
		var topics []string
		of := map[string]map[epoch.Partition]epoch.Fence{} // by group
		for _, f := range fences {
			if f.Log != "" && !strings.HasPrefix(f.Log, logPrefix) {
				continue
			}
			topics = append(topics, f.Partition.Topic)
			if of[f.Partition.Group] == nil {
				of[f.Partition.Group] = map[epoch.Partition]epoch.Fence{}
			}
			of[f.Partition.Group][f.Partition] = f
		}
		logs := map[epoch.Partition]operate.Extent{}
		if len(topics) == 0 { // kadm would list all topics
			return logs, nil
		}
		begins, err := admin.ListStartOffsets(ctx, topics...)
		if err != nil {
			return nil, fmt.Errorf("kafkasource: list where the logs begin: %w", err)
		}
		ends, err := admin.ListCommittedOffsets(ctx, topics...)
		if err != nil {
			return nil, fmt.Errorf("kafkasource: list where the logs end: %w", err)
		}
		for group, fences := range of {
			members, settled, err := Members(ctx, admin, group)
			if err != nil {
				return nil, fmt.Errorf("kafkasource: list the members of group %q: %w", group, err)
			}
			for p, f := range fences {
				begin, _ := begins.Lookup(p.Topic, p.Number)
				end, there := ends.Lookup(p.Topic, p.Number)
				if !there || begin.Err != nil || end.Err != nil {
					continue
				}
				logs[p] = operate.Extent{Begin: epoch.Offset(begin.Offset), End: epoch.Offset(end.Offset), Lag: max(end.Offset-max(int64(f.Next), begin.Offset), 0)}
			}
			for _, m := range members {
				for _, p := range m.Partitions {
					if log, there := logs[p]; there && settled && !m.Owns(fences[p]) {
						log.Unfenced = fmt.Sprintf("member %s at %s", m.ID, m.Host)
						logs[p] = log
					}
				}
			}
		}
		return logs, nil
	}
}

var _ consumer.Rejoiner = (*Source)(nil)

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
	s.hasten(ctx, group.cl)
	return nil
}

// RejoinWhen implements [consumer.Rejoiner].
func (s *Source) RejoinWhen(ready func(context.Context) error) { s.rejoins = ready }

// stayOut waits until this process may join again, if another one has removed it from the group. kgo joins again when
// it returns. After a loss of contact it does not wait: the group may have removed all members, and those who join an
// empty group wait for each other.
func (s *Source) stayOut() {
	if s.rejoins == nil || s.contact.overdue() || !errors.Is(s.stillMember(s.memberClient().GroupMetadata()), kerr.UnknownMemberID) {
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
func (s *Source) hasten(ctx context.Context, cl *kgo.Client) {
	member, number := cl.GroupMetadata()
	if number <= 0 || !s.takesPart() {
		return
	}
	if _, speaks := s.contact.speaking(); speaks == nextGenProtocol {
		go s.heartbeatSoon(cl, computing)
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
	lastHaste  = 800 * time.Millisecond
)

// heartbeatSoon sends heartbeats for a while. No answer says that it has what the removal, or the new member, has led
// to: the epoch may also rise for what was before.
func (s *Source) heartbeatSoon(cl *kgo.Client, lasts time.Duration) {
	began := time.Now()
	for pause := firstHaste; s.takesPart(); pause = min(2*pause, lastHaste) {
		cl.ForceRebalance()
		if time.Since(began) > lasts {
			return
		}
		select {
		case <-time.After(pause):
		case <-s.over:
			return
		}
	}
}
