// Package fenceprom exports the statistics of a consumer to Prometheus. It is a separate module, so
// that epochfence does not depend on the client library.
//
//	s := stats.New()
//	prometheus.MustRegister(fenceprom.New(s))
//	err := consumer.Run(ctx, source, sink, handlers, consumer.Options{Observe: s.Observe})
//
// [stats.Metrics] lists the metrics. A process with several consumers has one Stats for each, and
// distinguishes them by a label of its own:
//
//	prometheus.WrapRegistererWith(prometheus.Labels{"consumer": "billing"}, registry).MustRegister(fenceprom.New(billing))
package fenceprom

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/epochfence/epochfence/operate/stats"
)

// New returns a collector that reads s at each scrape. It is safe for concurrent use.
func New(s *stats.Stats) prometheus.Collector {
	c := &collector{stats: s, descs: map[string]*prometheus.Desc{}}
	for _, m := range stats.Metrics() {
		c.descs[m.Name] = prometheus.NewDesc(m.Name, m.Text(), m.Labels, nil)
	}
	return c
}

type collector struct {
	stats *stats.Stats
	descs map[string]*prometheus.Desc // by name
}

func (c *collector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		to <- d
	}
}

func (c *collector) Collect(to chan<- prometheus.Metric) {
	for _, f := range c.stats.Read() {
		for _, v := range f.Samples {
			to <- metric(c.descs[f.Name], f.Metric, v)
		}
	}
}

func metric(d *prometheus.Desc, m *stats.Metric, v stats.Sample) prometheus.Metric {
	switch m.Kind {
	case stats.Counter:
		return prometheus.MustNewConstMetric(d, prometheus.CounterValue, v.Value, v.Labels...)
	case stats.Gauge:
		return prometheus.MustNewConstMetric(d, prometheus.GaugeValue, v.Value, v.Labels...)
	default:
		buckets := map[float64]uint64{}
		for i, bound := range m.Buckets {
			buckets[bound] = v.Buckets[i]
		}
		return prometheus.MustNewConstHistogram(d, v.Count, v.Sum, buckets, v.Labels...)
	}
}
