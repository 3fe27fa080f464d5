package kafkaoutbox

import (
	"context"
	"errors"
	"fmt"
	"regexp"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/outbox/internal/batches"
)

// This file decides which records can ever be sent, and which errors are a record's fault. Package batches has the
// form in which stores keep records, and the relay that calls session.go.

// Record is a record to produce.
type Record struct {
	Topic string

	// Key decides the partition, as in any Kafka producer, and orders records: those of one
	// partition of the consumer with the same Key are produced in the order in which they were added,
	// in all topics. A nil Key orders nothing.
	Key []byte

	Value   []byte // nil is a tombstone
	Headers []epoch.Header
}

// maxRecord limits the bytes of a record. With its frame, a record of this size fits into franz-go's
// default batch of 1,000,012 bytes, and into the default max.message.bytes of a topic.
const maxRecord = 999_000

var validTopic = regexp.MustCompile(`^[a-zA-Z0-9._-]{1,249}$`)

func checkTopic(topic string) error {
	if !validTopic.MatchString(topic) || topic == "." || topic == ".." {
		return fmt.Errorf("topic %q; want 1 to 249 of the characters a-z, A-Z, 0-9, '.', '_' and '-'", topic)
	}
	return nil
}

// of returns r in the form that all boxes share, or an error that matches [outbox.ErrEntry].
func of(r Record) (batches.Record, error) {
	all := batches.Record{Destination: r.Topic, Key: r.Key, Value: r.Value, Headers: r.Headers}
	if err := checkTopic(r.Topic); err != nil {
		return all, fmt.Errorf("kafkaoutbox: %w: %w", outbox.ErrEntry, err)
	}
	if size := all.Size(); size > maxRecord {
		return all, fmt.Errorf("kafkaoutbox: %w: a record of %d bytes for topic %s; want at most %d", outbox.ErrEntry, size, r.Topic, maxRecord)
	}
	return all, nil
}

// record returns the record of an entry.
func record(row outbox.Row) (*kgo.Record, error) {
	all, err := batches.Parse(row)
	r := &kgo.Record{Topic: all.Destination, Key: all.Key, Value: all.Value}
	for _, field := range all.Headers {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: field.Key, Value: field.Value})
	}
	return r, err
}

type position = batches.Position

func (o Options) target() batches.Target {
	return batches.Target{
		Package: "kafkaoutbox", Server: "Kafka", Destination: "topic", Record: "record",
		Prefix: outbox.Kafka, Method: "PRODUCE", Positions: o.Positions, Partial: true, Refusal: refusal, Limits: o.limits,
		Open: func(ctx context.Context, p epoch.Partition, mayBegin bool) (batches.Session, error) {
			s, err := o.open(ctx, o.name(p), mayBegin)
			if err != nil {
				return nil, err
			}
			return producer{s}, nil
		},
		Forget: func(p epoch.Partition) string {
			return fmt.Sprintf("delete the group %s in Kafka if it exists", o.name(p))
		},
	}
}

// producer is a session as package batches sees it.
type producer struct{ s *session }

func (p producer) At() position                                 { return p.s.at }
func (p producer) Write(ctx context.Context, at position) error { return p.s.write(ctx, at) }
func (p producer) Close()                                       { p.s.close() }
func (p producer) Send(ctx context.Context, at position, rows []outbox.Row) ([]error, error) {
	return p.s.send(ctx, at, rows)
}

// The others implement [batches.Completer]: see markers.go.
func (p producer) Incomplete() bool                         { return p.s.unstable }
func (p producer) Completion(before string) (string, error) { return p.s.completion(before) }
func (p producer) Torn(begun string) bool                   { return p.s.torn(begun) }
func (p producer) Complete(ctx context.Context, topics []string) error {
	return p.s.complete(ctx, topics)
}

func refusal(err error) batches.Refusal {
	switch {
	case errors.Is(err, kerr.UnknownTopicOrPartition), errors.Is(err, kerr.UnknownTopicID), errors.Is(err, kerr.TopicAuthorizationFailed),
		errors.Is(err, kerr.InvalidTopicException):
		return batches.Refused
	case errors.Is(err, kerr.MessageTooLarge), errors.Is(err, kerr.RecordListTooLarge), errors.Is(err, kerr.InvalidRecord),
		errors.Is(err, kerr.PolicyViolation), errors.Is(err, kerr.InvalidTimestamp), errors.Is(err, kerr.UnsupportedForMessageFormat):
		return batches.RefusedTogether
	}
	return batches.NotRefused
}
