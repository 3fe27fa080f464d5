// Package natssource leases partitions of JetStream streams through a key-value
// bucket and reads them: a [consumer.Source] on nats.go.
package natssource
