package kafkasource

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sync/semaphore"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/internal/tenures"
	"github.com/epochfence/epochfence/internal/waits"
)

// This file sends positions to the coordinator, and decides whether its answer confirms a tenure
// (R2, R7). Which position is sent is decided in committed.go.

// commits sends positions to the group's coordinator. It sends one request at a time with
// everything that waits, so that hundreds of partitions that confirm at start need only a few
// requests.
type commits struct {
	s    *Source
	busy *semaphore.Weighted // one request at a time
	wake chan struct{}

	mu      sync.Mutex
	waiting []*commit
}

// commit is one partition's part of a request.
type commit struct {
	t       *tenure
	id      [16]byte
	at      committed
	outcome chan outcome // buffers one; nil if nobody waits
}

type outcome struct {
	number int32 // the generation or member epoch that the coordinator accepted
	err    error
}

func newCommits(s *Source) *commits {
	return &commits{s: s, busy: semaphore.NewWeighted(1), wake: make(chan struct{}, 1)}
}

// confirm commits a position and returns the generation under which the coordinator accepted it.
// The request is sent after the call of confirm, never before (R2).
func (c *commits) confirm(ctx context.Context, t *tenure, id [16]byte, at committed) (int32, error) {
	one := &commit{t: t, id: id, at: at, outcome: make(chan outcome, 1)}
	c.mu.Lock()
	c.waiting = append(c.waiting, one)
	c.mu.Unlock()
	waits.Notify(c.wake)
	select {
	case o := <-one.outcome:
		return o.number, o.err
	case <-t.WhenLost():
		return 0, t.Lost()
	case <-ctx.Done():
		return 0, ctx.Err()
	}
}

// run sends waiting commits at once, and the tenures' positions every interval, until ctx ends.
func (c *commits) run(ctx context.Context, interval time.Duration) {
	mirror := time.NewTicker(interval)
	defer mirror.Stop()
	for {
		var ts []*tenure
		select {
		case <-ctx.Done():
			return
		case <-c.wake:
		case <-mirror.C:
			ts = c.s.held()
		}
		c.sendOnce(ctx, ts)
	}
}

// flush publishes the last positions of ended tenures, while their membership is still valid. The
// group waits meanwhile, so the time is short.
func (c *commits) flush(ts []*tenure) {
	ctx, cancel := context.WithTimeout(c.s.base, min(c.s.commitTimeout(), c.s.contact.lease().rebalance/10))
	defer cancel()
	c.sendOnce(ctx, ts)
}

func (c *commits) sendOnce(ctx context.Context, mirror []*tenure) {
	if c.busy.Acquire(ctx, 1) != nil {
		return
	}
	defer c.busy.Release(1)
	c.mu.Lock()
	all := c.waiting
	c.waiting = nil
	c.mu.Unlock()
	confirming := make(map[*tenure]bool, len(all))
	for _, o := range all {
		confirming[o.t] = true
	}
	for _, t := range mirror {
		if at, ok := t.unpublished(); ok && !confirming[t] {
			all = append(all, &commit{t: t, id: c.s.topics.known(t.topic), at: at})
		}
	}
	if len(all) > 0 {
		c.send(ctx, all)
	}
}

