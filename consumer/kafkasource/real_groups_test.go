package kafkasource_test

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/kafkasource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/kafkatest"
)

// Three workers come and go, and the group is at generation 5 or so. Everyone
// leaves and an operator deletes the group. The next worker is granted
// generation 1, claims with the epoch after the last one, and continues where the
// fence stands: the committed offsets that went with the group are not missed.
func TestRealGroupDeletedWhileTheFenceRemains(t *testing.T) {
	t.Parallel()
	h := newRealHistory(t, kafkatest.Shared(t), 1)
	before := h.passOn(3)
	h.poll("the group to be deleted", func() bool { // when it is known to be empty
		resp, err := h.admin.DeleteGroup(t.Context(), h.group)
		return err == nil && (resp.Err == nil || errors.Is(resp.Err, kerr.GroupIDNotFound))
	})
	h.wantStartOver(before)
}

// The same without an operator: the group has been empty for longer than
// offsets.retention.minutes, and the broker lets it expire.
func TestRealGroupExpiredWhileTheFenceRemains(t *testing.T) {
	t.Parallel()
	b := kafkatest.Start(t, kafkatest.Config{Properties: map[string]string{
		"offsets.retention.minutes": "1", "offsets.retention.check.interval.ms": "200",
	}})
	h := newRealHistory(t, b.Addr, 1)
	before := h.passOn(3)
	h.expireOffsets()
	h.poll("the group to expire", func() bool {
		groups, err := h.admin.DescribeGroups(t.Context(), h.group)
		return err == nil && groups[h.group].State == "Dead"
	})
	h.wantStartOver(before)
}

func TestRealLogsSayWhichPartitionsAMemberOfAKIP848GroupHasThatHasNotClaimedThem(t *testing.T) {
	t.Parallel()
	h := newRealHistory(t, kafkatest.Shared(t), 2)
	h.send(0, 3)
	w := h.start("new", kgo.ServerSideBalancer())
	h.awaitApplied()
	h.await("both partitions to be claimed", func() bool { return owns(w, h.fence(0)) && owns(w, h.fence(1)) })
	unfenced := func() string {
		logs, err := kafkasource.Logs(h.client)(t.Context(), []epoch.Fence{h.fence(0), h.fence(1)})
		if err != nil || len(logs) != 2 || logs[h.partition(0)].End != 3 || logs[h.partition(0)].Lag != 0 {
			t.Fatalf("%v, %v", logs, err)
		}
		return logs[h.partition(0)].Unfenced + logs[h.partition(1)].Unfenced
	}
	h.poll("both to be fenced", func() bool { return unfenced() == "" })
	old, err := kgo.NewClient(kgo.SeedBrokers(h.addr), kgo.ConsumerGroup(h.group), kgo.ConsumeTopics(h.topic), kgo.ServerSideBalancer(), kgo.DisableAutoCommit())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(old.Close)
	h.poll("the old consumer to have one of them", func() bool {
		id, _ := old.GroupMetadata()
		return id != "" && strings.HasPrefix(unfenced(), "member "+id+" at ")
	})
	old.Close()
	h.poll("both to be fenced again", func() bool { return unfenced() == "" })
}

// A group is handed from the classic protocol to KIP-848 and back, by a restart
// of everything. Each switch starts the numbers over, and no epoch comes twice.
func TestRealSwitchBetweenClassicAndNextGen(t *testing.T) {
	t.Parallel()
	h := newRealHistory(t, kafkatest.Shared(t), 1)
	before := h.passOn(3)
	after := h.wantStartOver(before, kgo.ServerSideBalancer())
	if h.passOn(3, kgo.ServerSideBalancer()).Epoch < after.Epoch+3 { // who loses a session to a stall claims again
		t.Errorf("three more claims brought epoch %d to %d", after.Epoch, h.fence(0).Epoch)
	}
	h.passOn(1)
	h.wantExactlyOnce()
}

// passOn has n workers after each other apply five messages each, and returns
// the fence they leave.
func (h *realHistory) passOn(n int, opts ...kgo.Opt) epoch.Fence {
	h.Helper()
	for range n {
		before := h.fence(0)
		h.send(0, 5)
		w := h.start("earlier", opts...)
		h.awaitApplied()
		w.stop()
		if got := h.fence(0); got.Epoch <= before.Epoch {
			h.Errorf("a claim brought epoch %d after %d", got.Epoch, before.Epoch)
		}
	}
	return h.fence(0)
}

