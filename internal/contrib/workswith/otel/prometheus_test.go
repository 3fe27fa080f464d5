// Package otel has a test with OpenTelemetry's exporter to Prometheus.
package otel

import (
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/lease"
	"github.com/epochfence/epochfence/operate/fenceotel"
	"github.com/epochfence/epochfence/operate/stats"
)

// The rules and the dashboard use the names that a process without OpenTelemetry exposes.
func TestTheExporterToPrometheusGivesEachMetricItsName(t *testing.T) {
	registry := prometheus.NewRegistry()
	reader, err := exporter.New(exporter.WithRegisterer(registry), exporter.WithoutTargetInfo(), exporter.WithoutScopeInfo())
	if err != nil {
		t.Fatal(err)
	}
	s := stats.New()
	if err := fenceotel.Register(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)).Meter("test"), s); err != nil {
		t.Fatal(err)
	}
	p := epoch.Partition{Group: "g", Topic: "orders"}
	s.Observe(consumer.Joined{})
	s.Observe(consumer.Granted{Partition: p})
	s.Observe(consumer.Claimed{Fence: epoch.Fence{Origin: epoch.Origin{Partition: p}, Epoch: 7, Next: 20}})
	s.Observe(consumer.Advanced{Partition: p, Epoch: 7, From: 20, To: 30, Messages: 10, Lag: 4, Oldest: time.Now(), Newest: time.Unix(1000, 0)})
	s.Observe(consumer.Halted{Partition: p, Epoch: 7, Next: 30, Reason: consumer.ReasonMessageFailed})
	s.ObserveLease(lease.Worked{Resource: lease.Resource{Name: "nightly"}, Took: time.Second, TTL: 2 * time.Second, Gap: 4})

	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	exported := map[string]bool{}
	for _, f := range families {
		exported[f.GetName()] = true
	}
	for _, f := range s.Read() {
		empty := f.Kind == stats.Histogram && f.Samples[0].Count == 0 // the exporter leaves it out
		if len(f.Samples) > 0 && !empty && !exported[f.Name] {
			t.Errorf("%s is not exported", f.Name)
		}
		delete(exported, f.Name)
	}
	for name := range exported {
		t.Errorf("%s is exported, and is in no table", name)
	}
}