func (c *commits) send(ctx context.Context, all []*commit) {
	ctx, cancel := context.WithTimeout(ctx, c.s.commitTimeout())
	defer cancel()
	member, generation := c.s.memberClient().GroupMetadata()
	req := kmsg.NewPtrOffsetCommitRequest()
	req.Group = c.s.set.Group
	req.MemberID, req.Generation, req.InstanceID = member, generation, c.s.set.instance

	sent := map[topicPartition]*commit{}
	topics := map[string]int{} // indexes in req.Topics
	for _, one := range all {
		if err := mayCommit(one, member, generation); err != nil {
			one.done(outcome{err: err})
			continue
		}
		i, ok := topics[one.t.topic]
		if !ok {
			t := kmsg.NewOffsetCommitRequestTopic()
			t.Topic, t.TopicID = one.t.topic, one.id // version 10 and later use the id
			req.Topics = append(req.Topics, t)
			i = len(req.Topics) - 1
			topics[one.t.topic] = i
		}
		p := kmsg.NewOffsetCommitRequestTopicPartition()
		p.Partition, p.Offset, p.LeaderEpoch = one.t.number, one.at.at, one.at.leaderEpoch
		p.Metadata = kmsg.StringPtr(one.at.metadata)
		req.Topics[i].Partitions = append(req.Topics[i].Partitions, p)
		sent[one.t.topicPartition] = one
	}
	if len(sent) == 0 {
		return
	}
	resp, err := req.RequestWith(ctx, c.s.memberClient())
	if err != nil {
		answer(sent, outcome{err: fmt.Errorf("commit the position: %w", err)})
		return
	}
	for _, t := range resp.Topics {
		topic := t.Topic
		if topic == "" {
			topic = topicOf(req, t.TopicID)
		}
		for _, p := range t.Partitions {
			one := sent[topicPartition{topic, p.Partition}]
			if one == nil {
				continue
			}
			delete(sent, one.t.topicPartition)
			one.done(c.judge(one, generation, p.ErrorCode))
		}
	}
	answer(sent, outcome{err: errors.New("the coordinator left the partition out of its answer")})
}

func topicOf(req *kmsg.OffsetCommitRequest, id [16]byte) string {
	for _, t := range req.Topics {
		if t.TopicID == id {
			return t.Topic
		}
	}
	return ""
}

func answer(all map[topicPartition]*commit, o outcome) {
	for _, one := range all {
		one.done(o)
	}
}

func (one *commit) done(o outcome) {
	if one.outcome != nil {
		one.outcome <- o
		return
	}
	if o.err == nil {
		one.t.publishedAs(one.at)
		return
	}
	one.t.s.log.Debug("position not mirrored", "topic", one.t.topic, "partition", one.t.number, "next", one.at.at, "err", o.err)
}

// mayCommit refuses commits that the coordinator would accept although the partition is not ours.
func mayCommit(one *commit, member string, generation int32) error {
	switch {
	case member == "" || generation <= 0:
		return errNotJoined
	case member != one.t.member:
		one.t.Lose(errNewMember)
		return tenures.Lost(errNewMember)
	}
	return nil
}

func (c *commits) judge(one *commit, generation int32, code int16) outcome {
	err := kerr.ErrorForCode(code)
	switch {
	case err == nil:
		return outcome{number: generation}
	case errors.Is(err, kerr.FencedInstanceID):
		fenced := c.s.fenced(err)
		one.t.Lose(fenced)
		c.s.fail(fenced)
		return outcome{err: tenures.Lost(fenced)}
	case errors.Is(err, kerr.UnknownMemberID), errors.Is(err, kerr.IllegalGeneration),
		errors.Is(err, kerr.StaleMemberEpoch), errors.Is(err, kerr.FencedMemberEpoch), errors.Is(err, kerr.RebalanceInProgress):
		// This is no refusal: we may belong to the newest generation a moment later. Otherwise the
		// tenure ends by itself.
		return outcome{err: fmt.Errorf("the group is rebalancing or has let us go, ask again: %w", err)}
	case errors.Is(err, kerr.OffsetMetadataTooLarge):
		return outcome{err: fmt.Errorf("commit the position: its metadata of %d bytes exceeds the broker's offset.metadata.max.bytes; raise that, its default is 4096: %w: %w",
			len(one.at.metadata), consumer.ErrBlocked, err)}
	case errors.Is(err, kerr.TopicAuthorizationFailed), errors.Is(err, kerr.GroupAuthorizationFailed):
		return outcome{err: fmt.Errorf("this user may not commit to group %q for topic %q: %w", c.s.set.Group, one.t.topic, err)}
	}
	return outcome{err: fmt.Errorf("commit the position: %w", err)}
}

// commitTimeout limits a request to the coordinator. A later confirmation would leave too little of
// the lease.
func (s *Source) commitTimeout() time.Duration {
	return min(askTimeout, s.contact.lease().term()/2)
}
