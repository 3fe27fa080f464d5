package stock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/show"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/outbox/kafkaoutbox"
)

// This file publishes each deduction to a topic, for -publish: the fenced column through the outbox, the
// baseline when its transaction has committed. What has to do with a stage is not to be copied:
// examples/quickstart/onward has no more than what is needed.

// The topics of a column, whose ID they begin with.
func published(id string) string { return id + "-published" }
func positions(id string) string { return id + "-positions" }

// record returns the record of a message's deduction.
func (c config) record(m consumer.Message, e epoch.Epoch) (kafkaoutbox.Record, error) {
	r, err := parse(m)
	if err != nil {
		return kafkaoutbox.Record{}, err
	}
	value, err := json.Marshal(entry{r.ID, r.Quantity, m.Partition.Number, int64(m.Offset), int64(e), c.Worker})
	return kafkaoutbox.Record{Topic: published(c.Group), Key: []byte(r.Item), Value: value}, err
}

// publisher has what a worker of the fenced column publishes.
type publisher[TX any] struct {
	config
	store outbox.Store[TX]
	stage *show.Stage
	next  sync.Map // by partition: the offset after that of the last message here
}

func (p *publisher[TX]) options() kafkaoutbox.Options {
	return kafkaoutbox.Options{Client: p.client(), Positions: positions(p.Group), Prefix: p.Group}
}

// publishing returns handlers that deduct and publish.
func publishing[TX any](store outbox.Store[TX], c config, stage *show.Stage, deduct consumer.BatchHandler[TX]) (consumer.Handlers[TX], error) {
	p := &publisher[TX]{config: c, store: store, stage: stage}
	box, err := kafkaoutbox.New(store, p.options())
	return consumer.Batches(func(ctx context.Context, tx TX, ms []consumer.Message, e epoch.Epoch) error {
		if err := deduct(ctx, tx, ms, e); err != nil {
			return err
		}
		for _, m := range ms {
			r, err := c.record(m, e)
			if err == nil {
				err = box.Add(ctx, tx, m, r)
			}
			if err != nil {
				return err
			}
			p.next.Store(m.Partition.Number, int64(m.Offset)+1)
		}
		return nil
	}).Background(p.relay), err
}

// relay publishes the records of a partition, with the points of the stage. Its context outlasts the claim's while
// it is stopped, and has no deadline then, so that only Kafka keeps it from publishing what another worker publishes.
func (p *publisher[TX]) relay(ctx context.Context, claim consumer.Background[TX]) {
	lasting, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	r := &relay{stage: p.stage, partition: claim.Partition().Number, next: &p.next}
	defer context.AfterFunc(ctx, func() {
		r.stands.Lock()
		defer r.stands.Unlock()
		end()
	})()
	o := p.options()
	o.Client, o.Observe, o.RequestTimeout = append(o.Client, kgo.WithHooks(r)), r.observe, show.HangTimeout
	if box, err := kafkaoutbox.New(p.store, o); err == nil { // as publishing has seen
		box.Relay(lasting, staged[TX]{claim, r})
	}
}

// relay is the relay of one partition: a hook of its producers.
type relay struct {
	stage     *show.Stage
	partition int32
	next      *sync.Map
	stands    sync.Mutex // held while the relay is stopped, and until its transaction has an outcome

	mu      sync.Mutex
	records bool      // the open transaction has some
	cue     *show.Cue // at which the relay was stopped; nil once the outcome is reported
}

// OnBrokerRead stops the relay when its records are in an open transaction, or when that has been committed.
func (r *relay) OnBrokerRead(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	next, ok := r.next.Load(r.partition)
	var point show.Point
	switch {
	case !ok || err != nil || r.cue != nil:
		return
	case key == int16(kmsg.Produce):
		r.records, point = true, show.Publishing
	case key == int16(kmsg.EndTxn) && r.records:
		r.records, point = false, show.Published
	default:
		return
	}
	offset, _ := next.(int64)
	cue := r.stage.Cue(show.Subject(r.partition, offset), point)
	r.stands.Lock()
	if cue.Reach(point) {
		r.cue = cue
	} else {
		r.stands.Unlock()
	}
}

// over reports the outcome of a transaction in Kafka that was stopped.
func (r *relay) over(outcome string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.cue != nil {
		r.cue.End(outcome)
		r.cue = nil
		r.stands.Unlock()
	}
}

func (r *relay) observe(e outbox.Event) {
	var refused *kerr.Error
	if outcome := show.Failed; e.Kind == outbox.Retrying {
		if errors.As(e.Err, &refused) {
			outcome = show.Refused
		}
		r.over(outcome)
	}
}

// staged is a claim whose transactions in the database follow those in Kafka.
type staged[TX any] struct {
	consumer.Background[TX]
	relay *relay
}

func (s staged[TX]) Do(ctx context.Context, apply func(ctx context.Context, tx TX) error) error {
	s.relay.over(show.Committed)
	return s.Background.Do(ctx, apply)
}

// publishAsUsual sends the records of messages whose deductions are committed.
func publishAsUsual(ctx context.Context, client *kgo.Client, c config, ms []consumer.Message) error {
	records := make([]*kgo.Record, len(ms))
	for i, m := range ms {
		r, err := c.record(m, noEpoch)
		if err != nil {
			return err
		}
		records[i] = &kgo.Record{Topic: r.Topic, Key: r.Key, Value: r.Value}
	}
	return client.ProduceSync(ctx, records...).FirstErr()
}

// audit compares the topic of records with the sent messages, as a reader with isolation.level=read_committed finds it.
// Those of an item are in order.
func (sd *side) audit(ctx context.Context) (show.Findings, error) {
	ctx, cancel := context.WithTimeout(ctx, show.Patience)
	defer cancel()
	topic, audit := published(sd.column.ID), show.NewAudit(len(sd.sent))
	ends, err := sd.admin.ListEndOffsets(ctx, topic)
	if err = errors.Join(err, ends.Error()); err != nil {
		return audit.Findings, fmt.Errorf("the end of topic %s: %w", topic, err)
	}
	left := map[int32]int64{}
	ends.Each(func(o kadm.ListedOffset) {
		if o.Offset > 0 {
			left[o.Partition] = o.Offset
		}
	})
	reader, err := kgo.NewClient(kgo.SeedBrokers(strings.Split(sd.brokers, ",")...), kgo.ConsumeTopics(topic),
		kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()), kgo.FetchIsolationLevel(kgo.ReadCommitted()), kgo.KeepControlRecords())
	if err != nil {
		return audit.Findings, err
	}
	defer reader.Close()
	for len(left) > 0 {
		fetches := reader.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return audit.Findings, fmt.Errorf("read topic %s: %w", topic, err)
		}
		fetches.EachRecord(func(r *kgo.Record) {
			if r.Offset+1 >= left[r.Partition] {
				delete(left, r.Partition)
			}
			if r.Attrs.IsControl() {
				return
			}
			var e entry
			if json.Unmarshal(r.Value, &e) != nil {
				e.ID = -1
			}
			l := line{Reservation: Reservation{e.ID, string(r.Key), e.Quantity}, Epoch: e.Epoch, at: place{e.Partition, e.Offset}, group: string(r.Key)}
			audit.Add(l.effect(sd.Seed, sd.items, sd.sent))
		})
	}
	return audit.Findings, nil
}
