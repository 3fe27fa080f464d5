// Package kafkaoutbox gets records into Kafka: a handler adds them to an outbox in its fenced
// transaction, and a relay produces them once that has committed. A reader with the isolation level
// read_committed sees each record exactly once.
//
//	store, err := pgoutbox.Open[pgsink.Tx](ctx, pool, pgoutbox.Options{})
//	box, err := kafkaoutbox.New(store, kafkaoutbox.Options{Client: []kgo.Opt{kgo.SeedBrokers(brokers...)}})
//	handlers := consumer.Each(handle).Background(box.Relay) // handle calls box.Add
//
// It hides two transactions that commit one after the other, and what follows if the process dies
// between them. A fenced transaction of the database deletes the entries that Kafka has, and assigns
// the next ones to a batch: it stores their IDs with a random name. Then a transaction of Kafka
// commits the batch's name, as the metadata of an offset of the relay's own group, together with
// the batch's records. The next owner of the partition fences the transactions of others
// (InitProducerId), reads that offset, and knows from the name what to do: see decide in package batches.
//
// It needs a topic for its positions, [Options.Positions], to which nothing is written. It leaves to
// the reader to set read_committed, and to the operator what nobody can decide: a batch whose
// position is lost, or that the database does not know because it lost commits.
// docs/effects-outside.md has the permissions and the limits.
package kafkaoutbox
