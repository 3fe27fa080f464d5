// Command jobs is epochfence with scheduled jobs in one file, to be copied. PostgreSQL has the leases
// of the jobs, and their effects.
package main

import (
	"cmp"
	"context"
	"log"
	"os"
	"os/signal"
	"syscall"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/cas/pgstore"
	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/schedule"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// bill writes the invoices of a day. They commit together with the position after the tick, or not at
// all.
func bill(ctx context.Context, tx pgsink.Tx, t schedule.Tick, _ epoch.Epoch) error {
	_, err := tx.Exec(ctx, `insert into invoice (customer, amount, day) select customer, price, $1 from subscription`, t.At)
	return err
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	pool, err := pgxpool.New(ctx, cmp.Or(os.Getenv("DATABASE_URL"), "postgres://postgres:postgres@localhost:5432/postgres"))
	fatal(err)
	fatal(pgsink.Migrate(ctx, pool, pgsink.Options{}))
	_, err = pool.Exec(ctx, `select pg_advisory_xact_lock(1); create table if not exists subscription (customer text, price int);
		create table if not exists invoice (customer text, amount int, day date)`)
	fatal(err)
	store, err := pgstore.Open(ctx, pool, pgstore.Options{})
	fatal(err)
	sink, err := pgsink.Open(ctx, pool, pgsink.Options{})
	fatal(err)
	jobs, err := schedule.New(schedule.Options{Store: store, Group: "billing"},
		schedule.Job[pgsink.Tx]{Name: "invoices", Cron: cmp.Or(os.Getenv("CRON"), "30 2 * * *"), Zone: "Europe/Berlin", Do: bill})
	fatal(err)
	fatal(consumer.Run(ctx, jobs, sink, jobs.Handlers().OnFailure(sink.DeadLetter), consumer.Options{MaxBatch: 1, Committers: 4}))
}

func fatal(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
