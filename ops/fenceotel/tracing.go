package fenceotel

import (
	"context"
	"strings"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.39.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate"
)

// Options say how [Tracing] works. The zero Options work.
type Options struct {
	// Provider and Propagator are otel's global ones if they are nil.
	Provider   trace.TracerProvider
	Propagator propagation.TextMapPropagator

	// System is the attribute messaging.system of the spans, such as "kafka" or "nats".
	// Empty leaves it out.
	System string

	// Parent has the span of a message be a child of the one that it came with, in whose
	// trace it then is, and so is the commit of a transaction in that of its first
	// message. See the package's documentation.
	Parent bool
}

// Tracing makes spans. It is safe for concurrent use.
type Tracing struct {
	o        Options
	tracer   trace.Tracer
	attempts attempts
}

// NewTracing returns one.
func NewTracing(o Options) *Tracing {
	if o.Provider == nil {
		o.Provider = otel.GetTracerProvider()
	}
	if o.Propagator == nil {
		o.Propagator = otel.GetTextMapPropagator()
	}
	return &Tracing{o: o, tracer: o.Provider.Tracer("github.com/epochfence/epochfence/ops/fenceotel", trace.WithSchemaURL(semconv.SchemaURL))}
}

// Attributes of our own.
const (
	epochKey    = attribute.Key("epochfence.epoch")
	offsetKey   = attribute.Key("epochfence.offset")
	attemptsKey = attribute.Key("epochfence.claim.attempts")
	replacedKey = attribute.Key("epochfence.claim.replaced_epoch")
	sharedKey   = attribute.Key("epochfence.commit.partitions")
	scopeKey    = attribute.Key("epochfence.scope")
)

// about are the attributes of an operation on a partition.
func (t *Tracing) about(operation string, p epoch.Partition) []attribute.KeyValue {
	as := []attribute.KeyValue{
		semconv.MessagingOperationName(operation),
		semconv.MessagingDestinationName(p.Topic),
		semconv.MessagingDestinationPartitionID(partitionID(p)),
		semconv.MessagingConsumerGroupName(p.Group),
	}
	if t.o.System != "" {
		as = append(as, semconv.MessagingSystemKey.String(t.o.System))
	}
	return as
}

// Observe makes the spans of attempts to claim a partition that did not come as far as the
// [Sink]: have [consumer.Options].Observe call it. Such a span is made when the attempt is
// over, with the times that it had.
func (t *Tracing) Observe(e consumer.Event) {
	if e, ok := e.(consumer.NotClaimed); ok && operate.TraceOf(e.Err) == "" {
		now := time.Now()
		_, span := t.claim(context.Background(), e.Partition, now.Add(-e.Took), semconv.ErrorTypeKey.String(e.Reason.String()))
		span.SetStatus(codes.Error, e.Err.Error())
		span.End(trace.WithTimestamp(now))
	}
	t.attempts.observe(e)
}

func (t *Tracing) claim(ctx context.Context, p epoch.Partition, began time.Time, more ...attribute.KeyValue) (context.Context, trace.Span) {
	return t.tracer.Start(ctx, "claim "+p.Topic, trace.WithNewRoot(), trace.WithTimestamp(began),
		trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(append(t.about("claim", p), more...)...))
}

// carried returns ctx with what a message came with: the span that the source's client
// has put on it, or the trace context and baggage in its headers.
func (t *Tracing) carried(ctx context.Context, m consumer.Message) (context.Context, trace.SpanContext) {
	if m.Context != nil {
		if span := trace.SpanContextFromContext(m.Context); span.IsValid() {
			return ctx, span
		}
	}
	ctx = t.o.Propagator.Extract(trace.ContextWithSpanContext(ctx, trace.SpanContext{}), headers(m.Headers))
	return ctx, trace.SpanContextFromContext(ctx)
}

// headers are a message's, for a propagator.
type headers []consumer.Header

// Get returns the first header of that name, in whatever case.
func (hs headers) Get(key string) string {
	for _, h := range hs {
		if strings.EqualFold(h.Key, key) {
			return string(h.Value)
		}
	}
	return ""
}

// Set does nothing: a message that was read is not changed.
func (headers) Set(string, string) {}

// Keys returns the names.
func (hs headers) Keys() []string {
	var keys []string
	for _, h := range hs {
		keys = append(keys, h.Key)
	}
	return keys
}
