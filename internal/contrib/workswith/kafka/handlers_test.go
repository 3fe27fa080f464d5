// Package kafka has what users of franz-go have beside it: metrics, traces, and values
// in the schemas of a registry.
package kafka

import (
	"context"
	"errors"
	"fmt"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/sr"
	"github.com/twmb/franz-go/plugin/kotel"
	"github.com/twmb/franz-go/plugin/kprom"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/kafkasource"
	"github.com/epochfence/epochfence/epoch"
)

// WithMetrics returns o with the metrics of franz-go's kprom. There are two clients, and
// each has metrics of its own: the one that is the member of the group, and the one
// that reads.
func WithMetrics(o kafkasource.Options, to *prometheus.Registry) kafkasource.Options {
	metrics := func(namespace string) kgo.Opt {
		return kgo.WithHooks(kprom.NewMetrics(namespace, kprom.Registerer(to), kprom.Gatherer(to)))
	}
	o.GroupClient = append(o.GroupClient, metrics("orders_group"))
	o.ReadClient = append(o.ReadClient, metrics("orders_read"))
	return o
}

// WithTraces returns o with the spans of franz-go's kotel. The handler's context has the
// span of its message, which continues from the producer's.
func WithTraces(o kafkasource.Options, to trace.TracerProvider) kafkasource.Options {
	tracer := kotel.NewTracer(kotel.TracerProvider(to), kotel.TracerPropagator(propagation.TraceContext{}))
	o.ReadClient = append(o.ReadClient, kgo.WithHooks(kotel.NewKotel(kotel.WithTracer(tracer)).Hooks()...))
	return o
}

// Decoded returns a handler that decodes the value of a message with its schema from the registry, and
// calls handle with the result. A value that does not match its schema goes to OnFailure at once. A schema
// that is not registered here may be later, so the partition halts.
func Decoded[TX, V any](serde *sr.Serde, handle func(context.Context, TX, V, epoch.Epoch) error) consumer.Handler[TX] {
	return func(ctx context.Context, tx TX, m consumer.Message, e epoch.Epoch) error {
		var v V
		switch err := serde.Decode(m.Value, &v); {
		case errors.Is(err, sr.ErrNotRegistered):
			return fmt.Errorf("decode the value: %w: %w", epoch.ErrUnhealthy, err)
		case err != nil:
			return consumer.Permanent(fmt.Errorf("decode the value: %w", err))
		}
		return handle(ctx, tx, v, e)
	}
}
