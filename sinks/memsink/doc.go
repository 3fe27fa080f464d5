// Package memsink is an [epoch.Sink] in memory, with scripted faults, for unit tests of handlers
// and of the code around them.
//
// A handler writes through a [Tx]: strings under keys, and strings appended to named lists. The
// test reads them back from the [Sink].
//
//	sink := memsink.New()
//	err := consumer.Run(ctx, source, sink, consumer.Each(func(ctx context.Context, tx *memsink.Tx, m consumer.Message, e epoch.Epoch) error {
//		tx.Append("seen", string(m.Value))
//		return nil
//	}).OnFailure(sink.DeadLetter), consumer.Options{})
//	got := sink.List("seen")
//
// The package hides a database: [Sink.Open] returns another process's view of it, and transactions
// that read what others change are refused. [Hooks] script what goes wrong between a process and
// its database: a frozen process, a lost acknowledgement, a refusal. [Sink.Snapshot] and
// [Sink.Restore] play a restore from backup.
//
// The package starts no goroutines, and all waits are the test's own, so it works inside a
// testing/synctest bubble. Nothing is kept when the process ends.
package memsink
