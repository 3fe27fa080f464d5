// Command inventory shows epochfence at work: reservations come in on a Kafka
// topic, workers take stock for them in SQL, and workers are frozen and killed
// while they do. Beside it runs the baseline, struck alike.
//
//	go run ./examples/inventory # compiles first, silently: about a minute on two cores, from then on less than a second
//
// needs nothing but Go: the broker is a fake one in this process, the database
// a SQLite file in a temporary directory. With -brokers and -database it runs
// on real services. The exit status is 0 only if the fenced column is exact.
//
// A process that was frozen usually finds its deadlines passed when it continues,
// and gives up by itself. Here those of the transaction in hand are switched
// off, so that nothing but the fence stands between a zombie and the database.
//
// What a reader would copy is in sqlite.go, and in postgres.go for PostgreSQL:
// the handler and its wiring.
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
