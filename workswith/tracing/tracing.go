// Package tracing goes on with the trace of a message's producer, whatever the source.
package tracing

import (
	"context"
	"strings"

	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
)

// Headers are a message's, for a propagator of OpenTelemetry's. Producers write them
// through their own client.
type Headers []consumer.Header

// Get returns the first header of that name, in whatever case.
func (hs Headers) Get(key string) string {
	for _, h := range hs {
		if strings.EqualFold(h.Key, key) {
			return string(h.Value)
		}
	}
	return ""
}

// Set does nothing: a message that was read is not changed.
func (Headers) Set(string, string) {}

// Keys returns the names.
func (hs Headers) Keys() []string {
	var keys []string
	for _, h := range hs {
		keys = append(keys, h.Key)
	}
	return keys
}

// Traced has handle called within a span that goes on from the message's producer.
func Traced[TX any](tracer trace.Tracer, from propagation.TextMapPropagator, handle consumer.Handler[TX]) consumer.Handler[TX] {
	return func(ctx context.Context, tx TX, m consumer.Message, e epoch.Epoch) error {
		ctx, span := tracer.Start(from.Extract(ctx, Headers(m.Headers)), "process "+m.Partition.Topic, trace.WithSpanKind(trace.SpanKindConsumer))
		defer span.End()
		err := handle(ctx, tx, m, e)
		if err != nil {
			span.SetStatus(codes.Error, err.Error())
		}
		return err
	}
}

// Sink returns sink with a span around each transaction, for a database whose driver
// traces what it is asked within one: the fence, the statements of handlers, and the
// commit. Where the source's client has put a span on messages, as kotel does, it goes
// on from that of the first. A sink of several databases stays one.
func Sink[TX any](tracer trace.Tracer, sink epoch.Sink[TX]) epoch.Sink[TX] {
	around := traced[TX]{sink, tracer}
	if shards, ok := sink.(epoch.Sharded); ok {
		return struct {
			traced[TX]
			epoch.Sharded
		}{around, shards}
	}
	return around
}

type traced[TX any] struct {
	epoch.Sink[TX]
	tracer trace.Tracer
}

func (s traced[TX]) Commit(ctx context.Context, as []epoch.Advance, apply func(context.Context, TX) error) error {
	ctx, span := s.tracer.Start(ctx, "transaction")
	defer span.End()
	err := s.Sink.Commit(ctx, as, apply)
	if err != nil {
		span.SetStatus(codes.Error, err.Error())
	}
	return err
}
