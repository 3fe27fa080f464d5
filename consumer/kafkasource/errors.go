package kafkasource

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
)

// This file turns what a feed or the broker reports into the errors of a read, with both numbers
// where a position does not fit the log (R10). Package consumer decides what follows.

var (
	// errOtherTopic means that the broker knows the topic under another id.
	errOtherTopic = errors.New("the topic was deleted and created again")

	// errNoTopicID means that the broker answered without a topic id.
	errNoTopicID = errors.New("the broker does not fetch by topic id, which takes Kafka 3.1: " +
		"a topic that was deleted and created again could not be told from the old one")

	errRevoked   = errors.New("the group took the partition away")
	errNewMember = errors.New("the group let this member go and took it in as a new one")
	errSilence   = fmt.Errorf("%w: the group's coordinator has acknowledged nothing for too long", consumer.ErrLeaseExpired)
)

// misfitError is a [consumer.PositionError] without the partition.
type misfitError struct {
	kind            error
	position, found int64
}

func (e *misfitError) Error() string {
	return fmt.Sprintf("%v: at %d, found %d", e.kind, e.position, e.found)
}

// explain returns an error of the feed with the position of the fence. It asks the broker for the
// range of the log, so that the error has both numbers.
func (t *tenure) explain(ctx context.Context, f *feed, from epoch.Fence, err error) error {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	position := func(kind error, at, found int64) error {
		return &consumer.PositionError{Partition: from.Partition, Kind: kind, Position: epoch.Offset(at), Found: epoch.Offset(found)}
	}
	var (
		fault *misfitError
		loss  *kgo.ErrDataLoss
		huge  *kgo.ErrDecompressTooLarge
	)
	switch {
	case errors.As(err, &fault):
		return position(fault.kind, fault.position, fault.found)
	case errors.As(err, &loss):
		if at := f.taken(); loss.ResetTo < at {
			return position(consumer.ErrTruncated, at, loss.ResetTo)
		}
		return fmt.Errorf("kafkasource: read %s: the log was truncated to offset %d, above the position; reading again: %w", from.Partition, loss.ResetTo, err)
	case errors.Is(err, kerr.OffsetOutOfRange):
		at := f.taken()
		start, end, lerr := t.s.bounds(ctx, t.topicPartition)
		switch {
		case lerr != nil:
			return fmt.Errorf("kafkasource: read %s at offset %d: %w, and what the log holds could not be learnt: %w", from.Partition, at, err, lerr)
		case at < start:
			return position(consumer.ErrOffsetExpired, at, start)
		case at > end:
			return position(consumer.ErrTruncated, at, end)
		}
		return fmt.Errorf("kafkasource: read %s at offset %d: %w, though the log holds %d to %d", from.Partition, at, err, start, end)
	case errors.Is(err, errOtherTopic), isUnknown(err):
		id, terr := t.s.topics.fresh(ctx, t.topic, time.Now())
		switch {
		case errors.Is(terr, kerr.UnknownTopicOrPartition):
			return fmt.Errorf("kafkasource: read %s: the topic was deleted: %w", from.Partition, terr)
		case terr != nil:
			return fmt.Errorf("kafkasource: read %s: %w, and the topic's id could not be learnt: %w", from.Partition, err, terr)
		case id != f.id: // the tenure is lost for it
			return &epoch.LogChangedError{Partition: from.Partition, Fence: from.Log, Source: t.s.logOf(id), Next: epoch.Offset(f.taken())}
		}
		return fmt.Errorf("kafkasource: read %s: the broker does not know the topic, others do: %w", from.Partition, err)
	case errors.Is(err, kerr.TopicAuthorizationFailed):
		return fmt.Errorf("kafkasource: read %s: this user may not read the topic: %w", from.Partition, err)
	case errors.As(err, &huge):
		return fmt.Errorf("kafkasource: read %s: the record batch at offset %d is larger than kgo.MaxDecompressBatchBytes; raise it: %w: %w", from.Partition, huge.Offset, consumer.ErrBlocked, err)
	}
	return fmt.Errorf("kafkasource: read %s: %w", from.Partition, err)
}

const askTimeout = 10 * time.Second // of a request

// bounds returns the first offset of the log and the offset after its last.
func (s *Source) bounds(ctx context.Context, p topicPartition) (start, end int64, err error) {
	if start, _, err = s.listOffset(ctx, p, -2); err != nil {
		return 0, 0, err
	}
	end, _, err = s.listOffset(ctx, p, -1)
	return start, end, err
}

// listOffset requests one offset of a partition, with its leader epoch. Timestamp -2 is the first
// offset, -1 the end.
func (s *Source) listOffset(ctx context.Context, p topicPartition, timestamp int64) (at int64, leaderEpoch int32, err error) {
	req := kmsg.NewPtrListOffsetsRequest()
	req.ReplicaID = -1
	topic := kmsg.NewListOffsetsRequestTopic()
	topic.Topic = p.topic
	part := kmsg.NewListOffsetsRequestTopicPartition()
	part.Partition = p.number
	part.Timestamp = timestamp
	topic.Partitions = append(topic.Partitions, part)
	req.Topics = append(req.Topics, topic)
	resp, err := req.RequestWith(ctx, s.reader)
	if err != nil {
		return 0, -1, err
	}
	for _, t := range resp.Topics {
		for _, p := range t.Partitions {
			return p.Offset, p.LeaderEpoch, kerr.ErrorForCode(p.ErrorCode)
		}
	}
	return 0, -1, errors.New("the broker left the partition out of its answer")
}
