package kafkasource_test

import (
	"errors"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/epochfence/epochfence/internal/servers/kafkatest"
)

// Under KIP-848 Confirm takes a commit that the coordinator accepts for a proof that nobody
// else had the partition when the coordinator looked. Before Kafka 4.3 it accepts the member's
// present epoch only; since then (KIP-1251) also an earlier one, down to that at which the
// partition was assigned to the member. What must be refused by both is a commit for a
// partition that was somebody else's after the epoch that the commit names.
func TestRealACommitIsRefusedWhereAnotherHadThePartitionAfterItsEpoch(t *testing.T) {
	t.Parallel()
	h := newRealHistory(t, kafkatest.Shared(t), 2)
	one, two := &rawMember{h: h, id: unique("one")}, &rawMember{h: h, id: unique("two")}

	one.until("it has both partitions", func() bool { return len(one.has) == 2 })
	alone := one.epoch
	h.Logf("epoch %d: one has %v", alone, one.has)
	wantAccepted(t, "the present epoch", one.commit(alone, one.has...))

	both := one.has
	two.until("it has joined", func() bool { return two.epoch > 0 })
	one.until("it has given one back and is told the new epoch", func() bool { return len(one.has) == 1 && one.epoch > alone })
	kept, given := one.has[0], both[0]
	if given == kept {
		given = both[1]
	}
	two.until("it has the other", func() bool { return len(two.has) == 1 })
	shared := one.epoch
	h.Logf("epochs %d and %d: one has %v, two has %v", shared, two.epoch, one.has, two.has)
	wantAccepted(t, "the present epoch, of the kept partition", one.commit(shared, kept))
	wantRefused(t, "the epoch before another had it", one.commit(alone, given))
	wantRefused(t, "an epoch that has not come", one.commit(two.epoch+5, kept))

	// Its other partition never left it.
	switch earlier := one.commit(alone, kept); {
	case earlier == nil:
		h.Log("an earlier epoch is accepted where the partition has stayed since: KIP-1251")
	case errors.Is(earlier, kerr.StaleMemberEpoch):
		h.Log("an earlier epoch is refused")
	default:
		t.Errorf("an earlier epoch of a partition that has stayed: %v", earlier)
	}

	two.leave()
	one.until("it has both again", func() bool { return len(one.has) == 2 && one.epoch > shared })
	h.Logf("epoch %d: one has %v", one.epoch, one.has)
	wantAccepted(t, "the present epoch", one.commit(one.epoch, both...))
	wantRefused(t, "the epoch before another had it, now that it is back", one.commit(alone, given))
	wantRefused(t, "the epoch while another had it, now that it is back", one.commit(shared, given))

	one.leave()
	wantRefused(t, "a member that has left", one.commit(one.epoch, both...))
}

func wantAccepted(t *testing.T, what string, err error) {
	t.Helper()
	if err != nil {
		t.Errorf("%s: %v; want it to be accepted", what, err)
	}
}

func wantRefused(t *testing.T, what string, err error) {
	t.Helper()
	if !errors.Is(err, kerr.StaleMemberEpoch) && !errors.Is(err, kerr.UnknownMemberID) {
		t.Errorf("%s: %v; want it to be refused for the epoch or the member", what, err)
	}
}

// rawMember is a member under KIP-848 that sends what the test says, and gives partitions back
// as soon as the broker revokes them.
type rawMember struct {
	h     *realHistory
	id    string
	epoch int32
	topic [16]byte
	has   []int32
}

// beat sends a heartbeat with what the member has, and takes over the answer.
func (m *rawMember) beat() {
	m.h.Helper()
	req := kmsg.NewPtrConsumerGroupHeartbeatRequest()
	req.Group, req.MemberID, req.MemberEpoch = m.h.group, m.id, m.epoch
	req.Topics = []kmsg.ConsumerGroupHeartbeatRequestTopic{}
	if len(m.has) > 0 {
		req.Topics = append(req.Topics, kmsg.ConsumerGroupHeartbeatRequestTopic{TopicID: m.topic, Partitions: m.has})
	}
	if m.epoch == 0 {
		req.SubscribedTopicNames = []string{m.h.topic}
		req.RebalanceTimeoutMillis = 30_000
	}
	resp, err := req.RequestWith(m.h.Context(), m.h.client)
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	if kerr.IsRetriable(err) { // the coordinator is being looked for
		return
	}
	if err != nil {
		m.h.Fatalf("a heartbeat of %s: %v", m.id, err)
	}
	if m.epoch = resp.MemberEpoch; resp.Assignment == nil { // as it was
		return
	}
	m.has = nil
	for _, t := range resp.Assignment.Topics {
		m.topic, m.has = t.TopicID, append(m.has, t.Partitions...)
	}
}

// until sends heartbeats until something has happened to m.
func (m *rawMember) until(what string, happened func() bool) {
	m.h.Helper()
	late := time.Now().Add(patience)
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for m.beat(); !happened(); m.beat() {
		if time.Now().After(late) {
			m.h.Fatalf("%s, epoch %d with %v: waited %v in vain until %s", m.id, m.epoch, m.has, patience, what)
		}
		<-tick.C
	}
}

// leave leaves the group. What m knows stays as it was.
func (m *rawMember) leave() {
	m.h.Helper()
	req := kmsg.NewPtrConsumerGroupHeartbeatRequest()
	req.Group, req.MemberID, req.MemberEpoch = m.h.group, m.id, -1
	if _, err := req.RequestWith(m.h.Context(), m.h.client); err != nil {
		m.h.Fatalf("%s leaves: %v", m.id, err)
	}
}

// commit commits an offset of each partition under an epoch. It is an error if one is refused.
func (m *rawMember) commit(epoch int32, partitions ...int32) error {
	m.h.Helper()
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Group, req.MemberID, req.Generation = m.h.group, m.id, epoch
	t := kmsg.NewOffsetCommitRequestTopic()
	t.Topic, t.TopicID = m.h.topic, m.topic
	for _, p := range partitions {
		one := kmsg.NewOffsetCommitRequestTopicPartition()
		one.Partition, one.Offset = p, 1
		t.Partitions = append(t.Partitions, one)
	}
	req.Topics = append(req.Topics, t)
	resp, err := req.RequestWith(m.h.Context(), m.h.client)
	if err != nil {
		m.h.Fatalf("a commit of %s: %v", m.id, err)
	}
	var all []error
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			all = append(all, kerr.ErrorForCode(p.ErrorCode))
		}
	}
	return errors.Join(all...)
}
