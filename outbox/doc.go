// Package outbox gets effects out of the database: a handler adds a request to an
// outbox in its fenced transaction, and a relay sends it over HTTP once that has
// committed.
//
//	err = sqloutbox.Migrate(ctx, db, sqloutbox.SQLite, sqloutbox.Options{})
//	…
//	store, err := sqloutbox.Open[*sqlsink.Tx](ctx, db, sqloutbox.SQLite, sqloutbox.Options{})
//	…
//	box, err := outbox.New(store, outbox.Options[*sqlsink.Tx]{})
//	…
//	handle := func(ctx context.Context, tx *sqlsink.Tx, m consumer.Message, _ epoch.Epoch) error {
//		…
//		return box.Add(ctx, tx, m, outbox.Entry{Key: account, Scope: account, URL: gateway, Body: charge})
//	}
//	err = consumer.Run(ctx, source, sink, consumer.Each(handle).Background(box.Relay), consumer.Options{})
//
// An entry belongs to the partition of the message that it was added for, and is
// sent by whoever holds that partition's claim, under the claim's epoch. It is
// deleted, in a fenced transaction, when the receiver has answered; what
// Options.OnAnswer writes commits with that. So a process that lost its claim
// deletes and records nothing. But a request that it has on the way arrives, and one that was
// frozen sends when it wakes up. That is for the receiver to refuse.
//
// # What holds
//
// Each entry is sent at least once. Between the answer and the deletion lies a
// moment at which a crash, a lost claim or a lost acknowledgement makes the next
// claim send it again: with the same idempotency key and a higher epoch.
//
//	the receiver                               the effect happens
//	checks nothing                             at least once, best effort: repeated, and at times out of order
//	knows the idempotency key only             keyed: once for as long as it knows the key
//	checks epoch and key, in one transaction   exactly once
//	with its effect, as httpfence.SQLStore
//
// Entries of one Key are sent in order: the next one when the deletion of the one
// before has committed. At a receiver that does not check, a repetition that was
// held up in the network may still arrive after its successor.
//
// # Keys and scopes
//
// Key orders entries at the sender; Scope says to the receiver which resource they
// act on. Often they are the same. All that is sent for one scope must come from one
// partition of one group, because the epochs of two partitions cannot be compared: let the
// key that decides the message's partition decide the scope too. The number of
// partitions of the topic must not change either, unless the scopes change
// with it: a key that moves to a partition with lower epochs would be refused.
//
// Idempotency keys are the scope's own. The random one that [Box.Add] makes is right
// for most: it is stored with the entry, and the same whenever that is sent.
//
// # What becomes of an answer
//
//	2xx                               OnAnswer, and the entry is deleted
//	412 of the type of a stale epoch  what it names, a scope at a receiver, waits: see below
//	408, 425, 429, 5xx, no answer     sent again, after a wait that doubles, or what Retry-After says
//	any other                         OnRefused, and the entry is deleted; without OnRefused it
//	                                  stays, is reported, and is sent again every RetryMax
//
// Nothing is dropped silently. An entry that fails holds up the entries of its
// Key, and no others, as long as fewer than 4096 keys fail at a time and no more than 64
// answers wait for an OnAnswer or OnRefused that fails.
//
// # Stale answers
//
// A receiver that has seen a higher epoch names it, and the relay asks the sink, which knows
// whether the claim still holds. If not, the relay is a zombie's and ends. If it does, the sink
// has lost later claims: by a failover that lost transactions, or because it was restored from a
// backup. So the partition is claimed again above that epoch, as soon as the source has
// confirmed the lease, and everything is sent again. Nobody has to tell receivers anything.
//
// Other entries are sent meanwhile: the answer stops its scope at its receiver, of which one
// entry is tried every RetryMax. Three answers are not followed, but said in the log:
//
//   - one whose epoch is not above the claim's is wrong. It is like no answer;
//   - one whose epoch is out of reach (see [consumer.MaxAbove]), such as 2^63-1, is for an operator, who
//     lowers it at the receiver: [httpfence.SQLStore.ForgetAbove];
//   - one that comes again, after claims were made above what the receiver had seen, is
//     that of a scope that another partition or group uses. Give it scopes of its own.
//
// # Logs
//
// A receiver that fails costs a line when it begins, one now and then with what has failed
// since, and one when it is over, however many entries wait for it. Of a URL no more is
// shown than its scheme and host.
//
// # Drains
//
// When the partition is revoked or lost, requests under way end at once, and
// the relay returns: a drain waits for no receiver. What they were for is sent again
// by the next owner.
package outbox
