// Package httpfence is the receiving side of an epoch: net/http middleware for a
// service that is sent effects by consumers, from an outbox say.
package httpfence
