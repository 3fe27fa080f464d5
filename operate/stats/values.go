package stats

import "slices"

// This file keeps counters and histograms, whose series are known beforehand. It knows nothing of
// events.

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
