package stats

import (
	"bytes"
	"cmp"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/outbox"
)

// This file takes a reading of all values for exporters, decides which partitions have series when
// there are too many, and writes the text format of Prometheus without its client library.

// Sample is the value of one series.
type Sample struct {
	Labels []string // the values of the metric's Labels
	Value  float64  // of a counter or a gauge

	// For a histogram: the number of observations, their sum, and how many were less than or equal
	// to each of the metric's Buckets.
	Count   uint64
	Sum     float64
	Buckets []uint64
}

// Family is a metric with all of its series.
type Family struct {
	*Metric
	Samples []Sample
}

// Read returns the present values of all metrics, in the order of [Metrics].
func (s *Stats) Read() []Family {
	held := s.status.Partitions()
	joined, _ := s.status.Joined()
	s.mu.Lock()
	defer s.mu.Unlock()
	families := make([]Family, rows)
	for i := range table {
		families[i] = Family{Metric: &table[i], Samples: s.values.samples(i)}
	}
	set := func(metric int, value float64, labels ...string) {
		families[metric].Samples = append(families[metric].Samples, Sample{Labels: labels, Value: value})
	}
	set(member, number(joined || s.leases && !s.consumes))
	hung := map[consumer.Function]int{}
	for _, o := range s.status.Hung() {
		hung[o.Function]++
	}
	for f := consumer.FunctionHandler; f <= consumer.FunctionSink; f++ {
		set(hungCalls, float64(hung[f]), f.String())
	}
	for _, holder := range table[snapshotAge].Series {
		set(snapshotAge, float64(s.snapshots[holder[0]]), holder[0])
	}
	set(deferredNow, float64(s.deferring))
	s.readPartitions(held, set)
	now := time.Now()
	s.readOutbox(now, set)
	s.readResources(now, families)
	return families
}

func (h *histogram) sample() Sample {
	var v Sample
	v.Sum = h.sum
	for _, n := range h.counts {
		v.Count += n
		v.Buckets = append(v.Buckets, v.Count)
	}
	v.Buckets = v.Buckets[:len(v.Buckets)-1]
	return v
}

func number(yes bool) float64 {
	if yes {
		return 1
	}
	return 0
}

func (s *Stats) readPartitions(held []consumer.PartitionStatus, set func(metric int, value float64, labels ...string)) {
	states := map[consumer.State]int{}
	var behind, unknown int64
	for _, p := range held {
		states[p.State]++
		if p.Lag < 0 {
			unknown++
			continue
		}
		behind += p.Lag
	}
	for _, state := range []consumer.State{consumer.StateAssigned, consumer.StateClaimed, consumer.StateHalted} {
		set(partitions, float64(states[state]), state.String())
	}
	set(lag, float64(behind))
	set(lagUnknown, float64(unknown))
	listed := held
	if most := mostListed(len(s.jobs) > 0); len(held) > most {
		slices.SortStableFunc(held, func(a, b consumer.PartitionStatus) int {
			return cmp.Compare(number(b.State == consumer.StateHalted), number(a.State == consumer.StateHalted))
		})
		listed = held[:most]
	}
	set(partitionsUnlisted, float64(len(held)-len(listed)))
	for _, p := range listed {
		at := []string{p.Partition.Group, p.Partition.Topic, strconv.Itoa(int(p.Partition.Number))}
		if p.Lag >= 0 {
			set(partitionLag, float64(p.Lag), at...)
		}
		if p.Next >= 0 {
			set(partitionNext, float64(p.Next), at...)
		}
		if p.Epoch > 0 {
			set(partitionEpoch, float64(p.Epoch), at...)
		}
		if p.State == consumer.StateHalted {
			set(partitionHalted, 1, append(at, p.Reason.String())...)
		}
		if !p.Newest.IsZero() {
			set(partitionNewest, float64(p.Newest.UnixMilli())/1000, at...)
		}
		if j := s.jobs[p.Partition]; j != nil {
			set(jobMissed, float64(j.missed), at...)
			set(jobLate, j.late.Seconds(), at...)
		}
	}
}

