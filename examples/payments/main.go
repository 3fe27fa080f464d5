// Command payments shows an effect outside the database that happens exactly once. Payment requests
// arrive on a JetStream stream. Workers write each into a ledger in SQL, and have a payment gateway
// charge it over HTTP. Incidents freeze and kill workers meanwhile, and the gateway does not always
// answer. A baseline runs beside it, with the same incidents.
//
//	go run ./examples/payments
//
// needs only Go: the nats-server and the gateway are in this process, and the databases are SQLite files
// in a temporary directory. With -nats and -database it runs on real
// services. The exit code is 0 only if the fenced column is exact.
//
// Three things make it exact, and each prevents a part of the damage. One fenced transaction writes
// a payment and the request that charges it, so that neither exists without the other, and no
// zombie writes them again. The outbox repeats a request until there is an answer, with the payment
// as the idempotency key, so that the gateway charges only once. Each request carries the epoch of
// the claim under which it is sent: the gateway refuses requests of a former owner after requests
// of the present one, so that nothing arrives late and out of order.
//
// The baseline charges, writes the payment, and acks, and retries when the gateway does not answer.
// It sends no idempotency keys. With keys made from the payment, a gateway that keeps them for long
// enough would not charge twice; the ledger would still have payments doubled, and charges out of
// order.
//
// The code to copy is in pay.go, and in postgres.go for PostgreSQL: the handler, the function for
// the gateway's answer, and the wiring of source, sink and outbox. gateway.go has the code for a
// receiver.
package main

import "github.com/epochfence/epochfence/internal/show"

func main() { show.Main(newPayments()) }
