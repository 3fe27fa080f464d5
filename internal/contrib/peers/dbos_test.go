package peers

import (
	"context"
	"log/slog"
	"time"

	"github.com/dbos-inc/dbos-transact-golang/dbos"
	"github.com/jackc/pgx/v5/pgxpool"
)

const dbosSystem = "dbos_sys"

func setUpDBOS(ctx context.Context, c config) error {
	return execute(ctx, c.Database, "create schema "+dbosSystem)
}

// runDBOS is a scheduled workflow whose work is a step and whose effects are a transaction. All pods
// have the executor id "local", the default, so that a pod which starts takes over what is pending.
func runDBOS(ctx context.Context, p *pod) error { return p.dbos(ctx, p.dbosTransaction) }

// runDBOSStep has the whole job in one step.
func runDBOSStep(ctx context.Context, p *pod) error {
	return p.dbos(ctx, func(ctx dbos.Context, tick string, _ *dbos.DataSource) error {
		_, err := dbos.RunAsStep(ctx, func(ctx context.Context) (string, error) { return "", p.job(ctx, tick, nil) })
		return err
	})
}

func (p *pod) dbosTransaction(ctx dbos.Context, tick string, source *dbos.DataSource) error {
	return p.observed(ctx, tick, func(context.Context) error {
		due, err := dbos.RunAsStep(ctx, func(ctx context.Context) ([]int32, error) { return p.work(ctx, p.db) })
		if err != nil {
			return err
		}
		_, err = dbos.RunAsTransaction(ctx, source, func(ctx context.Context, tx dbos.Tx) (string, error) {
			err := p.write(ctx, func(ctx context.Context, sql string, args ...any) error {
				_, err := tx.Exec(ctx, sql, args...)
				return err
			}, due, tick)
			if err != nil {
				return "", err
			}
			return "", p.freeze(ctx, beforeCommit) // its check of the owner follows, in its own code
		})
		return err
	})
}

func (p *pod) dbos(ctx context.Context, job func(dbos.Context, string, *dbos.DataSource) error) error {
	d, err := dbos.NewContext(ctx, dbos.Config{
		AppName: "invoices", SystemDBPool: p.db, DatabaseSchema: dbosSystem, Logger: slog.Default(),
		ApplicationVersion: "1", SchedulerPollingInterval: time.Second,
	})
	if err != nil {
		return err
	}
	effects, err := pgxpool.New(ctx, p.Database)
	if err != nil {
		return err
	}
	defer effects.Close()
	source, err := dbos.NewDataSource(d, effects)
	if err != nil {
		return err
	}
	workflow := func(ctx dbos.Context, in dbos.ScheduledWorkflowInput) (any, error) {
		return "", job(ctx, in.ScheduledTime.UTC().Format(clock), source)
	}
	// Of two ticks at the same time, both would bill, with no fault of anybody.
	if _, err := dbos.RegisterQueue(d, "nightly", dbos.WithGlobalConcurrency(1)); err != nil {
		return err
	}
	dbos.RegisterWorkflow(d, workflow, dbos.WithWorkflowName("invoices"))
	if err := dbos.Launch(d); err != nil {
		return err
	}
	err = dbos.ApplySchedules(d, []dbos.ScheduleSpec{{
		ScheduleName: "nightly", Schedule: "*/3 * * * * *", WorkflowName: "invoices", QueueName: "nightly", AutomaticBackfill: true,
	}})
	if err != nil {
		return err
	}
	<-ctx.Done()
	return dbos.Shutdown(d, time.Second)
}
