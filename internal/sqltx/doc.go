// Package sqltx runs the transactions of stores that work through database/sql: it
// waits for locks and for a connection, begins, lends the transaction to a handler
// and keeps the handler inside, says what errors mean, and commits. Package
// database/sql has a Tx of its own, but that knows no BEGIN IMMEDIATE, cannot be begun late,
// and ends with a context.
//
// What differs between databases is a [Dialect]. Errors are in the words of package
// epoch: ErrTransient, ErrUnhealthy, ErrInDoubt and ErrTxEndedByHandler.
package sqltx
