package kafka

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/exaring/otelpgx"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sr"
	"github.com/twmb/franz-go/plugin/kprom"
	"go.opentelemetry.io/otel/propagation"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.opentelemetry.io/otel/trace"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/kafkasource"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/internal/servers/pgtest"
	"github.com/epochfence/epochfence/operate/fenceotel"
	"github.com/epochfence/epochfence/sinks/memsink"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// orders produces records to a topic of one partition, and returns options for a
// source of it.
func orders(t *testing.T, records ...*kgo.Record) kafkasource.Options {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	cl, err := kgo.NewClient(kgo.SeedBrokers(cluster.ListenAddrs()...), kgo.DefaultProduceTopic("orders"))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	if _, err := kadm.NewClient(cl).CreateTopic(t.Context(), 1, 1, nil, "orders"); err != nil {
		t.Fatal(err)
	}
	if err := cl.ProduceSync(t.Context(), records...).FirstErr(); err != nil {
		t.Fatal(err)
	}
	return kafkasource.Options{
		Group: "billing", Topics: []string{"orders"}, Client: []kgo.Opt{kgo.SeedBrokers(cluster.ListenAddrs()...)},
		Logger: slog.New(slog.DiscardHandler),
	}
}

// consume runs until n messages are applied.
func consume[TX any](t *testing.T, o kafkasource.Options, sink epoch.Sink[TX], n int, h consumer.Handlers[TX]) {
	t.Helper()
	source, err := kafkasource.New(o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	err = consumer.Run(ctx, source, sink, h, consumer.Options{Logger: slog.New(slog.DiscardHandler), Observe: func(e consumer.Event) {
		if a, ok := e.(consumer.Advanced); ok && int(a.To) >= n {
			stop()
		}
	}})
	if err != nil {
		t.Fatal(err)
	}
}

func TestEachClientHasItsKpromMetrics(t *testing.T) {
	registry := prometheus.NewRegistry()
	o := WithMetrics(orders(t, kgo.StringRecord("a chair")), registry)
	var names []string
	consume(t, o, memsink.New(), 1, consumer.Each(func(context.Context, *memsink.Tx, consumer.Message, epoch.Epoch) error {
		families, err := registry.Gather()
		for _, f := range families {
			names = append(names, f.GetName())
		}
		return err
	}))
	for _, want := range []string{"orders_read_fetch_bytes_total", "orders_group_connects_total"} {
		if !slices.Contains(names, want) {
			t.Errorf("there is no %s in %q", want, names)
		}
	}
}

func TestOneKpromHookForBothClientsIsRefusedWithTheWayToDoIt(t *testing.T) {
	registry := prometheus.NewRegistry()
	_, err := kafkasource.New(kafkasource.Options{Group: "billing", Topics: []string{"orders"}, Client: []kgo.Opt{
		kgo.WithHooks(kprom.NewMetrics("orders", kprom.Registerer(registry), kprom.Gatherer(registry))),
	}})
	if err == nil || !strings.HasPrefix(err.Error(), "kafkasource: ") || !strings.Contains(err.Error(), "duplicate") || !strings.Contains(err.Error(), "Options.GroupClient") {
		t.Errorf("New = %v, want that the hook is registered twice, and what to do", err)
	}
}

// The message that is applied alone is in the producer's trace with all that is
// done for it, from BEGIN to COMMIT.
func TestHandlerFenceAndCommitAreInTheTraceOfTheMessage(t *testing.T) {
	spans := tracetest.NewInMemoryExporter()
	provider := sdktrace.NewTracerProvider(sdktrace.WithSyncer(spans))
	ctx, produced := provider.Tracer("test").Start(t.Context(), "produce")
	produced.End()
	header := propagation.MapCarrier{}
	propagation.TraceContext{}.Inject(ctx, header)
	record := kgo.StringRecord("a chair")
	for k, v := range header {
		record.Headers = append(record.Headers, kgo.RecordHeader{Key: k, Value: []byte(v)})
	}

	config, err := pgxpool.ParseConfig(pgtest.Start(t).URL)
	if err != nil {
		t.Fatal(err)
	}
	config.ConnConfig.Tracer = otelpgx.NewTracer(otelpgx.WithTracerProvider(provider))
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if err := pgsink.Migrate(t.Context(), pool, pgsink.Options{}); err != nil {
		t.Fatal(err)
	}
	sink, err := pgsink.Open(t.Context(), pool, pgsink.Options{})
	if err != nil {
		t.Fatal(err)
	}
	want := produced.SpanContext().TraceID()
	handle := func(ctx context.Context, tx pgsink.Tx, _ consumer.Message, _ epoch.Epoch) error {
		if got := trace.SpanContextFromContext(ctx).TraceID(); got != want {
			t.Errorf("the handler is in trace %v, want %v", got, want)
		}
		ctx, span := provider.Tracer("billing").Start(ctx, "process")
		defer span.End()
		_, err := tx.Exec(ctx, "select 'in the handler'")
		return err
	}
	tr := fenceotel.NewTracing(fenceotel.Options{Provider: provider, Parent: true})
	consume(t, WithTraces(orders(t, record), provider), fenceotel.Sink(tr, sink), 1, consumer.Each(handle))
	var about []string // name, and the statement
	for _, s := range spans.GetSpans() {
		if s.SpanContext.TraceID() == want {
			about = append(about, s.Name)
			for _, a := range s.Attributes {
				about = append(about, a.Value.String())
			}
		}
	}
	for _, part := range []string{"begin", "in the handler", ".advance_one(", "commit"} {
		if !slices.ContainsFunc(about, func(text string) bool { return strings.Contains(strings.ToLower(text), part) }) {
			t.Errorf("no span of the message's trace is about %q: %q", part, about)
		}
	}
}

type order struct{ Item string }

func TestWhatCannotBeDecodedGoesToOnFailureAtOnce(t *testing.T) {
	var serde sr.Serde
	serde.Register(7, order{}, sr.EncodeFn(json.Marshal), sr.DecodeFn(json.Unmarshal))
	good, err := serde.Encode(order{"chair"})
	if err != nil {
		t.Fatal(err)
	}
	sink := memsink.New()
	consume(t, orders(t, kgo.SliceRecord([]byte("no schema")), kgo.SliceRecord(good)), sink, 2, consumer.Each(
		Decoded(&serde, func(_ context.Context, tx *memsink.Tx, o order, _ epoch.Epoch) error {
			tx.Append("items", o.Item)
			return nil
		})).OnFailure(sink.DeadLetter))
	if items, dead := sink.List("items"), sink.DeadLetters(); !slices.Equal(items, []string{"chair"}) || len(dead) != 1 || !strings.Contains(dead[0].Cause, "decode the value") {
		t.Errorf("items %q, dead letters %+v", items, dead)
	}
}

func TestASchemaThatIsNotRegisteredHaltsThePartition(t *testing.T) {
	var ours, theirs sr.Serde
	theirs.Register(8, order{}, sr.EncodeFn(json.Marshal))
	value, err := theirs.Encode(order{"chair"})
	if err != nil {
		t.Fatal(err)
	}
	handle := Decoded(&ours, func(context.Context, *memsink.Tx, order, epoch.Epoch) error { return nil })
	if err := handle(t.Context(), nil, consumer.Message{Value: value}, 1); !errors.Is(err, epoch.ErrUnhealthy) {
		t.Errorf("%v, want an error that halts", err)
	}
}
