package kafkasource

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sync/semaphore"

	"github.com/epochfence/epochfence/epoch"
)

// This file knows the ids of the topics, which show that a topic was deleted and created again
// (R10).

const logPrefix = "kafka:" // of the names of logs

// topicIDs caches the ids of our topics. The id distinguishes logs of the same name.
type topicIDs struct {
	client *kgo.Client
	names  []string
	heard  func()              // called after every answer
	asking *semaphore.Weighted // one request at a time; whoever waits may use its answer

	mu    sync.Mutex
	ids   map[string][16]byte
	errs  map[string]error
	since time.Time // when the newest request was sent
}

func newTopicIDs(cl *kgo.Client, names []string, heard func()) *topicIDs {
	return &topicIDs{client: cl, names: names, heard: heard, asking: semaphore.NewWeighted(1)}
}

func (ts *topicIDs) known(topic string) [16]byte {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	return ts.ids[topic]
}

// fresh returns the id from a request that was not sent before since. Concurrent calls share a
// request.
func (ts *topicIDs) fresh(ctx context.Context, topic string, since time.Time) ([16]byte, error) {
	if err := ts.asking.Acquire(ctx, 1); err != nil {
		return [16]byte{}, err
	}
	defer ts.asking.Release(1)
	ts.mu.Lock()
	old := ts.since.Before(since)
	ts.mu.Unlock()
	if old {
		if _, err := ts.ask(ctx); err != nil {
			return [16]byte{}, fmt.Errorf("ask for the id of topic %q: %w", topic, err)
		}
		ts.heard()
	}
	ts.mu.Lock()
	defer ts.mu.Unlock()
	return ts.ids[topic], ts.errs[topic]
}

// ask reads the ids of all topics and returns the cluster's id.
func (ts *topicIDs) ask(ctx context.Context) (cluster string, err error) {
	began := time.Now()
	req := kmsg.NewPtrMetadataRequest()
	req.AllowAutoTopicCreation = false
	for _, name := range ts.names {
		t := kmsg.NewMetadataRequestTopic()
		t.Topic = kmsg.StringPtr(name)
		req.Topics = append(req.Topics, t)
	}
	resp, err := req.RequestWith(ctx, ts.client)
	if err != nil {
		return "", err
	}
	ids, errs := map[string][16]byte{}, map[string]error{}
	for _, name := range ts.names {
		errs[name] = errors.New("the broker left the topic out of its answer")
	}
	for _, t := range resp.Topics {
		if t.Topic == nil {
			continue
		}
		err := kerr.ErrorForCode(t.ErrorCode)
		if err == nil && t.TopicID == ([16]byte{}) {
			err = errNoTopicID
		}
		ids[*t.Topic], errs[*t.Topic] = t.TopicID, err
	}
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for name, id := range ts.ids {
		if errs[name] != nil {
			ids[name] = id // keep the last known id
		}
	}
	ts.ids, ts.errs, ts.since = ids, errs, began
	if resp.ClusterID != nil {
		cluster = *resp.ClusterID
	}
	return cluster, nil
}

func (ts *topicIDs) err() error {
	ts.mu.Lock()
	defer ts.mu.Unlock()
	for _, name := range ts.names {
		if err := ts.errs[name]; err != nil {
			return &topicError{name, err}
		}
	}
	return nil
}

type topicError struct {
	topic string
	err   error
}

func (e *topicError) Error() string { return fmt.Sprintf("topic %q: %v", e.topic, e.err) }
func (e *topicError) Unwrap() error { return e.err }

// logOf names the log of a topic by the ids of cluster and topic, in the notation of Kafka's tools.
func (s *Source) logOf(id [16]byte) string {
	return logPrefix + s.cluster + "/" + base64.RawURLEncoding.EncodeToString(id[:])
}

func (s *Source) origin(p topicPartition, id [16]byte) epoch.Origin {
	return epoch.Origin{
		Partition: epoch.Partition{Group: s.set.Group, Topic: p.topic, Number: p.number},
		Log:       s.logOf(id),
		Source:    fmt.Sprintf("kafka cluster %s group %q", s.cluster, s.set.Group),
	}
}