// wantStartOver checks that the next worker's lease has a generation that was there
// before, that its epoch was not, and that it continues where the fence is.
func (h *realHistory) wantStartOver(before epoch.Fence, opts ...kgo.Opt) epoch.Fence {
	h.Helper()
	h.send(0, 5)
	w := h.start("afterwards", opts...)
	h.awaitApplied()
	w.stop()
	got := all[consumer.Claimed](w)[0].Fence
	if got.Generation >= before.Generation || got.Epoch != before.Epoch+1 || got.Next != before.Next {
		h.Errorf("claimed generation %d, epoch %d, offset %d after generation %d, epoch %d, offset %d; "+
			"want a lower generation, the next epoch and the same offset",
			got.Generation, got.Epoch, got.Next, before.Generation, before.Epoch, before.Next)
	}
	h.wantExactlyOnce()
	return h.fence(0)
}

// expireOffsets commits the group's offset once more, with a retention of a
// millisecond, which a client could ask for up to version 4 of the request. It
// saves the minute that is the least the broker can be configured to.
func (h *realHistory) expireOffsets() {
	h.Helper()
	old := kversion.Stable()
	old.SetMaxKeyVersion(int16(kmsg.OffsetCommit), 4)
	client, err := kgo.NewClient(kgo.SeedBrokers(h.addr), kgo.MaxVersions(old))
	if err != nil {
		h.Fatal(err)
	}
	defer client.Close()
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Group, req.Generation, req.RetentionTimeMillis = h.group, -1, 1
	topic := kmsg.NewOffsetCommitRequestTopic()
	topic.Topic = h.topic
	part := kmsg.NewOffsetCommitRequestTopicPartition()
	part.Offset = int64(h.fence(0).Next)
	topic.Partitions = append(topic.Partitions, part)
	req.Topics = append(req.Topics, topic)
	resp, err := req.RequestWith(h.Context(), client)
	if err == nil {
		err = kerr.ErrorForCode(resp.Topics[0].Partitions[0].ErrorCode)
	}
	if err != nil {
		h.Fatalf("commit an offset that expires: %v", err)
	}
}

// The group has three partitions on one worker. A second one comes. What stays
// with the first keeps its claim and its epoch, while the generation moves on:
// it is not claimed again, and what is sent meanwhile is applied once.
func TestRealRetainedPartitionKeepsItsClaim(t *testing.T) {
	for name, opts := range map[string][]kgo.Opt{
		// A session that no stall outlasts: who loses it claims again.
		"cooperative": {kgo.Balancers(kgo.CooperativeStickyBalancer()), kgo.SessionTimeout(30 * time.Second), kgo.HeartbeatInterval(time.Second)},
		"KIP-848":     {kgo.ServerSideBalancer()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			h := newRealHistory(t, kafkatest.Shared(t), 3)
			for p := range int32(3) {
				h.send(p, 5)
			}
			a := h.start("a", opts...)
			h.awaitApplied()
			b := h.start("b", opts...)
			h.await("b to claim", func() bool { return len(all[consumer.Claimed](b)) > 0 })
			for p := range int32(3) {
				h.send(p, 5)
			}
			h.awaitApplied()
			for p := range int32(3) {
				h.send(p, 5)
			}
			h.awaitApplied()

			var moved, kept int
			for p := range int32(3) {
				f := h.fence(p)
				switch claims := claimsOf(a, p); {
				case owns(b, f):
					moved++
				case len(claims) != 1 || claims[0].Claim != f.Claim:
					t.Errorf("partition %d stayed with a and was claimed %d times, want once", p, len(claims))
				default:
					kept++
				}
			}
			if moved == 0 || kept == 0 {
				t.Errorf("%d partitions moved and %d stayed, want some of each", moved, kept)
			}
			b.stop()
			a.stop()
			h.wantExactlyOnce()
		})
	}
}

func claimsOf(w *worker, p int32) []epoch.Fence {
	var fs []epoch.Fence
	for _, c := range all[consumer.Claimed](w) {
		if c.Fence.Partition.Number == p {
			fs = append(fs, c.Fence)
		}
	}
	return fs
}

func owns(w *worker, f epoch.Fence) bool {
	for _, c := range all[consumer.Claimed](w) {
		if c.Fence.Claim == f.Claim {
			return true
		}
	}
	return false
}
