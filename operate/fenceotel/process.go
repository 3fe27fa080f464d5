package fenceotel

import (
	"context"
	"fmt"
	"slices"
	"strconv"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	semconv "go.opentelemetry.io/otel/semconv/v1.39.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
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
