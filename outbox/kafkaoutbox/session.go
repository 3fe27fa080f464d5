package kafkaoutbox

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"github.com/epochfence/epochfence/internal/waits"
	"github.com/epochfence/epochfence/outbox"
)

// This file has the transactions in Kafka: the position first, then the records. Everything else is in the
// order that package batches relies on: InitProducerId, then the read of the position, then nothing but this
// session's own transactions. A session ends with its first error, because franz-go may get a new
// producer epoch after an error, without anybody reading the position again.

const (
	// transactionTimeout is short because readers wait for an open transaction. It only ends that of a
	// process that has died, or stands still, and has no successor.
	transactionTimeout = 3 * time.Second

	metadataStart = "epochfence batch "
)

// retryWait returns the wait after a number of tries. It is short at first, because Kafka refuses the next
// transaction while it completes the last one.
func retryWait(tries int) time.Duration {
	return min(5*time.Millisecond<<min(max(0, tries-20), 6), 250*time.Millisecond)
}

// session is a transactional producer that has read its position.
type session struct {
	cl    *kgo.Client
	name  string // the transactional ID, and the group
	topic string // of the position
	id    int64
	epoch int16
	old   bool // the transactions are those from before KIP-890
	at    position
	was   ended  // described before the session began
	last  result // of the transaction before

	unstable bool // there is no position, until that is completed
}

// clientOf returns the options of a client. An old one uses the transactions from before KIP-890, as franz-go
// does if the cluster has no others. A session has one or the other.
func (o Options) clientOf(name string, old bool) []kgo.Opt {
	v := kversion.Stable()
	v.SetMaxKeyVersion(int16(kmsg.OffsetFetch), 9)        // later versions go by topic IDs
	v.SetMaxKeyVersion(int16(kmsg.TxnOffsetCommit), 5)    // the same
	v.SetMaxKeyVersion(int16(kmsg.AddPartitionsToTxn), 3) // later versions are for brokers
	if old {
		v.SetMaxKeyVersion(int16(kmsg.TxnOffsetCommit), 4)
		v.SetMaxKeyVersion(int16(kmsg.EndTxn), 4)
	}
	opts := append([]kgo.Opt{}, o.Client...)
	return append(opts, kgo.MaxVersions(v), kgo.TransactionalID(name), kgo.TransactionTimeout(transactionTimeout), kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.RetryBackoffFn(retryWait), kgo.MaxBufferedRecords(2*o.Batch+1), kgo.UnknownTopicRetries(3),
		kgo.MetadataMinAge(100*time.Millisecond))
}

// open returns a session for the partition with this name. If there is no position yet, it writes one, in an old
// transaction: franz-go does not learn the producer epoch after one of KIP-890 without records.
func (o Options) open(ctx context.Context, name string, mayBegin bool) (*session, error) {
	s, err := o.connect(ctx, name, false)
	if err != nil || s.at.Number >= 0 || s.unstable || !mayBegin {
		return s, err
	}
	s.close()
	if s, err = o.connect(ctx, name, true); err != nil || s.unstable {
		return s, err
	}
	if s.at.Number < 0 {
		err = s.write(ctx, s.at.Next())
	}
	s.close()
	if err != nil {
		return nil, err
	}
	return o.connect(ctx, name, false)
}

func (o Options) connect(ctx context.Context, name string, old bool) (*session, error) {
	cl, err := kgo.NewClient(o.clientOf(name, old)...)
	if err != nil {
		return nil, fmt.Errorf("kafkaoutbox: %w", err)
	}
	s := &session{cl: cl, name: name, topic: o.Positions, old: old}
	if !old {
		versions, err := kmsg.NewPtrApiVersionsRequest().RequestWith(ctx, s.cl)
		if err != nil {
			s.close()
			return nil, fmt.Errorf("kafkaoutbox: ask Kafka for its versions: %w", err)
		}
		if !slices.ContainsFunc(versions.FinalizedFeatures, func(f kmsg.ApiVersionsResponseFinalizedFeature) bool {
			return f.Name == "transaction.version" && f.MaxVersionLevel >= 2
		}) {
			s.close()
			return o.connect(ctx, name, true)
		}
	}
	if err = s.init(ctx, o); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *session) close() { s.cl.Close() }

