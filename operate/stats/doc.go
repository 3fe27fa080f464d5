// Package stats turns the events of a consumer, an outbox, a receiver, guards and leases into statistics for
// operators: counters, histograms, rates, recent events, and the state of each partition that this
// process holds. It needs no client library of Prometheus or OpenTelemetry. Packages operate/fenceprom
// and operate/fenceotel, separate modules, export the statistics to Prometheus and OpenTelemetry.
//
//	s := stats.New()
//	err := consumer.Run(ctx, source, sink, handlers, consumer.Options{Observe: s.Observe})
//
//	member, err := lease.Open(ctx, store, lease.Options{Group: "billing", Observe: s.ObserveLease})
//
// [Metrics] is the only table of metrics: every exporter reads it.
//
// # Number of series
//
// No label holds the name of an owner, a claim, a key or the text of an error. The values of most
// labels are known beforehand, and the series of these counters and histograms begin at zero. Two kinds
// of metrics have other values.
//
// Metrics of partitions have the group, topic and number as labels, and only for partitions that this
// process holds. If all these would exceed [MaxSeries], the process exposes them for some
// partitions only, halted partitions first and then in the order of their names, and counts the rest
// in epochfence_partitions_unlisted. Sums over all partitions stay complete.
//
// Metrics of leases have the resource as a label. Their series begin at zero with the first event of
// the resource, and stay. The first 19 resources have series of their own. All others share the series
// of [OtherResources].
package stats
