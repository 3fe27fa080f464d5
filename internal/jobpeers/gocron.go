package main

import (
	"context"
	"log/slog"
	"time"

	redislock "github.com/go-co-op/gocron-redis-lock/v2"
	"github.com/go-co-op/gocron/v2"
	"github.com/redis/go-redis/v9"
)

// runGocron is gocron with its locker for Redis: as in the README of that, or with a lock that is
// extended while the job runs, and without overlapping runs in a process.
func runGocron(ctx context.Context, p *pod) error {
	client := redis.NewClient(&redis.Options{Addr: p.Redis, DB: p.RedisDB})
	defer func() { _ = client.Close() }()
	expiry := redislock.WithExpiry(4 * time.Second) // 8 s by default
	options := []gocron.JobOption{gocron.WithName("invoices")}
	var locker gocron.Locker
	var err error
	if p.safe() {
		locker, err = redislock.NewRedisLockerWithOptions(client, redislock.WithAutoExtendDuration(time.Second),
			redislock.WithRedsyncOptions(redislock.WithTries(1), expiry))
		options = append(options, gocron.WithSingletonMode(gocron.LimitModeReschedule))
	} else {
		locker, err = redislock.NewRedisLocker(client, redislock.WithTries(1), expiry)
	}
	if err != nil {
		return err
	}
	s, err := gocron.NewScheduler(gocron.WithDistributedLocker(locker), gocron.WithLogger(slog.Default()))
	if err != nil {
		return err
	}
	task := gocron.NewTask(func(ctx context.Context) error { return p.job(ctx, now(), "") })
	if _, err := s.NewJob(gocron.CronJob("*/3 * * * * *", true), task, options...); err != nil {
		return err
	}
	s.Start()
	<-ctx.Done()
	return s.Shutdown()
}
