package fenceotel_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"

	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/memsource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/operate/fenceotel"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/sinks/memsink"
)

// traced consumes with a span for each claim, transaction and message.
func traced[TX any](ctx context.Context, source consumer.Source, sink epoch.Sink[TX], handle consumer.Handler[TX], to trace.TracerProvider) error {
	tr := fenceotel.NewTracing(fenceotel.Options{Provider: to, System: "kafka"})
	return consumer.Run(ctx, source, fenceotel.Sink(tr, sink), consumer.Each(fenceotel.Each(tr, handle)),
		consumer.Options{Observe: tr.Observe})
}

// tracedBox returns an outbox whose requests continue the trace of the handler that added them
// by box.Add(ctx, tx, m, tr.Entry(ctx, entry)).
func tracedBox[TX any](tr *fenceotel.Tracing, store outbox.Store[TX]) (*outbox.Box[TX], error) {
	return outbox.New(store, outbox.Options[TX]{Client: &http.Client{Transport: tr.Transport(nil)}})
}

var _ = tracedBox[*memsink.Tx] // docs/operating.md shows it

func Example() {
	slog.SetDefault(slog.New(slog.DiscardHandler))
	spans := tracetest.NewInMemoryExporter()
	log := memsource.New("orders", 1)
	log.Append(0, "a chair")
	handle := func(context.Context, *memsink.Tx, consumer.Message, epoch.Epoch) error { return nil }
	err := traced(log.UntilApplied(context.Background()), log.Member("a"), memsink.New(), handle, sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans)))
	if err != nil {
		fmt.Println(err)
	}
	for _, s := range spans.GetSpans() {
		fmt.Println(s.Name)
	}
	// Output:
	// claim orders
	// process orders
	// commit orders
}
