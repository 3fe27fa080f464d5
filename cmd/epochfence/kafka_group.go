package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/epochfence/epochfence/epoch"
)

// This file asks Kafka which members a group has, classic or KIP-848. moveover.go decides which of
// them are old consumers.

func (k *kafkaBroker) groupOf(ctx context.Context, group string) (m membership, err error) {
	ctx, cancel := context.WithTimeout(ctx, k.timeout)
	defer cancel()
	if err = k.members(ctx, group, &m); err != nil {
		return m, fmt.Errorf("kafka: the members of group %q: %w", group, err)
	}
	offsets, err := k.client.FetchOffsets(ctx, group)
	if err == nil {
		err = offsets.Error()
	}
	if err != nil && !errors.Is(err, kerr.GroupIDNotFound) { // GroupIDNotFound: the group has expired or was deleted
		return m, fmt.Errorf("kafka: what group %q has committed: %w", group, err)
	}
	for topic, of := range offsets {
		for n, o := range of {
			if o.At >= 0 {
				m.committed = append(m.committed, epoch.Partition{Group: group, Topic: topic, Number: n})
			}
		}
	}
	return m, nil
}

// members adds the members with partitions. In reply to a request for a classic group, Kafka
// describes a KIP-848 group as dead or not found. While a classic group rebalances, Kafka does not
// say which member has which partitions.
func (k *kafkaBroker) members(ctx context.Context, group string, into *membership) error {
	classic, err := k.client.DescribeGroups(ctx, group)
	if err != nil {
		return err
	}
	one := classic[group]
	if one.Err != nil && !errors.Is(one.Err, kerr.GroupIDNotFound) {
		return one.Err
	}
	add := func(id, host string, has kadm.TopicsSet) {
		m := member{id: id, host: host}
		has.Each(func(topic string, n int32) {
			m.has = append(m.has, epoch.Partition{Group: group, Topic: topic, Number: n})
		})
		if len(m.has) > 0 {
			into.members = append(into.members, m)
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
		into.rebalancing = one.State != "Stable"
		return nil
	}
	modern, err := k.client.DescribeConsumerGroups(ctx, group)
	if err != nil {
		if errors.Is(err, kerr.UnsupportedVersion) { // a broker without KIP-848
			return nil
		}
		return err
	}
	other := modern[group]
	if other.Err != nil && !errors.Is(other.Err, kerr.GroupIDNotFound) && !errors.Is(other.Err, kerr.UnsupportedVersion) {
		return other.Err
	}
	for _, m := range other.Members {
		add(m.MemberID, m.ClientHost, m.Assignment)
	}
	return nil
}
