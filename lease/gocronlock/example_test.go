package gocronlock_test

import (
	"context"

	"github.com/go-co-op/gocron/v2"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/lease"
	"github.com/epochfence/epochfence/lease/gocronlock"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// schedule extends the subscriptions that have ended, in one process at a time.
func schedule(member *lease.Member, sink *sqlsink.Sink) (gocron.Scheduler, error) {
	locker := gocronlock.New(member, gocronlock.Options{})
	scheduler, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker))
	if err != nil {
		return nil, err
	}
	extend := func(ctx context.Context, tx *sqlsink.Tx, _ epoch.Epoch) error {
		_, err := tx.ExecContext(ctx, `update subscription set ends = date(ends, '+1 month') where ends <= current_date`)
		return err
	}
	task := func(ctx context.Context) error {
		run, err := locker.Run("renewals")
		if err != nil {
			return err
		}
		return gocronlock.Do(ctx, run, sink, extend)
	}
	_, err = scheduler.NewJob(gocron.CronJob("0 3 * * *", false), gocron.NewTask(task), gocron.WithName("renewals"))
	return scheduler, err
}

// The member's store may be any driver of package cas. Close the member after scheduler.Shutdown.
func Example() {
	var (
		member *lease.Member
		sink   *sqlsink.Sink
	)
	scheduler, err := schedule(member, sink)
	if err != nil {
		panic(err)
	}
	scheduler.Start()
}
