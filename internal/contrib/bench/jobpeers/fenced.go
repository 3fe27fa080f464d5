package main

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/pgstore"
	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/schedule"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/lease"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

func setUpFences(ctx context.Context, c config) error {
	pool, err := pgxpool.New(ctx, c.Database)
	if err != nil {
		return err
	}
	defer pool.Close()
	return pgsink.Migrate(ctx, pool, pgsink.Options{})
}

func (p *pod) stores(ctx context.Context) (cas.Store, *pgsink.Sink, error) {
	store, err := pgstore.Open(ctx, p.db, pgstore.Options{})
	if err != nil {
		return nil, nil, err
	}
	sink, err := pgsink.Open(ctx, p.db, pgsink.Options{})
	return store, sink, err
}

// member joins the group of all pods. Its leases are in the same database as the fences.
func (p *pod) member(ctx context.Context) (*lease.Member, *pgsink.Sink, error) {
	store, sink, err := p.stores(ctx)
	if err != nil {
		return nil, nil, err
	}
	m, err := lease.Open(ctx, store, lease.Options{Group: "billing", Name: p.Name, TTL: 8 * time.Second})
	return m, sink, err
}

// fencedJob is the job, in a transaction that do begins and commits.
func (p *pod) fencedJob(ctx context.Context, tick string, do func(context.Context, lease.Work[pgsink.Tx]) error) error {
	return p.observed(ctx, tick, func(ctx context.Context) error {
		return do(ctx, func(ctx context.Context, tx pgsink.Tx, _ epoch.Epoch) error {
			due, err := p.work(ctx, tx)
			if err != nil {
				return err
			}
			return p.write(ctx, in(tx), due, tick)
		})
	})
}

// runSchedule is package schedule, with the leases in the same database.
func runSchedule(ctx context.Context, p *pod) error {
	store, sink, err := p.stores(ctx)
	if err != nil {
		return err
	}
	job := schedule.Job[pgsink.Tx]{Name: "invoices", Cron: "*/3 * * * * *"}
	job.Do = func(ctx context.Context, tx pgsink.Tx, t schedule.Tick, e epoch.Epoch) error {
		return p.fencedJob(ctx, t.At.Format(clock), func(ctx context.Context, work lease.Work[pgsink.Tx]) error { return work(ctx, tx, e) })
	}
	jobs, err := schedule.New(schedule.Options{Store: store, Group: "billing", Name: p.Name, LeaseTTL: max(5*time.Second, 3*p.Long)}, job)
	if err != nil {
		return err
	}
	return consumer.Run(ctx, jobs, sink, jobs.Handlers(), consumer.Options{MaxBatch: 1})
}
