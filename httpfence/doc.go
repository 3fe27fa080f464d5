// Package httpfence is the receiving side of an epoch: net/http middleware for a
// service that is sent effects by consumers, from an outbox for example.
//
//	err = httpfence.Migrate(ctx, db, httpfence.SQLite, httpfence.SQLOptions{})
//	…
//	store, err := httpfence.OpenSQL(ctx, db, httpfence.SQLite, httpfence.SQLOptions{})
//	…
//	mux.Handle("POST /charges", httpfence.Handler(store, charge, httpfence.Options{}))
//
// A consumer that was frozen or cut off continues sending when it wakes up, after
// another one has taken over. No check of its own can stop it in time: only the
// receiver can. So a request says on whose behalf it acts, by three headers:
//
//	Epochfence-Epoch: 8
//	Epochfence-Scope: account/17
//	Idempotency-Key: "charge-4711"
//
// The [Handler] keeps the highest epoch of each scope. It refuses a lower one with
// 412 Precondition Failed and a problem of the type [TypeStale], and lets the
// handler see each idempotency key once: whoever asks again is given the stored
// answer. The epoch is checked first, so a sender that was superseded learns so
// even where the answer to its request is known.
//
// # Scopes
//
// A scope is one resource: an account, a device, a document. Keys are the
// scope's own: one key may be used in two scopes for two requests.
//
// All requests of one scope must come from ONE partition of one consumer group.
// An epoch counts the claims of one partition; the numbers of two
// partitions mean nothing to each other. If two of them use one scope, the one with
// the lower numbers is refused for good, although it is no zombie.
//
// Where they do, or where somebody has sent a number that no claim reaches, see
// [SQLStore.ForgetAbove].
//
// Choose scopes as small as the resource is. The requests of one scope are
// served one at a time.
//
// # Who may send
//
// The Handler believes what a request says. Whoever can reach it can lock a scope's
// owner out for ever, with one request under the highest epoch there is, and is given
// stored answers without next being asked. So authenticate before it: put the Handler
// behind what does. It bounds the size of a body, not the time it takes to arrive:
// set the http.Server's ReadTimeout. What its bodies and answers may take in memory is
// MaxInside times MaxBody and MaxAnswer, 160 MiB by default: see [Options].
//
// # What holds
//
//	the receiver                           a request's effect happens
//	checks nothing                         at least once, best effort: again after every lost answer, also by a zombie
//	knows the idempotency key only         keyed: once for as long as it knows the key; a zombie's first request counts
//	Handler with Memory                    once and never under a lower epoch after a higher, until the process ends;
//	                                       an effect whose handler then fails has happened, and happens again
//	Handler with SQLStore, outside of Tx   as with Memory, but epochs and answers survive the process; an effect
//	                                       whose answer a crash kept from being stored happens again
//	Handler with SQLStore, through Tx      exactly once, and never under a lower epoch after a higher
//
// The last line rests on the database alone. Epoch, effect and stored answer commit
// in one transaction, which holds the scope's row from before the handler begins:
// a request under epoch 6 waits until the one under epoch 5 has committed or can
// no longer commit.
//
// It ends where a key is forgotten: see [SQLStore.Forget]. Answers must be kept for
// longer than any sender, proxy or queue between may hold a request
// back. Epochs are never deleted; a scope costs one row for ever.
//
// # Failing handlers
//
// An answer that is [Retryable] (408, 425, 429, 5xx) and a panic undo what the
// handler wrote through [Tx]. Nothing is stored for the key, so the next request
// with it gets another try. Every other answer is final, a 402 or 409 too: it is
// committed with what the handler wrote, and given again for ever.
//
// In PostgreSQL a statement that fails aborts the transaction. A handler that
// wants to continue after, say, a unique violation has to set a savepoint
// before it; otherwise its answer becomes a 500.
//
// # Which database
//
// PostgreSQL serves as many scopes at a time as db has connections. A process that is
// frozen in a handler keeps its scope until SQLOptions.IdleTimeout.
//
// SQLite has one write lock for the file: requests are served one at a time,
// whatever their scope, so a slow handler holds up all. Do what is slow before the
// request or after it, not in the handler. A process that is frozen in a handler
// holds up every other process on that file until it continues or dies.
//
// How fast and how durable is the owner's choice, as the settings of db are. With
// SQLite's PRAGMA synchronous=NORMAL in WAL mode, a crash of the process loses
// nothing, but a power cut may take the last transactions: effects, epochs and
// answers together, after they were answered. The sender knows of those answers and
// does not ask again. Where that must not happen use synchronous=FULL, which costs
// an fsync for each request. PostgreSQL's synchronous_commit is the same choice.
package httpfence
