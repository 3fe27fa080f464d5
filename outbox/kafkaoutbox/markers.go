package kafkaoutbox

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/epochfence/epochfence/outbox/internal/batches"
)

// This file completes a transaction that Kafka has ended without telling its partitions. To end one, Kafka's
// coordinator writes a marker to each partition, and it skips those that have no leader, because it takes
// them for deleted topics. When the only broker crashes and starts again, none has a leader for a moment.
// Then the position stays unstable, and readers of the records wait, until another transaction of the same
// producer ends in these partitions: with the result that the first one had, so that it is all or nothing.
//
// That completion is a transaction, too, and Kafka aborts it if its process dies or stalls. Some partitions may
// have the first one's commit by then, while the position says that its batch was aborted. So:
//
//  1. DescribeTransactions is asked how the first one ended, and then InitProducerId fences all before it.
//  2. A fenced transaction of the database stores that result, with the session's producer epoch, in the
//     batch's assignment: the completion has begun.
//  3. Only then are the partitions added, then the group, and EndTxn follows.
//  4. A later session goes on if Kafka says that this completion ended with that result, or that it added
//     nothing: the transactional ID is empty, with the stored epoch.
//  5. Otherwise a completion that was to commit may be aborted in a part. Unless the position has the batch, that
//     is a doubt: the batch is not sent again. One that was to abort cannot end in another way.

// unstableWait is how long a position may be unstable in a new session. InitProducerId is answered when all
// markers are written, so it is stable at once, unless the coordinator of the group has just changed.
const unstableWait = 3 * time.Second

var errUnstable = errors.New("it stays unstable")

type result int

const (
	unknown result = iota
	committed
	aborted
	forgotten // by an InitProducerId that had no transaction to end
)

// ended is what Kafka says of the last transaction before InitProducerId, which forgets it. Options.ended has it by
// transactional ID until a position is read: what follows InitProducerId may fail.
type ended struct {
	result
	id    int64
	epoch int16
}

func (s *session) describe(ctx context.Context) (e ended, err error) {
	err = until(ctx, func() error {
		req := kmsg.NewPtrDescribeTransactionsRequest()
		req.TransactionalIDs = []string{s.name}
		resp, err := req.RequestWith(ctx, s.cl)
		if err != nil {
			return err
		}
		for _, t := range resp.TransactionStates {
			if err := kerr.ErrorForCode(t.ErrorCode); err != nil {
				return err
			}
			e = ended{id: t.ProducerID, epoch: t.ProducerEpoch}
			switch {
			case strings.HasSuffix(t.State, "Commit"): // Prepare, Complete
				e.result = committed
			case strings.HasSuffix(t.State, "Abort"):
				e.result = aborted
			case t.State == "Empty":
				e.result = forgotten
			}
		}
		return nil
	})
	if ctx.Err() != nil {
		return ended{}, fmt.Errorf("describe transactional ID %s: %w", s.name, err)
	}
	return e, nil // without the answer, the result is unknown
}

// of returns the result if no transaction came between it and the session: each, and InitProducerId, raises the
// epoch. before is what an earlier session knew, if it was the last to begin.
func (e ended) of(s *session, before ended) result {
	if e.result == forgotten {
		if before.id != e.id || before.epoch != e.epoch {
			return unknown
		}
		e.result = before.result
	}
	if e.id == s.id && e.epoch+1 == s.epoch {
		return e.result
	}
	return unknown
}

// text is what the database has of a completion that has begun.
func (e ended) text() string {
	what := "abort"
	if e.result == committed {
		what = "commit"
	}
	return fmt.Sprintf("%s %d %d", what, e.id, e.epoch)
}

func begunBy(text string) (e ended) {
	var what string
	if _, err := fmt.Sscanf(text, "%s %d %d", &what, &e.id, &e.epoch); err != nil {
		return ended{}
	}
	e.result = map[string]result{"commit": committed, "abort": aborted}[what]
	return e
}

// ends returns the result of the transaction before the session. before is what the database has of a
// completion, or empty.
func (s *session) ends(before string) result {
	switch begun := begunBy(before); {
	case begun.result == aborted:
		return aborted
	case s.last != unknown:
		return s.last
	default:
		return s.was.of(s, begun)
	}
}

// torn reports whether the completion that the database has may have been aborted in a part.
func (s *session) torn(begun string) bool {
	want := begunBy(begun).result
	return begun != "" && (want == unknown || s.ends(begun) != want)
}

// completion returns what the database must have before complete is called.
func (s *session) completion(before string) (string, error) {
	if s.last = s.ends(before); s.last == unknown || s.torn(before) {
		return "", fmt.Errorf("%w: the position of group %s in topic %s is unstable, and its transaction has ended: Kafka has lost the markers of that, and has "+
			"forgotten whether it was committed; find its partitions with `kafka-transactions.sh find-hanging`, see whether others have its records, and abort it in each",
			batches.ErrDoubt, s.name, s.topic)
	}
	return ended{s.last, s.id, s.epoch}.text(), nil
}

// complete ends an empty transaction in all partitions of the topics and in the group. A marker does nothing
// in a partition without an open one. The group is last: until its marker is written, no session sends.
func (s *session) complete(ctx context.Context, topics []string) error {
	if len(topics) > 0 {
		if err := until(ctx, func() error { return s.addTopics(ctx, topics) }); err != nil {
			return err
		}
	}
	if err := s.addGroup(ctx); err != nil {
		return err
	}
	return s.end(ctx, s.last == committed)
}

func (s *session) addTopics(ctx context.Context, topics []string) error {
	meta := kmsg.NewPtrMetadataRequest()
	for _, name := range topics {
		topic := kmsg.NewMetadataRequestTopic()
		topic.Topic = &name
		meta.Topics = append(meta.Topics, topic)
	}
	found, err := meta.RequestWith(ctx, s.cl)
	if err != nil {
		return err
	}
	req := kmsg.NewPtrAddPartitionsToTxnRequest()
	req.TransactionalID, req.ProducerID, req.ProducerEpoch = s.name, s.id, s.epoch
	for _, topic := range found.Topics {
		switch err := kerr.ErrorForCode(topic.ErrorCode); {
		case errors.Is(err, kerr.UnknownTopicOrPartition): // it is gone, with its records
			continue
		case err != nil:
			return err
		}
		add := kmsg.NewAddPartitionsToTxnRequestTopic()
		add.Topic = *topic.Topic
		for _, p := range topic.Partitions {
			add.Partitions = append(add.Partitions, p.Partition)
		}
		req.Topics = append(req.Topics, add)
	}
	if len(req.Topics) == 0 {
		return nil
	}
	resp, err := req.RequestWith(ctx, s.cl)
	if err != nil {
		return err
	}
	for _, topic := range resp.Topics {
		for _, p := range topic.Partitions {
			if err := kerr.ErrorForCode(p.ErrorCode); err != nil {
				return fmt.Errorf("add partition %s/%d: %w", topic.Topic, p.Partition, err)
			}
		}
	}
	return nil
}
