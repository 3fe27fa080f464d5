package stock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"time"

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

// record returns the record of a deduction.
func (r Reservation) record(id string, m consumer.Message, e epoch.Epoch, worker string) (kafkaoutbox.Record, error) {
	value, err := json.Marshal(entry{r.ID, r.Quantity, m.Partition.Number, int64(m.Offset), int64(e), worker})
	return kafkaoutbox.Record{Topic: published(id), Key: []byte(r.Item), Value: value}, err
}

// publisher has what a worker of the fenced column publishes.
type publisher[TX any] struct {
	config
	store outbox.Store[TX]
	stage *show.Stage
	box   *kafkaoutbox.Box[TX]
	next  sync.Map // by partition: the offset after that of the last message here
}

// publishing adds to handlers that each deduction is published.
func publishing[TX any](store outbox.Store[TX], c config, stage *show.Stage, deduct consumer.BatchHandler[TX]) (h consumer.Handlers[TX], err error) {
	p := &publisher[TX]{config: c, store: store, stage: stage}
	if p.box, err = p.open(nil); err != nil {
		return h, err
	}
	return consumer.Batches(func(ctx context.Context, tx TX, ms []consumer.Message, e epoch.Epoch) error {
		if err := deduct(ctx, tx, ms, e); err != nil {
			return err
		}
		return p.add(ctx, tx, ms, e)
	}).Background(p.relay), nil
}

// each is handle for messages that come together.
func each[TX any](handle consumer.Handler[TX]) consumer.BatchHandler[TX] {
	return func(ctx context.Context, tx TX, ms []consumer.Message, e epoch.Epoch) error {
		for _, m := range ms {
			if err := handle(ctx, tx, m, e); err != nil {
				return err
			}
		}
		return nil
	}
}

func (p *publisher[TX]) open(r *relay) (*kafkaoutbox.Box[TX], error) {
	o := kafkaoutbox.Options{Client: p.client(), Positions: positions(p.Group), Prefix: p.Group}
	if r != nil {
		o.Client, o.Observe = append(o.Client, kgo.WithHooks(r)), r.observe
		o.RequestTimeout = show.HangTimeout // so that only Kafka stops one that was frozen
	}
	return kafkaoutbox.New(p.store, o)
}

func (p *publisher[TX]) add(ctx context.Context, tx TX, ms []consumer.Message, e epoch.Epoch) error {
	for _, m := range ms {
		r, err := parse(m)
		if err != nil {
			return err
		}
		record, err := r.record(p.Group, m, e, p.Worker)
		if err != nil {
			return err
		}
		if err := p.box.Add(ctx, tx, m, record); err != nil {
			return err
		}
		p.next.Store(m.Partition.Number, int64(m.Offset)+1)
	}
	return nil
}

// relay publishes the records of a partition, with the points of the stage. Its context outlasts the claim's while
// it is stopped, so that only Kafka keeps it from publishing what another worker publishes.
func (p *publisher[TX]) relay(ctx context.Context, claim consumer.Background[TX]) {
	lasting, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	r := &relay{stage: p.stage, at: func() (string, bool) {
		next, ok := p.next.Load(claim.Partition().Number)
		offset, _ := next.(int64)
		return show.Subject(claim.Partition().Number, offset), ok
	}}
	defer context.AfterFunc(ctx, func() {
		r.stands.Lock()
		defer r.stands.Unlock()
		end()
	})()
	box, err := p.open(r)
	if err != nil {
		slog.Error("publish", "err", err)
		return
	}
	box.Relay(lasting, staged[TX]{claim, r})
}

// relay is the relay of one partition: a hook of its producers.
type relay struct {
	stage  *show.Stage
	at     func() (subject string, ok bool)
	stands sync.Mutex // held while the relay is stopped, and until its transaction has an outcome

	mu      sync.Mutex
	records bool      // the open transaction has some
	cue     *show.Cue // at which the relay was stopped; nil once the outcome is reported
}

// OnBrokerRead stops the relay when its records are in an open transaction, or when that has been committed.
func (r *relay) OnBrokerRead(_ kgo.BrokerMetadata, key int16, _ int, _, _ time.Duration, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	subject, ok := r.at()
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
	cue := r.stage.Cue(subject, point)
	r.stands.Lock()
	if cue.Reach(point); cue.Stopped() {
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
	switch {
	case e.Kind != outbox.Retrying:
	case errors.As(e.Err, &refused):
		r.over(show.Refused)
	default:
		r.over(show.Failed)
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
		r, err := parse(m)
		if err != nil {
			return err
		}
		record, err := r.record(c.Group, m, noEpoch, c.Worker)
		if err != nil {
			return err
		}
		records[i] = &kgo.Record{Topic: record.Topic, Key: record.Key, Value: record.Value}
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
	for p, end := range ends[topic] {
		if end.Offset > 0 {
			left[p] = end.Offset
		}
	}
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
			l := line{group: string(r.Key)}
			if json.Unmarshal(r.Value, &e) != nil {
				e.ID = -1
			}
			l.Reservation, l.Epoch, l.at = Reservation{e.ID, l.group, e.Quantity}, e.Epoch, place{e.Partition, e.Offset}
			audit.Add(l.effect(sd.Seed, sd.items, sd.sent))
		})
	}
	return audit.Findings, nil
}
