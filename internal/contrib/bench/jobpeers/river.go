package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/riverqueue/river"
	"github.com/riverqueue/river/riverdriver/riverpgxv5"
	"github.com/riverqueue/river/rivermigrate"
	"github.com/riverqueue/river/rivertype"
)

type invoices struct{}

// Kind implements [river.JobArgs].
func (invoices) Kind() string { return "invoices" }

type invoicer struct {
	river.WorkerDefaults[invoices]
	*pod
}

// NextRetry makes the second attempt follow the rescue.
func (w *invoicer) NextRetry(*river.Job[invoices]) time.Time { return time.Now().Add(time.Second) }

// Work completes the job in the transaction of its effects in the safe form, as River's page on
// transactional job completion has it.
func (w *invoicer) Work(ctx context.Context, job *river.Job[invoices]) error {
	tick := fmt.Sprintf("job %d attempt %d of %s", job.ID, job.Attempt, job.CreatedAt.UTC().Format(clock))
	if !w.safe() {
		return w.job(ctx, tick, "")
	}
	return w.observed(ctx, tick, func(ctx context.Context) error {
		due, err := w.work(ctx, w.db)
		if err != nil {
			return err
		}
		return pgx.BeginFunc(ctx, w.db, func(tx pgx.Tx) error {
			if err := w.write(ctx, in(tx), due, tick); err != nil {
				return err
			}
			done, err := river.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, job)
			if err == nil && w.Form == checked && (done.Attempt != job.Attempt || done.State != rivertype.JobStateCompleted) {
				return fmt.Errorf("check: the job is %s in attempt %d", done.State, done.Attempt)
			}
			return err
		})
	})
}

func setUpRiver(ctx context.Context, c config) error {
	pool, err := pgxpool.New(ctx, c.Database)
	if err != nil {
		return err
	}
	defer pool.Close()
	m, err := rivermigrate.New(riverpgxv5.New(pool), nil)
	if err != nil {
		return err
	}
	_, err = m.Migrate(ctx, rivermigrate.DirectionUp, nil)
	return err
}

// runRiver is River with a periodic job: in the safe form, one that is not inserted while another one
// waits or runs.
func runRiver(ctx context.Context, p *pod) error {
	insert := &river.InsertOpts{}
	if p.safe() {
		insert.UniqueOpts = river.UniqueOpts{ByArgs: true, ByState: []rivertype.JobState{
			rivertype.JobStateAvailable, rivertype.JobStatePending, rivertype.JobStateRetryable, rivertype.JobStateRunning, rivertype.JobStateScheduled,
		}}
	}
	workers := river.NewWorkers()
	river.AddWorker(workers, &invoicer{pod: p})
	client, err := river.NewClient(riverpgxv5.New(p.db), &river.Config{
		ID: p.Name, Logger: slog.Default(), Workers: workers,
		Queues:     map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 4}},
		JobTimeout: max(4*time.Second, 2*p.Long), RescueStuckJobsAfter: max(5*time.Second, 3*p.Long), // a minute and an hour by default
		PeriodicJobs: []*river.PeriodicJob{river.NewPeriodicJob(river.PeriodicInterval(period),
			func() (river.JobArgs, *river.InsertOpts) { return invoices{}, insert }, nil)},
	})
	if err != nil {
		return err
	}
	if err := client.Start(ctx); err != nil {
		return err
	}
	<-ctx.Done()
	return errors.Join(client.StopAndCancel(context.WithoutCancel(ctx)))
}
