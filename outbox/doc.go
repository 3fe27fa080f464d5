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
// An entry belongs to the partition of the message that it was added for. The process that holds
// the partition's claim sends it, under the claim's epoch. When the receiver has answered, the
// relay deletes the entry in a fenced transaction, together with what Options.OnAnswer writes. So a
// process that lost its claim deletes and records nothing. But its running requests still arrive,
// and a frozen process sends when it wakes up. The receiver has to refuse those requests.
//
// # What holds
//
// Each entry is sent at least once. If a crash, a lost claim or a lost acknowledgement comes
// between the answer and the deletion, the next claim sends the entry again, with the same
// idempotency key and a higher epoch.
//
//	the receiver                               the effect happens
//	checks nothing                             at least once, best effort: repeated, and at times out of order
//	knows the idempotency key only             keyed: once for as long as it knows the key
//	checks epoch and key, in one transaction   exactly once
//	with its effect, as httpfence.SQLStore
//
// Entries of one Key are sent in order: each after the deletion of the entry before has committed.
// If the receiver does not check, a repeated request that was delayed in the network may still
// arrive after the next entry.
//
// # Keys and scopes
//
// Key orders entries at the sender. Scope names the resource that they act on, for the receiver.
// Often they are the same. All entries of one scope must come from one partition of one group,
// because the epochs of two partitions cannot be compared: let the key that decides the message's
// partition decide the scope too. If you change the number of partitions of the topic, change the
// scopes too: otherwise the receiver refuses a key that moves to a partition with lower epochs.
//
// Each scope has its own idempotency keys. The random key that [Box.Add] makes is right for most
// uses: it is stored with the entry, so it is the same in each attempt.
//
// # What becomes of an answer
//
//	2xx                               OnAnswer, and the entry is deleted
//	412 of the type of a stale epoch  the entries of that scope at that receiver wait: see below
//	408, 425, 429, 5xx, no answer     sent again, after a wait that doubles; a longer Retry-After
//	                                  in seconds, below a day, counts, up to RetryMax
//	any other                         OnRefused, and the entry is deleted; without OnRefused it
//	                                  stays, is reported, and is sent again every RetryMax
//
// Nothing is dropped silently. An entry whose request fails quickly delays only the entries of its Key, until
// one of two limits is reached. Each Key whose entries wait or fail counts as one, and so does each such entry without a Key: at
// 4096 of them, the relay reads no more entries of the partition. When 64 answers wait because OnAnswer or
// OnRefused has failed, it sends nothing more. An entry that gets no answer uses one of the partition's Concurrency requests for
// RequestTimeout, at each attempt. If many keys of one receiver get none, raise Concurrency or lower
// RequestTimeout, because the entries of other receivers wait behind them.
//
// # Stale answers
//
// A receiver that has seen a higher epoch names it. The relay then asks the sink whether the claim
// still holds. If not, the process is a zombie, and the relay ends. If the claim holds, the sink
// has lost later claims in a failover that lost transactions or a restore from a backup. So the
// process claims the partition again above that epoch, as soon as the source has confirmed the
// lease, and sends everything again. Receivers need no change.
//
// Other entries are sent meanwhile: the answer stops only its scope at its receiver, and one entry
// of that scope is tried every RetryMax. The process does not claim again after an
// answer of one of these kinds. The relay only writes a log line:
//
//   - The epoch is not above the claim's. The answer is wrong and counts as no answer.
//   - The epoch is out of reach (see [consumer.MaxAbove]), such as 2^63-1. An operator has to lower it
//     at the receiver: [httpfence.SQLStore.ForgetAbove].
//   - The answer comes again after claims above the receiver's epoch. Another partition or group
//     uses the scope. Give it scopes of its own.
//
// # Logs
//
// A failing receiver causes a line when the failure begins, lines with counts while it lasts, and a
// line when it is over, however many entries wait. Of a URL, logs show only the scheme and host.
//
// # Drains
//
// When the partition is revoked or lost, running requests end at once, and the relay returns: a
// drain waits for no receiver. The next owner sends their entries again.
package outbox