func (s *session) init(ctx context.Context, o Options) (err error) {
	if s.was, err = s.describe(ctx); err != nil {
		return fmt.Errorf("kafkaoutbox: %w", err)
	}
	if s.id, s.epoch, err = s.cl.ProducerID(ctx); err != nil {
		return fmt.Errorf("kafkaoutbox: begin as transactional ID %s: %w", s.name, err)
	}
	known, _ := o.ended.Load(s.name)
	before, _ := known.(ended)
	s.last = s.was.of(s, before)
	o.ended.Store(s.name, ended{s.last, s.id, s.epoch})
	s.at, err = s.position(ctx)
	if s.unstable = errors.Is(err, errUnstable); s.unstable {
		s.at = position{Number: -1}
	} else if err != nil {
		return fmt.Errorf("kafkaoutbox: read the position of group %s in topic %s: %w", s.name, s.topic, err)
	} else {
		o.ended.Delete(s.name)
	}
	return nil
}

// until calls try again while Kafka answers that it is not ready.
func until(ctx context.Context, try func() error) error {
	for tries := 1; ; tries++ {
		err := try()
		if err == nil || !kerr.IsRetriable(err) && !errors.Is(err, kerr.ConcurrentTransactions) || errors.Is(err, kerr.UnknownTopicOrPartition) || !waits.Sleep(ctx, retryWait(tries)) {
			return err
		}
	}
}

// position reads the committed offset. It requires a stable one, and waits for it: no transaction that may still
// commit has another.
func (s *session) position(ctx context.Context) (at position, err error) {
	began := time.Now()
	err = until(ctx, func() error {
		topic := kmsg.NewOffsetFetchRequestGroupTopic()
		topic.Topic, topic.Partitions = s.topic, []int32{0}
		group := kmsg.NewOffsetFetchRequestGroup()
		group.Group, group.Topics = s.name, []kmsg.OffsetFetchRequestGroupTopic{topic}
		req := kmsg.NewPtrOffsetFetchRequest()
		req.RequireStable, req.Groups = true, []kmsg.OffsetFetchRequestGroup{group}
		resp, err := req.RequestWith(ctx, s.cl)
		if err != nil {
			return err
		}
		if len(resp.Groups) != 1 {
			return errors.New("the answer has no group")
		}
		g := resp.Groups[0]
		at = position{Number: -1}
		switch err := kerr.ErrorForCode(g.ErrorCode); {
		case errors.Is(err, kerr.GroupIDNotFound):
			return nil
		case err != nil:
			return err
		}
		if len(g.Topics) != 1 || len(g.Topics[0].Partitions) != 1 {
			return errors.New("the answer has no partition")
		}
		p := g.Topics[0].Partitions[0]
		switch err := kerr.ErrorForCode(p.ErrorCode); {
		case errors.Is(err, kerr.UnstableOffsetCommit) && time.Since(began) > unstableWait:
			return errUnstable
		case err != nil:
			return err
		}
		if p.Offset >= 0 {
			at.Number = p.Offset
			if p.Metadata != nil {
				at.Name = strings.TrimPrefix(*p.Metadata, metadataStart)
			}
		}
		return nil
	})
	return at, err
}

// write commits a position without records: a group's first, or the last of this session. It is fenced as every
// other is: with a plain OffsetCommit, a process that wakes up late could write it over a later one.
func (s *session) write(ctx context.Context, at position) error {
	err := s.place(ctx, at)
	if err == nil {
		err = s.end(ctx, true)
	}
	if err != nil {
		return fmt.Errorf("kafkaoutbox: write position %d of group %s, as an offset in topic %s, which must exist: %w", at.Number, s.name, s.topic, err)
	}
	return nil
}

// end ends a transaction that franz-go knows nothing of.
func (s *session) end(ctx context.Context, commit bool) error {
	return until(ctx, func() error {
		req := kmsg.NewPtrEndTxnRequest()
		req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Commit = s.name, s.id, s.epoch, commit
		resp, err := req.RequestWith(ctx, s.cl)
		if err != nil {
			return err
		}
		return kerr.ErrorForCode(resp.ErrorCode)
	})
}

