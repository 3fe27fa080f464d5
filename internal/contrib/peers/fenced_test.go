package peers

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/cas/pgstore"
	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/kafkasource"
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
			if err := p.write(ctx, in(tx), due, tick); err != nil {
				return err
			}
			return p.freeze(ctx, beforeCommit) // its comparison of the claim follows, with COMMIT
		})
	})
}

func setUpFencedConsumer(ctx context.Context, c config) error {
	return errors.Join(setUpFences(ctx, c), setUpTopic(ctx, c))
}

// runFencedConsumer has the default options, except for the session.
func runFencedConsumer(ctx context.Context, p *pod) error {
	sink, err := pgsink.Open(ctx, p.db, pgsink.Options{})
	if err != nil {
		return err
	}
	source, err := kafkasource.New(kafkasource.Options{Group: p.ID, Topics: []string{p.ID}, Client: p.session()})
	if err != nil {
		return err
	}
	return consumer.Run(ctx, source, sink, consumer.Each(func(ctx context.Context, tx pgsink.Tx, m consumer.Message, _ epoch.Epoch) error {
		return p.message(ctx, string(m.Value), func(ctx context.Context, item int32) error {
			return p.applied(ctx, in(tx), item, nil)
		})
	}), consumer.Options{})
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
	jobs, err := schedule.New(schedule.Options{Store: store, Group: "billing", Name: p.Name, LeaseTTL: 5 * time.Second}, job)
	if err != nil {
		return err
	}
	return consumer.Run(ctx, jobs, sink, jobs.Handlers(), consumer.Options{MaxBatch: 1})
}
