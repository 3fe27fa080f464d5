package fenceotel

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/epochfence/epochfence/operate/stats"
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
