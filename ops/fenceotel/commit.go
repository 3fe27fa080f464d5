package fenceotel

import (
	"context"
	"errors"

	semconv "go.opentelemetry.io/otel/semconv/v1.39.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/epochfence/epochfence/epoch"
)

// errDidNotReturn is for a function that panicked or ended its goroutine.
var errDidNotReturn = errors.New("it did not return")

// Sink returns sink with a span around each transaction of messages. The span is in the
// context of what happens within, so that the instrumentation of the database, and
// [Each] and [Batches], have theirs below it.
func Sink[TX any](t *Tracing, sink epoch.Sink[TX]) epoch.Sink[TX] { return traced[TX]{sink, t} }

type traced[TX any] struct {
	epoch.Sink[TX]
	t *Tracing
}

// Unwrap is for what the sink has besides: see [epoch.As].
func (s traced[TX]) Unwrap() epoch.Sink[TX] { return s.Sink }

func (s traced[TX]) Commit(ctx context.Context, as []epoch.Advance, apply func(context.Context, TX) error) error {
	if len(as) == 0 {
		return s.Sink.Commit(ctx, as, apply) // which refuses it
	}
	about := append(s.t.about("commit", as[0].Partition), semconv.MessagingOperationTypeSettle, sharedKey.Int(len(as)))
	start := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(about...)}
	if !s.t.o.Parent { // otherwise it is in the trace of the first message, if the source's client has put one on it
		start = append(start, trace.WithNewRoot())
	}
	ctx, span := s.t.tracer.Start(ctx, "commit "+as[0].Partition.Topic, start...)
	ctx = context.WithValue(ctx, commitKey{}, span.SpanContext())
	return within(span, func() error { return s.Sink.Commit(ctx, as, apply) })
}

type commitKey struct{}

// commitOf is the span of the transaction that ctx is in. A message's own span may be
// the current one there.
func commitOf(ctx context.Context) trace.SpanContext {
	span, _ := ctx.Value(commitKey{}).(trace.SpanContext)
	return span
}
