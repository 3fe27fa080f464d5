package e2e_test

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/epochfence/epochfence/cas/pgstore"
	"github.com/epochfence/epochfence/consumer"
	"github.com/epochfence/epochfence/consumer/schedule"
	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// jobsEnv makes the test binary a worker process: its name and the URL of its database.
const jobsEnv = "EPOCHFENCE_E2E_JOBS"

const jobsOfAll = 8

// jobsMain runs jobs each second until the process is killed.
func jobsMain(packed string) error {
	go endsWithInput()
	var spec [2]string
	if err := json.Unmarshal([]byte(packed), &spec); err != nil {
		return err
	}
	name, ctx := spec[0], context.Background()
	pool, err := pgxpool.New(ctx, spec[1])
	if err != nil {
		return err
	}
	defer pool.Close()
	logger := slog.New(slog.NewTextHandler(os.Stderr, nil))
	store, err := pgstore.Open(ctx, pool, pgstore.Options{})
	if err != nil {
		return err
	}
	sink, err := pgsink.Open(ctx, pool, pgsink.Options{Logger: logger})
	if err != nil {
		return err
	}
	var jobs []schedule.Job[pgsink.Tx]
	for n := range jobsOfAll {
		jobs = append(jobs, schedule.Job[pgsink.Tx]{
			Name: fmt.Sprint("job", n), Cron: "* * * * * *", CatchUp: schedule.CatchUpAll, Overrun: schedule.OverrunQueue,
			Do: func(ctx context.Context, tx pgsink.Tx, tick schedule.Tick, _ epoch.Epoch) error {
				_, err := tx.Exec(ctx, "insert into run (job, at, worker) values ($1, $2, $3)", n, tick.At, name)
				return err
			},
		})
	}
	source, err := schedule.New(schedule.Options{Store: store, Group: group, Name: name, LeaseTTL: noticedTTL, Logger: logger}, jobs...)
	if err != nil {
		return err
	}
	return consumer.Run(ctx, source, sink, source.Handlers(), consumer.Options{MaxBatch: 1, Logger: logger})
}
