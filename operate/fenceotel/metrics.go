package fenceotel

import (
	"context"
	"fmt"
	"net/http"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	semconv "go.opentelemetry.io/otel/semconv/v1.39.0"
	"go.opentelemetry.io/otel/trace"

	"github.com/epochfence/epochfence/operate/stats"
	"github.com/epochfence/epochfence/outbox"
	"github.com/epochfence/epochfence/outbox/httpfence"
)

// Register makes meter expose s. Call it before [consumer.Run], because a histogram has only the
// observations since Register. Call it once for each s.
//
// [consumer.Run]: https://pkg.go.dev/github.com/epochfence/epochfence/consumer#Run
func Register(meter metric.Meter, s *stats.Stats) error {
	read := map[string]metric.Float64Observable{}
	histograms := map[string]metric.Float64Histogram{}
	for _, m := range stats.Metrics() {
		var err error
		name, unit, text := m.OpenTelemetry(), metric.WithUnit(m.Unit), metric.WithDescription(m.Text())
		switch m.Kind {
		case stats.Counter:
			read[m.Name], err = meter.Float64ObservableCounter(name, unit, text)
		case stats.Gauge:
			read[m.Name], err = meter.Float64ObservableGauge(name, unit, text)
		case stats.Histogram:
			histograms[m.Name], err = meter.Float64Histogram(name, unit, text, metric.WithExplicitBucketBoundaries(m.Buckets...))
		}
		if err != nil {
			return fmt.Errorf("fenceotel: instrument %s: %w", name, err)
		}
	}
	var instruments []metric.Observable
	for _, i := range read {
		instruments = append(instruments, i)
	}
	_, err := meter.RegisterCallback(func(_ context.Context, to metric.Observer) error {
		for _, f := range s.Read() {
			if i := read[f.Name]; i != nil {
				for _, v := range f.Samples {
					to.ObserveFloat64(i, v.Value, metric.WithAttributeSet(attributes(f.Labels, v.Labels)))
				}
			}
		}
		return nil
	}, instruments...)
	if err != nil {
		return fmt.Errorf("fenceotel: register: %w", err)
	}
	s.Feed(func(m *stats.Metric, labels []string, observed float64) {
		histograms[m.Name].Record(context.Background(), observed, metric.WithAttributeSet(attributes(m.Labels, labels)))
	})
	return nil
}

func attributes(names, values []string) attribute.Set {
	all := make([]attribute.KeyValue, len(names))
	for i, name := range names {
		all[i] = attribute.String(name, values[i])
	}
	return attribute.NewSet(all...)
}

// Entry returns e with the trace context of ctx in its headers. The entry's request, sent later and
// perhaps by another process, then continues that trace:
//
//	err := box.Add(ctx, tx, m, tr.Entry(ctx, e))
func (t *Tracing) Entry(ctx context.Context, e outbox.Entry) outbox.Entry {
	e.Header = e.Header.Clone()
	if e.Header == nil {
		e.Header = http.Header{}
	}
	t.o.Propagator.Inject(ctx, propagation.HeaderCarrier(e.Header))
	return e
}

// Transport returns base with a span around each request, for the client of [outbox.Options]. The
// span is in the trace of the handler that added the entry, and the request carries that trace to
// the receiver. A nil base means [http.DefaultTransport], which keeps only two idle connections to
// a host: where [outbox.Options].Concurrency is higher, pass a transport that keeps as many. Spans
// leave out the path and the query of the URL, which may be secret.
func (t *Tracing) Transport(base http.RoundTripper) http.RoundTripper {
	if base == nil {
		base = http.DefaultTransport
	}
	return transport{t, base}
}

type transport struct {
	t    *Tracing
	base http.RoundTripper
}

func (r transport) RoundTrip(req *http.Request) (*http.Response, error) {
	ctx := r.t.o.Propagator.Extract(req.Context(), propagation.HeaderCarrier(req.Header))
	ctx, span := r.t.tracer.Start(ctx, "send", trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(
		semconv.HTTPRequestMethodKey.String(req.Method), semconv.ServerAddress(req.URL.Hostname()), semconv.URLScheme(req.URL.Scheme)))
	defer span.End()
	if c, err := httpfence.ReadCall(req.Header); err == nil {
		span.SetAttributes(scopeKey.String(c.Scope), epochKey.Int64(int64(c.Epoch)))
	}
	req = req.Clone(ctx)
	r.t.o.Propagator.Inject(ctx, propagation.HeaderCarrier(req.Header))
	res, err := r.base.RoundTrip(req)
	if err != nil {
		span.SetStatus(codes.Error, "the request failed") // no err.Error(): it has the URL
		span.SetAttributes(semconv.ErrorTypeKey.String(errorType(err)))
		return nil, err
	}
	span.SetAttributes(semconv.HTTPResponseStatusCode(res.StatusCode))
	if res.StatusCode >= 400 {
		span.SetStatus(codes.Error, res.Status)
	}
	return res, nil
}
