package fenceotel_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	attributes "go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/lease"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/operate/fenceotel"
	"github.com/epochfence/epochfence/operate/stats"
)

var (
	at      = epoch.Partition{Group: "g", Topic: "orders", Number: 3}
	nightly = lease.Resource{Name: "nightly"}
)

// exposed is what the SDK has of a metric: its kind, unit and text, and its series by the
// values of its labels.
type exposed struct {
	kind, unit, text string
	series           map[string]float64
	buckets          []float64
}

func collect(t *testing.T, reader *sdkmetric.ManualReader) map[string]exposed {
	t.Helper()
	var all metricdata.ResourceMetrics
	if err := reader.Collect(t.Context(), &all); err != nil {
		t.Fatal(err)
	}
	byName := map[string]exposed{}
	for _, scope := range all.ScopeMetrics {
		for _, m := range scope.Metrics {
			e := exposed{unit: m.Unit, text: m.Description, series: map[string]float64{}}
			labels := func(of attributes.Set) string {
				var values []string
				for _, a := range of.ToSlice() {
					values = append(values, string(a.Key)+"="+a.Value.AsString())
				}
				slices.Sort(values)
				return strings.Join(values, " ")
			}
			points := func(ps []metricdata.DataPoint[float64]) {
				for _, p := range ps {
					e.series[labels(p.Attributes)] = p.Value
				}
			}
			switch data := m.Data.(type) {
			case metricdata.Sum[float64]:
				e.kind = "counter"
				if !data.IsMonotonic || data.Temporality != metricdata.CumulativeTemporality {
					t.Errorf("%s is not a counter", m.Name)
				}
				points(data.DataPoints)
			case metricdata.Gauge[float64]:
				e.kind = "gauge"
				points(data.DataPoints)
			case metricdata.Histogram[float64]:
				e.kind = "histogram"
				for _, p := range data.DataPoints {
					e.series[labels(p.Attributes)], e.buckets = p.Sum, p.Bounds
				}
			}
			byName[m.Name] = e
		}
	}
	return byName
}

func TestWhatIsExposedIsTheTable(t *testing.T) {
	reader := sdkmetric.NewManualReader()
	s := stats.New()
	if err := fenceotel.Register(sdkmetric.NewMeterProvider(sdkmetric.WithReader(reader)).Meter("test"), s); err != nil {
		t.Fatal(err)
	}
	for name, e := range collect(t, reader) {
		for labels, v := range e.series {
			if v != 0 || strings.Contains(labels, "partition=") {
				t.Errorf("at first %s{%s} is %v", name, labels, v)
			}
		}
	}
	s.Observe(consumer.Joined{})
	s.Observe(consumer.Granted{Partition: at})
	s.Observe(consumer.Claimed{Fence: epoch.Fence{Origin: epoch.Origin{Partition: at, Log: operate.JobLog}, Epoch: 7, Next: 20}, Waited: 2 * time.Second})
	s.Observe(consumer.Transacted{Messages: 10, Took: 30 * time.Millisecond, Handling: 2 * time.Millisecond})
	s.Observe(consumer.Advanced{Partition: at, Epoch: 7, From: 20, To: 30, Messages: 10, Lag: 4, Oldest: time.Now(), Newest: time.Unix(1000, 0)})
	s.Observe(consumer.Stale{Ours: epoch.Fence{Epoch: 7}, Held: epoch.Fence{Epoch: 9}})
	s.ObserveLease(lease.Acquired{Resource: nightly, Waited: 3 * time.Second})
	s.ObserveLease(lease.Worked{Resource: nightly, Took: time.Second, TTL: 2 * time.Second, Gap: 4})
	s.ObserveLease(lease.Worked{Resource: nightly, Took: time.Second, TTL: 2 * time.Second, Outcome: lease.OutcomeRefused, Refusal: lease.RefusalStale, Gap: 7})
	s.ObserveLease(lease.Released{Resource: nightly, Held: 9 * time.Second})
	s.Observe(consumer.Halted{Partition: at, Epoch: 7, Next: 30, Reason: consumer.ReasonMessageFailed})

	got := collect(t, reader)
	want := map[string]stats.Family{}
	for _, f := range s.Read() {
		want[f.OpenTelemetry()] = f
	}
	for name, f := range want {
		e, there := got[name]
		delete(got, name)
		switch {
		case !there && f.Kind == stats.Histogram && f.Samples[0].Count == 0: // there is nothing of it yet
			continue
		case !there, e.kind != f.Kind.String(), e.unit != f.Unit, e.text != f.Text():
			t.Errorf("%s is %+v, want %+v", name, e, f.Metric)
			continue
		case !slices.Equal(e.buckets, f.Buckets):
			t.Errorf("%s has buckets %v, want %v", name, e.buckets, f.Buckets)
		}
		for _, v := range f.Samples {
			var labels []string
			for i, l := range f.Labels {
				labels = append(labels, l+"="+v.Labels[i])
			}
			slices.Sort(labels)
			key := strings.Join(labels, " ")
			if have, there := e.series[key]; !there || have != v.Value+v.Sum {
				t.Errorf("%s{%s} is %v, want %v", name, key, have, v.Value+v.Sum)
			}
			delete(e.series, key)
		}
		if len(e.series) > 0 {
			t.Errorf("%s has series that the table does not: %v", name, e.series)
		}
	}
	for name := range got {
		t.Errorf("%s is not in the table", name)
	}
	if v := want["epochfence.claim_duration"]; fmt.Sprint(v.Samples[0].Sum) != "2" {
		t.Errorf("claims took %v", v.Samples[0].Sum)
	}
}
