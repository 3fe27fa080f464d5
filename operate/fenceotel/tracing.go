package fenceotel

import (
	"context"
	"strings"
	"sync"
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

// Options configure [Tracing]. The zero Options work.
type Options struct {
	// Provider and Propagator default to otel's global ones.
	Provider   trace.TracerProvider
	Propagator propagation.TextMapPropagator

	// System is the attribute messaging.system of the spans, such as "kafka" or "nats". If it is
	// empty, spans do not have the attribute.
	System string

	// Parent makes the span of a message a child of the span that the message came with, in the
	// same trace. The commit of a transaction is then in the trace of its first message, if the
	// source's client puts a span on messages. See the
	// package's documentation.
	Parent bool
}

// Tracing makes spans. It is safe for concurrent use.
type Tracing struct {
	o        Options
	tracer   trace.Tracer
	attempts attempts
}

// NewTracing returns a Tracing.
func NewTracing(o Options) *Tracing {
	if o.Provider == nil {
		o.Provider = otel.GetTracerProvider()
	}
	if o.Propagator == nil {
		o.Propagator = otel.GetTextMapPropagator()
	}
	return &Tracing{o: o, tracer: o.Provider.Tracer("github.com/epochfence/epochfence/operate/fenceotel", trace.WithSchemaURL(semconv.SchemaURL))}
}

const (
	epochKey    = attribute.Key("epochfence.epoch")
	offsetKey   = attribute.Key("epochfence.offset")
	attemptsKey = attribute.Key("epochfence.claim.attempts")
	replacedKey = attribute.Key("epochfence.claim.replaced_epoch")
	sharedKey   = attribute.Key("epochfence.commit.partitions")
	scopeKey    = attribute.Key("epochfence.scope")
)

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

// Observe makes the spans of attempts to claim a partition that did not reach the [Sink]. Call it
// from [consumer.Options].Observe. It makes such a span after the attempt, with the attempt's
// times.
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

// carried returns ctx with the trace context of a message: the span that the source's client has
// put on the message, or else the trace context and baggage in its headers.
func (t *Tracing) carried(ctx context.Context, m consumer.Message) (context.Context, trace.SpanContext) {
	if m.Context != nil {
		if span := trace.SpanContextFromContext(m.Context); span.IsValid() {
			return ctx, span
		}
	}
	ctx = t.o.Propagator.Extract(trace.ContextWithSpanContext(ctx, trace.SpanContext{}), headers(m.Headers))
	return ctx, trace.SpanContextFromContext(ctx)
}

// headers is a carrier for a propagator.
type headers []consumer.Header

// Get returns the first header of that name, ignoring case.
func (hs headers) Get(key string) string {
	for _, h := range hs {
		if strings.EqualFold(h.Key, key) {
			return string(h.Value)
		}
	}
	return ""
}

// Set does nothing, because a received message does not change.
func (headers) Set(string, string) {}

// Keys returns the names of the headers.
func (hs headers) Keys() []string {
	var keys []string
	for _, h := range hs {
		keys = append(keys, h.Key)
	}
	return keys
}

// attempts keeps, for the spans of claims, when each partition's current attempt began and how many
// attempts have failed before it. The zero value is empty.
type attempts struct {
	mu  sync.Mutex
	all map[epoch.Partition]attempt
}

type attempt struct {
	began  time.Time
	failed int
}

// reads notes the start of an attempt, which begins with a read of the fence. Other reads of the
// fence do no harm, because the last read before the claim counts.
func (as *attempts) reads(p epoch.Partition) {
	as.change(p, func(a *attempt) { a.began = time.Now() })
}

func (as *attempts) of(p epoch.Partition) (began time.Time, number int) {
	as.mu.Lock()
	defer as.mu.Unlock()
	a := as.all[p]
	if a.began.IsZero() {
		a.began = time.Now()
	}
	return a.began, a.failed + 1
}

func (as *attempts) observe(e consumer.Event) {
	switch e := e.(type) {
	case consumer.NotClaimed:
		as.change(e.Partition, func(a *attempt) { a.failed++ })
	case consumer.Claimed:
		as.forget(e.Fence.Partition)
	case consumer.Drained:
		as.forget(e.Partition)
	case consumer.Lost:
		as.forget(e.Partition)
	}
}

func (as *attempts) change(p epoch.Partition, how func(*attempt)) {
	as.mu.Lock()
	defer as.mu.Unlock()
	if as.all == nil {
		as.all = map[epoch.Partition]attempt{}
	}
	a := as.all[p]
	how(&a)
	as.all[p] = a
}

func (as *attempts) forget(p epoch.Partition) {
	as.mu.Lock()
	defer as.mu.Unlock()
	delete(as.all, p)
}
