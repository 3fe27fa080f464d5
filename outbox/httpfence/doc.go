// Package httpfence is net/http middleware for a service that receives effects from consumers, from
// an outbox for example. It refuses requests under an old epoch.
//
//	err = httpfence.Migrate(ctx, db, httpfence.SQLite, httpfence.SQLOptions{})
//	…
//	store, err := httpfence.OpenSQL(ctx, db, httpfence.SQLite, httpfence.SQLOptions{})
//	…
//	mux.Handle("POST /charges", httpfence.Handler(store, charge, httpfence.Options{}))
//
// A consumer that was frozen or cut off continues sending when it wakes up, after another consumer
// has taken over. No check in the sender can stop it in time: only the receiver can. So three
// headers say on whose behalf a request acts:
//
//	Epochfence-Epoch: 8
//	Epochfence-Scope: account/17
//	Idempotency-Key: "charge-4711"
//
// The [Handler] keeps the highest epoch of each scope. It refuses a lower epoch with 412
// Precondition Failed and a problem of the type [TypeStale]. It calls your handler for each
// idempotency key until an answer is stored, and answers later requests with that answer. It checks the epoch first, so
// a superseded sender gets the 412 even if its key has a stored answer.
//
// # Scopes
//
// A scope is one resource: an account, a device, a document. Each scope has its own keys: one key
// may be used in two scopes for two requests.
//
// All requests of one scope must come from ONE partition of one consumer group. An epoch counts the
// claims of one partition; the epochs of two partitions cannot be compared. If two partitions use
// one scope, the Handler refuses the partition with the lower epochs for good, although its owner
// is no zombie. To repair that, or a scope that somebody has sent a far too high epoch to, see
// [SQLStore.ForgetAbove].
//
// Choose scopes as small as the resource is. The requests of one scope are served one at a time.
//
// # Who may send
//
// The Handler trusts the headers. Anybody who can reach it can lock out a scope's owner forever,
// with one request under the highest possible epoch, and can get stored answers without a call of
// next. So put the Handler behind authentication. It limits the size of a body and not the time
// that the body takes to arrive: set the http.Server's ReadTimeout. The bodies and answers that the
// Handler holds take up to MaxInside times the sum of MaxBody and MaxAnswer in memory, 160 MiB by default: see [Options].
//
// # What holds
//
//	the receiver                           a request's effect happens
//	checks nothing                         at least once, best effort: again after every lost answer, also by a zombie
//	knows the idempotency key only         once for as long as it knows the key; also by a zombie whose request arrives first
//	Handler with Memory                    once and never under a lower epoch after a higher, until the process ends;
//	                                       an effect whose handler then fails has happened, and happens again
//	Handler with SQLStore, outside of Tx   as with Memory, but epochs and answers survive the process; after a
//	                                       crash before the answer was stored, the effect happens again
//	Handler with SQLStore, through Tx      exactly once, and never under a lower epoch after a higher
//
// The last line rests on the database alone. Epoch, effect and stored answer commit
// in one transaction, which holds the scope's row from before the handler begins:
// a request under epoch 6 waits until the one under epoch 5 has committed or can
// no longer commit.
//
// The guarantee ends when the answer to a key is deleted: see [SQLStore.Forget]. Keep answers for
// longer than any sender, proxy or queue in between may delay a request. Epochs are never deleted;
// a scope costs one row forever.
//
// # Failing handlers
//
// An answer that is [Retryable] (408, 425, 429, 5xx) or a panic undoes what the handler wrote
// through [Tx]. Nothing is stored for the key, so the next request with it calls the handler again.
// Every other answer is final, including a 402 or 409: it is committed with what the handler wrote,
// and later requests get it again.
//
// In PostgreSQL a statement that fails aborts the transaction. A handler that wants to continue
// after a unique violation, for example, has to set a savepoint before the statement; otherwise its
// answer becomes a 500.
//
// # Which database
//
// PostgreSQL serves as many scopes at a time as db has connections. A process that is
// frozen in a handler keeps its scope until SQLOptions.IdleTimeout.
//
// SQLite has one write lock for the file: requests are served one at a time, whatever their scope,
// so a slow handler delays all requests. Do slow work before the request or after it, not in the
// handler. A process that is frozen in a handler blocks every other process on that file until it
// continues or dies.
//
// Speed and durability depend on the settings of db, which you choose. With SQLite's PRAGMA
// synchronous=NORMAL in WAL mode, a crash of the process loses nothing, but a power cut may take
// the last transactions: effects, epochs and answers together, after they were answered. The sender
// has those answers and does not send again. If that must not happen, use synchronous=FULL, which
// costs an fsync for each request. PostgreSQL's synchronous_commit is the same choice.
package httpfence
