package kafkaoutbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/outbox/internal/batches"
)

// This file has what an application calls: the options, Add for handlers, and Relay.
// Package batches has the relay, and session.go its transactions in Kafka.

// Options configure a [Box].
type Options struct {
	// Client configures the producers: seed brokers, TLS, SASL, a partitioner, compression. Each
	// partition with records to send has a producer of its own. The box sets the transactional ID
	// and what its protocol needs.
	Client []kgo.Opt

	// Positions is a topic that must exist, with any number of partitions. Nothing is written to it:
	// Kafka keeps offsets only for a topic that exists. Defaults to "epochfence-positions".
	Positions string

	// Prefix begins the transactional IDs and the names of the groups, of which each partition has
	// one: PREFIX/GROUP/TOPIC/NUMBER. Two databases whose consumers have the same group and topic,
	// and that relay into one Kafka, need different prefixes. Defaults to "epochfence-outbox".
	Prefix string

	// Batch limits the records of one transaction. More are faster, and readers see them later.
	// A batch has at most 4 MiB, or one record. Defaults to 1,000.
	Batch int

	// RequestTimeout limits one transaction of Kafka. Afterwards it is aborted, and the relay starts
	// again with a new producer. Defaults to 10 s.
	RequestTimeout time.Duration

	// RetryMin and RetryMax limit the wait after a failure. The wait doubles, with jitter. A record
	// that its topic refuses is tried again every RetryMax, one of each topic at a time. They default to 100 ms and 30 s.
	RetryMin, RetryMax time.Duration

	// Observe, if set, is called for each record that was delivered or refused, or was to be sent when an
	// attempt failed. It must not block. Set it for metrics: operate/stats has ObserveOutbox.
	Observe func(outbox.Event)

	// ObserveBacklog, if set, is called with the number of waiting entries of a partition: at most
	// once in 10 s while any are left, and when none is left. It must not block. Set it for metrics:
	// operate/stats has ObserveBacklog.
	ObserveBacklog func(outbox.Backlog)

	// Logger receives a line when an incident begins, some lines while it lasts, and a line when it is
	// over. Defaults to [slog.Default].
	Logger *slog.Logger

	limits batches.Limits
	ended  *sync.Map // see markers.go
}

func (o Options) withDefaults() (Options, error) {
	o.Positions = cmp.Or(o.Positions, "epochfence-positions")
	o.Prefix = cmp.Or(o.Prefix, "epochfence-outbox")
	limits, err := batches.Limits{
		Batch: o.Batch, RequestTimeout: o.RequestTimeout, RetryMin: o.RetryMin, RetryMax: o.RetryMax,
		Observe: o.Observe, ObserveBacklog: o.ObserveBacklog, Logger: o.Logger,
	}.WithDefaults("kafkaoutbox", 1000, 10_000)
	if err != nil {
		return o, err
	}
	o.Batch, o.limits, o.ended = limits.Batch, limits, &sync.Map{}
	if err := checkTopic(o.Positions); err != nil {
		return o, fmt.Errorf("kafkaoutbox: Options.Positions: %w", err)
	}
	cl, err := kgo.NewClient(o.clientOf(o.Prefix, false)...) // it connects for its first request
	if err != nil {
		return o, fmt.Errorf("kafkaoutbox: Options.Client: %w", err)
	}
	defer cl.Close()
	if topics, _ := cl.OptValue(kgo.ConsumeTopics).([]string); cl.OptValue(kgo.ManualFlushing) == true || cl.OptValue(kgo.ConsumerGroup) != "" || len(topics) > 0 {
		return o, errors.New("kafkaoutbox: Options.Client: a producer has neither ManualFlushing nor ConsumerGroup nor ConsumeTopics")
	}
	return o, nil
}

// name returns the transactional ID of p, which is also the name of its group.
func (o Options) name(p epoch.Partition) string {
	return fmt.Sprintf("%s/%s/%s/%d", o.Prefix, url.PathEscape(p.Group), url.PathEscape(p.Topic), p.Number)
}

// Box is an outbox: handlers add records to it, and its Relay produces them. It is safe for
// concurrent use and needs no closing.
type Box[TX any] struct {
	o     batches.Target
	relay *batches.Relay[TX]
}

// New returns a box over store. It does not connect to Kafka.
func New[TX any](store outbox.Store[TX], o Options) (*Box[TX], error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	to := o.target()
	relay, err := batches.New(store, to)
	if err != nil {
		return nil, err
	}
	return &Box[TX]{to, relay}, nil
}

// Add adds a record in tx, the handler's transaction, for the partition of m, the handler's message.
// [Box.Relay] produces it after the transaction has committed: set consumer.Handlers.Background to
// it. An error that matches [outbox.ErrEntry] is [consumer.Permanent].
func (b *Box[TX]) Add(ctx context.Context, tx TX, m epoch.Message, r Record) error {
	all, err := of(r)
	if err != nil {
		return consumer.Permanent(err)
	}
	return b.relay.Add(ctx, tx, m, b.o.Entry(all, r.Key))
}

// DeadLetters returns a function for consumer.Handlers.OnFailure that adds the message to a topic of dead letters,
// in the transaction that moves the position past the message. The record has the message's key, value and headers,
// and the headers epochfence-group, -topic, -partition, -offset and -error.
//
// Operators see it as a record of the outbox until it is sent, and cannot replay it. A message that makes no record,
// because it is larger than about 999,000 bytes, halts its partition: to store it instead, call the sink's DeadLetter
// where the error matches [outbox.ErrEntry].
func (b *Box[TX]) DeadLetters(topic string) consumer.FailureHandler[TX] {
	return func(ctx context.Context, tx TX, m epoch.Message, _ epoch.Epoch, cause error) error {
		r := Record{Topic: topic, Key: m.Key, Value: m.Value}
		for _, h := range m.Headers { // it may be a dead letter already
			if !strings.HasPrefix(h.Key, deadLetter) {
				r.Headers = append(r.Headers, h)
			}
		}
		for _, about := range [][2]string{
			{"group", m.Partition.Group}, {"topic", m.Partition.Topic}, {"partition", fmt.Sprint(m.Partition.Number)},
			{"offset", fmt.Sprint(m.Offset)}, {"error", operate.ErrorText(cause)},
		} {
			r.Headers = append(r.Headers, epoch.Header{Key: deadLetter + about[0], Value: []byte(about[1])})
		}
		return b.Add(ctx, tx, m, r)
	}
}

// deadLetter begins the headers of a dead letter that say where it comes from.
const deadLetter = "epochfence-"

// Relay produces the records of one partition under one claim, until the claim ends: set
// consumer.Handlers.Background to it.
func (b *Box[TX]) Relay(ctx context.Context, claim consumer.Background[TX]) { b.relay.Run(ctx, claim) }
