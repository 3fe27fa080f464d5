// Package natsoutbox gets messages into a stream of NATS JetStream: a handler adds them to an outbox
// in its fenced transaction, and a relay publishes them once that has committed. The stream stores
// each message exactly once.
//
//	store, err := pgoutbox.Open[pgsink.Tx](ctx, pool, pgoutbox.Options{})
//	box, err := natsoutbox.Open(ctx, store, natsoutbox.Options{JetStream: js, Stream: "STOCK"})
//	handlers := consumer.Each(handle).Background(box.Relay) // handle calls box.Add
//
// It hides two transactions that commit one after the other, and what follows if the process dies
// between them. A fenced transaction of the database deletes the entries that the stream has, and
// assigns the next ones to a batch: it stores their IDs with a random name. Then an atomic batch of
// JetStream stores the messages, and as its last one a position with that name, on a subject that
// the partition has for itself. The position is only stored if it follows the position that the
// relay has read.
//
// The next owner of the partition reads the position and stores it once more. From then on, nothing
// that an earlier owner has sent can be stored, and the name says what to do: see decide in package
// batches. docs/effects-outside.md has the permissions and the limits.
package natsoutbox
