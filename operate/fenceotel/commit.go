package fenceotel

import (
	"context"
	"errors"

	semconv "go.opentelemetry.io/otel/semconv/v1.39.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

var errDidNotReturn = errors.New("it did not return")

// Sink returns sink with a span around each transaction of messages, and around each attempt to
// claim a partition that reaches the sink. The span is in the context of the calls inside, so that
// the spans of the database's instrumentation, of [Each] and of [Batches] are its children. The
// audit log records the trace ID.
func Sink[TX any](t *Tracing, sink epoch.Sink[TX]) epoch.Sink[TX] {
	return traced[TX]{sink, t}
}

type traced[TX any] struct {
	epoch.Sink[TX]
	t *Tracing
}

// Unwrap returns the sink inside, for [epoch.As].
func (s traced[TX]) Unwrap() epoch.Sink[TX] { return s.Sink }

// Fence notes the start of an attempt to claim.
func (s traced[TX]) Fence(ctx context.Context, p epoch.Partition) (epoch.Fence, error) {
	s.t.attempts.reads(p)
	return s.Sink.Fence(ctx, p)
}

// Claim makes the span of an attempt to claim, which began with the read of the fence.
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

func (s traced[TX]) Commit(ctx context.Context, as []epoch.Advance, o epoch.TxOptions, calls ...func(context.Context, TX) error) error {
	if len(as) == 0 {
		return s.Sink.Commit(ctx, as, o, calls...) // the sink refuses an empty commit
	}
	about := append(s.t.about("commit", as[0].Partition), semconv.MessagingOperationTypeSettle, sharedKey.Int(len(as)))
	start := []trace.SpanStartOption{trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(about...)}
	if !s.t.o.Parent { // with Parent the span joins the first message's trace, if the source's client has put a span on it
		start = append(start, trace.WithNewRoot())
	}
	ctx, span := s.t.tracer.Start(ctx, "commit "+as[0].Partition.Topic, start...)
	ctx = context.WithValue(ctx, commitKey{}, span.SpanContext())
	err := within(span, func() error { return s.Sink.Commit(ctx, as, o, calls...) })
	return operate.InTrace(err, traceID(span))
}

func traceID(span trace.Span) string {
	if c := span.SpanContext(); c.HasTraceID() {
		return c.TraceID().String()
	}
	return ""
}

type commitKey struct{}

// commitOf returns the span of the transaction that ctx is in. The current span of ctx may be a
// message's.
func commitOf(ctx context.Context) trace.SpanContext {
	span, _ := ctx.Value(commitKey{}).(trace.SpanContext)
	return span
}
