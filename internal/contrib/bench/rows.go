package main

import (
	"fmt"
	"time"
)

// row is a task, its variants and the figures to compute from them.
type row struct {
	name    string
	what    string // for the page
	source  string // "", "kafka" or "nats": the source of the messages
	job     job
	away    time.Duration // of the database, a round trip
	figures []figure
	effects bool // the variants write to the database
}

// figure is how many times as fast ours is as the peer; for latencies, how many times as late.
// reach is the target.
type figure struct {
	ours, peer string
	reach      float64 // 0: for information only
	of         measure
}

// measure is the quantity that a figure compares. The zero value is messages per second.
type measure string

const (
	throughput measure = ""
	p50        measure = "p50"
	p99        measure = "p99"
	work       measure = "CPU" // messages per second of processor time, including PostgreSQL's
)

// late reports whether more of it is worse.
func (m measure) late() bool { return m == p50 || m == p99 }

func (m measure) of(o outcome) float64 {
	switch m {
	case p50:
		return float64(o.P50)
	case p99:
		return float64(o.P99)
	case work:
		return float64(o.Timed) / o.CPU.Seconds()
	default:
		return float64(o.Timed) / o.Took.Seconds()
	}
}

func (r row) variants() []string {
	var names []string
	known := map[string]bool{}
	for _, f := range r.figures {
		for _, v := range []string{f.ours, f.peer} {
			if !known[v] {
				known[v] = true
				names = append(names, v)
			}
		}
	}
	return names
}

func rows() []row {
	var all []row
	for _, s := range []struct {
		batch, transactions int
		ordinary, queued    float64
	}{
		{1, 1000, 0.90, 1.2}, {16, 800, 0.93, 1.1}, {256, 400, 1.0, 1.2}, {1024, 200, 0.97, 1.05},
	} {
		all = append(all, row{name: fmt.Sprintf("fence/batch=%d", s.batch), what: fmt.Sprintf("transactions one after the other, with %d messages each", s.batch),
			job: job{Batch: s.batch, Messages: s.batch * (s.transactions + warmup)}, effects: true,
			figures: []figure{
				{"fenced", "plain", s.ordinary, throughput}, {"queued", "plain", s.queued, throughput},
				{"fenced", "dedupe", 0, throughput}, {"queued", "dedupe", 0, throughput},
			}})
	}
	all = append(all,
		row{name: "fence/network", what: "transactions of 16 messages, the database 1 ms away", away: time.Millisecond,
			job: job{Batch: 16, Messages: 16 * (400 + warmup)}, effects: true,
			figures: []figure{{"fenced", "plain", 0, throughput}, {"queued", "plain", 0, throughput}}},
		row{name: "kafka/partitions=8", what: "Kafka to PostgreSQL, 8 partitions, a set for each transaction, default options", source: "kafka",
			job: job{Partitions: 8, Messages: 3_000_000}, effects: true,
			figures: []figure{
				{"kafka/run-sets", "kafka/set", 1, throughput},
				{"kafka/run-batches", "kafka/set", 0.85, throughput}, {"kafka/run-sets", "kafka/set-dedupe", 2.5, throughput},
			}},
		row{name: "kafka/partitions=1", what: "Kafka to PostgreSQL, one partition", source: "kafka",
			job: job{Partitions: 1, Messages: 3_000_000}, effects: true,
			figures: []figure{{"kafka/run-batches", "kafka/set", 0.85, throughput}, {"kafka/run-batches", "kafka/set-dedupe", 0, throughput}}},
		row{name: "kafka/network", what: "Kafka to PostgreSQL, 8 partitions, the database 1 ms away", source: "kafka", away: time.Millisecond,
			job: job{Partitions: 8, Messages: 2_000_000}, effects: true,
			figures: []figure{
				{"kafka/run-sets", "kafka/set", 0.95, throughput},
				{"kafka/run-batches", "kafka/set", 0, throughput}, {"kafka/run-batches-queued", "kafka/set", 0, throughput},
			}},
		row{name: "kafka/network/partitions=1", what: "Kafka to PostgreSQL, one partition, the database 1 ms away", source: "kafka", away: time.Millisecond,
			job: job{Partitions: 1, Messages: 2_000_000}, effects: true,
			figures: []figure{{"kafka/run-batches", "kafka/set", 0, throughput}, {"kafka/run-batches-queued", "kafka/set", 0, throughput}}},
		row{name: "kafka/network/each", what: "Kafka to PostgreSQL, a statement for each message, the database 1 ms away", source: "kafka", away: time.Millisecond,
			job: job{Partitions: 8, Messages: 20_000}, effects: true,
			figures: []figure{{"kafka/run-each", "kafka/each", 0, throughput}, {"kafka/run-queued", "kafka/each", 0, throughput}, {"kafka/run-queued", "kafka/piped", 0, throughput}}},
		row{name: "kafka/each", what: "Kafka to PostgreSQL, a statement for each message", source: "kafka",
			job: job{Partitions: 8, Messages: 100_000}, effects: true,
			figures: []figure{
				{"kafka/run-each", "kafka/each", 1.2, throughput}, {"kafka/run-queued", "kafka/each", 15, throughput},
				{"kafka/run-queued", "kafka/piped", 0, throughput},
			}},
		row{name: "kafka/read", what: "reading from Kafka, without a sink", source: "kafka",
			job: job{Partitions: 8, Messages: 8_000_000}, figures: []figure{{"kafka/source", "kafka/read", 0.8, throughput}}},
		row{name: "nats/read", what: "reading from JetStream, without a sink", source: "nats",
			job: job{Partitions: 8, Messages: 600_000}, figures: []figure{{"nats/source", "nats/read", 0.9, throughput}}},
		row{name: "nats/partitions=8", what: "JetStream to PostgreSQL, 8 partitions, default options", source: "nats",
			job: job{Partitions: 8, Messages: 400_000}, effects: true,
			figures: []figure{{"nats/run-batches", "nats/source", 0.75, throughput}, {"nats/run-batches", "nats/set", 0, throughput}}},
	)
	return append(all, latencyRows()...)
}

