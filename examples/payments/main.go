// Command payments shows an effect outside the database that happens exactly
// once: payment requests come in on a JetStream stream, workers write each into
// a ledger, in SQL, and have it charged by a payment gateway, over HTTP. Workers
// are frozen and killed while they do, and the gateway does not always answer.
// Beside it runs the baseline, struck alike.
//
//	go run ./examples/payments
//
// needs nothing but Go: the nats-server is in this process, the databases are
// SQLite files in a temporary directory, the gateway is a process of its own.
// With -nats and -database it runs on real services. The exit status is 0 only
// if the fenced column is exact.
//
// Three things make it exact, and each has its part of the damage to prevent.
// A payment and the request that charges it are written in one fenced
// transaction, so that neither is without the other, and no zombie writes them
// again. The outbox keeps sending until there is an answer, with the payment as
// its idempotency key, so that what the gateway has done already it does not do
// again. And each request carries the epoch of the claim under which it is sent:
// the gateway refuses what a former owner sends after the present one, so that
// nothing arrives late and out of order.
//
// The baseline charges, writes the payment, and acks, and tries again when the
// gateway does not answer. It sends no idempotency keys. With keys made from the
// payment, a gateway that keeps them for long enough would not charge twice; the
// ledger would still have payments doubled, and charges out of order.
//
// What a reader would copy is in pay.go, and in postgres.go for PostgreSQL: the
// handler, what is done with the gateway's answer, and the wiring of source,
// sink and outbox. gateway.go has what a receiver needs.
package main

import (
	"context"
	"os"
	"os/signal"
	"syscall"

	"github.com/epochfence/epochfence/internal/show"
)

func main() {
	show.Enter(work)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}
