// Package stats makes of the events of a consumer, an outbox and a receiver what
// operators look at: counters, histograms, the state of each partition that this process
// holds, how fast it goes, and what has happened lately. It needs the standard library
// alone. Packages ops/fenceprom and ops/fenceotel, modules of their own, hand it to
// Prometheus and OpenTelemetry.
//
//	s := stats.New()
//	err := consumer.Run(ctx, source, sink, handlers, consumer.Options{Observe: s.Observe})
//
// [Metrics] is the one table of what is counted and measured: whatever is exposed
// anywhere comes from it.
//
// # How many series there are
//
// No label holds the name of an owner, a claim, a key, or the text of an error. Counters
// and histograms have labels of which all values are known, and begin at zero. The group, topic
// and number of a partition are on gauges of partitions that this process holds, and go
// when it does not hold them any more. A process that holds so many that there would be
// more than [MaxSeries] gives those gauges for some of them, those that have halted first
// and then in the order of their names, and says how many it left out
// (epochfence_partitions_unlisted). Sums over all of them are complete.
package stats
