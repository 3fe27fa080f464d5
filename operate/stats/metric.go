package stats

import (
	"fmt"
	"strings"
)

// This file has the kinds and names of metrics, as exporters see them. table.go has the metrics.

// Kind is the kind of a metric.
type Kind int

// The kinds of metrics.
const (
	Counter   Kind = iota // goes up, from zero
	Gauge                 // goes up and down
	Histogram             // counts observations by size
)

func (k Kind) String() string {
	switch k {
	case Counter:
		return "counter"
	case Gauge:
		return "gauge"
	case Histogram:
		return "histogram"
	default:
		return fmt.Sprintf("Kind(%d)", int(k))
	}
}

// Metric describes a metric.
type Metric struct {
	// Name follows Prometheus's conventions: epochfence_, the subject, the base unit, and _total
	// for a counter.
	Name string

	Kind Kind

	// Unit is in the notation of UCUM, as OpenTelemetry requires: s, By, or the counted thing in
	// braces.
	Unit string

	// Help describes the metric in one line.
	Help string

	// KnownAs is the metric's usual name elsewhere, if it has one.
	KnownAs string

	// Labels are the names of the metric's labels. Series are the existing combinations of their
	// values; nil for a metric of partitions, which has one series for each partition. For a metric of
	// resources they are the combinations of the values of the other labels, see [Metric.PerResource].
	Labels []string
	Series [][]string

	// Buckets are the upper bounds of a histogram's buckets, rising. One more bucket has no bound.
	Buckets []float64
}

// Text returns the help and the metric's usual name elsewhere.
func (m *Metric) Text() string {
	if m.KnownAs == "" {
		return m.Help
	}
	return m.Help + " Known as " + m.KnownAs + "."
}

// OpenTelemetry returns the metric's name by OpenTelemetry's conventions: without the unit and
// _total, which an exporter to Prometheus adds again.
func (m *Metric) OpenTelemetry() string {
	name := strings.TrimSuffix(m.Name, "_total")
	switch m.Unit {
	case "s":
		name = strings.TrimSuffix(name, "_seconds")
	case "By":
		name = strings.TrimSuffix(name, "_bytes")
	}
	return strings.Replace(name, "_", ".", 1)
}

// PerResource reports whether the metric has its Series for each resource of leases. The resource is
// the first label then.
func (m *Metric) PerResource() bool { return len(m.Labels) > 0 && m.Labels[0] == "resource" }

func (m *Metric) perPartition() bool { return m.Series == nil }

// perJob reports whether only the partitions that are jobs have the metric.
func (m *Metric) perJob() bool { return strings.HasPrefix(m.Name, "epochfence_job_") }

// Metrics returns the table of all metrics. Callers must not change it.
func Metrics() []Metric { return table[:] }
