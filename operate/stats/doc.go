// Package stats turns the events of a consumer, an outbox, a receiver, guards and leases into
// statistics for operators: counters, histograms, rates, recent events, and the state of each
// partition that this process holds. It needs no client library of Prometheus or OpenTelemetry.
// Packages operate/fenceprom and operate/fenceotel, separate modules, export the statistics to
// Prometheus and OpenTelemetry.
//
//	s := stats.New()
//	err := consumer.Run(ctx, source, sink, handlers, consumer.Options{Observe: s.Observe})
//
//	member, err := lease.Open(ctx, store, lease.Options{Group: "billing", Observe: s.ObserveLease})
//
// [Metrics] is the only table of metrics: every exporter reads it. The package hides which events
// change which values, and how many series there are. No label holds the name of an owner, a claim,
// a key or the text of an error.
//
// Series of partitions exist while this process holds the partition. Series of leases begin with
// the first event of a resource and stay; the first 19 resources have series of their own, all
// others share those of [OtherResources]. If there would be more than [MaxSeries], halted
// partitions have series first, then others by name, and epochfence_partitions_unlisted counts the
// rest. Sums over all partitions stay complete. The series of all other counters and histograms
// begin at zero.
package stats
