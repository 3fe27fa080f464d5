// Package cassink is an [epoch.Sink] over a [cas.Store]: fences and effects are items of etcd,
// Redis, DynamoDB, S3, NATS and others. docs/stores.md lists the drivers, and what handlers must
// do.
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
// It gives [epoch.PerItem]: each message changes each item once, in the order of the partition.
// When the handlers have returned nil, the items are written, each by itself, and the position last. A
// store that may lose acknowledged writes ([cas.Facts.Forgets]) may lose effects or repeat them.
//
// The package hides how a store without transactions keeps fences, dead letters, the audit log (500
// entries or 128 KiB of a partition), signs of life and the entries of outbox/casoutbox: what a
// transaction adds counts once the fence names it. A transaction has one partition, so set
// consumer.Options.Committers to the number of partitions that a process applies at a time.
package cassink
