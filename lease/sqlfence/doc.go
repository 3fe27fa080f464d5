// Package sqlfence checks a fencing token in the row that a write changes. A row of your own then
// needs no table of fences: it has two more columns.
//
//	ALTER TABLE account ADD COLUMN lock_name text;
//	ALTER TABLE account ADD COLUMN lock_epoch bigint;
//
// A process that holds a lock writes the row under the lock's name and its token, a number that
// grows with each holder. The write is refused if the row has a higher token. So a process that was
// frozen, and continues after its successor has written the row, changes nothing.
//
// In PostgreSQL, the SQL function epochfence_token compares the two numbers inside the UPDATE.
// [PostgreSQL] returns the script that creates it. It works with every client; this is pgx:
//
//	done, err := pool.Exec(ctx, `update account set balance = balance - $4,
//	    lock_name = $2, lock_epoch = epochfence_token(lock_name, lock_epoch, $2, $3)
//	    where id = $1`, id, "billing/nightly", token, amount)
//	if err != nil {
//	    return sqlfence.Explain(err) // for example a *RefusedError
//	}
//	if done.RowsAffected() == 0 {
//	    return errNoAccount // a refusal is an error, so there is no such row
//	}
//
// In SQLite, a trigger on the table compares them: see [SQLite]. The UPDATE only sets both columns:
//
//	err := sqlfence.Exec(ctx, db, `UPDATE report SET text = ?, lock_name = ?, lock_epoch = ? WHERE id = ?`,
//	    text, "billing/nightly", token, id)
//
// [Exec] also runs a statement on PostgreSQL through database/sql. There, the statement must call
// epochfence_token.
//
// docs/leases.md has the text for other databases.
//
// # Same owner, several writes
//
//	form                     a token equal to the row's   for
//	<=  (the default)        is accepted                  an owner that writes a row several times
//	<   (once => true, or    is refused                   work that must happen once per lease; also
//	     SQLiteOnce)                                      a write that is repeated after a lost answer
//
// In the form <, a [RefusedError] whose Seen equals Token says that the token has written the row
// before. Read the token once and keep it: [Held.Generation] grows with each confirmation of the lease.
//
// A later owner is protected from the moment of its first write to the row. In the form <=, work that
// begins by reading the row must set the two columns before it reads.
//
// # Tokens
//
// Three numbers can be the token. Each grows with each holder, unless its store loses writes that it
// has acknowledged:
//
//	number                   its store
//	Held.Generation          the store of the leases
//	epoch of lease.Claimed   the database of the sink
//	epoch of a handler       the database of the sink
//
// They are counted apart, so give each its own lock name, even for one resource.
//
// # Scopes
//
// A lock name says what a number counts: the group, the resource, and its number if it has one, such
// as "billing/orders/3". A row belongs to one lock at a time. A write under another name is refused
// with a [ScopeError], whatever the numbers are, because the numbers of two locks have no order.
// This is how moved rows are noticed: when partitions are added, a row of orders/3 may become one
// of orders/11. A row whose two columns are null takes any lock.
//
// The holder of the old lock moves the rows. The statement is the same in each database:
//
//	UPDATE account SET lock_name = 'billing/orders/11', lock_epoch = NULL
//	    WHERE lock_name = 'billing/orders/3' AND lock_epoch <= $1 AND …
//
// $1 is the token under which the holder has the old lock. From then on the old lock is refused, with
// any token. Rows that a later owner of the old lock has written are left where they are. Do not move a
// row back to a name that it had before: the row has forgotten that lock's tokens. Move rows also after
// the store of the leases has lost writes, when its numbers repeat: to a name that says so, such as
// "billing/nightly/2". $1 is then no token but the highest lock_epoch of these rows. First make sure
// that no holder from before the loss is left.
//
// # What does not hold
//
// [lease.Do] gives more, and should be the first choice if its work fits into a transaction of a sink.
//
//   - Nothing here is exactly once. In the form <=, a write that is repeated after a lost answer is
//     applied twice.
//   - A statement that leaves the two columns alone is not compared. A DELETE is not, and a row that
//     was deleted forgets its token: mark it as deleted instead. In SQLite, INSERT OR REPLACE deletes.
//     INSERT … ON CONFLICT DO UPDATE is compared.
//   - A statement that writes the columns by itself may write anything in PostgreSQL.
//   - A token protects the rows that have it. Two rows written in one transaction need one each.
//   - A token may repeat: see Tokens above. The claim that lease.Do compares is random, and does not.
//
// # Isolation
//
// At READ COMMITTED, an UPDATE that has waited for another transaction is compared with the row that
// this transaction has left. At REPEATABLE READ and SERIALIZABLE it fails with the SQLSTATE 40001: try
// the transaction again under the same token. SQLite has one writer at a time. An UPDATE of several rows is refused as a whole if one of them refuses.
//
// An owner that is frozen in an open transaction keeps the lock of the row, and its successor waits.
// Write with a single statement outside a transaction, or set PostgreSQL's
// idle_in_transaction_session_timeout. In SQLite, such an owner blocks all writers of the file.
//
// [Held.Generation]: https://pkg.go.dev/github.com/epochfence/epochfence/lease#Held.Generation
// [lease.Do]: https://pkg.go.dev/github.com/epochfence/epochfence/lease#Do
package sqlfence
