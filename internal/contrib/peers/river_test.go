package peers

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

// invoicer bills in a transaction that completes the job, unless complete is nil.
type invoicer struct {
	river.WorkerDefaults[invoices]
	*pod
	complete func(context.Context, pgx.Tx, *river.Job[invoices]) error
	ignore   bool // the context that ends with JobTimeout
}

// NextRetry makes the second attempt follow the rescue.
func (w *invoicer) NextRetry(*river.Job[invoices]) time.Time { return time.Now().Add(time.Second) }

// Work implements [river.Worker].
func (w *invoicer) Work(ctx context.Context, job *river.Job[invoices]) error {
	if w.ignore {
		ctx = context.WithoutCancel(ctx)
	}
	var last check
	if w.complete != nil {
		last = func(ctx context.Context, tx pgx.Tx) error { return w.complete(ctx, tx, job) }
	}
	return w.job(ctx, fmt.Sprintf("job %d attempt %d", job.ID, job.Attempt), last)
}

func runRiver(ctx context.Context, p *pod) error { return p.river(ctx, &invoicer{pod: p}) }

// runRiverComplete is as River's page on transactional job completion has it.
func runRiverComplete(ctx context.Context, p *pod) error {
	return p.river(ctx, &invoicer{pod: p, complete: riverComplete})
}

// runRiverIgnored is for work that does not look at its context, as calls of other libraries do not.
func runRiverIgnored(ctx context.Context, p *pod) error {
	return p.river(ctx, &invoicer{pod: p, complete: riverComplete, ignore: true})
}

func riverComplete(ctx context.Context, tx pgx.Tx, job *river.Job[invoices]) error {
	_, err := river.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, job)
	return err
}

func runRiverAttempt(ctx context.Context, p *pod) error {
	return p.river(ctx, &invoicer{pod: p, ignore: true, complete: func(ctx context.Context, tx pgx.Tx, job *river.Job[invoices]) error {
		done, err := river.JobCompleteTx[*riverpgxv5.Driver](ctx, tx, job)
		if err == nil && (done.Attempt != job.Attempt || done.State != rivertype.JobStateCompleted) {
			return fmt.Errorf("the job is %s in attempt %d", done.State, done.Attempt)
		}
		return err
	}})
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

// river has a periodic job that is not inserted while another one waits or runs.
func (p *pod) river(ctx context.Context, w *invoicer) error {
	insert := &river.InsertOpts{UniqueOpts: river.UniqueOpts{ByArgs: true, ByState: []rivertype.JobState{
		rivertype.JobStateAvailable, rivertype.JobStatePending, rivertype.JobStateRetryable, rivertype.JobStateRunning, rivertype.JobStateScheduled,
	}}}
	workers := river.NewWorkers()
	river.AddWorker(workers, w)
	client, err := river.NewClient(riverpgxv5.New(p.db), &river.Config{
		ID: p.Name, Logger: slog.Default(), Workers: workers,
		Queues:     map[string]river.QueueConfig{river.QueueDefault: {MaxWorkers: 4}},
		JobTimeout: 4 * time.Second, RescueStuckJobsAfter: 5 * time.Second, // a minute and an hour by default
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
