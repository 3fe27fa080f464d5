package natsoutbox

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/outbox/internal/batches"
)

// This file has what an application calls: the options, Add for handlers, and Relay. Package batches has
// the relay, and session.go its batches in NATS.

// Options configure a [Box].
type Options struct {
	// JetStream is used for everything. Its connection is the application's, and is not closed.
	JetStream jetstream.JetStream

	// Stream is the stream that stores the messages and the positions. It must exist, with
	// AllowAtomicPublish, which nats-server has since 2.12. With AllowRollup, it keeps only the last
	// position of each partition.
	Stream string

	// Positions begins the subjects of the positions: POSITIONS.GROUP.TOPIC.NUMBER.CREATED for a partition
	// and the creation of the stream. The stream's subjects must include "POSITIONS.>", and nothing else
	// may use them. Two databases whose consumers have the same group and topic, and that relay into
	// one stream, need different ones. Defaults to "epochfence-positions.STREAM".
	Positions string

	// MessageIDs is for streams without AllowAtomicPublish: messages are published one by one, with
	// the header Nats-Msg-Id, and the position last. A message whose publication is repeated later than
	// the stream's duplicate window is stored twice. It has no effect with AllowAtomicPublish.
	MessageIDs bool

	// Batch limits the messages of one batch. A batch has at most 4 MiB, or one message. Defaults to
	// 999, the most that nats-server allows beside a position.
	Batch int

	// RequestTimeout limits one batch. Afterwards the relay reads the position again. Defaults to 10 s.
	RequestTimeout time.Duration

	// RetryMin and RetryMax limit the wait after a failure. The wait doubles, with jitter. A message
	// that cannot be stored is tried again every RetryMax, one of each subject at a time. They default
	// to 100 ms and 30 s.
	RetryMin, RetryMax time.Duration

	// Observe, if set, is called for each message that was stored or refused, or was to be sent when
	// an attempt failed. It must not block. Set it for metrics: operate/stats has ObserveOutbox.
	Observe func(outbox.Event)

	// ObserveBacklog, if set, is called with the number of waiting entries of a partition: at most
	// once in 10 s while any are left, and when none is left. It must not block. Set it for metrics:
	// operate/stats has ObserveBacklog.
	ObserveBacklog func(outbox.Backlog)

	// Logger receives a line when an incident begins, some lines while it lasts, and a line when it is
	// over. Defaults to [slog.Default].
	Logger *slog.Logger

	limits batches.Limits
}

func (o Options) withDefaults() (Options, error) {
	if o.JetStream == nil || o.Stream == "" {
		return o, errors.New("natsoutbox: Options needs a JetStream and a Stream")
	}
	o.Positions = cmp.Or(o.Positions, "epochfence-positions."+o.Stream)
	limits, err := batches.Limits{
		Batch: o.Batch, RequestTimeout: o.RequestTimeout, RetryMin: o.RetryMin, RetryMax: o.RetryMax,
		Observe: o.Observe, ObserveBacklog: o.ObserveBacklog, Logger: o.Logger,
	}.WithDefaults("natsoutbox", 999, 999)
	o.limits = limits
	if err == nil && !validSubject(o.Positions) {
		err = fmt.Errorf("natsoutbox: Options.Positions %q is no subject that can be published to", o.Positions)
	}
	return o, err
}

// subject returns what the subject of the positions of p begins with.
func (o Options) subject(p epoch.Partition) string {
	token := func(s string) string { return strings.ReplaceAll(url.QueryEscape(s), ".", "%2E") }
	return fmt.Sprintf("%s.%s.%s.%d", o.Positions, token(p.Group), token(p.Topic), p.Number)
}

func (o Options) target() batches.Target {
	return batches.Target{
		Package: "natsoutbox", Server: "the stream " + o.Stream, Destination: "subject", Record: "message",
		Prefix: outbox.NATS, Method: "PUBLISH", Positions: o.Positions, Refusal: refusal, Limits: o.limits,
		Open: func(ctx context.Context, p epoch.Partition, mayBegin bool) (batches.Session, error) {
			s, err := o.open(ctx, o.subject(p), mayBegin)
			if err != nil {
				return nil, err
			}
			return s, nil
		},
		Forget: func(p epoch.Partition) string {
			return fmt.Sprintf("purge the subject %s.* in the stream %s", o.subject(p), o.Stream)
		},
	}
}

// Box is an outbox: handlers add messages to it, and its Relay publishes them. It is safe for
// concurrent use and needs no closing.
type Box[TX any] struct {
	o     Options
	to    batches.Target
	relay *batches.Relay[TX]
}

// Open returns a box over store. It fails if the stream cannot hold messages and positions.
func Open[TX any](ctx context.Context, store outbox.Store[TX], o Options) (*Box[TX], error) {
	o, err := o.withDefaults()
	if err != nil {
		return nil, err
	}
	to := o.target()
	relay, err := batches.New(store, to)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, o.limits.RequestTimeout)
	defer cancel()
	s := &session{o: o, subject: o.Positions + ".>"}
	if err := s.read(ctx); err != nil {
		return nil, err
	}
	return &Box[TX]{o, to, relay}, nil
}

// Add adds a message in tx, the handler's transaction, for the partition of m, the handler's message.
// [Box.Relay] publishes it after the transaction has committed: set consumer.Handlers.Background to
// it. An error that matches [outbox.ErrEntry] is [consumer.Permanent].
func (b *Box[TX]) Add(ctx context.Context, tx TX, m epoch.Message, message Message) error {
	record, err := b.o.record(message)
	if err != nil {
		return consumer.Permanent(err)
	}
	return b.relay.Add(ctx, tx, m, b.to.Entry(record, []byte(cmp.Or(message.Key, message.Subject))))
}

// Relay publishes the messages of one partition under one claim, until the claim ends: set
// consumer.Handlers.Background to it.
func (b *Box[TX]) Relay(ctx context.Context, claim consumer.Background[TX]) { b.relay.Run(ctx, claim) }
