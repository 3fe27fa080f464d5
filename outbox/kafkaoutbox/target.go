package kafkaoutbox

import (
	"context"
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kerr"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/outbox/internal/batches"
)

// This file gives session.go to the relay of package batches. It decides which errors are a record's fault.

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