func (s *Stats) readOutbox(now time.Time, set func(metric int, value float64, labels ...string)) {
	entries, age := 0, time.Duration(0)
	for _, b := range s.backlogs {
		entries += b.Entries
		if !b.Oldest.IsZero() {
			age = max(age, now.Sub(b.Oldest))
		}
	}
	set(outboxEntries, float64(entries))
	set(outboxOldest, age.Seconds())
}

// mostListed limits the partitions that have their own series, so that a Stats has no more than
// [MaxSeries] series.
func mostListed(jobs bool) int {
	series, each := 0, 0
	for _, m := range table {
		n := len(m.Series)
		if m.Kind == Histogram {
			n *= len(m.Buckets) + 3 // +Inf, the sum and the count
		}
		switch {
		case m.perPartition():
			if jobs || !m.perJob() {
				each++
			}
		case m.PerResource():
			series += mostResources * n
		default:
			series += n
		}
	}
	return (MaxSeries - series) / each
}

// Partition is the state of a partition that this process holds.
type Partition struct {
	consumer.PartitionStatus
	MessagesPerSecond float64 // over about the last 10 s
	BytesPerSecond    float64
	Outbox            outbox.Backlog // the zero value if it is not known
}

// Partitions returns the partitions that this process holds, by group, topic and number.
func (s *Stats) Partitions() []Partition {
	held := s.status.Partitions()
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	ps := make([]Partition, len(held))
	for i, p := range held {
		ps[i] = Partition{PartitionStatus: p, Outbox: s.backlogs[p.Partition]}
		if v := s.speeds[p.Partition]; v != nil {
			ps[i].MessagesPerSecond, ps[i].BytesPerSecond = v.messages.now(now), v.bytes.now(now)
		}
	}
	return ps
}

// Rates returns the messages and bytes that this process applies per second, over about the last 10
// s.
func (s *Stats) Rates() (messages, bytes float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	return s.total.messages.now(now), s.total.bytes.now(now)
}

// Exposition serves all metrics in Prometheus's text format, version 0.0.4, for programs without
// Prometheus's client. A program with the client uses operate/fenceprom, which adds the same metrics to
// the program's own.
func (s *Stats) Exposition() http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		_, _ = w.Write(exposed(s.Read()))
	})
}

func exposed(families []Family) []byte {
	var b bytes.Buffer
	for _, f := range families {
		fmt.Fprintf(&b, "# HELP %s %s\n# TYPE %s %s\n", f.Name, helpEscaped.Replace(f.Text()), f.Name, f.Kind)
		for _, s := range f.Samples {
			if f.Kind != Histogram {
				b.WriteString(line(f.Name, f.Labels, s.Labels, s.Value))
				continue
			}
			names := append(append([]string{}, f.Labels...), "le")
			for i, n := range s.Buckets {
				b.WriteString(line(f.Name+"_bucket", names, append(append([]string{}, s.Labels...), value(f.Buckets[i])), float64(n)))
			}
			b.WriteString(line(f.Name+"_bucket", names, append(append([]string{}, s.Labels...), "+Inf"), float64(s.Count)))
			b.WriteString(line(f.Name+"_sum", f.Labels, s.Labels, s.Sum))
			b.WriteString(line(f.Name+"_count", f.Labels, s.Labels, float64(s.Count)))
		}
	}
	return b.Bytes()
}

var (
	helpEscaped  = strings.NewReplacer(`\`, `\\`, "\n", `\n`)
	labelEscaped = strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`)
)

func line(name string, labels, values []string, x float64) string {
	var b strings.Builder
	b.WriteString(name)
	for i, label := range labels {
		if i == 0 {
			b.WriteByte('{')
		} else {
			b.WriteByte(',')
		}
		b.WriteString(label + `="` + labelEscaped.Replace(strings.ToValidUTF8(values[i], "�")) + `"`)
	}
	if len(labels) > 0 {
		b.WriteByte('}')
	}
	return b.String() + " " + value(x) + "\n"
}

func value(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }
