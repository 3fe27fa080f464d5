package main

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

// runDBOS is a scheduled workflow of DBOS. The whole job is one step in the plain form. In the safe
// one, the work is a step and the effects are a transaction. All pods have the executor id "local",
// the default, so that a pod which starts takes over what is pending.
func runDBOS(ctx context.Context, p *pod) error {
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
		tick := in.ScheduledTime.UTC().Format(clock)
		if !p.safe() {
			return dbos.RunAsStep(ctx, func(ctx context.Context) (string, error) { return "", p.job(ctx, tick, "") })
		}
		return "", p.observed(ctx, tick, func(context.Context) error {
			due, err := dbos.RunAsStep(ctx, func(ctx context.Context) ([]int32, error) { return p.work(ctx, p.db) })
			if err != nil {
				return err
			}
			_, err = dbos.RunAsTransaction(ctx, source, func(ctx context.Context, tx dbos.Tx) (string, error) {
				return "", p.write(ctx, func(ctx context.Context, sql string, args ...any) error {
					_, err := tx.Exec(ctx, sql, args...)
					return err
				}, due, tick)
			})
			return err
		})
	}
	dbos.RegisterWorkflow(d, workflow, dbos.WithWorkflowName("invoices"))
	if err := dbos.Launch(d); err != nil {
		return err
	}
	err = dbos.ApplySchedules(d, []dbos.ScheduleSpec{{
		ScheduleName: "nightly", Schedule: "*/3 * * * * *", WorkflowName: "invoices", AutomaticBackfill: p.safe(),
	}})
	if err != nil {
		return err
	}
	<-ctx.Done()
	dbos.Shutdown(d, time.Second)
	return nil
}
