package fenceotel

import (
	"context"
	"errors"

	semconv "go.opentelemetry.io/otel/semconv/v1.39.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// errDidNotReturn is for a function that panicked or ended its goroutine.
var errDidNotReturn = errors.New("it did not return")

// Sink returns sink with a span around each transaction of messages, and around each
// attempt to claim a partition that comes as far as the sink. The span is in the context of
// what happens within, so that the instrumentation of the database, and [Each] and
// [Batches], have theirs below it. The audit log names its trace.
func Sink[TX any](t *Tracing, sink epoch.Sink[TX]) epoch.Sink[TX] {
	return traced[TX]{sink, t}
}

type traced[TX any] struct {
	epoch.Sink[TX]
	t *Tracing
}

// Unwrap is for what the sink has besides: see [epoch.As].
func (s traced[TX]) Unwrap() epoch.Sink[TX] { return s.Sink }

// Fence is what an attempt to claim begins with.
func (s traced[TX]) Fence(ctx context.Context, p epoch.Partition) (epoch.Fence, error) {
	s.t.attempts.reads(p)
	return s.Sink.Fence(ctx, p)
}

// Claim is what it ends with, if it comes so far.
func (s traced[TX]) Claim(ctx context.Context, seen epoch.Fence, c epoch.Claim) (got epoch.Fence, err error) {
	began, number := s.t.attempts.of(seen.Partition)
	ctx, span := s.t.claim(ctx, seen.Partition, began, attemptsKey.Int(number), replacedKey.Int64(int64(seen.Epoch)))
	id := traceID(span)
	err = within(span, func() (err error) {
		got, err = s.Sink.Claim(operate.WithTraceID(ctx, id), seen, c)
		if err == nil {
			span.SetAttributes(epochKey.Int64(int64(got.Epoch)))
		}
		return err
	})
	return got, operate.InTrace(err, id)
}

func (s traced[TX]) Commit(ctx context.Context, as []epoch.Advance, calls ...func(context.Context, TX) error) error {
	if len(as) == 0 {
		return s.Sink.Commit(ctx, as, calls...) // which refuses it
	}
	about := append(s.t.about("commit", as[0].Partition), semconv.MessagingOperationTypeSettle, sharedKey.Int(len(as)))
	start := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(about...)}
	if !s.t.o.Parent { // otherwise it is in the trace of the first message, if the source's client has put one on it
		start = append(start, trace.WithNewRoot())
	}
	ctx, span := s.t.tracer.Start(ctx, "commit "+as[0].Partition.Topic, start...)
	ctx = context.WithValue(ctx, commitKey{}, span.SpanContext())
	err := within(span, func() error { return s.Sink.Commit(ctx, as, calls...) })
	return operate.InTrace(err, traceID(span))
}

// traceID is that of a span; empty where nothing is traced.
func traceID(span trace.Span) string {
	if c := span.SpanContext(); c.HasTraceID() {
		return c.TraceID().String()
	}
	return ""
}

type commitKey struct{}

// commitOf is the span of the transaction that ctx is in. A message's own span may be
// the current one there.
func commitOf(ctx context.Context) trace.SpanContext {
	span, _ := ctx.Value(commitKey{}).(trace.SpanContext)
	return span
}
