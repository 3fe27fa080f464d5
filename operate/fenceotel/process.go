package fenceotel

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.39.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

func partitionID(p epoch.Partition) string { return strconv.Itoa(int(p.Number)) }

// Each returns handle with a span around it, for [consumer.Each]. The handler's context carries the
// trace context and baggage of the message.
func Each[TX any](t *Tracing, handle consumer.Handler[TX]) consumer.Handler[TX] {
	return func(ctx context.Context, tx TX, m consumer.Message, e epoch.Epoch) error {
		ctx, from := t.carried(ctx, m)
		ctx, span := t.process(ctx, []consumer.Message{m}, []trace.SpanContext{from}, e)
		return within(span, func() error { return handle(ctx, tx, m, e) })
	}
}

// Batches returns handle with a span around it, for [consumer.Batches]. The span links to the spans
// that the messages came with, up to 128; Parent makes the first message's span its parent. The
// baggage of the messages' headers is not in the context, because it belongs to a single message.
func Batches[TX any](t *Tracing, handle consumer.BatchHandler[TX]) consumer.BatchHandler[TX] {
	return func(ctx context.Context, tx TX, ms []consumer.Message, e epoch.Epoch) error {
		ctx, span := t.process(ctx, ms, t.origins(ctx, ms), e)
		return within(span, func() error { return handle(ctx, tx, ms, e) })
	}
}

// EachTransaction does for [consumer.EachTransaction] what [Batches] does. A span of messages of several
// partitions names neither a partition nor an epoch, and the topic of the first message.
func EachTransaction[TX any](t *Tracing, handle consumer.TransactionHandler[TX]) consumer.TransactionHandler[TX] {
	return func(ctx context.Context, tx TX, ms []consumer.Message) error {
		ctx, span := t.process(ctx, ms, t.origins(ctx, ms), ms[0].Under.Epoch)
		return within(span, func() error { return handle(ctx, tx, ms) })
	}
}

// origins returns the spans that the messages came with.
func (t *Tracing) origins(ctx context.Context, ms []consumer.Message) []trace.SpanContext {
	from := make([]trace.SpanContext, len(ms))
	for i, m := range ms {
		_, from[i] = t.carried(ctx, m)
	}
	return from
}

// maxLinks limits the links of a span. SDKs drop links above 128.
const maxLinks = 128

func (t *Tracing) process(ctx context.Context, ms []consumer.Message, from []trace.SpanContext, e epoch.Epoch) (context.Context, trace.Span) {
	p := ms[0].Partition
	about := append(t.about("process", p), semconv.MessagingOperationTypeProcess, epochKey.Int64(int64(e)))
	if len(ms) == 1 {
		about = append(about, offset(t.o.System, ms[0].Offset))
	} else {
		about = append(about, semconv.MessagingBatchMessageCount(len(ms)))
	}
	if ms[len(ms)-1].Partition != p {
		about = slices.DeleteFunc(about, func(a attribute.KeyValue) bool {
			return a.Key == semconv.MessagingDestinationPartitionIDKey || a.Key == epochKey
		})
	}
	commit := commitOf(ctx)
	parent, linked := commit, from
	if t.o.Parent && from[0].IsValid() {
		parent, linked = from[0], append([]trace.SpanContext{commit}, from[1:]...)
	}
	var links []trace.Link
	for _, l := range linked[:min(len(linked), maxLinks)] {
		if l.IsValid() {
			links = append(links, trace.Link{SpanContext: l})
		}
	}
	return t.tracer.Start(trace.ContextWithSpanContext(ctx, parent), "process "+p.Topic,
		trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(about...), trace.WithLinks(links...))
}

// offset returns the attribute of a message's offset. The semantic conventions have a name for
// Kafka's only.
func offset(system string, at epoch.Offset) attribute.KeyValue {
	if system == "kafka" {
		return semconv.MessagingKafkaOffsetKey.Int64(int64(at))
	}
	return offsetKey.Int64(int64(at))
}

// within runs f and ends the span with f's outcome, also if f panics.
func within(span trace.Span, f func() error) (err error) {
	err = errDidNotReturn
	defer func() {
		if err != nil {
			span.SetStatus(codes.Error, err.Error())
			span.SetAttributes(semconv.ErrorTypeKey.String(errorType(err)))
		}
		span.End()
	}()
	return f()
}

// errorType returns the error's Go type, of which there are few, unlike texts of errors.
func errorType(err error) string { return fmt.Sprintf("%T", err) }

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

// Look notes the start of an attempt to claim, which reads one fence.
func (s traced[TX]) Look(ctx context.Context, ps []epoch.Partition) (epoch.Fences, error) {
	if len(ps) == 1 {
		s.t.attempts.reads(ps[0])
	}
	return s.Sink.Look(ctx, ps)
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