// addGroup adds the group to the transaction.
func (s *session) addGroup(ctx context.Context) error {
	return until(ctx, func() error {
		req := kmsg.NewPtrAddOffsetsToTxnRequest()
		req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Group = s.name, s.id, s.epoch, s.name
		resp, err := req.RequestWith(ctx, s.cl)
		if err != nil {
			return err
		}
		return kerr.ErrorForCode(resp.ErrorCode)
	})
}

// place adds a position to the transaction. It must come before the records: while Kafka adds the
// topics of the records to the transaction, it refuses the group.
func (s *session) place(ctx context.Context, at position) error {
	if s.old { // otherwise TxnOffsetCommit does it
		if err := s.addGroup(ctx); err != nil {
			return err
		}
	}
	return until(ctx, func() error {
		metadata := metadataStart + at.Name
		p := kmsg.NewTxnOffsetCommitRequestTopicPartition()
		p.Partition, p.Offset, p.Metadata = 0, at.Number, &metadata
		topic := kmsg.NewTxnOffsetCommitRequestTopic()
		topic.Topic, topic.Partitions = s.topic, []kmsg.TxnOffsetCommitRequestTopicPartition{p}
		req := kmsg.NewPtrTxnOffsetCommitRequest()
		req.TransactionalID, req.ProducerID, req.ProducerEpoch, req.Group = s.name, s.id, s.epoch, s.name
		req.Generation, req.Topics = -1, []kmsg.TxnOffsetCommitRequestTopic{topic}
		resp, err := req.RequestWith(ctx, s.cl)
		if err != nil {
			return err
		}
		if len(resp.Topics) != 1 || len(resp.Topics[0].Partitions) != 1 {
			return errors.New("the answer has no partition")
		}
		return kerr.ErrorForCode(resp.Topics[0].Partitions[0].ErrorCode)
	})
}

// send commits the batch of at with its records. errs has the error of each record, if it was one of
// them that failed.
func (s *session) send(ctx context.Context, at position, rows []outbox.Row) (errs []error, err error) {
	records := make([]*kgo.Record, len(rows))
	for i, row := range rows {
		if records[i], err = record(row); err != nil {
			return nil, err
		}
	}
	if err := s.cl.BeginTransaction(); err != nil {
		return nil, err
	}
	if err := s.place(ctx, at); err != nil {
		return nil, fmt.Errorf("commit position %d of group %s in topic %s: %w", at.Number, s.name, s.topic, err)
	}
	if errs, err = s.produce(ctx, records); err != nil {
		return errs, err
	}
	id, epoch, err := s.cl.ProducerID(ctx)
	if err != nil {
		return nil, err
	}
	if id != s.id || epoch != s.epoch { // franz-go has begun anew: our transaction was aborted
		return nil, fmt.Errorf("the producer has become %d/%d, and was %d/%d", id, epoch, s.id, s.epoch)
	}
	if err := s.cl.EndTransaction(ctx, kgo.TryCommit); err != nil {
		return nil, fmt.Errorf("commit: %w", err)
	}
	s.at = at
	s.id, s.epoch, err = s.cl.ProducerID(ctx) // KIP-890: each transaction has its own epoch
	return nil, err
}

// produce returns when all records have an answer, or when ctx ends: then it leaves the client's goroutines
// behind, and the caller must close the client.
func (s *session) produce(ctx context.Context, records []*kgo.Record) ([]error, error) {
	errs, left, done := make([]error, len(records)), atomic.Int64{}, make(chan struct{})
	left.Store(int64(len(records)))
	for i, r := range records {
		s.cl.Produce(ctx, r, func(_ *kgo.Record, err error) {
			errs[i] = err
			if left.Add(-1) == 0 {
				close(done)
			}
		})
	}
	_ = s.cl.Flush(ctx) // otherwise franz-go waits for more records, 10 ms by default
	select {
	case <-done:
	case <-ctx.Done():
		return nil, fmt.Errorf("produce %d records: %w", len(records), context.Cause(ctx))
	}
	for i, err := range errs {
		if err != nil {
			return errs, fmt.Errorf("produce to %s: %w", records[i].Topic, err)
		}
	}
	return errs, nil
}
