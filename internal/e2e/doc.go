// Package e2e holds tests alone: of everything together, from a broker through
// [consumer.Run] into a database.
//
// One kind gives it what is wrong: a broker or a database that cannot be reached
// or refuses, a disk that is full, messages and names that are odd, options that
// are mistyped. Each of these tests wants an error that says what failed, on what,
// and what to do, in good time, and then takes the cause away: the same messages
// must be applied, once each and in order.
//
// The other kind measures memory: many messages and a sink that is slow. Its size
// is set by the flag -messages; `make long WHAT=memory` runs it in full.
//
// [consumer.Run]: https://pkg.go.dev/github.com/epochfence/epochfence/consumer#Run
package e2e
