package stats

import (
	"fmt"
	"strings"
)

// Kind is what may happen to the value of a metric.
type Kind int

// The kinds.
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

// Metric says what is counted or measured.
type Metric struct {
	// Name is as Prometheus has it: epochfence_, what it is, the base unit, and
	// _total for a counter.
	Name string

	Kind Kind

	// Unit is in the notation of UCUM, as OpenTelemetry wants it: s, By, or what is
	// counted in braces.
	Unit string

	// Help says what it is, in one line.
	Help string

	// KnownAs is what the field calls it, where it has a name for it.
	KnownAs string

	// Labels are the names of its labels. Series are the combinations of their values
	// that there are; nil for a gauge of partitions, which has one for each of them.
	Labels []string
	Series [][]string

	// Buckets are the upper bounds of a histogram's, rising. There is one more
	// without a bound.
	Buckets []float64
}

// Text is the help with the name that the field knows the metric by.
func (m *Metric) Text() string {
	if m.KnownAs == "" {
		return m.Help
	}
	return m.Help + " Known as " + m.KnownAs + "."
}

// OpenTelemetry is the name of the metric by the conventions of OpenTelemetry: without
// its unit and _total, which an exporter to Prometheus adds again.
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

// perPartition reports whether the metric is a gauge of each partition that is held.
func (m *Metric) perPartition() bool { return m.Series == nil }

// Metrics returns the table of all metrics. It must not be changed.
func Metrics() []Metric { return table[:] }
