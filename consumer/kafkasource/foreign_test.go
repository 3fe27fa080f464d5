package kafkasource

import (
	"context"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
)

// CommitAsOthers commits a position for a group as a consumer without fences
// would: as one of the group's members, where it has some.
func CommitAsOthers[L any](t testing.TB, admin *kadm.Client, sources map[consumer.Source]L, group, topic string, partition int32, at epoch.Offset) {
	t.Helper()
	var offsets kadm.Offsets
	offsets.AddOffset(topic, partition, int64(at), -1)
	deadline := time.After(patience)
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	for {
		err := admin.CommitAllOffsets(t.Context(), group, offsets)
		for s := range sources {
			if s, ok := s.(*Source); ok && err != nil && s.set.Group == group {
				err = commitAsMember(t.Context(), s, topic, partition, at)
			}
		}
		if err == nil {
			return
		}
		select {
		case <-again.C:
		case <-deadline:
			t.Fatalf("commit %s/%d of group %s at %d: %v", topic, partition, group, at, err)
		}
	}
}

func commitAsMember(ctx context.Context, s *Source, topic string, partition int32, at epoch.Offset) error {
	select {
	case <-s.ready:
	default:
		return errNotJoined
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Group = s.set.Group
	req.MemberID, req.Generation = s.memberClient().GroupMetadata()
	t := kmsg.NewOffsetCommitRequestTopic()
	t.Topic, t.TopicID = topic, s.topics.known(topic)
	p := kmsg.NewOffsetCommitRequestTopicPartition()
	p.Partition, p.Offset, p.LeaderEpoch = partition, int64(at), -1
	t.Partitions = append(t.Partitions, p)
	req.Topics = append(req.Topics, t)
	resp, err := req.RequestWith(ctx, s.memberClient())
	if err != nil {
		return err
	}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			return kerr.ErrorForCode(p.ErrorCode)
		}
	}
	return errNotJoined
}
