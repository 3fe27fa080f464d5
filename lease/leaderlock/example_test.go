package leaderlock_test

import (
	"context"
	"log"
	"time"

	"k8s.io/client-go/tools/leaderelection"

	"github.com/epochfence/epochfence/epoch"
	"github.com/epochfence/epochfence/lease"
	"github.com/epochfence/epochfence/lease/leaderlock"
	"github.com/epochfence/epochfence/sinks/sqlsink"
)

// lead scales the shops while this process leads. The TTL of the member is 24 s.
func lead(ctx context.Context, member *lease.Member, sink *sqlsink.Sink) error {
	lock, err := leaderlock.New(member, "scaler")
	if err != nil {
		return err
	}
	scale := func(ctx context.Context, tx *sqlsink.Tx, _ epoch.Epoch) error {
		_, err := tx.ExecContext(ctx, `update shop set pods = wanted where pods <> wanted`)
		return err
	}
	leaderelection.RunOrDie(ctx, leaderelection.LeaderElectionConfig{
		Lock: lock, LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(ctx context.Context) {
				for tick := time.Tick(time.Second); ctx.Err() == nil; <-tick {
					if err := leaderlock.Do(ctx, lock, sink, scale); err != nil {
						log.Print(err) // the pods were not changed
					}
				}
			},
			OnStoppedLeading: func() {},
		},
	})
	return nil
}

// RunOrDie returns when this process has stopped leading, or ctx has ended.
func Example() {
	var (
		member *lease.Member
		sink   *sqlsink.Sink
	)
	if err := lead(context.Background(), member, sink); err != nil {
		log.Fatal(err)
	}
}
