// Package fenceotel hands the statistics of a consumer to OpenTelemetry, and puts spans
// around what it does. It is a module of its own, and needs OpenTelemetry's API alone:
// which SDK there is, and where it sends to, is the application's.
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
//	commit orders    a transaction, from begin to commit: what the database's own
//	                 instrumentation has of it is within
//	process orders   the handler of a message, or of several, with a link to the span
//	                 that each message came with
//	send             a request of the outbox, and the trace that continues at the receiver
//
// A transaction takes messages of many traces, so their process spans are in the commit's
// trace, and lead to the messages' by links. With [Options].Parent each process span is in
// its message's trace instead, and has a link to the commit's.
//
// The audit log has the trace of each claim, and of the transaction because of which a
// partition was given up, or halted.
package fenceotel
