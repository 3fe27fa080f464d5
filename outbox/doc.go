// Package outbox gets effects out of the database: a handler adds a request to an outbox in its
// fenced transaction, and a relay sends it over HTTP once that has committed.
//
//	store, err := sqloutbox.Open[*sqlsink.Tx](ctx, db, sqloutbox.SQLite, sqloutbox.Options{})
//	box, err := outbox.New(store, outbox.Options[*sqlsink.Tx]{})
//	handlers := consumer.Each(handle).Background(box.Relay) // handle calls box.Add
//
// It hides how entries are read, sent in the order of their Keys, and deleted in a fenced
// transaction after the answer, together with what Options.OnAnswer writes. Each entry is sent at
// least once: after a crash or a lost claim, the next claim sends it again, with the same
// idempotency key and a higher epoch. docs/effects-outside.md has what receivers make of it.
//
// It decides what follows from an answer, and what waits for what. A failing entry delays only its
// Key, until 4,096 Keys of a partition wait or 64 answers cannot be recorded. When a receiver has
// seen a higher epoch, its scope waits, and the relay asks the sink whether the claim still holds.
// If it does, the sink has lost claims in a failover, and the process claims above that epoch.
//
// It leaves to the receiver to refuse a repeated key and a stale epoch (package httpfence does), and
// to the caller which requests share a scope: only those of one partition. A receiver that does not
// answer uses one of [Options].Concurrency for RequestTimeout at each attempt, so raise one or lower
// the other if many do not. When a partition is lost, requests end at once: no drain waits for a
// receiver. Logs show the scheme and host of a URL, and no more.
package outbox
