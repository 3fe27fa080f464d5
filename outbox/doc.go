// Package outbox gets effects out of the database: requests that a handler adds
// in its fenced transaction, sent over HTTP afterwards.
package outbox
