package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/internal/show"
)

// fakeBroker starts a broker in this process. It allows sessions as short as the settings need.
func fakeBroker(session time.Duration) (addrs []string, stop func(), err error) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.GroupMinSessionTimeout(min(session, kafkaMinSession)))
	if err != nil {
		return nil, nil, fmt.Errorf("inventory: start the fake broker: %w", err)
	}
	return cluster.ListenAddrs(), cluster.Close, nil
}

type kafka struct {
	client *kgo.Client
	admin  *kadm.Client
}

func connectKafka(ctx context.Context, brokers []string) (*kafka, error) {
	client, err := kgo.NewClient(
		kgo.SeedBrokers(brokers...),
		kgo.ClientID("inventory"),
		kgo.RecordRetries(20),
		kgo.RecordDeliveryTimeout(time.Minute),
	)
	if err != nil {
		return nil, fmt.Errorf("inventory: -brokers: %w", err)
	}
	answer, cancel := context.WithTimeout(ctx, show.Reachable)
	defer cancel()
	if err := client.Ping(answer); err != nil {
		client.Close()
		return nil, fmt.Errorf("inventory: -brokers: cannot reach Kafka; is it running, and is this its plaintext listener? %w", err)
	}
	return &kafka{client: client, admin: kadm.NewClient(client)}, nil
}

func (k *kafka) createTopic(ctx context.Context, topic string, partitions int) error {
	ctx, cancel := context.WithTimeout(ctx, show.Preparing)
	defer cancel()
	r, err := k.admin.CreateTopic(ctx, int32(partitions), -1, nil, topic)
	if err == nil {
		err = r.Err
	}
	if err != nil {
		return fmt.Errorf("inventory: create topic %s: %w", topic, err)
	}
	return nil
}

func (k *kafka) remove(topic, group string) error {
	ctx, cancel := context.WithTimeout(context.Background(), show.Preparing)
	defer cancel()
	t, err := k.admin.DeleteTopic(ctx, topic)
	if err = errors.Join(err, t.Err); err != nil {
		return fmt.Errorf("inventory: delete topic %s: %w", topic, err)
	}
	g, err := k.admin.DeleteGroup(ctx, group)
	if err = errors.Join(err, g.Err); err != nil && !errors.Is(err, kerr.GroupIDNotFound) {
		return fmt.Errorf("inventory: delete group %s: %w", group, err)
	}
	return nil
}

// send produces the reservations of seed to topic at the pace of pace, keyed by item. It returns
// their places once the broker has acknowledged all.
func (k *kafka) send(ctx context.Context, topic string, seed uint64, items, messages int, pace *show.Pace) ([]show.Place, error) {
	ctx, fail := context.WithCancelCause(ctx)
	defer fail(nil)
	sent := make([]show.Place, messages)
	var acks sync.WaitGroup
	for i := 0; ; {
		n, err := pace.Wait(ctx)
		if err != nil || n == 0 {
			acks.Wait()
			if err == nil {
				err = context.Cause(ctx)
			}
			return sent, err
		}
		acks.Add(n)
		for range n {
			r := reservation(seed, i, items)
			value, err := json.Marshal(r)
			if err != nil {
				return nil, fmt.Errorf("inventory: %w", err)
			}
			at := &sent[i]
			k.client.Produce(ctx, &kgo.Record{Topic: topic, Key: []byte(r.Item), Value: value}, func(r *kgo.Record, err error) {
				defer acks.Done()
				if err != nil {
					fail(fmt.Errorf("inventory: send to %s: %w", topic, err))
				}
				*at = show.Place{Partition: r.Partition, Offset: r.Offset}
			})
			i++
		}
	}
}
