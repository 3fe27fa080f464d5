package rebuild

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/epochfence/epochfence/cas"
	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/schedule"
	"github.com/epochfence/epochfence/internal/reach"
	"github.com/epochfence/epochfence/internal/show"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// config is what a pod, which is a process of its own, is configured with.
type config struct {
	Baseline bool
	ID       string // of the column: its group, and what its objects' names begin with
	Jobs     []string
	Every    time.Duration // between two ticks
	TTL      time.Duration // of leases, and of the baseline's lock
	Parts    int
	Database string // the path of a SQLite file
	Objects  string // host:port of the S3 server
	Leases   string // the URL of a store
	Redis    string // host:port, of the baseline's lock
}

// Work implements [show.Enter].
func (n *Nightly) Work(ctx context.Context, stage *show.Stage) error {
	var c config
	if err := stage.Config(&c); err != nil {
		return fmt.Errorf("nightly: pod's configuration: %w", err)
	}
	db, err := show.OpenDatabase(ctx, c.Database, "")
	if err != nil {
		return err
	}
	defer db.Close()
	if c.Baseline {
		return newUsual(c, db.DB, stage).run(ctx)
	}
	leases, closer, err := n.reachLeases(ctx, c.Leases)
	if err != nil {
		return fmt.Errorf("nightly: the store of leases: %w", err)
	}
	defer closer()
	return runPod(ctx, c, db, leases, stage)
}

// reachLeases waits for a store that is being restarted.
func (n *Nightly) reachLeases(ctx context.Context, url string) (s cas.Store, closer func(), err error) {
	store, err := find(n.stores, url)
	if err != nil {
		return nil, nil, err
	}
	server := reach.Server{
		Name: "the store of leases", Timeout: reach.Timeout, Log: slog.Default(),
		Patience: func(error) time.Duration { return reach.Timeout },
	}
	_, err = server.Wait(ctx, func(ctx context.Context) (err error) {
		s, closer, err = store.Open(ctx, url)
		return err
	})
	return s, closer, err
}

// runPod runs the jobs of this process. To copy it, delete what has to do with stage.
func runPod(ctx context.Context, c config, db *show.Database, leases cas.Store, stage *show.Stage) error {
	objects := client(c.Objects)
	pointers, err := openPointers(ctx, objects, c.ID)
	if err != nil {
		return err
	}
	x := &Index{Objects: objects, Bucket: bucket, Prefix: c.ID + "/", Pointers: pointers, Parts: c.Parts, Part: part}
	var js []schedule.Job[*sqlsink.Tx]
	for _, name := range c.Jobs {
		js = append(js, schedule.Job[*sqlsink.Tx]{
			Name: name, Cron: "@every " + c.Every.String(), CatchUp: schedule.CatchUpAll, Overrun: schedule.OverrunQueue, Step: x.Step,
		})
	}
	jobs, err := schedule.New(schedule.Options{Store: leases, Group: c.ID, LeaseTTL: c.TTL}, js...)
	if err != nil {
		return err
	}
	sink, err := sqlsink.Open(ctx, db.DB, sqlsink.SQLite, sqlsink.Options{})
	if err != nil {
		return err
	}
	return consumer.Run(ctx, jobs, show.FencedAt(sink, stage, c.scene), jobs.Handlers(), consumer.Options{
		MaxBatch: 1, Committers: len(js), HangTimeout: show.HangTimeout,
	})
}