// latencyRows compare the times from the production of a message until its effect is committed.
func latencyRows() []row {
	at2000 := job{Partitions: 8, Rate: 2000, Messages: 8 * 2000}
	return []row{
		{
			name: "latency", what: "latency from Kafka to PostgreSQL at 2,000 messages a second, 8 partitions", source: "kafka", job: at2000, effects: true,
			figures: []figure{
				{"kafka/run-sets", "kafka/set", 1.2, p50}, {"kafka/run-sets", "kafka/set", 0.6, p99},
				{"kafka/run-batches", "kafka/set", 1, p50}, {"kafka/run-batches", "kafka/set", 1, p99},
				{"kafka/run-batches", "kafka/set-background", 0, p50}, {"kafka/run-batches", "kafka/set-background", 0, p99},
				{"kafka/run-batches-queued", "kafka/set-background", 0, p50}, {"kafka/run-batches-queued", "kafka/set-background", 0, p99},
				{"kafka/run-queued", "kafka/each", 0.4, p50}, {"kafka/run-queued", "kafka/each", 0.4, p99},
				{"kafka/run-queued", "kafka/each-background", 0, p50}, {"kafka/run-queued", "kafka/each-background", 0, p99},
			},
		},
		{
			name: "latency/network", what: "the same latency, the database 1 ms away", source: "kafka", away: time.Millisecond, job: at2000, effects: true,
			figures: []figure{
				{"kafka/run-sets", "kafka/set", 0, p50},
				{"kafka/run-batches", "kafka/set", 0, p50}, {"kafka/run-batches", "kafka/set-background", 0, p50},
				{"kafka/run-batches-queued", "kafka/set", 0, p50}, {"kafka/run-batches-queued", "kafka/set-background", 0, p50},
			},
		},
	}
}

// networkTrip is long compared with the delays of a process on a busy machine.
const networkTrip = 4 * time.Millisecond

// ciRows are the rows for CI, on a machine that other programs use too. They measure figures that
// do not depend on these programs:
//
//   - The processor time of a message, instead of its duration. The database runs without fsync,
//     and in memory if there is enough. Both variants of a figure have the same round trips,
//     because a round trip costs more on an idle machine, whose processors sleep in between.
//   - The duration with the database 4 ms away, which is hardly more than the sum of the round
//     trips. This also finds code that only waits.
//
// The rows are short, so that the variants of a round see the same machine, and many rounds are
// possible.
func ciRows() []row {
	var all []row
	for _, s := range []struct{ batch, transactions int }{{1, 1500}, {16, 1200}, {256, 400}} {
		all = append(all, row{name: fmt.Sprintf("ci/fence/batch=%d", s.batch), what: fmt.Sprintf("transactions one after the other, with %d messages each, without fsync", s.batch),
			job: job{Batch: s.batch, Messages: s.batch * (s.transactions + warmup)}, effects: true,
			figures: []figure{{"fenced", "plain", 0, work}, {"queued", "piped", 0, work}}})
	}
	for _, batch := range []int{1, 16} {
		all = append(all, row{name: fmt.Sprintf("ci/network/batch=%d", batch), what: fmt.Sprintf("the same, with %d messages each, the database 4 ms away", batch), away: networkTrip,
			job: job{Batch: batch, Messages: batch * (30 + warmup)}, effects: true,
			figures: []figure{{"fenced", "plain", 0, throughput}, {"queued", "plain", 0, throughput}}})
	}
	return append(all,
		row{name: "ci/kafka/partitions=8", what: "Kafka to PostgreSQL without fsync, 8 partitions, a set for each transaction, default options", source: "kafka",
			job: job{Partitions: 8, Messages: 400_000}, effects: true,
			figures: []figure{{"kafka/run-batches", "kafka/set", 0, work}}},
		row{name: "ci/kafka/each", what: "Kafka to PostgreSQL without fsync, a statement for each message", source: "kafka",
			job: job{Partitions: 8, Messages: 40_000}, effects: true,
			figures: []figure{{"kafka/run-each", "kafka/each", 0, work}, {"kafka/run-queued", "kafka/piped", 0, work}}},
		row{name: "ci/kafka/read", what: "reading from Kafka, without a sink", source: "kafka",
			job: job{Partitions: 8, Messages: 2_000_000}, figures: []figure{{"kafka/source", "kafka/read", 0, work}}},
		row{name: "ci/nats/read", what: "reading from JetStream, without a sink", source: "nats",
			job: job{Partitions: 8, Messages: 300_000}, figures: []figure{{"nats/source", "nats/read", 0, work}}},
	)
}
