// Package fenceotel exports the statistics of a consumer to OpenTelemetry, and puts spans around
// its operations. It is a separate module and needs only OpenTelemetry's API: the application
// chooses the SDK and the exporter.
//
//	s := stats.New()
//	err := fenceotel.Register(otel.Meter("billing"), s)
//	...
//	tr := fenceotel.NewTracing(fenceotel.Options{System: "kafka"})
//	err = consumer.Run(ctx, source, fenceotel.Sink(tr, sink), consumer.Each(fenceotel.Each(tr, handle)),
//		consumer.Options{Observe: func(e consumer.Event) { s.Observe(e); tr.Observe(e) }})
//
// # Spans
//
//	claim orders     an attempt to claim a partition
//	commit orders    a transaction, from begin to commit; the spans of the database's
//	                 own instrumentation are its children
//	process orders   the handler of a message, or of several, with a link to the span
//	                 that each message came with
//	send             a request of the outbox, and the trace that continues at the receiver
//
// A transaction takes messages of many traces. Their process spans are therefore in the commit's
// trace, and link to the spans of the messages. With [Options].Parent each process span is in its
// message's trace instead, and links to the commit's span.
//
// The audit log records the trace of each claim, and of each transaction that was refused or in doubt,
// or made a partition halt.
package fenceotel
