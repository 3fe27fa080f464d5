package tracing_test

import (
	"context"
	"log/slog"
	"testing"

	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/memsink"
	"github.com/epochfence/epochfence/sinks/shardsink"
	"github.com/epochfence/epochfence/workswith/tracing"
)

func TestTheHandlerGoesOnWithTheProducersTraceFromTheHeaders(t *testing.T) {
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(tracetest.NewInMemoryExporter()))
	tracer := provider.Tracer("billing")
	ctx, produced := tracer.Start(t.Context(), "produce")
	produced.End()
	carrier := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, carrier)

	log := memsource.New("orders", 1)
	m := consumer.Message{Value: []byte("a chair")}
	for k, v := range carrier {
		m.Headers = append(m.Headers, consumer.Header{Key: k, Value: []byte(v)})
	}
	log.AppendMessages(0, m)
	handled := false
	handle := func(ctx context.Context, _ *memsink.Tx, _ consumer.Message, _ epoch.Epoch) error {
		handled = true
		if got, want := trace.SpanContextFromContext(ctx).TraceID(), produced.SpanContext().TraceID(); got != want {
			t.Errorf("the handler is in trace %v, want %v", got, want)
		}
		return nil
	}
	err := consumer.Run(log.UntilApplied(t.Context()), log.Member("a"), memsink.New(),
		consumer.Each(tracing.Traced(tracer, propagation.TraceContext{}, handle)), consumer.Options{Logger: slog.New(slog.DiscardHandler)})
	if err != nil || !handled {
		t.Errorf("handled %v, %v", handled, err)
	}
}

func TestATracedSinkOfSeveralDatabasesStaysOne(t *testing.T) {
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(tracetest.NewInMemoryExporter()))
	shards, err := shardsink.New(shardsink.ByNumber, memsink.New(), memsink.New())
	if err != nil {
		t.Fatal(err)
	}
	around := tracing.Sink[*memsink.Tx](provider.Tracer("billing"), shards)
	if s, ok := around.(epoch.Sharded); !ok || s.Shards() != 2 {
		t.Errorf("%T hides the shards", around)
	}
	if _, ok := tracing.Sink[*memsink.Tx](provider.Tracer("billing"), memsink.New()).(epoch.Sharded); ok {
		t.Error("one database passes for several")
	}
}
