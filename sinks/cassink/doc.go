// Package cassink is an [epoch.Sink] over a [cas.Store], for teams without an SQL database: fences
// and effects are items of etcd, Redis, DynamoDB, S3, NATS and others. docs/stores.md lists the drivers
// that pass its suite.
//
//	sink, err := cassink.Open(ctx, store, cassink.Options{})
//	…
//	reserve := func(ctx context.Context, tx *cassink.Tx, m consumer.Message, e epoch.Epoch) error {
//		_, err := tx.Update(ctx, m, "stock/"+string(m.Key), func(old guard.State) (guard.State, []byte, error) {
//			return guard.Text(less(old.Value)), nil, nil
//		})
//		return err
//	}
//	err = consumer.Run(ctx, source, sink, consumer.Each(reserve).OnFailure(sink.DeadLetter), consumer.Options{
//		Guarantee: epoch.PerItem,
//	})
//
// # What is guaranteed
//
// [epoch.PerItem]: each message changes each item exactly once, in the order of the partition, whatever
// process applies it and however often, and an owner that was paused and wakes up changes no item that
// its successor has changed. What [Tx.Update] changes is written when all handlers of a transaction have
// returned nil, so a handler that returns an error has changed nothing. The items of a transaction are
// then written one by one, and the position last: another program can see some of the changes of a
// message before the others.
//
// The note of an item (cas.Item.Note) lists messages that have changed it: those that may be delivered
// again, from the position that the fence had when the item was last written. "Once" ends where an
// operator sets the position back, and for a dead letter that is replayed after many others have changed
// the item: see docs/stores.md. Package guard describes what that asks of a handler: decide within the change functions and from their
// outcomes, and change items of the store through Update alone. Any client may read them.
//
// A transaction has one partition. Set consumer.Options.Committers to the number of partitions that
// a process should apply at a time. If a handler of consumer.Batches calls [Tx.Load] first, its
// items are read together.
//
// On a store that may lose acknowledged writes ([cas.Facts.Forgets]), effects may be lost with them, or
// happen again.
//
// # Operators
//
// A Sink is an [operate.Operable]: the audit log, dead letters and signs of life are items, too.
// The audit log keeps the last 500 entries of each partition, or 128 KiB of them. Times are those of the
// process that writes, because most stores have no clock.
//
// # Outbox
//
// Package outbox/casoutbox keeps an outbox in the store. Other background work (consumer's
// Handlers.Background) reads items, adds entries to the outbox and changes no items, because
// without a message an item cannot remember the change.
package cassink
