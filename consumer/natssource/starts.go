package natssource

import (
	"cmp"
	"context"
	"fmt"
	"regexp"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
)

// starts says where each partition begins. committed returns the position that
// the group has mirrored.
func (l *streamLog) starts(ctx context.Context, in incarnation, origin func(n int32) epoch.Origin, policy consumer.StartPolicy,
	committed func(ctx context.Context, n int32) (epoch.Offset, bool, error)) ([]epoch.Start, error) {
	starts, err := l.listStarts(ctx, in, origin, policy, committed)
	if err != nil {
		return nil, fmt.Errorf("natssource: where stream %q starts (%v): %w", l.stream.Name, policy, err)
	}
	return starts, nil
}

func (l *streamLog) listStarts(ctx context.Context, in incarnation, origin func(n int32) epoch.Origin, policy consumer.StartPolicy,
	committed func(ctx context.Context, n int32) (epoch.Offset, bool, error)) ([]epoch.Start, error) {
	info, err := l.look(ctx)
	if err != nil {
		return nil, err
	}
	if incarnationOf(info) != in {
		return nil, lost(errOtherStream)
	}
	earliest := epoch.Offset(max(info.State.FirstSeq, 1))
	next := func(int32) (epoch.Offset, error) { return earliest, nil }
	switch policy {
	case consumer.StartEarliest:
	case consumer.StartLatest:
		next = func(int32) (epoch.Offset, error) { return epoch.Offset(info.State.LastSeq + 1), nil }
	case consumer.StartCommitted:
		acked, err := l.acked(ctx, info)
		if err != nil {
			return nil, fmt.Errorf("the positions of consumer %q: %w", l.group, err)
		}
		next = func(n int32) (epoch.Offset, error) {
			at, ok, err := committed(ctx, n)
			switch {
			case err != nil:
				return 0, fmt.Errorf("the position of partition %d: %w", n, err)
			case ok:
				return at, nil
			case acked > 0:
				return acked, nil
			}
			return earliest, nil
		}
	default:
		return nil, fmt.Errorf("unknown policy %d", policy)
	}
	starts := make([]epoch.Start, l.partitions())
	for n := range l.partitions() {
		at, err := next(n)
		if err != nil {
			return nil, err
		}
		starts[n] = epoch.Start{Origin: origin(n), Next: at, Earliest: earliest}
	}
	return starts, nil
}

// acked is the position of a durable consumer that is named as the group, such as
// one that did this work before; zero if there is none. Info is the stream's.
func (l *streamLog) acked(ctx context.Context, info *jetstream.StreamInfo) (epoch.Offset, error) {
	if !consumerName.MatchString(l.group) {
		return 0, nil
	}
	var c struct {
		AckFloor struct {
			Stream uint64 `json:"stream_seq"`
		} `json:"ack_floor"`
		Config struct {
			Replicas int `json:"num_replicas"`
		} `json:"config"`
		Cluster *jetstream.ClusterInfo `json:"cluster"`
	}
	err := ask(ctx, l.js, "CONSUMER.INFO."+l.stream.Name+"."+l.group, struct{}{}, &c)
	switch {
	case hasCode(err, jetstream.JSErrCodeConsumerNotFound):
		return 0, nil
	case err != nil:
		return 0, denied(l.js.Conn(), apiPrefix(l.js)+"CONSUMER.INFO.", err)
	case c.Cluster == nil && info.Cluster != nil && info.Cluster.Name != "",
		c.Cluster != nil && !leads(c.Cluster, cmp.Or(c.Config.Replicas, info.Config.Replicas)):
		return 0, errNoLeader // a server of a cluster that has only heard of the consumer may answer, too
	case c.AckFloor.Stream == 0:
		return 0, nil
	}
	return epoch.Offset(c.AckFloor.Stream + 1), nil
}

// consumerName is what a durable consumer can be called.
var consumerName = regexp.MustCompile(`^[^.*>\s/\\]+$`)
