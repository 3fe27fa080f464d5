// Package e2e has only tests: of everything together, from a broker through
// [consumer.Run] into a database.
//
// One kind is about failures: a broker or a database that cannot be reached or
// refuses, a full disk, odd messages and names, mistyped options. Each test expects,
// in good time, an error that says what failed, on what, and what to do. Then it
// removes the cause, and the same messages must be applied, once each and in order.
//
// The other kind measures memory: many messages and a sink that is slow. Its size
// is set by the flag -messages; `make long WHAT=memory` runs it in full.
//
// [consumer.Run]: https://pkg.go.dev/github.com/epochfence/epochfence/consumer#Run
package e2e
