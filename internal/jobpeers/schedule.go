package main

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/cas/pgstore"
	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/schedule"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

func setUpSchedule(ctx context.Context, c config) error {
	pool, err := pgxpool.New(ctx, c.Database)
	if err != nil {
		return err
	}
	defer pool.Close()
	return errors.Join(pgsink.Migrate(ctx, pool, pgsink.Options{}), pgstore.Migrate(ctx, pool, pgstore.Options{}))
}

// runSchedule is package schedule, with the leases in the same database.
func runSchedule(ctx context.Context, p *pod) error {
	store, err := pgstore.Open(ctx, p.db, pgstore.Options{})
	if err != nil {
		return err
	}
	sink, err := pgsink.Open(ctx, p.db, pgsink.Options{})
	if err != nil {
		return err
	}
	job := schedule.Job[pgsink.Tx]{Name: "invoices", Cron: "*/3 * * * * *"}
	job.Do = func(ctx context.Context, tx pgsink.Tx, t schedule.Tick, _ epoch.Epoch) error {
		tick := t.At.Format(clock)
		return p.observed(ctx, tick, func(ctx context.Context) error {
			due, err := p.work(ctx, tx)
			if err != nil {
				return err
			}
			return p.write(ctx, in(tx), due, tick)
		})
	}
	jobs, err := schedule.New(schedule.Options{Store: store, Group: "billing", Name: p.Name, LeaseTTL: max(5*time.Second, 3*p.Long)}, job)
	if err != nil {
		return err
	}
	return consumer.Run(ctx, jobs, sink, jobs.Handlers(), consumer.Options{MaxBatch: 1})
}
