package kafkasource

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// This file tells operators what Kafka knows of partitions: where their logs begin and end, and which member of
// the group has them. That one may be a consumer without a fence, which the sink cannot know.

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
