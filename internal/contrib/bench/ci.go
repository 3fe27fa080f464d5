package main

import (
	"fmt"
	"time"
)

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
		all = append(all, row{name: fmt.Sprintf("ci/network/batch=%d", batch), what: fmt.Sprintf("the same, with %d messages each, the database 4 ms away", batch), under: away(networkTrip),
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
