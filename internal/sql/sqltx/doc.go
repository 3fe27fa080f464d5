// Package sqltx runs the transactions of stores that work through database/sql. It waits for locks
// and for a connection, begins, lends the transaction to a handler and keeps the handler inside,
// classifies errors, and commits. [sql.Tx] does not suffice: it has no BEGIN IMMEDIATE, cannot
// begin late, and ends with a context.
//
// A [Dialect] has the differences between databases. Errors match those of package epoch:
// ErrTransient, ErrUnhealthy, ErrInDoubt and ErrTxEndedByHandler.
package sqltx
