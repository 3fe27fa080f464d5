package peers

import (
	"context"
	"log/slog"
	"time"

	redislock "github.com/go-co-op/gocron-redis-lock/v2"
	"github.com/go-co-op/gocron/v2"
	"github.com/redis/go-redis/v9"

	"github.com/epochfence/epochfence/lease"
	"github.com/epochfence/epochfence/lease/gocronlock"
	"github.com/epochfence/epochfence/sinks/pgsink"
)

// runGocron is gocron with its locker for Redis, a lock that is extended while the job runs, and
// without overlapping runs in a process.
func runGocron(ctx context.Context, p *pod) error {
	client := redis.NewClient(&redis.Options{Addr: p.Redis, DB: p.RedisDB})
	defer func() { _ = client.Close() }()
	locker, err := redislock.NewRedisLockerWithOptions(client, redislock.WithAutoExtendDuration(time.Second),
		redislock.WithRedsyncOptions(redislock.WithTries(1), redislock.WithExpiry(4*time.Second))) // 8 s by default
	if err != nil {
		return err
	}
	task := func(ctx context.Context) error { return p.job(ctx, now(), nil) }
	return p.cron(ctx, locker, task, gocron.WithSingletonMode(gocron.LimitModeReschedule))
}

// runGocronFenced has our locker.
func runGocronFenced(ctx context.Context, p *pod) error {
	member, sink, err := p.member(ctx)
	if err != nil {
		return err
	}
	defer member.Close()
	locker := gocronlock.New(member, gocronlock.Options{})
	return p.cron(ctx, locker, func(ctx context.Context) error {
		return p.fencedJob(ctx, now(), func(ctx context.Context, work lease.Work[pgsink.Tx]) error {
			run, err := locker.Run("invoices")
			if err != nil {
				return err
			}
			return gocronlock.Do(ctx, run, sink, work)
		})
	})
}

func (p *pod) cron(ctx context.Context, locker gocron.Locker, task func(context.Context) error, options ...gocron.JobOption) error {
	s, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker), gocron.WithLogger(slog.Default()))
	if err != nil {
		return err
	}
	options = append(options, gocron.WithName("invoices"))
	if _, err := s.NewJob(gocron.CronJob("*/3 * * * * *", true), gocron.NewTask(task), options...); err != nil {
		return err
	}
	s.Start()
	<-ctx.Done()
	return s.Shutdown()
}
