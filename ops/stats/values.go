package stats

import "slices"

// values are the values of the counters and histograms. The caller holds the lock.
type values struct {
	counts     [rows][]float64 // by series
	histograms [rows]histogram
}

type histogram struct {
	sum    float64
	counts []uint64 // by bucket; the last one is without a bound
}

func newValues() (v values) {
	for i, m := range table {
		switch m.Kind {
		case Counter:
			v.counts[i] = make([]float64, len(m.Series))
		case Histogram:
			v.histograms[i].counts = make([]uint64, len(m.Buckets)+1)
		case Gauge:
		}
	}
	return v
}

// add adds n to the series with these labels. It ignores a combination that the table does not
// have, such as the reason of a failed claim that no fence refused.
func (v *values) add(metric int, n float64, labels ...string) {
	for i, s := range table[metric].Series {
		if slices.Equal(s, labels) {
			v.counts[metric][i] += n
			return
		}
	}
}

func (v *values) observe(metric int, x float64) {
	h := &v.histograms[metric]
	h.sum += x
	for i, bound := range table[metric].Buckets {
		if x <= bound {
			h.counts[i]++
			return
		}
	}
	h.counts[len(h.counts)-1]++
}
