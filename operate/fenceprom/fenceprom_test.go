package fenceprom_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/lease"
	"github.com/epochfence/epochfence/operate"
	"github.com/epochfence/epochfence/operate/fenceprom"
	"github.com/epochfence/epochfence/operate/stats"
)

var at = epoch.Partition{Group: "g", Topic: "orders", Number: 3}

// holding is the statistics of a process that holds a partition, of which everything is
// known, or nothing yet.
func holding(known bool) *stats.Stats {
	s := stats.New()
	if !known {
		return s
	}
	s.Observe(consumer.Joined{})
	s.Observe(consumer.Granted{Partition: at})
	s.Observe(consumer.Claimed{Fence: epoch.Fence{Origin: epoch.Origin{Partition: at, Log: operate.JobLog}, Epoch: 7, Next: 20}, Waited: 2 * time.Second})
	s.Observe(consumer.Transacted{Messages: 10, Took: 30 * time.Millisecond, Handling: 2 * time.Millisecond})
	s.Observe(consumer.Advanced{Partition: at, Epoch: 7, From: 20, To: 30, Messages: 10, Lag: 4, Newest: time.Unix(1000, 0)})
	s.Observe(consumer.Halted{Partition: at, Epoch: 7, Next: 30, Reason: consumer.ReasonMessageFailed})
	s.ObserveLease(lease.Acquired{Resource: lease.Resource{Name: "nightly"}, Waited: 3 * time.Second})
	return s
}

func gather(t *testing.T, s *stats.Stats) map[string]*dto.MetricFamily {
	t.Helper()
	registry := prometheus.NewPedanticRegistry()
	if err := registry.Register(fenceprom.New(s)); err != nil {
		t.Fatal(err)
	}
	families, err := registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	byName := map[string]*dto.MetricFamily{}
	for _, f := range families {
		byName[f.GetName()] = f
	}
	return byName
}

func TestWhatIsExposedIsTheTable(t *testing.T) {
	kinds := map[stats.Kind]dto.MetricType{stats.Counter: dto.MetricType_COUNTER, stats.Gauge: dto.MetricType_GAUGE, stats.Histogram: dto.MetricType_HISTOGRAM}
	for _, known := range []bool{false, true} {
		t.Run(fmt.Sprintf("holding a partition and a lock: %v", known), func(t *testing.T) {
			exposed := gather(t, holding(known))
			for _, m := range stats.Metrics() {
				f := exposed[m.Name]
				delete(exposed, m.Name)
				ofPartitions := m.Series == nil
				if f == nil {
					if !ofPartitions && !m.PerResource() || known {
						t.Errorf("%s is not exposed", m.Name)
					}
					continue
				}
				if f.GetType() != kinds[m.Kind] || f.GetHelp() != m.Text() {
					t.Errorf("%s is a %v: %s", m.Name, f.GetType(), f.GetHelp())
				}
				var got, want []string
				for _, v := range f.GetMetric() {
					labels := map[string]string{}
					for _, l := range v.GetLabel() {
						labels[l.GetName()] = l.GetValue()
					}
					if len(labels) != len(m.Labels) {
						t.Errorf("%s has labels %v, want %v", m.Name, labels, m.Labels)
					}
					var values []string
					for _, name := range m.Labels {
						values = append(values, labels[name])
					}
					got = append(got, strings.Join(values, " "))
					if m.Kind == stats.Histogram {
						var bounds []float64
						for _, b := range v.GetHistogram().GetBucket() {
							bounds = append(bounds, b.GetUpperBound())
						}
						if !slices.Equal(bounds, m.Buckets) {
							t.Errorf("%s has buckets %v, want %v", m.Name, bounds, m.Buckets)
						}
					}
				}
				for _, s := range m.Series {
					if m.PerResource() {
						s = append([]string{"nightly/0"}, s...)
					}
					want = append(want, strings.Join(s, " "))
				}
				if ofPartitions {
					want = []string{"g orders 3"}
					if len(m.Labels) > 3 {
						want[0] += " message_failed"
					}
				}
				slices.Sort(got)
				slices.Sort(want)
				if !slices.Equal(got, want) {
					t.Errorf("%s has series %q, want %q", m.Name, got, want)
				}
			}
			for name := range exposed {
				t.Errorf("%s is not in the table", name)
			}
		})
	}
}

func TestValuesAreThoseOfTheStats(t *testing.T) {
	for name, want := range map[string]string{
		"epochfence_messages_total": `epochfence_messages_total 10`,
		"epochfence_member":         `epochfence_member 1`,
		"epochfence_leases_held":    `epochfence_leases_held{resource="nightly/0"} 1`,
		"epochfence_lease_acquire_duration_seconds": `epochfence_lease_acquire_duration_seconds_bucket{resource="nightly/0",le="1"} 0
epochfence_lease_acquire_duration_seconds_bucket{resource="nightly/0",le="5"} 1
epochfence_lease_acquire_duration_seconds_sum{resource="nightly/0"} 3`,
		"epochfence_partition_lag_messages": `epochfence_partition_lag_messages{group="g",partition="3",topic="orders"} 4`,
		"epochfence_partition_halted":       `epochfence_partition_halted{group="g",partition="3",reason="message_failed",topic="orders"} 1`,
		"epochfence_transaction_duration_seconds": `epochfence_transaction_duration_seconds_bucket{le="0.025"} 0
epochfence_transaction_duration_seconds_bucket{le="0.05"} 1
epochfence_transaction_duration_seconds_bucket{le="10"} 1
epochfence_transaction_duration_seconds_bucket{le="+Inf"} 1
epochfence_transaction_duration_seconds_sum 0.03
epochfence_transaction_duration_seconds_count 1`,
	} {
		text, err := testutil.CollectAndFormat(fenceprom.New(holding(true)), expfmt.TypeTextPlain, name)
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(want) {
			if !strings.Contains(string(text)+"\n", "\n"+strings.TrimSpace(line)+"\n") {
				t.Errorf("%s:\n%s\nlacks %s", name, text, line)
			}
		}
	}
}

func TestNamesAndHelpAreAsPrometheusWantsThem(t *testing.T) {
	problems, err := testutil.CollectAndLint(fenceprom.New(holding(true)))
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
}

func TestAPartitionThatIsGivenBackHasNoSeries(t *testing.T) {
	s := holding(true)
	s.Observe(consumer.Drained{Partition: at, Epoch: 7, Next: 30})
	for name, f := range gather(t, s) {
		for _, v := range f.GetMetric() {
			for _, l := range v.GetLabel() {
				if l.GetName() == "partition" {
					t.Errorf("%s still has %v", name, v)
				}
			}
		}
	}
}

func TestSeveralConsumersOfAProcessAreToldApart(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	for _, name := range []string{"billing", "shipping"} {
		if err := prometheus.WrapRegistererWith(prometheus.Labels{"consumer": name}, registry).Register(fenceprom.New(holding(true))); err != nil {
			t.Fatal(err)
		}
	}
	if n, err := testutil.GatherAndCount(registry, "epochfence_messages_total"); n != 2 || err != nil {
		t.Errorf("%d series, %v", n, err)
	}
}
