package main

import (
	"fmt"
	"time"
)

// networkTrip is long beside the moments for which a busy machine leaves a process waiting.
const networkTrip = 4 * time.Millisecond

// ciRows are those of CI, on a machine that others use, too. What is measured there is
// what does not depend on them:
//
//   - How much work of the processors a message costs, in place of how long it takes. The
//     database runs without fsync, and in memory if there is room. Both variants
//     of a figure have the same round trips, as the price of one is
//     another on an idle machine, whose processors fall asleep between two of them.
//   - How long it takes with the database 4 ms away, which is hardly more than the sum of the
//     round trips. So what only waits is found as well.
//
// They are short, so that the variants of a round meet the same machine, and there can be
// many rounds.
func ciRows() []row {
	var all []row
	for _, s := range []struct{ batch, transactions int }{{1, 1500}, {16, 1200}, {256, 400}} {
		all = append(all, row{
			name: fmt.Sprintf("ci/fence/batch=%d", s.batch), what: fmt.Sprintf("transactions one after the other, with %d messages each, without fsync", s.batch),
			job: job{Batch: s.batch, Messages: s.batch * (s.transactions + warmup)}, effects: true,
			figures: []figure{{"fenced", "plain", 0, work}, {"queued", "piped", 0, work}},
		})
	}
	for _, batch := range []int{1, 16} {
		all = append(all, row{
			name: fmt.Sprintf("ci/network/batch=%d", batch), what: fmt.Sprintf("the same, with %d messages each, the database 4 ms away", batch), under: away(networkTrip),
			job: job{Batch: batch, Messages: batch * (30 + warmup)}, effects: true,
			figures: []figure{{"fenced", "plain", 0, throughput}, {"queued", "plain", 0, throughput}},
		})
	}
	return append(all,
		row{
			name: "ci/kafka/partitions=8", what: "Kafka to PostgreSQL without fsync, 8 partitions, a set for each transaction, default options", source: "kafka",
			job: job{Partitions: 8, Messages: 400_000}, effects: true,
			figures: []figure{{"kafka/run-batches", "kafka/set", 0, work}},
		},
		row{
			name: "ci/kafka/each", what: "Kafka to PostgreSQL without fsync, a statement for each message", source: "kafka",
			job: job{Partitions: 8, Messages: 40_000}, effects: true,
			figures: []figure{{"kafka/run-each", "kafka/each", 0, work}, {"kafka/run-queued", "kafka/piped", 0, work}},
		},
		row{
			name: "ci/kafka/read", what: "reading from Kafka, without a sink", source: "kafka",
			job: job{Partitions: 8, Messages: 2_000_000}, figures: []figure{{"kafka/source", "kafka/read", 0, work}},
		},
		row{
			name: "ci/nats/read", what: "reading from JetStream, without a sink", source: "nats",
			job: job{Partitions: 8, Messages: 300_000}, figures: []figure{{"nats/source", "nats/read", 0, work}},
		},
	)
}
