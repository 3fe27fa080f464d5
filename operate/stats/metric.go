package stats

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
)

// This file has the kinds and names of metrics, as exporters see them, and keeps counters and
// histograms, whose series are known beforehand, and rates, which decay. It knows nothing of events.
// table.go has the metrics.

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

// values are the values of the counters and histograms. The caller holds the lock.
type values struct {
	counts     [rows][]float64   // by series
	histograms [rows][]histogram // by series
}

type histogram struct {
	sum    float64
	counts []uint64 // by bucket; the last one is without a bound
}

// newValues returns zeros for the metrics for which of returns true.
func newValues(of func(*Metric) bool) (v values) {
	for i := range table {
		m := &table[i]
		switch {
		case !of(m):
		case m.Kind == Counter:
			v.counts[i] = make([]float64, len(m.Series))
		case m.Kind == Histogram:
			v.histograms[i] = make([]histogram, len(m.Series))
			for n := range v.histograms[i] {
				v.histograms[i][n].counts = make([]uint64, len(m.Buckets)+1)
			}
		}
	}
	return v
}

// samples returns those of a counter or a histogram.
func (v *values) samples(metric int) []Sample {
	var all []Sample
	for n, x := range v.counts[metric] {
		all = append(all, Sample{Labels: table[metric].Series[n], Value: x})
	}
	for n, h := range v.histograms[metric] {
		of := h.sample()
		of.Labels = table[metric].Series[n]
		all = append(all, of)
	}
	return all
}

// add adds n to the series with these labels. It ignores a combination that the table does not
// have, such as the reason of a failed claim that no fence refused.
func (v *values) add(metric int, n float64, labels ...string) {
	if i := seriesOf(metric, labels); i >= 0 {
		v.counts[metric][i] += n
	}
}

func seriesOf(metric int, labels []string) int {
	return slices.IndexFunc(table[metric].Series, func(s []string) bool { return slices.Equal(s, labels) })
}

func (v *values) observe(metric int, x float64, labels ...string) {
	h := &v.histograms[metric][seriesOf(metric, labels)]
	h.sum += x
	for i, bound := range table[metric].Buckets {
		if x <= bound {
			h.counts[i]++
			return
		}
	}
	h.counts[len(h.counts)-1]++
}

// rateTime is the time constant of the smoothing: what happened rateTime ago counts 1/e.
const rateTime = 10 * time.Second

// rate is an exponentially smoothed amount per second. The zero value is zero.
type rate struct {
	at    time.Time
	value float64 // per second, at that time
}

func (r *rate) add(now time.Time, n float64) {
	r.value = r.now(now) + n/rateTime.Seconds()
	r.at = now
}

func (r *rate) now(now time.Time) float64 {
	if r.value == 0 {
		return 0
	}
	return r.value * math.Exp(-float64(now.Sub(r.at))/float64(rateTime))
}
